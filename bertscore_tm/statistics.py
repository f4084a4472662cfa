"""Are differences and correlations of scores more than chance? Intervals and tests, by scipy (extra ``cli``)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor

__all__ = [
    "Coefficient",
    "Estimate",
    "PairedBootstrap",
    "WilliamsTest",
    "bootstrap_interval",
    "correlation",
    "darr_interval",
    "darr_kendall",
    "holm",
    "paired_bootstrap",
    "scipy_stats",
    "williams_test",
]

Scores = Tensor | Sequence[float]
Coefficient = Literal["pearson", "spearman", "kendall"]

# Values drawn at a time, which bounds memory whatever the number of resamples; results do not depend on it.
_DRAWS_PER_BATCH = 1_000_000
# A correlation of fewer values has no interval worth the name, and Kendall's none at all.
_FEWEST_VALUES = 5


@dataclass(frozen=True)
class Estimate:
    """A value and its confidence interval.

    Args:
        value: the value.
        low: lower end of the interval.
        high: upper end.
    """

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class PairedBootstrap:
    """Difference between two systems on the same texts.

    Args:
        difference: mean of b minus mean of a.
        low: lower end of the confidence interval of the difference.
        high: upper end.
        p_value: two-sided, above 0 and at most 1.
    """

    difference: float
    low: float
    high: float
    p_value: float


@dataclass(frozen=True)
class WilliamsTest:
    """Result of :func:`williams_test`.

    Args:
        statistic: t, with n - 3 degrees of freedom.
        p_value: one-sided: how probable so large a t is where both correlations are equal.
    """

    statistic: float
    p_value: float


def paired_bootstrap(
    a: Scores, b: Scores, *, confidence: float = 0.95, num_resamples: int = 10_000, seed: int = 0
) -> PairedBootstrap:
    r"""Compare two systems by resampling the texts they were both scored on (Koehn, EMNLP 2004).

    The interval is the percentile interval of the mean difference (``scipy.stats.bootstrap``), which unlike BCa exists
    for every sample; for means of some dozen texts and more the two agree. The p-value is its counterpart,

    .. math:: p = \min\left(1, 2\, \frac{1 + \min(\#\{d^* \le 0\}, \#\{d^* \ge 0\})}{1 + B}\right)

    with the differences d* of B resamples; adding 1 keeps it above 0 (Davison & Hinkley 1997, chapter 4).

    Args:
        a: one score per text of the first system, shape (texts,).
        b: scores of the second system on the same texts, shape (texts,).
        confidence: coverage of the interval, between 0 and 1.
        num_resamples: number of resamples B.
        seed: seed of the resampling; equal seeds resample equally many texts in the same way.

    Returns:
        Difference, interval and p-value.

    Raises:
        ValueError: the shapes differ or are not (texts,), there are fewer than two texts, a score is not finite, or an
            argument is out of range.
        ImportError: scipy is not installed.

    Example:
        >>> a = torch.tensor([0.1, 0.4, 0.3, 0.5])
        >>> result = paired_bootstrap(a, a + 0.1)
        >>> round(result.difference, 3), round(result.low, 3), round(result.high, 3), round(result.p_value, 4)
        (0.1, 0.1, 0.1, 0.0002)
    """
    first, second = _pair(a, b, ("a", "b"))
    differences = second - first
    means, low, high = _resampled_means(differences, confidence, num_resamples, seed)
    wrong_side = min(int((means <= 0).sum()), int((means >= 0).sum()))
    p_value = min(1.0, 2 * (wrong_side + 1) / (num_resamples + 1))
    return PairedBootstrap(differences.mean().item(), low, high, p_value)


def bootstrap_interval(
    scores: Scores, *, confidence: float = 0.95, num_resamples: int = 10_000, seed: int = 0
) -> Estimate:
    """Return a system's mean score and its percentile bootstrap interval.

    Args:
        scores: one score per text, shape (texts,).
        confidence: coverage of the interval, between 0 and 1.
        num_resamples: number of resamples.
        seed: seed of the resampling.

    Returns:
        Mean and interval.

    Raises:
        ValueError: there are fewer than two texts, a score is not finite, or an argument is out of range.
        ImportError: scipy is not installed.

    Example:
        >>> mean = bootstrap_interval([0.5, 0.6, 0.7, 0.8])
        >>> round(mean.value, 3), mean.low < mean.value < mean.high
        (0.65, True)
    """
    values = _values(scores, "scores")
    _, low, high = _resampled_means(values, confidence, num_resamples, seed)
    return Estimate(values.mean().item(), low, high)


def correlation(x: Scores, y: Scores, how: Coefficient = "pearson", *, confidence: float = 0.95) -> Estimate:
    r"""Return how well two lists of values agree, with an interval.

    The interval is normal after Fisher's transformation, :math:`\tanh(\mathrm{artanh}(r) \pm z\, \sigma)`, with
    :math:`\sigma^2 = 1/(n-3)` for Pearson's, :math:`(1+r^2/2)/(n-3)` for Spearman's and :math:`0.437/(n-4)` for
    Kendall's coefficient (Bonett & Wright, Psychometrika 2000). It takes the n texts to be independent.

    Args:
        x: one value per text, such as scores, shape (texts,).
        y: the others, such as human judgements, shape (texts,).
        how: ``"pearson"``, ``"spearman"`` or ``"kendall"`` (tau-b, which allows for ties).
        confidence: coverage of the interval, between 0 and 1.

    Returns:
        Coefficient and interval.

    Raises:
        ValueError: the shapes differ, there are fewer than five texts, a value is not finite, all values of one side
            are equal, or an argument is out of range.
        ImportError: scipy is not installed.

    Example:
        >>> found = correlation([0.1, 0.2, 0.3, 0.4, 0.5, 0.6], [1, 3, 2, 4, 6, 5], "spearman")
        >>> round(found.value, 3), round(found.low, 3), round(found.high, 3)
        (0.886, 0.066, 0.992)
    """
    stats = scipy_stats()
    if how not in get_args(Coefficient):
        raise ValueError(f"how={how!r} is not one of 'pearson', 'spearman', 'kendall'")
    _check_confidence(confidence)
    values = _pair(x, y, ("x", "y"))
    count = len(values[0])
    if count < _FEWEST_VALUES:
        raise ValueError(f"a correlation needs at least {_FEWEST_VALUES} values on each side, got {count}")
    for name, side in zip(("x", "y"), values, strict=True):
        if (side == side[0]).all():
            raise ValueError(f"all values of {name} are {side[0].item()}: nothing can correlate with a constant")
    function = {"pearson": stats.pearsonr, "spearman": stats.spearmanr, "kendall": stats.kendalltau}[how]
    value = float(function(*(side.numpy() for side in values)).statistic)
    variance = {
        "pearson": 1 / (count - 3),
        "spearman": (1 + value**2 / 2) / (count - 3),
        "kendall": 0.437 / (count - 4),
    }[how]
    margin = stats.norm.ppf((1 + confidence) / 2) * math.sqrt(variance)
    centre = torch.tensor(value, dtype=torch.float64).atanh()
    return Estimate(value, (centre - margin).tanh().item(), (centre + margin).tanh().item())


def darr_kendall(better: Scores, worse: Scores) -> float:
    r"""Return how often a metric agrees with people on which of two texts is better.

    .. math:: \tau = \frac{\mathrm{concordant} - \mathrm{discordant}}{\mathrm{concordant} + \mathrm{discordant}}

    Kendall's tau-like of the WMT metrics tasks on relative ranks from direct assessments, daRR (Ma et al., WMT 2019):
    concordant where the better text scores higher, discordant everywhere else, ties too.

    Args:
        better: the metric's scores of the texts that people preferred, shape (pairs,).
        worse: its scores of the other texts, shape (pairs,).

    Returns:
        Between -1 and 1.

    Raises:
        ValueError: the shapes differ, there are fewer than two pairs, or a score is not finite.

    Example:
        >>> darr_kendall([0.9, 0.8, 0.7, 0.6], [0.1, 0.9, 0.2, 0.6])
        0.0
    """
    first, second = _pair(better, worse, ("better", "worse"))
    return 2 * (first > second).double().mean().item() - 1


def darr_interval(better: Scores, worse: Scores, *, confidence: float = 0.95) -> Estimate:
    """Return :func:`darr_kendall` with Wilson's interval for the share of concordant pairs (Wilson, JASA 1927).

    It takes the pairs to be independent.

    Args:
        better: the metric's scores of the texts that people preferred, shape (pairs,).
        worse: its scores of the other texts, shape (pairs,).
        confidence: coverage of the interval, between 0 and 1.

    Returns:
        Value and interval.

    Raises:
        ValueError: as for :func:`darr_kendall`, or the confidence is out of range.
        ImportError: scipy is not installed.

    Example:
        >>> found = darr_interval([0.9, 0.8, 0.7, 0.6], [0.1, 0.2, 0.3, 0.6])
        >>> round(found.value, 3), round(found.low, 3), round(found.high, 3)
        (0.5, -0.399, 0.909)
    """
    _check_confidence(confidence)
    first, second = _pair(better, worse, ("better", "worse"))
    test = scipy_stats().binomtest(int((first > second).sum()), len(first))
    low, high = test.proportion_ci(confidence, method="wilson")
    return Estimate(2 * float(test.statistic) - 1, 2 * float(low) - 1, 2 * float(high) - 1)


def williams_test(r12: float, r13: float, r23: float, n: int) -> WilliamsTest:
    r"""Test whether one metric correlates better with people than another, measured on the same texts.

    .. math::
        t = \frac{(r_{12} - r_{13}) \sqrt{(n-1)(1+r_{23})}}
            {\sqrt{2K \frac{n-1}{n-3} + \frac{(r_{12}+r_{13})^2}{4} (1-r_{23})^3}}, \quad
        K = 1 - r_{12}^2 - r_{13}^2 - r_{23}^2 + 2 r_{12} r_{13} r_{23}

    follows Student's t with n - 3 degrees of freedom where both correlations are equal (Williams 1959; Graham &
    Baldwin, EMNLP 2014).

    Args:
        r12: Pearson correlation of the human scores with the metric that is thought to be better.
        r13: that of the human scores with the other metric.
        r23: that of the two metrics with each other.
        n: number of texts.

    Returns:
        t and the one-sided p-value; small where r12 is larger than chance explains.

    Raises:
        ValueError: there are fewer than four texts, the three correlations cannot be of the same texts, or the two
            metrics are one.
        ImportError: scipy is not installed.

    Example:
        >>> result = williams_test(0.65, 0.55, 0.3, 50)
        >>> round(result.statistic, 4), round(result.p_value, 4)
        (0.8161, 0.2093)
    """
    if n < 4:
        raise ValueError(f"n must be at least 4, got {n}")
    if not all(-1 <= r <= 1 for r in (r12, r13, r23)):
        raise ValueError(f"correlations lie between -1 and 1, got r12={r12}, r13={r13}, r23={r23}")
    determinant = 1 - r12**2 - r13**2 - r23**2 + 2 * r12 * r13 * r23
    if determinant < -1e-6:
        raise ValueError(f"r12={r12}, r13={r13} and r23={r23} cannot be correlations of the same texts")
    spread = 2 * max(determinant, 0.0) * (n - 1) / (n - 3) + (r12 + r13) ** 2 / 4 * (1 - r23) ** 3
    if spread == 0:
        raise ValueError(f"r12={r12}, r13={r13} and r23={r23} leave nothing to chance: there is nothing to test")
    statistic = (r12 - r13) * math.sqrt((n - 1) * (1 + r23) / spread)
    return WilliamsTest(statistic, float(scipy_stats().t.sf(statistic, n - 3)))


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjust p-values for having made several comparisons (Holm, Scandinavian Journal of Statistics 1979).

    Calling those differences real whose adjusted p-value is at most x is wrong about any of them with a probability of
    at most x, however the comparisons depend on each other.

    Args:
        p_values: p-value of each comparison.

    Returns:
        Adjusted p-values, in the same order.

    Raises:
        ValueError: a p-value does not lie between 0 and 1.

    Example:
        >>> holm([0.25, 0.01, 0.5])
        [0.5, 0.03, 0.5]
    """
    if not all(0 <= p <= 1 for p in p_values):
        raise ValueError(f"p-values lie between 0 and 1, got {list(p_values)}")
    adjusted = [0.0] * len(p_values)
    largest = 0.0
    for rank, i in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[i]))
        adjusted[i] = largest
    return adjusted


def scipy_stats() -> Any:
    """Return ``scipy.stats``; call it before long work that ends in statistics.

    Returns:
        The module.

    Raises:
        ImportError: scipy is not installed.

    Example:
        >>> scipy_stats().__name__
        'scipy.stats'
    """
    try:
        from scipy import stats
    except ImportError as error:
        raise ImportError('statistics need scipy: pip install "bertscore-tm[cli]"') from error
    return stats


def _resampled_means(values: Tensor, confidence: float, num_resamples: int, seed: int) -> tuple[Tensor, float, float]:
    """Means of resamples, shape (num_resamples,), and the ends of their percentile interval."""
    import numpy as np

    stats = scipy_stats()
    _check_confidence(confidence)
    if num_resamples < 1:
        raise ValueError(f"num_resamples must be at least 1, got {num_resamples}")
    result = stats.bootstrap(
        (values.numpy(),),
        np.mean,
        n_resamples=num_resamples,
        batch=max(1, _DRAWS_PER_BATCH // len(values)),
        confidence_level=confidence,
        method="percentile",
        rng=np.random.default_rng(seed),
    )
    low, high = result.confidence_interval
    return torch.from_numpy(result.bootstrap_distribution), float(low), float(high)


def _check_confidence(confidence: float) -> None:
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must be between 0 and 1, got {confidence}")


def _pair(a: Scores, b: Scores, names: tuple[str, str]) -> tuple[Tensor, Tensor]:
    first, second = _values(a, names[0]), _values(b, names[1])
    if first.shape != second.shape:
        raise ValueError(
            f"{names[0]} and {names[1]} must have one value for each of the same texts, got {len(first)} and "
            f"{len(second)}"
        )
    return first, second


def _values(scores: Scores, name: str) -> Tensor:
    values = torch.as_tensor(scores, dtype=torch.float64).detach().cpu()
    if values.ndim != 1 or len(values) < 2:
        raise ValueError(f"{name} must have one value for each of at least two texts, got shape {tuple(values.shape)}")
    if not values.isfinite().all():
        at = int((~values.isfinite()).nonzero()[0])
        raise ValueError(f"{name}[{at}] is {values[at].item()}: all values must be finite")
    return values
