"""How the losses of a batch become one number."""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor

__all__ = ["Reduction", "reduce_batch", "require_reduction"]

Reduction = Literal["mean", "sum", "none"]


def reduce_batch(values: Tensor, reduction: Reduction, real: Tensor | None = None) -> Tensor:
    """Reduce values over a batch as the losses of ``torch.nn`` do.

    Args:
        values: any shape.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.
        real: values that count, the same shape, bool; others become 0, and the mean is over those that count. Default:
            all.

    Returns:
        A scalar, or the same shape with ``"none"``.

    Example:
        >>> reduce_batch(torch.tensor([2.0, 4.0, 9.0]), "mean", torch.tensor([True, True, False]))
        tensor(3.)
    """
    if real is not None:
        values = torch.where(real, values, 0.0)
    if reduction == "none":
        return values
    if reduction == "sum":
        return values.sum()
    return values.mean() if real is None else values.sum() / real.sum().clamp(min=1)


def require_reduction(reduction: str) -> None:
    """Make sure that there is such a reduction.

    Args:
        reduction: what the caller gave.

    Raises:
        ValueError: there is none of this name.

    Example:
        >>> require_reduction("mean")
    """
    if reduction not in get_args(Reduction):
        raise ValueError(f"reduction={reduction!r} is not one of {', '.join(map(repr, get_args(Reduction)))}")
