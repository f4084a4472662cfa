"""Confidence intervals and significance tests of scores, and correlations with human judgements.

The bootstrap needs only torch. Correlations, :func:`darr_interval` and :func:`williams_test` need scipy (extra
``cli``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from bertscore_tm.utilities import small_samples

__all__ = [
    "Coefficient",
    "Estimate",
    "PairedBootstrap",
    "Scores",
    "WilliamsTest",
    "bootstrap_interval",
    "correlation",
    "darr_interval",
    "darr_kendall",
    "holm",
    "mean_interval",
    "paired_bootstrap",
    "scipy_stats",
    "williams_test",
]

Scores = Tensor | Sequence[float]
Coefficient = Literal["pearson", "spearman", "kendall"]

# Values drawn per step. This bounds the memory; results do not depend on it.
_DRAWS_PER_STEP = 2_000_000
# torch.quantile takes at most this many values.
_MAX_RESAMPLES = 2**24
# Fisher's interval of Kendall's coefficient divides by n - 4.
_MIN_CORRELATED = 5


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
    """Difference between the mean scores of two systems on the same texts.

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
        p_value: one-sided probability of a t at least this large if both correlations are equal.
    """

    statistic: float
    p_value: float


def mean_interval(values: Tensor, confidence: float, num_resamples: int = 1000, seed: int = 0) -> tuple[Tensor, Tensor]:
    r"""Return the percentile bootstrap interval of the mean (Efron, 1979; Koehn, EMNLP 2004).

    Draw n values with replacement from the n values, B times. The interval of coverage c reaches from the
    :math:`(1-c)/2` quantile to the :math:`(1+c)/2` quantile of the B means. It is the same on every device and rank,
    and leaves the global random state unchanged.

    Of fewer than 20 values, whose bootstrap interval is too narrow, it is Student's; of one value, that value.

    Args:
        values: values to average, shape (..., n). All rows are resampled with the same draws.
        confidence: coverage c, between 0 and 1.
        num_resamples: number of resamples B.
        seed: seed of the resampling.

    Returns:
        Lower and upper ends, shape (...), float64 on the CPU; 0 where n is 0.

    Example:
        >>> low, high = mean_interval(torch.tensor([0.4, 0.5, 0.7, 0.8]), 0.95)
        >>> round(low.item(), 3), round(high.item(), 3)
        (0.309, 0.891)
    """
    count = values.shape[-1]
    if count == 0:
        low, high = torch.zeros(2, *values.shape[:-1], dtype=torch.float64, device="cpu")
        return low, high
    if count < small_samples.MIN_RESAMPLED:
        return small_samples.student_interval(values, confidence)
    return _percentile_interval(_resample_means(values, num_resamples, seed), confidence)


def bootstrap_interval(
    scores: Scores, *, confidence: float = 0.95, num_resamples: int = 10_000, seed: int = 0
) -> Estimate:
    """Return a system's mean score and its interval, that of :func:`mean_interval`.

    Args:
        scores: one score per text, shape (texts,).
        confidence: coverage of the interval, between 0 and 1.
        num_resamples: number of resamples.
        seed: seed of the resampling.

    Returns:
        Mean and interval.

    Raises:
        ValueError: there are fewer than two texts, a score is not finite, or an argument is out of range.

    Example:
        >>> mean = bootstrap_interval([0.5, 0.6, 0.7, 0.8])
        >>> round(mean.value, 3), mean.low < mean.value < mean.high
        (0.65, True)
    """
    values = _as_values(scores, "scores")
    _check_bootstrap(confidence, num_resamples)
    low, high = mean_interval(values, confidence, num_resamples, seed)
    return Estimate(values.mean().item(), low.item(), high.item())


def paired_bootstrap(
    a: Scores, b: Scores, *, confidence: float = 0.95, num_resamples: int = 10_000, seed: int = 0
) -> PairedBootstrap:
    r"""Compare two systems by resampling the texts that both were scored on (Koehn, EMNLP 2004).

    The interval of the mean difference is that of :func:`mean_interval`. The p-value is

    .. math:: p = \min\left(1, 2\, \frac{1 + \min(\#\{d^* \le 0\}, \#\{d^* \ge 0\})}{1 + B}\right)

    with the differences d* of B resamples; the added 1 keeps it above 0 (Davison & Hinkley 1997, chapter 4). Values
    of d* that are 0 except for the rounding of the scores count as 0.

    Of fewer than 20 texts, whose p-value is too small, it is that of the exact paired randomisation test (Fisher 1935).

    Args:
        a: one score per text of the first system, shape (texts,).
        b: scores of the second system on the same texts, shape (texts,).
        confidence: coverage of the interval, between 0 and 1.
        num_resamples: number of resamples B.
        seed: seed of the resampling. The same seed and number of texts give the same resamples.

    Returns:
        Difference, interval and p-value.

    Raises:
        ValueError: the shapes differ or are not (texts,), there are fewer than six texts, a score is not finite, or an
            argument is out of range.

    Example:
        >>> a = torch.tensor([0.1, 0.4, 0.3, 0.5, 0.2, 0.6])
        >>> result = paired_bootstrap(a, a + 0.1)
        >>> round(result.difference, 3), round(result.low, 3), round(result.high, 3), round(result.p_value, 4)
        (0.1, 0.1, 0.1, 0.0312)
    """
    first, second = _as_paired_values(a, b, ("a", "b"))
    _check_bootstrap(confidence, num_resamples)
    differences = second - first
    rounding = max(small_samples.rounding_error(a), small_samples.rounding_error(b))
    if len(differences) < small_samples.MIN_TESTED:
        least, count = small_samples.MIN_TESTED, len(differences)
        raise ValueError(f"a paired test needs at least {least} texts to reach a p-value below 0.05, got {count}")
    if len(differences) < small_samples.MIN_RESAMPLED:
        low, high = small_samples.student_interval(differences, confidence)
        p_value = small_samples.randomisation_p_value(differences, rounding)
    else:
        means = _resample_means(differences, num_resamples, seed)
        low, high = _percentile_interval(means, confidence)
        smaller_tail = min(int((means <= rounding).sum()), int((means >= -rounding).sum()))
        p_value = min(1.0, 2 * (smaller_tail + 1) / (num_resamples + 1))
    return PairedBootstrap(differences.mean().item(), low.item(), high.item(), p_value)


def correlation(x: Scores, y: Scores, how: Coefficient = "pearson", *, confidence: float = 0.95) -> Estimate:
    r"""Return the correlation of two lists of values with its confidence interval.

    The interval is normal after Fisher's transformation, :math:`\tanh(\mathrm{artanh}(r) \pm z\, \sigma)`, with
    :math:`\sigma^2 = 1/(n-3)` for Pearson's, :math:`(1+r^2/2)/(n-3)` for Spearman's and :math:`0.437/(n-4)` for
    Kendall's coefficient (Bonett & Wright, Psychometrika 2000). It assumes that the n texts are independent.

    Args:
        x: one value per text, such as scores, shape (texts,).
        y: the other value of each text, such as human judgements, shape (texts,).
        how: the coefficient: ``"pearson"``, ``"spearman"`` or ``"kendall"`` (tau-b, which corrects for ties).
        confidence: coverage of the interval, between 0 and 1.

    Returns:
        Coefficient and interval.

    Raises:
        ValueError: the shapes differ, there are fewer than five texts, a value is not finite, all values of ``x`` or
            all of ``y`` are equal, or an argument is out of range.
        ImportError: scipy is not installed.

    Example:
        >>> found = correlation([0.1, 0.2, 0.3, 0.4, 0.5, 0.6], [1, 3, 2, 4, 6, 5], "spearman")
        >>> round(found.value, 3), round(found.low, 3), round(found.high, 3)
        (0.886, 0.066, 0.992)
    """
    stats = scipy_stats()
    if how not in get_args(Coefficient):
        raise ValueError(f"how must be 'pearson', 'spearman' or 'kendall', got {how!r}")
    _check_confidence(confidence)
    paired = _as_paired_values(x, y, ("x", "y"))
    count = len(paired[0])
    if count < _MIN_CORRELATED:
        raise ValueError(f"a correlation needs at least {_MIN_CORRELATED} texts, got {count}")
    for name, values in zip(("x", "y"), paired, strict=True):
        if (values == values[0]).all():
            raise ValueError(f"all values of {name} are {values[0].item()}: the correlation is undefined")
    function = {"pearson": stats.pearsonr, "spearman": stats.spearmanr, "kendall": stats.kendalltau}[how]
    value = float(function(*(values.numpy() for values in paired)).statistic)
    variance = {
        "pearson": 1 / (count - 3),
        "spearman": (1 + value**2 / 2) / (count - 3),
        "kendall": 0.437 / (count - 4),
    }[how]
    margin = stats.norm.ppf((1 + confidence) / 2) * math.sqrt(variance)
    centre = torch.tensor(value, dtype=torch.float64, device="cpu").atanh()
    return Estimate(value, (centre - margin).tanh().item(), (centre + margin).tanh().item())


def darr_kendall(better: Scores, worse: Scores) -> float:
    r"""Return how often a metric agrees with human preferences between two texts.

    .. math:: \tau = \frac{\mathrm{concordant} - \mathrm{discordant}}{\mathrm{concordant} + \mathrm{discordant}}

    The statistic like Kendall's tau that the WMT metrics tasks compute on relative ranks from direct assessments, daRR
    (Ma et al., WMT 2019). A pair is concordant if the better text scores higher, else discordant, also if they tie.

    Args:
        better: the metric's scores of the preferred texts, shape (pairs,).
        worse: its scores of the other texts, shape (pairs,).

    Returns:
        Between -1 and 1.

    Raises:
        ValueError: the shapes differ, there are fewer than two pairs, or a score is not finite.

    Example:
        >>> darr_kendall([0.9, 0.8, 0.7, 0.6], [0.1, 0.9, 0.2, 0.6])
        0.0
    """
    first, second = _as_paired_values(better, worse, ("better", "worse"))
    return 2 * (first > second).double().mean().item() - 1


def darr_interval(better: Scores, worse: Scores, *, confidence: float = 0.95) -> Estimate:
    """Return :func:`darr_kendall` with the interval of Wilson (JASA 1927) for the proportion of concordant pairs.

    The interval assumes that the pairs are independent.

    Args:
        better: the metric's scores of the preferred texts, shape (pairs,).
        worse: its scores of the other texts, shape (pairs,).
        confidence: coverage of the interval, between 0 and 1.

    Returns:
        Value and interval.

    Raises:
        ValueError: the shapes differ, there are fewer than two pairs, a score is not finite, or ``confidence`` is out
            of range.
        ImportError: scipy is not installed.

    Example:
        >>> found = darr_interval([0.9, 0.8, 0.7, 0.6], [0.1, 0.2, 0.3, 0.6])
        >>> round(found.value, 3), round(found.low, 3), round(found.high, 3)
        (0.5, -0.399, 0.909)
    """
    _check_confidence(confidence)
    first, second = _as_paired_values(better, worse, ("better", "worse"))
    test = scipy_stats().binomtest(int((first > second).sum()), len(first))
    low, high = test.proportion_ci(confidence, method="wilson")
    return Estimate(2 * float(test.statistic) - 1, 2 * float(low) - 1, 2 * float(high) - 1)


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
        ImportError: scipy is not installed.

    Example:
        >>> result = williams_test(0.65, 0.55, 0.3, 50)
        >>> round(result.statistic, 4), round(result.p_value, 4)
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

    Rejecting the hypotheses whose adjusted p-value is at most x rejects any true one with a probability of at most x,
    also if the comparisons depend on each other.

    Args:
        p_values: p-value of each comparison.

    Returns:
        Adjusted p-values, in the same order.

    Raises:
        ValueError: a p-value is not between 0 and 1.

    Example:
        >>> holm([0.25, 0.01, 0.5])
        [0.5, 0.03, 0.5]
    """
    if not all(0 <= p <= 1 for p in p_values):
        raise ValueError(f"p-values must be between 0 and 1, got {list(p_values)}")
    adjusted = [0.0] * len(p_values)
    largest = 0.0
    for rank, i in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[i]))
        adjusted[i] = largest
    return adjusted


def scipy_stats() -> Any:
    """Import ``scipy.stats``; call it before long work whose results need it.

    Returns:
        The module ``scipy.stats``.

    Raises:
        ImportError: scipy is not installed.

    Example:
        >>> scipy_stats().__name__
        'scipy.stats'
    """
    try:
        from scipy import stats
    except ImportError as error:
        raise ImportError('this statistic needs scipy: pip install "bertscore-tm[cli]"') from error
    return stats


def _resample_means(values: Tensor, num_resamples: int, seed: int) -> Tensor:
    """Return the mean of each resample, shape (..., num_resamples), of values of shape (..., n)."""
    values = values.detach().cpu().double()
    count = values.shape[-1]
    # A separate generator leaves the random numbers of training unchanged.
    generator = torch.Generator().manual_seed(seed)
    rows = max(_DRAWS_PER_STEP // max(values.numel(), 1), 1)
    means = []
    for start in range(0, num_resamples, rows):
        drawn = torch.randint(count, (min(rows, num_resamples - start), count), generator=generator, device="cpu")
        means.append(values[..., drawn].mean(-1))
    return torch.cat(means, dim=-1)


def _percentile_interval(means: Tensor, confidence: float) -> tuple[Tensor, Tensor]:
    ends = torch.tensor([(1 - confidence) / 2, (1 + confidence) / 2], dtype=torch.float64, device="cpu")
    low, high = torch.quantile(means, ends, dim=-1)
    return low, high


def _check_bootstrap(confidence: float, num_resamples: int) -> None:
    _check_confidence(confidence)
    if not 1 <= num_resamples <= _MAX_RESAMPLES:
        raise ValueError(f"num_resamples must be between 1 and {_MAX_RESAMPLES}, got {num_resamples}")


def _check_confidence(confidence: float) -> None:
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must be between 0 and 1, got {confidence}")


def _as_paired_values(a: Scores, b: Scores, names: tuple[str, str]) -> tuple[Tensor, Tensor]:
    first, second = _as_values(a, names[0]), _as_values(b, names[1])
    if first.shape != second.shape:
        lengths = f"{len(first)} and {len(second)}"
        raise ValueError(f"{' and '.join(names)} must have one value for each of the same texts, got {lengths} values")
    return first, second


def _as_values(scores: Scores, name: str) -> Tensor:
    """Return values of shape (texts,) as float64 on the CPU."""
    values = torch.as_tensor(scores, dtype=torch.float64, device="cpu").detach()
    if values.ndim != 1 or len(values) < 2:
        raise ValueError(f"{name} must have shape (texts,) with at least two texts, got shape {tuple(values.shape)}")
    if not values.isfinite().all():
        index = int((~values.isfinite()).nonzero()[0])
        raise ValueError(f"{name}[{index}] is {values[index].item()}: all values must be finite")
    return values
