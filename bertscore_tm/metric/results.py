"""Results of the metric: from the scores of all pairs to the values that ``compute`` returns."""

from __future__ import annotations

from typing import Any, Literal

from torch import Tensor

from bertscore_tm.scoring.corpus import SCORES
from bertscore_tm.scoring.rescaling import LayerBaseline, rescale_scores, score_range
from bertscore_tm.statistics import mean_interval, scipy_stats

__all__ = ["RESULT_NAMES", "Component", "check_result_settings", "restore_dimensions", "summarize"]

Component = Literal["precision", "recall", "f1"]

_INTERVAL = ("f1_low", "f1_high")
RESULT_NAMES = (*SCORES, *_INTERVAL)


def check_result_settings(reduction: str, component: str | None, confidence: float | None) -> None:
    """Check the settings that results depend on.

    Args:
        reduction: ``"mean"`` or ``"none"``.
        component: name of a single score, or ``None`` for all.
        confidence: level of the confidence interval, or ``None`` for no interval.

    Raises:
        ValueError: a setting is invalid, or two of them exclude each other.
        ImportError: ``confidence`` is given and scipy is not installed.
    """
    if reduction not in ("mean", "none"):
        raise ValueError(f"reduction={reduction!r} is not one of 'mean', 'none'")
    if component is not None:
        if component not in SCORES:
            raise ValueError(f"component={component!r} is not one of {', '.join(map(repr, SCORES))}")
        if confidence is not None:
            raise ValueError(
                f"component={component!r} computes a single tensor and excludes confidence={confidence}: remove one"
            )
    if confidence is not None:
        if not 0 < confidence < 1:
            raise ValueError(f"confidence must be between 0 and 1, got {confidence}")
        scipy_stats()


def summarize(
    scores: Tensor, baseline: LayerBaseline | None, reduction: str, confidence: float | None
) -> dict[str, Tensor]:
    """Return the mean scores or the scores of all pairs, rescaled, with the ends of the confidence interval.

    Args:
        scores: precision, recall and F1 of all pairs, before rescaling, shape (3, layers, pairs).
        baseline: baseline of the layers, or ``None`` for scores that are not rescaled.
        reduction: ``"mean"`` or ``"none"``.
        confidence: level of the confidence interval, or ``None`` for no interval.

    Returns:
        By name, shape (layers,), or (layers, pairs) of scores with ``reduction="none"``; float32.
    """
    pairs = values = rescale_scores(scores, baseline)
    if reduction == "mean":
        # On the CPU, as some accelerators have no float64. The mean of no pairs is 0.
        values = pairs.cpu().double().sum(-1) / max(pairs.shape[-1], 1)
    result = {name: value.float() for name, value in zip(SCORES, values, strict=True)}
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
        >>> import torch
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
