"""Selection of scored examples, and their alignments."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from bertscore_tm.metric import BERTScore
from bertscore_tm.scoring.token_weights import TokenWeights
from bertscore_tm.views import Alignment

__all__ = ["Sample", "align_with_closest", "choose_samples"]

# Scores are compared to five decimals.
_STEPS_OF_F1 = 100_000


@dataclass(frozen=True)
class Sample:
    """A selected example with its scores.

    Args:
        kind: reason of the selection: ``"worst"``, ``"median"``, ``"best"`` or ``"followed"``.
        number: number of the example in the data set.
        precision: precision of the prediction.
        recall: recall of the prediction.
        f1: F1 of the prediction.
        input: input of the model; ``None`` if it is not known.
        prediction: generated text.
        references: references of the prediction.
        alignment: alignment of the prediction and the closest reference, which has the highest F1; ``None`` if the
            sample has no picture.
    """

    kind: str
    number: int
    precision: float
    recall: float
    f1: float
    input: str | None
    prediction: str
    references: list[str]
    alignment: Alignment | None


def choose_samples(f1: Tensor, count: int) -> dict[str, list[int]]:
    """Select the pairs with the worst, the median and the best scores, each pair at most once.

    Args:
        f1: F1 of each pair, shape (pairs,).
        count: number of pairs of each kind; reduced if there are fewer than three times as many pairs.

    Returns:
        Positions of the pairs by kind: worst first, median in ascending order, best first.

    Example:
        >>> choose_samples(torch.tensor([0.3, 0.9, 0.5, 0.1, 0.7, 0.8]), 2)
        {'worst': [3, 0], 'median': [2, 4], 'best': [1, 5]}
        >>> choose_samples(torch.tensor([0.3, 0.9]), 2)
        {'worst': [0], 'median': [], 'best': [1]}
    """
    # Equal texts differ by rounding, which depends on the batches that they were in.
    order = (f1.double() * _STEPS_OF_F1).round().argsort(stable=True).tolist()
    count = min(count, max(1, len(order) // 3))
    worst, rest = order[:count], order[count:]
    best = rest[-count:][::-1]
    between = rest[: len(rest) - len(best)]
    start = (len(between) - count) // 2 if len(between) > count else 0
    return {"worst": worst, "median": between[start : start + count], "best": best}


def align_with_closest(
    prediction: str, references: list[str], metric: BERTScore, weights: TokenWeights
) -> Alignment | None:
    """Return the alignment of a prediction and its reference with the highest F1; ``None`` if one of them is empty."""
    has_content, *contents = metric.encoder.tokenizer([prediction, *references]).has_content
    alignable = [text for text, is_alignable in zip(references, contents, strict=True) if is_alignable]
    if not has_content or not alignable:
        return None
    closest = 0
    if len(alignable) > 1:
        # The F1 of alignments has a pole.
        scorer = BERTScore(metric.encoder, idf=weights, reduction="none", layer=metric.layer, sync_on_compute=False)
        scores = scorer.to(metric.device).for_selection()([prediction] * len(alignable), alignable)
        closest = int(scores["f1"].argmax())
    return metric.align(prediction, alignable[closest], idf=weights)
