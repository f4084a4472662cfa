"""Is one system better than another, or were the texts kind to it? Paired bootstrap over per-pair scores."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["PairedBootstrap", "paired_bootstrap"]

# Indices drawn at a time, which bounds memory whatever the number of resamples.
_DRAWS_PER_STEP = 10_000_000


@dataclass(frozen=True)
class PairedBootstrap:
    """Difference between two systems on the same texts.

    Args:
        difference: mean of b minus mean of a.
        low: lower end of the confidence interval of the difference.
        high: upper end.
        p_value: two-sided: twice the share of resamples on the wrong side of 0 (ties count), at most 1.
    """

    difference: float
    low: float
    high: float
    p_value: float


def paired_bootstrap(
    a: Tensor, b: Tensor, *, confidence: float = 0.95, num_resamples: int = 10_000, seed: int = 0
) -> PairedBootstrap:
    """Compare two systems by resampling the texts they were both scored on (Koehn, EMNLP 2004).

    Args:
        a: one score per text of the first system, shape (texts,).
        b: scores of the second system on the same texts, shape (texts,).
        confidence: coverage of the interval (percentile method), between 0 and 1.
        num_resamples: number of resamples.
        seed: seed of the resampling; equal seeds give equal results on every device.

    Returns:
        Difference, interval and p-value.

    Raises:
        ValueError: the shapes differ or are not (texts,), there is no text, or an argument is out of range.

    Example:
        >>> a = torch.tensor([0.1, 0.4, 0.3, 0.5])
        >>> result = paired_bootstrap(a, a + 0.1)
        >>> round(result.difference, 3), round(result.low, 3), round(result.high, 3)
        (0.1, 0.1, 0.1)
    """
    if a.ndim != 1 or a.shape != b.shape or len(a) == 0:
        raise ValueError(f"a and b must hold one score per text each, got shapes {tuple(a.shape)} and {tuple(b.shape)}")
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must be between 0 and 1, got {confidence}")
    if num_resamples < 1:
        raise ValueError(f"num_resamples must be at least 1, got {num_resamples}")
    differences = b.double().cpu() - a.double().cpu()
    generator = torch.Generator().manual_seed(seed)
    rows = max(1, _DRAWS_PER_STEP // len(differences))
    means = torch.cat(
        [
            differences[
                torch.randint(
                    len(differences), (min(rows, num_resamples - done), len(differences)), generator=generator
                )
            ].mean(1)
            for done in range(0, num_resamples, rows)
        ]
    )
    tail = (1 - confidence) / 2
    low, high = torch.quantile(means, torch.tensor([tail, 1 - tail], dtype=torch.float64)).tolist()
    wrong_side = torch.minimum((means <= 0).double().mean(), (means >= 0).double().mean())
    return PairedBootstrap(differences.mean().item(), low, high, min(1.0, 2 * wrong_side.item()))
