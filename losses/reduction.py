"""Reduction of a batch of losses to a scalar."""

from typing import Literal

import torch
from torch import Tensor

Reduction = Literal["mean", "sum", "none"]


def reduce_batch(values: Tensor, reduction: Reduction, included: Tensor | None = None) -> Tensor:
    """Reduce the losses of a batch to their mean or sum, like the losses of ``torch.nn``, or return them.

    Args:
        values: losses, shape (batch,).
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.
        included: items that count, shape (batch,), bool. The others become 0 and are left out of the mean. Default:
            all.
    """
    if included is not None:
        values = torch.where(included, values, 0.0)
    if reduction == "none":
        return values
    if reduction == "sum":
        return values.sum()
    if included is None:
        return values.mean()
    # At least 1, so that the mean over no items is 0 and not NaN.
    num_included = included.sum().clamp(min=1)
    return values.sum() / num_included
