"""Metrics on an encoder with random vectors, and updates with generated pairs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bertscore_tm import BERTScore, FrozenEncoder

__all__ = ["KINDS", "feed", "make_metric"]

_CORPUS = [f"text number {number} of a corpus that is fixed" for number in range(100)]
# Settings that determine the state and the traffic of a metric.
KINDS: dict[str, dict[str, Any]] = {
    "mean": {},
    "none": {"reduction": "none"},
    "idf": {"idf": True},
    "idf_sents": {"idf_sents": _CORPUS},
}


def make_metric(kind: str, encoder: FrozenEncoder) -> BERTScore:
    """Return a new metric without a reference cache.

    Args:
        kind: one of ``KINDS``.
        encoder: the encoder.

    Returns:
        The metric.
    """
    return BERTScore(encoder, cache_bytes=0, **KINDS[kind])


def feed(metric: BERTScore, numbers: Sequence[int], batch_size: int, indices: bool) -> None:
    """Update a metric with generated pairs, batch by batch.

    Args:
        metric: the metric.
        numbers: number of each pair, which determines its texts.
        batch_size: pairs per update.
        indices: pass the numbers as indices too.
    """
    for start in range(0, len(numbers), batch_size):
        batch = numbers[start : start + batch_size]
        preds = [f"candidate {number}" for number in batch]
        target = [f"reference {number}" for number in batch]
        metric.update(preds, target, indices=list(batch) if indices else None)
