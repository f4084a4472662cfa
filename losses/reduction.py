"""Reduction of a batch of losses to a scalar."""

from typing import Literal

import torch
from torch import Tensor

Reduction = Literal["mean", "sum", "none"]


def reduce_batch(values: Tensor, reduction: Reduction, included: Tensor | None = None) -> Tensor:
    """Reduce values over a batch as the losses of ``torch.nn`` do.

    Values that are not included, given by a mask of the same shape, become 0 and are left out of the mean.
    """
    if included is not None:
        values = torch.where(included, values, 0.0)
    if reduction == "none":
        return values
    if reduction == "sum":
        return values.sum()
    return values.mean() if included is None else values.sum() / included.sum().clamp(min=1)
