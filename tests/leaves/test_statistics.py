import itertools
import sys

import numpy as np
import pytest
import torch
from scipy import stats

from bertscore_tm import BERTScore
from bertscore_tm.layer_tuning import correlation, rank_with_ties
from bertscore_tm.statistics import compare_paired, darr_kendall, holm, mean_interval, williams_test


def judged(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return scores, and judgements on a scale of five with ties."""
    rng = np.random.default_rng(0)
    scores = rng.normal(size=count)
    return scores, np.clip(np.round(3 + scores + rng.normal(size=count)), 1, 5)


@pytest.mark.parametrize("how", ["pearson", "spearman", "kendall"])
def test_correlation_agrees_with_scipy(how):
    scores, human = judged(300)
    ours = correlation(torch.from_numpy(scores), human.tolist(), how, confidence=0.9)
    function = {"pearson": stats.pearsonr, "spearman": stats.spearmanr, "kendall": stats.kendalltau}[how]
    assert ours.value == pytest.approx(function(scores, human).statistic)
    if how == "pearson":
        assert [ours.low, ours.high] == pytest.approx(stats.pearsonr(scores, human).confidence_interval(0.9))
    # An interval that does not use the formula.
    resampled = stats.bootstrap(
        (scores, human),
        lambda x, y: function(x, y).statistic,
        paired=True,
        vectorized=False,
        n_resamples=1000,
        confidence_level=0.9,
        method="percentile",
        rng=np.random.default_rng(1),
    ).confidence_interval
    assert [ours.low, ours.high] == pytest.approx(resampled, abs=0.02)


@pytest.mark.parametrize("how", ["spearman", "kendall"])
def test_rounding_does_not_order_equal_scores(how):
    """Exact copies score 1 and repeated texts alike, up to rounding in float32."""
    rng = np.random.default_rng(0)
    exact = rng.choice([0.7, 0.8, 0.9, 1.0], 200)
    human = np.round(exact * 4 + rng.normal(size=200))
    noisy = (exact + rng.uniform(-2e-7, 2e-7, 200)).astype(np.float32)
    function = {"spearman": stats.spearmanr, "kendall": stats.kendalltau}[how]
    expected = function(exact, human).statistic
    assert abs(function(noisy, human).statistic - expected) > 1e-4
    assert correlation(torch.from_numpy(noisy), human.tolist(), how).value == pytest.approx(expected, abs=1e-12)
    assert correlation(human.tolist(), torch.from_numpy(noisy), how).value == pytest.approx(expected, abs=1e-12)
    with pytest.raises(ValueError, match=r"all values of x are 1\.0: the correlation is undefined"):
        correlation([1.0, 1 - 1e-7, 1.0, 1 - 2e-7, 1.0], [1, 2, 3, 4, 5], how)


def test_ranks_are_of_values_that_differ_by_more_than_rounding():
    rows = [[0.5, 0.7, 0.5 - 1e-7, 1.0, 0.3], [2, 1, 2, 3, 4]]
    assert rank_with_ties(rows).tolist() == [[1, 2, 1, 3, 0], [1, 0, 1, 2, 3]]
    # Steps below 1e-6 do not chain all values into one rank.
    assert rank_with_ties(np.arange(6) * 4e-7).tolist() == [0, 0, 0, 1, 1, 1]


@pytest.mark.parametrize("how", ["pearson", "spearman", "kendall"])
def test_perfect_correlation(how):
    found = correlation([1, 2, 3, 4, 5], [2, 4, 6, 8, 10], how)
    assert (found.value, found.low, found.high) == pytest.approx((1, 1, 1))


def test_darr_kendall_agrees_with_a_loop():
    rng = np.random.default_rng(0)
    better, worse = rng.integers(0, 4, 200), rng.integers(0, 4, 200)
    concordant = discordant = 0
    for x, y in zip(better, worse, strict=True):
        if x > y:
            concordant += 1
        else:
            discordant += 1
    expected = (concordant - discordant) / (concordant + discordant)
    # The interval is nearly that of the mean agreement, counted as 1 and -1.
    found = darr_kendall(torch.from_numpy(better), worse.tolist(), confidence=0.9)
    low, high = mean_interval(np.where(better > worse, 1.0, -1.0), 0.9)
    assert found.value == pytest.approx(expected)
    assert (found.low, found.high) == pytest.approx((low.item(), high.item()), abs=0.02)


def test_williams_test_on_published_examples():
    # The example of https://github.com/inmoonlight/nlp-williams, one-sided.
    assert williams_test(0.65, 0.55, 0.3, 50)[1] == pytest.approx(0.20928617286753592)
    # Steiger's example (1980) as in the manual of R's psych package: t = 0.89, two-sided p = 0.37.
    t, p_value = williams_test(0.5, 0.4, 0.1, 103)
    assert t == pytest.approx(0.89, abs=0.005)
    assert 2 * p_value == pytest.approx(0.37, abs=0.01)


def test_holm_is_the_closed_bonferroni_test():
    p_values = [0.012, 0.2, 0.03, 0.011, 0.9, 0.03]
    expected = []
    for i in range(len(p_values)):
        others = [j for j in range(len(p_values)) if j != i]
        # A comparison counts if Bonferroni rejects every set of comparisons that it is in.
        sets = itertools.chain.from_iterable(itertools.combinations(others, size) for size in range(len(p_values)))
        expected.append(max(min(1, (1 + len(s)) * min(p_values[j] for j in (i, *s))) for s in sets))
    assert holm(p_values) == pytest.approx(expected)
    assert holm([]) == []


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: compare_paired(torch.rand(3), torch.rand(4)),
            r"a and b must both have shape \(texts,\) .* got shapes \(3,\) and \(4,\)",
        ),
        (lambda: compare_paired([], []), "a and b must both have .* at least two"),
        (lambda: compare_paired([0.1], [0.2]), "a and b must both have .* at least two"),
        (lambda: compare_paired(torch.rand(2, 2), torch.rand(2, 2)), r"got shapes \(2, 2\) and"),
        (lambda: compare_paired([0.1, 0.2], [0.1, float("nan")]), r"b\[1\] is nan"),
        (lambda: compare_paired([0.1] * 6, [0.2] * 6, confidence=95), "confidence"),
        (lambda: compare_paired([float("inf"), 1], [1, 1]), r"a\[0\] is inf"),
        (lambda: mean_interval([0.1, 0.2], 0), "confidence must be between 0 and 1, got 0"),
        (lambda: correlation([1, 2, 3, 4], [1, 2, 3, 4]), "at least 5 texts, got 4"),
        (lambda: correlation([1, 1, 1, 1, 1], [1, 2, 3, 4, 5]), "all values of x are 1.0"),
        (
            lambda: correlation([1, 2, 3, 4, 5], [1, 2, 3, 4, 5], "tau"),
            "how='tau' is not one of 'pearson', 'spearman', 'kendall'",
        ),
        (lambda: correlation([1, 2, 3, 4, 5], [1, 2, 3, 4, 5], confidence=0), "confidence"),
        (lambda: darr_kendall([1, 2], [1, 2, 3]), "better and worse"),
        (lambda: darr_kendall([1, 2], [1, 2], confidence=1), "confidence"),
        (lambda: williams_test(0.5, 0.4, 0.1, 3), "n must be at least 4"),
        (lambda: williams_test(2.25, 1.5, 1.5, 30), "r12=2.25, r13=1.5 and r23=1.5 cannot be correlations"),
        (lambda: williams_test(0.9, -0.9, 0.9, 30), "cannot be correlations of the same texts"),
        (lambda: williams_test(0.5, 0.5, 1.0, 30), "the two metrics are identical"),
        (lambda: holm([0.1, 1.2]), "between 0 and 1"),
    ],
)
def test_bad_arguments(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_a_missing_scipy_is_named_with_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "scipy", None)
    calls = (
        lambda: correlation([1, 2, 3, 4, 5], [1, 2, 3, 4, 5]),
        lambda: mean_interval([0.1, 0.2]),
        lambda: compare_paired([0.1] * 6, [0.2] * 6),
        # Before any text is scored.
        lambda: BERTScore("unused", confidence=0.95),
    )
    for call in calls:
        with pytest.raises(ImportError, match=r"bertscore-tm\[cli\]"):
            call()
