"""The bootstrap of a mean, in torch alone: seeded, and the same on every device and rank."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["mean_interval"]

# Values drawn at a time, over all rows, which bounds memory; results do not depend on it.
_DRAWS_PER_BATCH = 2_000_000


def mean_interval(values: Tensor, confidence: float, num_resamples: int = 1000, seed: int = 0) -> tuple[Tensor, Tensor]:
    r"""Return the percentile bootstrap interval of the mean (Efron, 1979; Koehn, EMNLP 2004).

    With n values drawn from the n values with replacement, B times, and the means :math:`\bar x^*_b` of the draws, the
    interval of coverage c reaches from their :math:`(1-c)/2` quantile to their :math:`(1+c)/2` quantile.

    Args:
        values: what to average, shape (..., n); all rows are resampled in the same way.
        confidence: coverage c, between 0 and 1.
        num_resamples: number of resamples B.
        seed: seed of the resampling.

    Returns:
        Lower and upper ends, shape (...), float64 on the CPU. They are 0 where there is no value.

    Example:
        >>> low, high = mean_interval(torch.tensor([0.4, 0.5, 0.7, 0.8]), 0.95)
        >>> round(low.item(), 3), round(high.item(), 3)
        (0.45, 0.75)
    """
    values = values.detach().cpu().double()
    count = values.shape[-1]
    if count == 0:
        return torch.zeros(values.shape[:-1]).double(), torch.zeros(values.shape[:-1]).double()
    # A generator of its own, so that the training's random numbers stay as they are.
    generator = torch.Generator().manual_seed(seed)
    rows = max(_DRAWS_PER_BATCH // max(values.numel(), 1), 1)
    means = []
    for start in range(0, num_resamples, rows):
        drawn = torch.randint(count, (min(rows, num_resamples - start), count), generator=generator)
        means.append(values[..., drawn].mean(-1))
    ends = torch.tensor([(1 - confidence) / 2, (1 + confidence) / 2], dtype=torch.float64)
    low, high = torch.quantile(torch.cat(means, dim=-1), ends, dim=-1)
    return low, high
