"""Interval of a mean and test of a difference that hold for few values, where the bootstrap does not; rounding."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = ["MIN_RESAMPLED", "MIN_TESTED", "randomisation_p_value", "rounding_error", "student_interval"]

# With fewer values, percentiles of resampled means lie too close together: at 10 values, p is below 0.05 in 9% of
# comparisons without a difference.
MIN_RESAMPLED = 20
# With fewer pairs, no choice of signs has a p-value below 0.05.
MIN_TESTED = 6


def randomisation_p_value(differences: Tensor, rounding: float) -> float:
    """Return the p-value of the exact paired randomisation test.

    Args:
        differences: at most about 20 differences, shape (n,).
        rounding: mean differences that are this close count as equal.

    Returns:
        The share of all 2**n choices of signs whose sum is at least as large, in absolute value, as the given one.

    Example:
        >>> randomisation_p_value(torch.tensor([0.1, 0.2, 0.3, 0.4, 0.5, 0.6]), 1e-7)
        0.03125
    """
    differences = differences.double()
    # The first sign is fixed: the other half of the choices has the same absolute sums.
    sums = differences[:1]
    for difference in differences[1:]:
        sums = torch.cat([sums + difference, sums - difference])
    return (sums.abs() >= differences.sum().abs() - rounding * len(differences)).double().mean().item()


def rounding_error(values: Tensor | Sequence[float]) -> float:
    """Return a bound of the rounding errors of means of values, which their type limits.

    Args:
        values: shape (n,), n at least 1.

    Returns:
        The bound, that of float32 for tensors of lower precision too.

    Example:
        >>> rounding_error([0.5, 1.0]) < 1e-12, rounding_error(torch.tensor([0.5, 1.0])) < 1e-6
        (True, True)
    """
    is_single = isinstance(values, Tensor) and values.is_floating_point() and values.dtype != torch.float64
    largest = torch.as_tensor(values, dtype=torch.float64, device="cpu").abs().max().item()
    return (2**-23 if is_single else 2**-46) * largest


def student_interval(values: Tensor, confidence: float) -> tuple[Tensor, Tensor]:
    r"""Return Student's interval of the mean, with the quantile of :math:`n - 1` degrees of freedom.

    Args:
        values: values to average, shape (..., n), n at least 1.
        confidence: coverage, between 0 and 1.

    Returns:
        Lower and upper ends, shape (...), float64 on the CPU; the value itself for n = 1.

    Example:
        >>> low, high = student_interval(torch.tensor([0.4, 0.5, 0.7, 0.8]), 0.95)
        >>> round(low.item(), 3), round(high.item(), 3)
        (0.309, 0.891)
    """
    values = values.detach().cpu().double()
    count, mean = values.shape[-1], values.mean(-1)
    if count == 1:
        return mean, mean
    margin = _student_quantile(confidence, count - 1) * values.std(-1) / math.sqrt(count)
    return mean - margin, mean + margin


def _student_quantile(coverage: float, degrees: int) -> float:
    r"""Return the t for which :math:`P(|T| \le t)` is the coverage, for a whole number of degrees of freedom.

    The probability is a finite sum in :math:`\theta = \arctan(t / \sqrt\nu)` (Abramowitz & Stegun, 26.7.3 and 26.7.4).
    """

    def probability(theta: float) -> float:
        term, total = math.cos(theta) ** (degrees % 2), 0.0
        for k in range(degrees % 2, degrees - 1, 2):
            total += term
            term *= (k + 1) / (k + 2) * math.cos(theta) ** 2
        total *= math.sin(theta)
        return 2 / math.pi * (theta + total) if degrees % 2 else total

    low, high = 0.0, math.pi / 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if probability(middle) < coverage else (low, middle)
    return math.tan((low + high) / 2) * math.sqrt(degrees)
