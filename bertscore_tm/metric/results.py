"""Results of the metric: from the scores of all pairs to the values that ``compute`` returns."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from bertscore_tm.metric.rank_sync import SyncedState
from bertscore_tm.metric.states import mean_of_sums
from bertscore_tm.scoring.corpus import SCORES
from bertscore_tm.scoring.rescaling import LayerBaseline, rescale_scores, score_range
from bertscore_tm.statistics import mean_interval, scipy_stats

__all__ = ["RESULT_NAMES", "check_result_settings", "restore_dimensions", "summarize"]

_INTERVAL = ("f1_low", "f1_high")
RESULT_NAMES = (*SCORES, *_INTERVAL)


def check_result_settings(reduction: str, score: str | None, confidence: float | None, return_hash: bool) -> None:
    """Check the settings that results depend on.

    Args:
        reduction: ``"mean"`` or ``"none"``.
        score: name of a single score, or ``None`` for all.
        confidence: level of the confidence interval, or ``None`` for no interval.
        return_hash: whether the signature is added.

    Raises:
        ValueError: a setting is invalid, or two of them exclude each other.
        ImportError: ``confidence`` is given and scipy is not installed.

    Example:
        >>> check_result_settings("mean", "f1", confidence=None, return_hash=False)
    """
    if reduction not in ("mean", "none"):
        raise ValueError(f"reduction={reduction!r} is not one of 'mean', 'none'")
    if score is not None:
        if score not in SCORES:
            raise ValueError(f"score={score!r} is not one of {', '.join(map(repr, SCORES))}")
        if return_hash or confidence is not None:
            other = "return_hash=True" if return_hash else f"confidence={confidence}"
            raise ValueError(f"score={score!r} computes a single tensor and excludes {other}: remove one of them")
    if confidence is not None:
        if not 0 < confidence < 1:
            raise ValueError(f"confidence must be between 0 and 1, got {confidence}")
        scipy_stats()


def summarize(
    synced: SyncedState, baseline: LayerBaseline | None, reduction: str, confidence: float | None
) -> dict[str, Tensor]:
    """Return the mean scores or the scores of all pairs, rescaled, with the ends of the confidence interval.

    Args:
        synced: combined state of all ranks.
        baseline: baseline of the layers, or ``None`` for scores that are not rescaled.
        reduction: ``"mean"`` or ``"none"``.
        confidence: level of the confidence interval, or ``None`` for no interval.

    Returns:
        By name, shape (layers,), or (layers, pairs) of scores with ``reduction="none"``; float32.
    """
    pairs = rescale_scores(synced.scores, baseline)
    values = pairs
    if reduction == "mean":
        values = torch.zeros(pairs.shape[:2], dtype=torch.float32, device="cpu")
        if synced.totals[0]:
            values = rescale_scores(mean_of_sums(synced.totals)[..., None], baseline)[..., 0].float()
    result = dict(zip(SCORES, values, strict=True))
    if confidence is not None:
        f1 = SCORES.index("f1")
        least, largest = score_range(pairs.shape[1], baseline)
        ends = mean_interval(pairs[f1], confidence, bounds=(least[f1], largest[f1]))
        result |= {name: end.float() for name, end in zip(_INTERVAL, ends, strict=True)}
    return result


def restore_dimensions(result: Any, all_layers: bool, reduction: str) -> Any:
    """Return a copy of a result with the dimensions of one element, which torchmetrics squeezes.

    torchmetrics keeps the result for the next call, so that changes in place by the caller must not reach it.

    Args:
        result: a tensor, or values by name.
        all_layers: whether tensors have a dimension of layers.
        reduction: ``"none"`` where scores have a dimension of pairs.

    Returns:
        Copies of the tensors, of at least these dimensions.

    Example:
        >>> restore_dimensions(torch.tensor(0.5), all_layers=False, reduction="none")
        tensor([0.5000])
    """
    if isinstance(result, dict):
        return {
            name: restore_dimensions(value, all_layers, "mean" if name in _INTERVAL else reduction)
            for name, value in result.items()
        }
    num_dimensions = all_layers + (reduction == "none")
    if not isinstance(result, Tensor):
        return result
    return result.clone() if result.ndim == num_dimensions else result.reshape((1,) * num_dimensions).clone()
