"""Measures of generated summaries, one value per text."""

from __future__ import annotations

import re
from collections.abc import Sequence

from torchmetrics.functional.text import rouge_score

from bertscore_tm import FrozenEncoder
from bertscore_tm.functional import bert_score

__all__ = ["Measured", "measure", "repetition"]

Measured = dict[str, list[float]]
"""Values by the name of the measure, one per text."""


def measure(
    summaries: Sequence[str], references: Sequence[str], encoder: FrozenEncoder, layers: Sequence[int]
) -> Measured:
    """Measure summaries.

    Args:
        summaries: generated texts.
        references: one reference for each.
        encoder: encoder of all layers.
        layers: layers to report.

    Returns:
        ``layerN_f1`` of every layer; ``rougeL``, its F-measure; ``repetition``; and ``words`` and ``reference_words``,
        the numbers of words for the length ratio.
    """
    f1 = bert_score(list(summaries), list(references), encoder, device="cpu")["f1"]
    measured: Measured = {f"layer{layer}_f1": f1[layer].tolist() for layer in layers}
    rouge = [rouge_score(*pair, rouge_keys="rougeL") for pair in zip(summaries, references, strict=True)]
    measured["rougeL"] = [float(scores["rougeL_fmeasure"]) for scores in rouge]
    measured["repetition"] = [repetition(text) for text in summaries]
    measured["words"] = [float(len(text.split())) for text in summaries]
    measured["reference_words"] = [float(len(text.split())) for text in references]
    return measured


def repetition(text: str) -> float:
    """Return the share of words and punctuation marks that occurred earlier in the text, ignoring case.

    Args:
        text: the text.

    Returns:
        A share from 0 to 1; 0 for an empty text.

    Example:
        >>> repetition("the cat and the dog")
        0.2
    """
    words = re.findall(r"\w+|[^\w\s]", text.lower())
    return 1 - len(set(words)) / len(words) if words else 0.0
