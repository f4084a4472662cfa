"""Which scored examples are worth a look, and what is wrong with them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from string import punctuation

from torch import Tensor

from bertscore_tm.metric import BERTScore
from bertscore_tm.scoring.alignment import AlignedText, Alignment
from bertscore_tm.scoring.token_weights import TokenWeights

__all__ = ["Sample", "choose_samples", "describe_sample", "find_unmatched_words"]

# Words that are named for each side of a pair.
_NUM_MISFITS = 3
# A word matched better than this is none, whatever the others are.
_WELL_MATCHED = 0.99


@dataclass(frozen=True)
class Sample:
    """An example and its scores.

    Args:
        kind: why it is shown: ``"worst"``, ``"median"``, ``"best"`` or ``"followed"``.
        number: number of the example in the data set.
        precision: its precision.
        recall: its recall.
        f1: its F1.
        input: what the model was given; ``None`` where that is not known.
        prediction: what it made of it.
        references: what it should have made of it.
        out_of_place: words of the prediction that cost the most precision.
        missed: words of the closest reference that cost the most recall.
        closest: that reference.
        alignment: how the two match; ``None`` where one of them has no tokens.
    """

    kind: str
    number: int
    precision: float
    recall: float
    f1: float
    input: str | None
    prediction: str
    references: list[str]
    out_of_place: str
    missed: str
    closest: str
    alignment: Alignment | None


def choose_samples(f1: Tensor, count: int) -> dict[str, list[int]]:
    """Choose the worst, the median and the best scores, each place once.

    Args:
        f1: a score per pair.
        count: how many of each; fewer where there are less than three times as many pairs.

    Returns:
        Places by kind: the worst first, the median ones from low to high, the best first.

    Example:
        >>> choose_samples(torch.tensor([0.3, 0.9, 0.5, 0.1, 0.7, 0.8]), 2)
        {'worst': [3, 0], 'median': [2, 4], 'best': [1, 5]}
        >>> choose_samples(torch.tensor([0.3, 0.9]), 2)
        {'worst': [0], 'median': [], 'best': [1]}
    """
    order = f1.argsort(stable=True).tolist()
    count = min(count, max(1, len(order) // 3))
    worst, rest = order[:count], order[count:]
    best = rest[-count:][::-1]
    between = rest[: len(rest) - len(best)]
    start = (len(between) - count) // 2 if len(between) > count else 0
    return {"worst": worst, "median": between[start : start + count], "best": best}


def find_unmatched_words(side: AlignedText) -> str:
    """Name the words that cost a text the most.

    A word costs the sum over its tokens of weight times one minus best similarity. Named are those that cost more than
    the text's average word, at most three, in the order of the text.

    Args:
        side: one of two aligned texts.

    Returns:
        The words with commas between them, without the punctuation around them; empty where everything is matched
        well.
    """
    words: list[tuple[str, float, float]] = []
    for token, joined, weight, best in zip(
        side.tokens, side.joined, side.weights.tolist(), side.best.tolist(), strict=True
    ):
        cost = weight * (1 - best)
        if joined and words:
            before = words.pop()
            words.append((before[0] + token, before[1] + cost, min(before[2], best)))
        else:
            words.append((token, cost, best))
    average = sum(cost for _, cost, _ in words) / len(words)
    costly = [i for i, (_, cost, best) in enumerate(words) if cost > 0 and cost >= average and best < _WELL_MATCHED]
    named = sorted(sorted(costly, key=lambda i: -words[i][1])[:_NUM_MISFITS])
    bare = [words[i][0].strip(punctuation) or words[i][0] for i in named]
    return ", ".join(dict.fromkeys(bare))


def describe_sample(
    kind: str,
    number: int,
    scores: Sequence[float],
    texts: tuple[str | None, str, list[str]],
    metric: BERTScore,
    weights: TokenWeights,
) -> Sample:
    """Find out what is wrong with an example.

    Args:
        kind: why it is shown.
        number: its number in the data set.
        scores: its precision, recall and F1.
        texts: input, prediction and references.
        metric: the metric that has scored it.
        weights: the metric's weights.

    Returns:
        The example, matched with the reference of the highest F1.
    """
    text, prediction, references = texts
    pairs = metric.encoder.tokenizer([prediction, *references]).has_content
    closest, alignment = references[0], None
    for reference, has_content in zip(references, pairs[1:], strict=True):
        if not pairs[0] or not has_content:
            continue
        found = metric.align(prediction, reference, weights)
        if alignment is None or found.f1 > alignment.f1:
            closest, alignment = reference, found
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
        out_of_place="" if alignment is None else find_unmatched_words(alignment.candidate),
        missed="" if alignment is None else find_unmatched_words(alignment.reference),
        closest=closest,
        alignment=alignment,
    )
