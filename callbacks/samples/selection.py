"""Selection of scored examples and of the words that lower their scores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from string import punctuation
from unicodedata import category

from torch import Tensor

from bertscore_tm.metric import BERTScore
from bertscore_tm.scoring.alignment import AlignedText
from bertscore_tm.scoring.token_weights import TokenWeights
from bertscore_tm.views import Alignment

__all__ = ["Sample", "choose_samples", "describe_sample", "find_unmatched_words"]

# Largest number of unmatched words per text.
_NUM_UNMATCHED = 3
# A word with a higher similarity counts as matched.
_MATCHED_SIMILARITY = 0.99
# Scores are compared to five decimals.
_STEPS_OF_F1 = 100_000


@dataclass(frozen=True)
class Sample:
    """A selected example with its scores and its unmatched words.

    Args:
        kind: reason of the selection: ``"worst"``, ``"median"``, ``"best"`` or ``"followed"``.
        number: number of the example in the data set.
        precision: precision of the prediction.
        recall: recall of the prediction.
        f1: F1 of the prediction.
        input: input of the model; ``None`` if it is not known.
        prediction: generated text.
        references: references of the prediction.
        out_of_place: words of the prediction that cost the most precision, separated by commas; ``None`` if the texts
            were not aligned.
        missed: words of the closest reference that cost the most recall, separated by commas; or ``None``.
        alignment: alignment of the prediction and the closest reference, which has the highest F1; ``None`` if one of
            them is empty, or the texts were not aligned.
    """

    kind: str
    number: int
    precision: float
    recall: float
    f1: float
    input: str | None
    prediction: str
    references: list[str]
    out_of_place: str | None
    missed: str | None
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


def find_unmatched_words(side: AlignedText) -> str:
    """Return the words that lower a text's score the most, without punctuation, separated by commas.

    The cost of a word is the sum of weight times (1 - best similarity) over its tokens. At most three words are
    returned, in the order of the text, each with at least the average cost of the text's words.
    """
    words: list[tuple[str, float, float]] = []
    for token, joined, weight, best in zip(
        side.tokens, side.joined, side.weights.tolist(), side.best.tolist(), strict=True
    ):
        cost = weight * (1 - best)
        if joined and words:
            start, start_cost, start_best = words.pop()
            words.append((start + token, start_cost + cost, min(start_best, best)))
        else:
            words.append((token, cost, best))
    average = sum(cost for _, cost, _ in words) / len(words)
    costly = [
        i for i, (_, cost, best) in enumerate(words) if cost > 0 and cost >= average and best < _MATCHED_SIMILARITY
    ]
    costliest = sorted(sorted(costly, key=lambda i: -words[i][1])[:_NUM_UNMATCHED])
    stripped = [_strip_punctuation(words[i][0]) or words[i][0] for i in costliest]
    return ", ".join(dict.fromkeys(stripped))


def _strip_punctuation(word: str) -> str:
    marks = {one for one in word if one in punctuation or category(one).startswith("P")}  # in any script
    return word.strip("".join(marks))


def describe_sample(
    kind: str,
    number: int,
    scores: Sequence[float],
    texts: tuple[str | None, str, list[str]],
    metric: BERTScore,
    weights: TokenWeights | None,
) -> Sample:
    """Return an example aligned with its closest reference; without token weights, nothing is aligned or encoded."""
    text, prediction, references = texts
    alignment = None
    if weights is not None:
        content, *contents = metric.encoder.tokenizer([prediction, *references]).has_content
        alignable = [one for one, has_content in zip(references, contents, strict=True) if content and has_content]
        if alignable:
            alignment = metric.align(prediction, _find_closest(prediction, alignable, metric, weights), idf=weights)
    unaligned = None if weights is None else ""
    precision, recall, f1 = scores
    return Sample(
        kind=kind,
        number=number,
        precision=precision,
        recall=recall,
        f1=f1,
        input=text,
        prediction=prediction,
        references=references,
        out_of_place=unaligned if alignment is None else find_unmatched_words(alignment.candidate),
        missed=unaligned if alignment is None else find_unmatched_words(alignment.reference),
        alignment=alignment,
    )


def _find_closest(prediction: str, references: list[str], metric: BERTScore, weights: TokenWeights) -> str:
    """Return the reference with the highest F1; that of alignments has a pole."""
    if len(references) == 1:
        return references[0]
    scorer = BERTScore(metric.encoder, idf=weights, reduction="none", layer=metric.layer, sync_on_compute=False)
    scores = scorer.to(metric.device).for_selection()([prediction] * len(references), references)
    return references[int(scores["f1"].argmax())]
