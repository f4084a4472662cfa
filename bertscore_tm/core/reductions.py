"""Reduction of a batch of losses to a scalar."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

__all__ = ["Reduction", "reduce_batch"]

Reduction = Literal["mean", "sum", "none"]


def reduce_batch(values: Tensor, reduction: Reduction, included: Tensor | None = None) -> Tensor:
    """Reduce values over a batch as the losses of ``torch.nn`` do.

    Args:
        values: any shape.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.
        included: values to include, the same shape, bool; others become 0 and are left out of the mean. Default: all.

    Returns:
        A scalar, or the same shape with ``"none"``.

    Example:
        >>> reduce_batch(torch.tensor([2.0, 4.0, 9.0]), "mean", torch.tensor([True, True, False]))
        tensor(3.)
    """
    if included is not None:
        values = torch.where(included, values, 0.0)
    if reduction == "none":
        return values
    if reduction == "sum":
        return values.sum()
    return values.mean() if included is None else values.sum() / included.sum().clamp(min=1)
