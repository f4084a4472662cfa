"""Measures of generated summaries, one value per text."""

from __future__ import annotations

import re
from collections.abc import Sequence

from torchmetrics.functional.text import rouge_score

from bertscore_tm import FrozenEncoder
from bertscore_tm.functional import bert_score

__all__ = ["ROUGE", "Measured", "measure", "repetition"]

ROUGE = ("rouge1", "rouge2", "rougeL")
"""ROUGE variants; their F-measures are reported."""

Measured = dict[str, list[float]]
"""Values by the name of the measure, one per text."""


def measure(
    summaries: Sequence[str], references: Sequence[str], encoders: dict[str, FrozenEncoder], device: str
) -> Measured:
    """Measure summaries.

    Args:
        summaries: generated texts.
        references: one reference for each.
        encoders: encoders of BERTScore, by the prefix of their measures.
        device: device of the encoders.

    Returns:
        ``NAME_precision``, ``NAME_recall`` and ``NAME_f1`` of every encoder; ROUGE; ``repetition``; and ``words`` and
        ``reference_words``, the numbers of words for the length ratio.
    """
    measured: Measured = {}
    for name, encoder in encoders.items():
        scores = bert_score(list(summaries), list(references), encoder, device=device)
        measured |= {f"{name}_{key}": scores[key].tolist() for key in ("precision", "recall", "f1")}
    per_text = [rouge_score(*pair, rouge_keys=ROUGE) for pair in zip(summaries, references, strict=True)]
    measured |= {key: [float(scores[f"{key}_fmeasure"]) for scores in per_text] for key in ROUGE}
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
