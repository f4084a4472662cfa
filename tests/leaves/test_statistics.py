import itertools
import sys

import numpy as np
import pytest
import torch

from bertscore_tm.statistics import compare_all_pairs, compare_paired, describe_best, holm, mean_interval


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


@pytest.mark.parametrize("unit", [0.125, 0.1])
def test_a_mean_of_0_has_the_p_value_1_and_is_adjusted_with_the_others(unit):
    """Differences that cancel within each document have no error: 0 / 0 in the t test, or rounding by rounding."""
    groups = [0, 0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6]
    base = unit * torch.arange(len(groups), dtype=torch.float64)
    cancels = unit * torch.tensor([1, 2, -3, *[1, -1] * 6], dtype=torch.float64)
    better = base + 0.1 + 0.01 * torch.arange(len(groups)) % 0.03
    comparisons = compare_all_pairs(torch.stack([base, base + cancels, better]), range(3), groups=groups)
    test, adjusted = comparisons[0, 1]
    assert (test.test, test.p_value, adjusted) == ("t", 1, 1)
    p_values = [test.p_value for test, _ in comparisons.values()]
    assert [adjusted for _, adjusted in comparisons.values()] == holm(p_values)
    assert min(p_values) < 0.02


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
