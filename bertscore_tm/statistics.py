"""Confidence intervals and paired comparisons of scores, and tests of metrics that scipy lacks.

scipy is installed with the extra ``cli`` and imported by the first call, which raises an ImportError without it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from bertscore_tm.utilities.settings import require_between

__all__ = [
    "Estimate",
    "PairedComparison",
    "Scores",
    "compare_paired",
    "darr_kendall",
    "holm",
    "mean_interval",
    "williams_test",
]

Scores = Tensor | Sequence[float]

# With fewer texts, no choice of signs has a p-value below 0.05.
_MIN_COMPARED = 6
# Scores that differ by less are equal up to rounding in float32.
_TIE = 1e-6
# Up to 13 texts have fewer permutations, which are all counted.
_PERMUTATIONS = 9_999
# Numbers in memory at a time.
_BATCH = 2_000_000


@dataclass(frozen=True)
class Estimate:
    """A value and its confidence interval, from ``low`` to ``high``."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class PairedComparison:
    """Difference of two means, its confidence interval from ``low`` to ``high``, and its two-sided p-value."""

    difference: float
    low: float
    high: float
    p_value: float


def mean_interval(
    scores: Scores,
    confidence: float = 0.95,
    *,
    bounds: tuple[Tensor | float, Tensor | float] = (-math.inf, math.inf),
    groups: ArrayLike | None = None,
) -> tuple[Tensor, Tensor]:
    r"""Return Student's t interval of the mean.

    .. math:: \bar x \pm \frac{t_{G-1}}{n} \sqrt{\frac{G}{G-1} \sum_{g=1}^G \Bigl(\sum_{i \in g} (x_i - \bar x)\Bigr)^2}

    for n texts in G groups, such as documents (Liang & Zeger, Biometrika 1986); without groups G = n.

    Args:
        scores: one score per text, shape (..., n).
        confidence: coverage of the interval, between 0 and 1.
        bounds: range of the scores, each end a number or of shape (...), which the interval does not leave: (-1, 1)
            unless rescaled.
        groups: label of each text's group, shape (n,). Texts of one group may depend on each other. Default: all texts
            are independent.

    Returns:
        Lower and upper end, shape (...), float64 on the CPU; NaN for fewer than two texts or groups.

    Raises:
        ValueError: ``groups`` does not have one label per text, or ``confidence`` is out of range.

    Example:
        >>> low, high = mean_interval([0.4, 0.5, 0.7, 0.8], bounds=(-1, 1))
        >>> round(low.item(), 3), round(high.item(), 3)
        (0.309, 0.891)
    """
    require_between("confidence", confidence, 0, 1)
    values = torch.as_tensor(scores, dtype=torch.float64, device="cpu").detach()
    mean = values.mean(-1)
    residuals = _sum_groups(values - mean[..., None], groups)
    count = residuals.shape[-1]
    if count < 2:
        return mean * math.nan, mean * math.nan
    error = (residuals.square().sum(-1) * count / (count - 1)).sqrt() / values.shape[-1]
    margin = error * float(scipy_stats().t.ppf((1 + confidence) / 2, count - 1))
    least, largest = (torch.as_tensor(bound, dtype=torch.float64, device="cpu") for bound in bounds)
    return torch.maximum(mean - margin, least), torch.minimum(mean + margin, largest)


def compare_paired(
    a: Scores,
    b: Scores,
    *,
    confidence: float = 0.95,
    bounds: tuple[float, float] = (-math.inf, math.inf),
    groups: ArrayLike | None = None,
) -> PairedComparison:
    """Compare the mean scores of two systems on the same texts.

    The interval of the difference is :func:`mean_interval`. The p-value is that of the permutation test, which
    exchanges the scores of a text, or of all texts of a group, between the systems (Fisher 1935): exact for up to 13
    texts or groups, else with 9,999 seeded permutations. Scores that differ by less than 1e-6 are equal.

    Args:
        a: one score per text of the first system, shape (texts,).
        b: scores of the second system on the same texts, shape (texts,).
        confidence: coverage of the interval, between 0 and 1.
        bounds: range of the scores, as in :func:`mean_interval`.
        groups: label of each text's group, as in :func:`mean_interval`.

    Returns:
        Mean of b minus mean of a, interval and p-value, which is NaN for fewer than six texts or groups.

    Raises:
        ValueError: the shapes differ or are not (texts,), there are fewer than two texts, a score is not finite, or
            ``confidence`` is out of range.

    Example:
        >>> a = torch.tensor([0.1, 0.4, 0.3, 0.5, 0.2, 0.6])
        >>> found = compare_paired(a, a + 0.1)
        >>> round(found.difference, 3), round(found.low, 3), round(found.high, 3), round(found.p_value, 4)
        (0.1, 0.1, 0.1, 0.0312)
    """
    first, second = as_paired_values(a, b, ("a", "b"))
    # Sums of integers are exact, so that equal ones are counted as equal.
    steps = _sum_groups(((second - first) / _TIE).round(), groups).numpy()
    p_value = _permutation_p_value(steps) if len(steps) >= _MIN_COMPARED else math.nan
    span = bounds[1] - bounds[0]
    low, high = mean_interval(second - first, confidence, bounds=(-span, span), groups=groups)
    return PairedComparison((second - first).mean().item(), low.item(), high.item(), p_value)


def darr_kendall(better: Scores, worse: Scores, *, confidence: float = 0.95) -> Estimate:
    r"""Return how often a metric agrees with human preferences between two texts.

    .. math:: \tau = \frac{\mathrm{concordant} - \mathrm{discordant}}{\mathrm{concordant} + \mathrm{discordant}}

    The statistic like Kendall's tau that the WMT metrics tasks compute on relative ranks from direct assessments, daRR
    (Ma et al., WMT 2019), with the interval of Wilson (JASA 1927) for the proportion of concordant pairs. A pair is
    concordant if the better text scores higher, else discordant, also if they tie.

    Args:
        better: the metric's scores of the preferred texts, shape (pairs,).
        worse: its scores of the other texts, shape (pairs,).
        confidence: coverage of the interval, between 0 and 1, if the pairs are independent.

    Returns:
        Value and interval, between -1 and 1.

    Raises:
        ValueError: the shapes differ, there are fewer than two pairs, a value is not finite or out of range.

    Example:
        >>> found = darr_kendall([0.9, 0.8, 0.7, 0.6], [0.1, 0.2, 0.3, 0.6])
        >>> round(found.value, 3), round(found.low, 3), round(found.high, 3)
        (0.5, -0.399, 0.909)
    """
    require_between("confidence", confidence, 0, 1)
    first, second = as_paired_values(better, worse, ("better", "worse"))
    test = scipy_stats().binomtest(int((first > second).sum()), len(first))
    interval = test.proportion_ci(confidence, method="wilson")
    return Estimate(*(2 * float(share) - 1 for share in (test.statistic, *interval)))


def williams_test(r12: float, r13: float, r23: float, n: int) -> tuple[float, float]:
    r"""Test whether one metric correlates better with human scores than another on the same texts.

    .. math::
        t = \frac{(r_{12} - r_{13}) \sqrt{(n-1)(1+r_{23})}}
            {\sqrt{2K \frac{n-1}{n-3} + \frac{(r_{12}+r_{13})^2}{4} (1-r_{23})^3}}, \quad
        K = 1 - r_{12}^2 - r_{13}^2 - r_{23}^2 + 2 r_{12} r_{13} r_{23}

    follows Student's t with n - 3 degrees of freedom if both correlations are equal (Williams 1959; Graham & Baldwin,
    EMNLP 2014).

    Args:
        r12: Pearson correlation of the human scores with the metric that is assumed to be better.
        r13: Pearson correlation of the human scores with the other metric.
        r23: Pearson correlation of the two metrics.
        n: number of texts.

    Returns:
        t and the one-sided p-value of r12 > r13.

    Raises:
        ValueError: there are fewer than four texts, the three correlations contradict each other, or the two metrics
            are identical.

    Example:
        >>> t, p_value = williams_test(0.65, 0.55, 0.3, 50)
        >>> round(t, 4), round(p_value, 4)
        (0.8161, 0.2093)
    """
    if n < 4:
        raise ValueError(f"n must be at least 4, got {n}")
    determinant = 1 - r12**2 - r13**2 - r23**2 + 2 * r12 * r13 * r23
    if determinant < -1e-6 or not all(-1 <= r <= 1 for r in (r12, r13, r23)):
        raise ValueError(f"r12={r12}, r13={r13} and r23={r23} cannot be correlations of the same texts")
    spread = 2 * max(determinant, 0.0) * (n - 1) / (n - 3) + (r12 + r13) ** 2 / 4 * (1 - r23) ** 3
    if spread == 0:
        raise ValueError(f"r12={r12}, r13={r13} and r23={r23} have no variance: the two metrics are identical")
    t = (r12 - r13) * math.sqrt((n - 1) * (1 + r23) / spread)
    return t, float(scipy_stats().t.sf(t, n - 3))


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjust p-values for multiple comparisons (Holm, Scandinavian Journal of Statistics 1979).

    Args:
        p_values: p-value of each comparison, which may depend on each other.

    Returns:
        Adjusted p-values, in the same order. Without any true difference, the probability that one of them is below x
        is at most x.

    Raises:
        ValueError: a p-value is not between 0 and 1.

    Example:
        >>> holm([0.25, 0.01, 0.5])
        [0.5, 0.03, 0.5]
    """
    given = np.asarray(p_values, dtype=np.float64)
    if not ((given >= 0) & (given <= 1)).all():
        raise ValueError(f"p-values must be between 0 and 1, got {list(p_values)}")
    order = given.argsort()
    given[order] = np.maximum.accumulate(given[order] * np.arange(len(given), 0, -1)).clip(max=1)
    return [float(p) for p in given]


def scipy_stats() -> Any:
    """Import ``scipy.stats``, or raise an ImportError that names the extra; call it before long work that needs it."""
    try:
        from scipy import stats
    except ImportError as error:
        raise ImportError('this statistic needs scipy: pip install "bertscore-tm[cli]"') from error
    return stats


def _sum_groups(values: Tensor, groups: ArrayLike | None) -> Tensor:
    """Return the sum of each group's values, shape (..., groups)."""
    if groups is None:
        return values
    labels = np.asarray(groups)
    if labels.shape != values.shape[-1:]:
        raise ValueError(f"groups must have one label for each of {values.shape[-1]} texts, got shape {labels.shape}")
    names, numbers = np.unique(labels, return_inverse=True)
    return values.new_zeros(*values.shape[:-1], len(names)).index_add(-1, torch.from_numpy(numbers), values)


def _permutation_p_value(differences: NDArray[np.float64]) -> float:
    """Return the two-sided p-value of the sum, if the sign of each difference is random."""
    stats, rng = scipy_stats(), np.random.default_rng(0)
    if 2 ** len(differences) <= _PERMUTATIONS:
        test = partial(stats.permutation_test, (differences,), permutation_type="samples")
    else:
        # The same test; permutation_test takes ten times as long to draw permutations.
        test = partial(stats.monte_carlo_test, differences, lambda size: rng.choice((-1.0, 1.0), size) * differences)
    batch = max(1, _BATCH // len(differences))
    return float(test(statistic=np.sum, vectorized=True, n_resamples=_PERMUTATIONS, batch=batch).pvalue)


def as_paired_values(a: Scores, b: Scores, names: tuple[str, str]) -> tuple[Tensor, Tensor]:
    """Return values of shape (texts,) each as float64 on the CPU."""
    first, second = (torch.as_tensor(values, dtype=torch.float64, device="cpu").detach() for values in (a, b))
    if first.shape != second.shape or first.ndim != 1 or len(first) < 2:
        raise ValueError(
            f"{names[0]} and {names[1]} must both have shape (texts,) with at least two texts, got shapes "
            f"{tuple(first.shape)} and {tuple(second.shape)}"
        )
    for name, values in zip(names, (first, second), strict=True):
        for index in (~values.isfinite()).nonzero()[:1]:
            raise ValueError(f"{name}[{int(index)}] is {values[index].item()}: all values must be finite")
    return first, second
