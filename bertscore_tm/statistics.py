"""Confidence intervals and paired comparisons of scores, and correlations with human judgements, on scipy.stats.

scipy is installed with the extra ``cli`` and imported by the first call, which raises an ImportError without it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

__all__ = [
    "MIN_COMPARED",
    "Coefficient",
    "Estimate",
    "PairedComparison",
    "Scores",
    "WilliamsTest",
    "compare_paired",
    "correlation",
    "darr_kendall",
    "holm",
    "mean_interval",
    "rank_with_ties",
    "williams_test",
]

Scores = Tensor | Sequence[float]
Coefficient = Literal["pearson", "spearman", "kendall"]
Bounds = tuple[Tensor | float, Tensor | float]

# With fewer texts, no choice of signs has a p-value below 0.05.
MIN_COMPARED = 6
# Fisher's interval of Kendall's coefficient divides by n - 4.
_MIN_CORRELATED = 5
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


@dataclass(frozen=True)
class WilliamsTest:
    """Student's t with n - 3 degrees of freedom, and the one-sided probability of a t at least as large."""

    statistic: float
    p_value: float


def mean_interval(
    scores: Scores,
    confidence: float = 0.95,
    *,
    bounds: Bounds = (-math.inf, math.inf),
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
    _check_confidence(confidence)
    values = torch.as_tensor(scores, dtype=torch.float64, device="cpu").detach()
    mean, residuals = values.mean(-1), _sum_groups(values - values.mean(-1, keepdim=True), groups)
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
        Mean of b minus mean of a, interval and p-value.

    Raises:
        ValueError: the shapes differ or are not (texts,), there are fewer than six texts or groups, a score is not
            finite, or ``confidence`` is out of range.

    Example:
        >>> a = torch.tensor([0.1, 0.4, 0.3, 0.5, 0.2, 0.6])
        >>> found = compare_paired(a, a + 0.1)
        >>> round(found.difference, 3), round(found.low, 3), round(found.high, 3), round(found.p_value, 4)
        (0.1, 0.1, 0.1, 0.0312)
    """
    first, second = _as_paired_values(a, b, ("a", "b"))
    # Sums of integers are exact, so that equal ones are counted as equal.
    steps = _sum_groups(((second - first) / _TIE).round(), groups).numpy()
    if len(steps) < MIN_COMPARED:
        least = f"{MIN_COMPARED} {'texts' if groups is None else 'groups'}"
        raise ValueError(f"a comparison needs at least {least} to reach a p-value below 0.05, got {len(steps)}")
    span = bounds[1] - bounds[0]
    low, high = mean_interval(second - first, confidence, bounds=(-span, span), groups=groups)
    return PairedComparison((second - first).mean().item(), low.item(), high.item(), _permutation_p_value(steps))


def correlation(x: Scores, y: Scores, how: Coefficient = "pearson", *, confidence: float = 0.95) -> Estimate:
    r"""Return the correlation of two lists of values with its confidence interval.

    The interval is normal after Fisher's transformation, :math:`\tanh(\mathrm{artanh}(r) \pm z\, \sigma)`, with
    :math:`\sigma^2 = 1/(n-3)` for Pearson's, :math:`(1+r^2/2)/(n-3)` for Spearman's and :math:`0.437/(n-4)` for
    Kendall's coefficient (Bonett & Wright, Psychometrika 2000). It assumes that the n texts are independent.

    Args:
        x: one value per text, such as scores, shape (texts,).
        y: the other value of each text, such as human judgements, shape (texts,).
        how: the coefficient: ``"pearson"``, ``"spearman"`` or ``"kendall"`` (tau-b, which corrects for ties). The last
            two rank values by :func:`rank_with_ties`.
        confidence: coverage of the interval, between 0 and 1.

    Returns:
        Coefficient and interval.

    Raises:
        ValueError: the shapes differ, there are fewer than five texts, a value is not finite, all values of ``x`` or
            all of ``y`` are equal, or an argument is out of range.

    Example:
        >>> found = correlation([0.1, 0.2, 0.3, 0.4, 0.5, 0.6], [1, 3, 2, 4, 6, 5], "spearman")
        >>> round(found.value, 3), round(found.low, 3), round(found.high, 3)
        (0.886, 0.066, 0.992)
    """
    if how not in get_args(Coefficient):
        raise ValueError(f"how must be 'pearson', 'spearman' or 'kendall', got {how!r}")
    _check_confidence(confidence)
    stats, paired = scipy_stats(), np.stack(_as_paired_values(x, y, ("x", "y")))
    count = paired.shape[1]
    if count < _MIN_CORRELATED:
        raise ValueError(f"a correlation needs at least {_MIN_CORRELATED} texts, got {count}")
    ranked = paired if how == "pearson" else rank_with_ties(paired)
    for name, values, compared in zip(("x", "y"), paired, ranked, strict=True):
        if np.ptp(compared) == 0:
            raise ValueError(f"all values of {name} are {values[0]}: the correlation is undefined")
    function = stats.kendalltau if how == "kendall" else getattr(stats, f"{how}r")
    value = float(function(*ranked).statistic)
    variance = 0.437 / (count - 4) if how == "kendall" else 1 / (count - 3)
    if how == "spearman":
        variance *= 1 + value**2 / 2
    margin = stats.norm.ppf((1 + confidence) / 2) * math.sqrt(variance)
    centre = torch.tensor(value, dtype=torch.float64, device="cpu").atanh()
    return Estimate(value, (centre - margin).tanh().item(), (centre + margin).tanh().item())


def rank_with_ties(values: ArrayLike) -> NDArray[np.float64]:
    """Rank values; those less than 1e-6 above the lowest value of a rank are ties.

    Args:
        values: shape (..., n).

    Returns:
        Whole numbers from 0, of the same shape.

    Example:
        >>> rank_with_ties([0.5, 1.0, 0.9999999, 0.7])
        array([0., 2., 2., 1.])
    """
    rows = np.asarray(values, dtype=np.float64)
    ranks = np.empty(rows.shape)
    for place in np.ndindex(rows.shape[:-1]):
        lowest, rank = -math.inf, -1
        for index in rows[place].argsort().tolist():
            if rows[place][index] - lowest >= _TIE:
                lowest, rank = rows[place][index], rank + 1
            ranks[place][index] = rank
    return ranks


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
    _check_confidence(confidence)
    first, second = _as_paired_values(better, worse, ("better", "worse"))
    test = scipy_stats().binomtest(int((first > second).sum()), len(first))
    interval = test.proportion_ci(confidence, method="wilson")
    return Estimate(*(2 * float(share) - 1 for share in (test.statistic, *interval)))


def williams_test(r12: float, r13: float, r23: float, n: int) -> WilliamsTest:
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
        >>> found = williams_test(0.65, 0.55, 0.3, 50)
        >>> round(found.statistic, 4), round(found.p_value, 4)
        (0.8161, 0.2093)
    """
    if n < 4:
        raise ValueError(f"n must be at least 4, got {n}")
    if not all(-1 <= r <= 1 for r in (r12, r13, r23)):
        raise ValueError(f"correlations must be between -1 and 1, got r12={r12}, r13={r13}, r23={r23}")
    determinant = 1 - r12**2 - r13**2 - r23**2 + 2 * r12 * r13 * r23
    if determinant < -1e-6:
        raise ValueError(f"r12={r12}, r13={r13} and r23={r23} cannot be correlations of the same texts")
    spread = 2 * max(determinant, 0.0) * (n - 1) / (n - 3) + (r12 + r13) ** 2 / 4 * (1 - r23) ** 3
    if spread == 0:
        raise ValueError(f"r12={r12}, r13={r13} and r23={r23} have no variance: the two metrics are identical")
    statistic = (r12 - r13) * math.sqrt((n - 1) * (1 + r23) / spread)
    return WilliamsTest(statistic, float(scipy_stats().t.sf(statistic, n - 3)))


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


def _check_confidence(confidence: float) -> None:
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must be between 0 and 1, got {confidence}")


def _as_paired_values(a: Scores, b: Scores, names: tuple[str, str]) -> tuple[Tensor, Tensor]:
    """Return values of shape (texts,) each as float64 on the CPU."""
    first, second = (torch.as_tensor(values, dtype=torch.float64, device="cpu").detach() for values in (a, b))
    for name, values in zip(names, (first, second), strict=True):
        if values.ndim != 1 or len(values) < 2:
            shape = tuple(values.shape)
            raise ValueError(f"{name} must have shape (texts,) with at least two texts, got shape {shape}")
        if not values.isfinite().all():
            index = int((~values.isfinite()).nonzero()[0])
            raise ValueError(f"{name}[{index}] is {values[index].item()}: all values must be finite")
    if first.shape != second.shape:
        lengths = f"{len(first)} and {len(second)}"
        raise ValueError(f"{' and '.join(names)} must have one value for each of the same texts, got {lengths} values")
    return first, second
