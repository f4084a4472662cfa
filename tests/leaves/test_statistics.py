import itertools
import math
import sys

import numpy as np
import pytest
import torch
from scipy import stats

from bertscore_tm.layer_tuning import correlation, rank_with_ties
from bertscore_tm.statistics import compare_all_pairs, compare_paired, describe_best, holm, mean_interval


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
    # The formulae of Bonett and Wright.
    variance = {"pearson": 1 / 297, "spearman": (1 + ours.value**2 / 2) / 297, "kendall": 0.437 / 296}[how]
    ends = math.atanh(ours.value) + stats.norm.ppf([0.05, 0.95]) * math.sqrt(variance)
    assert [ours.low, ours.high] == pytest.approx(np.tanh(ends))
    perfect = correlation([1, 2, 3, 4, 5], [2, 4, 6, 8, 10], how)
    assert (perfect.value, perfect.low, perfect.high) == pytest.approx((1, 1, 1))


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
    with pytest.raises(ValueError, match=r"all values of x are 1\.0: the correlation is undefined"):
        correlation([1.0, 1 - 1e-7, 1.0, 1 - 2e-7, 1.0], [1, 2, 3, 4, 5], how)


@pytest.mark.parametrize("how", ["spearman", "kendall"])
def test_judgements_are_tied_only_where_they_are_equal(how):
    """Judgements have no rounding: of ratings as small as 1e-6 each step counts."""
    scores, human = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8], [3e-7, 1e-7, 9e-7, 5e-7, 7e-7, 1.1e-6, 1.1e-6, 2e-6]
    function = {"spearman": stats.spearmanr, "kendall": stats.kendalltau}[how]
    assert correlation(scores, human, how).value == pytest.approx(function(scores, human).statistic, abs=1e-12)


def test_ranks_are_of_values_that_differ_by_more_than_rounding():
    rows = [[0.5, 0.7, 0.5 - 1e-7, 1.0, 0.3], [2, 1, 2, 3, 4]]
    assert rank_with_ties(rows).tolist() == [[1, 2, 1, 3, 0], [1, 0, 1, 2, 3]]
    # Steps below 1e-6 do not chain all values into one rank.
    assert rank_with_ties(np.arange(6) * 4e-7).tolist() == [0, 0, 0, 1, 1, 1]


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


def test_holm_leaves_an_array_as_it_is():
    p_values = np.array([0.25, 0.01, 0.5])
    assert holm(p_values) == [0.5, 0.03, 0.5]
    assert p_values.tolist() == [0.25, 0.01, 0.5]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: compare_paired(torch.rand(3), torch.rand(4)),
            r"a and b must both have shape \(texts,\) .* got shapes \(3,\) and \(4,\)",
        ),
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
        (lambda: holm([0.1, 1.2]), "between 0 and 1"),
        (lambda: mean_interval([0.1, 0.2, 0.3], groups=["a"] * 2), "groups must have one label for each of 3"),
        (lambda: mean_interval([0.1, 0.2, 0.3], groups=[["a"]] * 3), "groups must have one label for each of 3"),
    ],
)
def test_bad_arguments(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_a_missing_scipy_is_an_error_with_the_remedy(monkeypatch):
    monkeypatch.setitem(sys.modules, "scipy", None)
    with pytest.raises(ImportError, match="need scipy: pip install scipy"):
        mean_interval([0.1, 0.2])


def test_the_verdict_names_all_systems():
    names = ["gamma", "alpha", "delta", "beta", "epsilon"]
    base = torch.linspace(0.2, 0.8, 20)
    scores = torch.stack([base - 0.1, base, base - 0.2, base, base - 0.3])
    scores[3, ::2] -= 0.001
    scores[3, 1::2] += 0.0009
    comparisons = compare_all_pairs(scores, range(5))
    said = "Not significantly below it: beta. Below (p < .05, Holm): gamma, delta, epsilon."
    assert describe_best(names, scores.mean(1).tolist(), comparisons) == f"Best: alpha. {said}"
    two = compare_all_pairs(scores[:2], range(2))
    assert describe_best(names[:2], scores[:2].mean(1).tolist(), two) == "Best: alpha. Below (p < .05): gamma."
    few = compare_all_pairs(scores[:, :5], range(5))
    assert describe_best(names, scores.mean(1).tolist(), few) == ""
    # Only those that were compared with the best one are named.
    some = compare_all_pairs(scores, [1, 2])
    assert describe_best(names, scores.mean(1).tolist(), some) == "Best: alpha. Below (p < .05): delta."
