"""Confidence intervals and paired comparisons of scores, of independent texts or of documents.

The first call imports scipy, and raises an ImportError without it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

__all__ = ["TIE", "PairedComparison", "Scores", "compare_paired", "holm", "mean_interval"]

Scores = Tensor | Sequence[float]
Test = Literal["exact permutations", "drawn permutations", "t"]

# With fewer texts, no choice of signs has a p-value below 0.05.
_MIN_COMPARED = 6
# Scores that differ by less are equal up to rounding in float32.
TIE = 1e-6
# Number of drawn permutations. Up to 13 texts have fewer permutations, so all of them are counted instead.
_PERMUTATIONS = 9_999
_SIGNIFICANT = 0.05
# Numbers in memory at a time.
_BATCH = 2_000_000


@dataclass(frozen=True)
class PairedComparison:
    """Difference of two means, its confidence interval from ``low`` to ``high``, and its two-sided p-value.

    ``test`` names the test, ``None`` without one; the second system scores higher than the first in ``wins`` texts.
    """

    difference: float
    low: float
    high: float
    p_value: float
    test: Test | None
    wins: int
    ties: int
    losses: int

    @property
    def is_p_value_at_most(self) -> bool:
        """Whether the p-value is the least one of permutations that are drawn, which is an upper bound."""
        return self.test == "drawn permutations" and self.p_value <= 2 / (_PERMUTATIONS + 1)


def mean_interval(
    scores: Scores,
    confidence: float = 0.95,
    *,
    bounds: tuple[Tensor | float, Tensor | float] = (-math.inf, math.inf),
    groups: ArrayLike | None = None,
) -> tuple[Tensor, Tensor]:
    r"""Return Student's t interval of the mean.

    .. math::
        \bar x \pm \frac{t_\nu}{n} \sqrt{\sum_g \frac{1}{1 - h_g} \Bigl(\sum_{i \in g} (x_i - \bar x)\Bigr)^2}, \quad
        \frac{1}{\nu} = \sum_g h_g^2 + \Bigl(\sum_g q_g\Bigr)^2 - \sum_g q_g^2, \quad q_g = \frac{h_g^2}{1 - h_g}

    for n texts in groups, such as documents, that have the shares h of the texts: the bias-reduced variance CR2 and the
    degrees of freedom of Bell & McCaffrey (Survey Methodology 2002), which are G - 1 for G groups of one size or G
    independent texts. In simulations of 6 to 30 groups of 1 to 8 texts, and of one long group among short ones, 95%
    intervals cover 94 to 96% where the texts of a group depend on each other, and up to 98% where they do not.

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
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must be between 0 and 1, got {confidence}")
    values = torch.as_tensor(scores, dtype=torch.float64, device="cpu").detach()
    mean, error, freedom = _estimate_mean(values, groups)
    margin = error * float(scipy_stats().t.ppf((1 + confidence) / 2, freedom))
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
    texts or groups, else with 9,999 seeded permutations. For groups of unequal size it is that of the interval's t
    test, so that the two agree, or 2^(1-G) for G groups, as in a permutation test, if that is more. Scores that
    differ by less than 1e-6 are equal.

    ``a`` and ``b`` have the scores of the systems, shape (texts,); the other arguments are those of
    :func:`mean_interval`.

    Returns:
        Mean of b minus mean of a, interval, test and p-value, which is NaN for fewer than six texts or groups.

    Raises:
        ValueError: the shapes differ or are not (texts,), there are fewer than two texts, a score is not finite, or
            ``confidence`` is out of range.

    Example:
        >>> a = torch.tensor([0.1, 0.4, 0.3, 0.5, 0.2, 0.6])
        >>> comparison = compare_paired(a, a + 0.1)
        >>> round(comparison.difference, 4), comparison.wins, comparison.test, comparison.p_value
        (0.1, 6, 'exact permutations', 0.03125)
    """
    return compare_systems([a, b], [(0, 1)], confidence=confidence, bounds=bounds, groups=groups)[0]


def compare_systems(
    scores: Sequence[Scores] | Tensor,
    pairs: Sequence[tuple[int, int]],
    *,
    confidence: float = 0.95,
    bounds: tuple[float, float] = (-math.inf, math.inf),
    groups: ArrayLike | None = None,
) -> list[PairedComparison]:
    """Compare pairs of systems, a and b by their numbers, as :func:`compare_paired` does, with one draw of signs."""
    gains = torch.stack([score_gains(*_as_paired_values(scores[a], scores[b])) for a, b in pairs])  # (pairs, texts)
    test, p_values = _test_gains(gains, groups)
    means = gains.mean(1)
    span = bounds[1] - bounds[0]
    lows, highs = mean_interval(gains, confidence, bounds=(-span, span), groups=groups)
    wins = (gains > 0).sum(1)
    ties = (gains == 0).sum(1)
    losses = (gains < 0).sum(1)
    return [
        PairedComparison(
            difference=means[i].item(),
            low=lows[i].item(),
            high=highs[i].item(),
            p_value=float(p_values[i]),
            test=test,
            wins=int(wins[i]),
            ties=int(ties[i]),
            losses=int(losses[i]),
        )
        for i in range(len(pairs))
    ]


def compare_all_pairs(
    scores: Tensor, systems: Sequence[int], **settings: Any
) -> dict[tuple[int, int], tuple[PairedComparison, float]]:
    """Compare each two of these systems by :func:`compare_systems`, with p-values that :func:`holm` adjusts for all."""
    pairs = list(combinations(systems, 2))
    if not pairs:
        return {}
    comparisons = compare_systems(scores, pairs, **settings)
    p_values = [comparison.p_value for comparison in comparisons]
    if comparisons[0].test is None:  # p-values are NaN
        adjusted = p_values
    else:
        adjusted = holm(p_values)
    return dict(zip(pairs, zip(comparisons, adjusted, strict=True), strict=True))


def describe_best(
    names: Sequence[str],
    means: Sequence[float],
    comparisons: dict[tuple[int, int], tuple[PairedComparison, float]],
    best_by: str = "Best",
) -> str:
    """Return a sentence naming the best system and those significantly worse, or ``""`` if it was not compared."""
    best, *others = sorted(range(len(names)), key=lambda number: -means[number])
    near = []
    below = []
    for other in others:
        pair = (min(best, other), max(best, other))
        if pair not in comparisons:
            continue
        _, p_value = comparisons[pair]
        if p_value < _SIGNIFICANT:
            below.append(names[other])
        elif p_value >= _SIGNIFICANT:  # not NaN
            near.append(names[other])
    if not near and not below:
        return ""
    label_below = "Below (p < .05)"
    if len(comparisons) > 1:
        label_below = "Below (p < .05, Holm)"
    parts = {best_by: [names[best]], "Not significantly below it": near, label_below: below}
    return " ".join(f"{label}: {', '.join(listed)}." for label, listed in parts.items() if listed)


def score_gains(a: Tensor, b: Tensor) -> Tensor:
    """Return b - a in float64, and 0 where the scores are equal up to rounding."""
    gains = b.double() - a.double()
    return torch.where(gains.abs() < TIE, 0, gains)


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjust p-values, which may depend on each other, for multiple comparisons.

    Returns:
        Adjusted p-values, in the same order (Holm, Scandinavian Journal of Statistics 1979). Without any true
        difference, the probability that one of them is below x is at most x.

    Raises:
        ValueError: a p-value is not between 0 and 1.

    Example:
        >>> holm([0.25, 0.01, 0.5])
        [0.5, 0.03, 0.5]
    """
    adjusted = np.array(p_values, dtype=np.float64)
    if not ((adjusted >= 0) & (adjusted <= 1)).all():
        raise ValueError(f"p-values must be between 0 and 1, got {list(p_values)}")
    order = adjusted.argsort()
    # Multiply the smallest p-value by n, the next one by n - 1, and so on. The running maximum keeps their order.
    adjusted[order] = np.maximum.accumulate(adjusted[order] * np.arange(len(adjusted), 0, -1)).clip(max=1)
    return [float(p) for p in adjusted]


def format_p_value(p_value: float, is_at_most: bool) -> str:
    """Return a p-value with four decimals, or a smaller one with two digits, or a dash; ``≤`` marks an upper bound."""
    if math.isnan(p_value):
        return "-"
    digits = f"{p_value:.4f}" if p_value >= 5e-5 else f"{p_value:.1e}"
    return f"≤{digits}" if is_at_most else digits


def scipy_stats() -> Any:
    """Import ``scipy.stats``, or raise an ImportError with the remedy; call it before long work that needs it."""
    try:
        from scipy import stats
    except ImportError as error:
        raise ImportError("intervals and tests need scipy: pip install scipy") from error
    return stats


def _estimate_mean(values: Tensor, groups: ArrayLike | None) -> tuple[Tensor, Tensor, float]:
    """Return the mean of values of shape (..., n), its standard error, and the error's degrees of freedom."""
    mean = values.mean(-1)  # (...)
    residuals = _sum_groups(values - mean[..., None], groups)  # (..., groups)
    count = values.shape[-1]
    if residuals.shape[-1] < 2:
        return mean, mean * math.nan, math.nan
    share_of_text = torch.full((count,), 1 / count, dtype=torch.float64, device="cpu")  # (n,)
    shares = _sum_groups(share_of_text, groups)  # (groups,)
    error = (residuals.square() / (1 - shares)).sum(-1).sqrt() / count  # (...)
    leverage = shares.square() / (1 - shares)  # (groups,)
    freedom = 1 / (shares.square().sum() + leverage.sum().square() - leverage.square().sum())
    return mean, error, freedom.item()


def _sum_groups(values: Tensor, groups: ArrayLike | None) -> Tensor:
    """Return the sum of each group's values, shape (..., groups). Without groups, each text is a group."""
    if groups is None:
        return values
    labels = np.asarray(groups)
    if labels.shape != values.shape[-1:]:
        raise ValueError(f"groups must have one label for each of {values.shape[-1]} texts, got shape {labels.shape}")
    names, numbers = np.unique(labels, return_inverse=True)
    sums = values.new_zeros(*values.shape[:-1], len(names))  # (..., groups)
    return sums.index_add(-1, torch.from_numpy(numbers), values)


def _test_gains(gains: Tensor, groups: ArrayLike | None) -> tuple[Test | None, NDArray[np.float64]]:
    """Choose the test for gains of shape (comparisons, texts), and return its name and p-values, (comparisons,)."""
    # Round gains to whole multiples of TIE, because sums of whole numbers are exact: equal sums then compare equal.
    sums = _sum_groups((gains / TIE).round(), groups).numpy()  # (comparisons, groups)
    sizes = _sum_groups(torch.ones_like(gains[0]), groups)  # texts per group, (groups,)
    if len(sizes) < _MIN_COMPARED:
        return None, np.full(len(gains), math.nan)
    have_unequal_sizes = bool((sizes != sizes[0]).any())
    if have_unequal_sizes:
        return "t", _t_test(gains, sums, groups)
    if 2 ** len(sizes) <= _PERMUTATIONS:
        return "exact permutations", _permute_exactly(sums)
    return "drawn permutations", _permute_by_draws(sums)


def _t_test(gains: Tensor, sums: NDArray[np.float64], groups: ArrayLike | None) -> NDArray[np.float64]:
    """Return the two-sided p-values of the t test of mean gains, but at least the least of a permutation test."""
    means, errors, freedom = _estimate_mean(gains, groups)
    p_values = 2 * scipy_stats().t.sf(means.abs() / errors, freedom)  # (comparisons,)
    # A permutation test counts at least two of the 2^groups choices of signs: the observed signs and their reverse.
    least = 2.0 ** (1 - sums.shape[1])
    # If all groups have the same mean gain, the standard error is 0 up to rounding. If the mean is 0 up to rounding,
    # too, the quotient above is NaN or a ratio of rounding errors.
    is_rounding = (means.abs() < TIE) & (errors < TIE)  # (comparisons,)
    has_no_gain = (sums.sum(1) == 0) | is_rounding.numpy()
    return np.where(has_no_gain, 1.0, np.maximum(p_values, least))


def _permute_exactly(gains: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the two-sided p-value of each row's sum among the sums with all choices of signs, shape (comparisons,)."""
    num_groups = gains.shape[1]
    num_choices = 2**num_groups
    # Each row has the binary digits of a number: 1 keeps the gain of a group, and 0 reverses its sign.
    bits = (np.arange(num_choices)[:, None] >> np.arange(num_groups)) & 1  # (choices, groups)
    above, below = _count_extreme(gains, bits)
    return _two_sided(above, below, num_choices)


def _permute_by_draws(gains: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the two-sided p-value of each row's sum among the sums with drawn signs, shape (comparisons,)."""
    num_groups = gains.shape[1]
    rng = np.random.default_rng(0)
    # The observed signs count as one more draw.
    above = np.ones(len(gains), np.int64)
    below = np.ones(len(gains), np.int64)
    batch = max(1, _BATCH // num_groups)
    for start in range(0, _PERMUTATIONS, batch):
        num_draws = min(batch, _PERMUTATIONS - start)
        bits = rng.integers(2, size=(num_draws, num_groups))  # (draws, groups)
        batch_above, batch_below = _count_extreme(gains, bits)
        above += batch_above
        below += batch_below
    return _two_sided(above, below, _PERMUTATIONS + 1)


def _count_extreme(gains: NDArray[np.float64], bits: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Count the choices of signs whose sum is at least, and at most, the sum of each row of gains.

    Args:
        gains: shape (comparisons, groups).
        bits: 1 where a choice keeps the sign, else 0, shape (choices, groups).

    Returns:
        Both counts, shape (comparisons,) each.
    """
    # 2 * bit - 1 is the sign: 1 or -1.
    sums = (2.0 * bits - 1) @ gains.T  # (choices, comparisons)
    observed = gains.sum(1)  # (comparisons,)
    return (sums >= observed).sum(0), (sums <= observed).sum(0)


def _two_sided(above: NDArray[np.int64], below: NDArray[np.int64], total: int) -> NDArray[np.float64]:
    """Return the p-value of both directions from the counts of each."""
    p_values: NDArray[np.float64] = 2 * np.minimum(above, below) / total
    return np.minimum(p_values, 1.0)


def _as_paired_values(a: Scores, b: Scores) -> tuple[Tensor, Tensor]:
    """Return values of shape (texts,) each as float64 on the CPU."""
    first, second = (torch.as_tensor(values, dtype=torch.float64, device="cpu").detach() for values in (a, b))
    if first.shape != second.shape or first.ndim != 1 or len(first) < 2:
        raise ValueError(
            f"a and b must both have shape (texts,) with at least two texts, got shapes {tuple(first.shape)} and "
            f"{tuple(second.shape)}"
        )
    _require_finite("a", first)
    _require_finite("b", second)
    return first, second


def _require_finite(name: str, values: Tensor) -> None:
    """Raise an error that names the first value that is not finite."""
    for index, value in enumerate(values.tolist()):
        if not math.isfinite(value):
            raise ValueError(f"{name}[{index}] is {value}: all values must be finite")
