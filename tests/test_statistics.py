"""Intervals and paired comparisons against scipy, plain loops, and simulated scores without a difference."""

import itertools
import math
import operator
import sys
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from bertscore_tm.statistics import (
    compare_all_pairs,
    compare_paired,
    compare_systems,
    describe_best,
    holm,
    mean_interval,
)


def tensor(values: Any) -> Tensor:
    return torch.as_tensor(np.asarray(values), dtype=torch.float64)


def ends(scores: Any, confidence: float = 0.95, **options: Any) -> list[Any]:
    return [end.tolist() for end in mean_interval(scores, confidence, **options)]


def two_systems(count: int, gain: float = 0.02) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    a = torch.rand(count, generator=generator)
    return a, a + gain + 0.1 * torch.randn(count, generator=generator)


@pytest.mark.parametrize("count", [2, 6, 101])
@pytest.mark.parametrize("confidence", [0.5, 0.95, 0.999])
def test_the_interval_is_that_of_scipys_t_test(count, confidence):
    rows = np.random.default_rng(count).standard_t(3, (2, 3, count))
    expected = stats.ttest_1samp(rows, 0, axis=-1).confidence_interval(confidence)
    for end, wanted in zip(mean_interval(tensor(rows).requires_grad_(), confidence), expected, strict=True):
        assert (end.dtype, end.shape, end.requires_grad) == (torch.float64, (2, 3), False)
        np.testing.assert_allclose(end, wanted, rtol=1e-9)


def test_documents_of_one_size_are_averaged():
    rng, groups = np.random.default_rng(8), np.arange(8).repeat(5)
    # Texts of one document have most in common.
    drawn = rng.normal(size=8).repeat(5) + 0.3 * rng.normal(size=40)
    means = drawn.reshape(8, 5).mean(1)
    expected = stats.ttest_1samp(means, 0).confidence_interval(0.9)
    order = np.random.default_rng(0).permutation(40)
    labels = [f"document {group}" for group in groups[order]]
    assert ends(drawn[order], 0.9, groups=labels) == pytest.approx(list(expected))
    compared = compare_paired(np.zeros(40), drawn[order], confidence=0.9, groups=torch.from_numpy(groups[order]))
    assert [compared.low, compared.high] == pytest.approx(list(expected))
    wanted = stats.permutation_test((means,), np.mean, permutation_type="samples", n_resamples=np.inf)
    assert compared.p_value == pytest.approx(wanted.pvalue, abs=1e-12)


def bell_mccaffrey(values, groups):
    """Standard error and degrees of freedom of the mean by matrices, as in Bell and McCaffrey (2002), section 2."""
    count = len(values)
    hat = np.full((count, count), 1 / count)
    residuals = np.asarray(values) - np.mean(values)
    total, columns = 0.0, []
    for group in sorted(set(groups)):
        rows = [i for i, label in enumerate(groups) if label == group]
        # The symmetric root of (I - H)^-1 of the group.
        eigenvalues, vectors = np.linalg.eigh((np.eye(count) - hat)[np.ix_(rows, rows)])
        adjusted = vectors @ np.diag(eigenvalues**-0.5) @ vectors.T @ np.full(len(rows), 1 / count)
        total += (residuals[rows] @ adjusted) ** 2
        columns.append((np.eye(count) - hat)[:, rows] @ adjusted)
    eigenvalues = np.linalg.eigvalsh(np.stack(columns, 1).T @ np.stack(columns, 1))
    return math.sqrt(total), eigenvalues.sum() ** 2 / (eigenvalues**2).sum()


def test_documents_of_several_sizes_agree_with_matrices():
    values, groups = [0.1, 0.5, 0.3, 0.9, 0.2, 0.7, 0.4], ["a", "b", "a", "c", "b", "a", "d"]
    error, freedom = bell_mccaffrey(values, groups)
    margin = stats.t.ppf(0.975, freedom) * error
    assert ends(values, groups=groups) == pytest.approx([np.mean(values) - margin, np.mean(values) + margin])
    # Documents of one text each are independent texts.
    assert ends(values, groups=range(7)) == pytest.approx(ends(values))


SIZES = {
    "six": [1, 2, 8, 3, 1, 5],
    "ten": [1, 8, 3, 2, 7, 1, 1, 5, 2, 4],
    "thirty": [1 + 5 * i % 8 for i in range(30)],
    "one long": [20, 1, 2, 3, 1, 2, 1, 3, 2, 1],
    "one very long": [30] + [1] * 29,
}


@pytest.mark.parametrize("share", [0.3, 0.8])
@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
def test_intervals_of_documents_cover_the_mean(sizes, share):
    """``share`` is the share of the variance that the texts of a document have in common."""
    rng, count = np.random.default_rng(7), 20_000
    groups = np.arange(len(sizes)).repeat(sizes)
    drawn = math.sqrt(share) * rng.normal(size=(count, len(sizes)))[:, groups]
    drawn += math.sqrt(1 - share) * rng.normal(size=drawn.shape)
    low, high = mean_interval(tensor(drawn), groups=groups)
    # The simulation's standard error is 0.15%.
    assert 0.9385 < ((low < 0) & (high > 0)).double().mean() < 0.9645


@pytest.mark.parametrize("gain", [0.0, 0.7])
@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
def test_the_interval_excludes_0_where_the_p_value_is_below_005(sizes, gain):
    rng, groups = np.random.default_rng(3), np.arange(len(sizes)).repeat(sizes)
    for _ in range(50):
        drawn = gain + rng.normal(size=len(sizes))[groups] + rng.normal(size=len(groups))
        compared = compare_paired(np.zeros(len(groups)), drawn, groups=groups)
        assert (compared.p_value < 0.05) == (compared.low > 0 or compared.high < 0)


@pytest.mark.parametrize(
    ("scores", "groups"), [([0.961], None), ([], None), (torch.empty(3, 1, 0), None), ([0.1, 0.2, 0.3], ["a"] * 3)]
)
def test_one_text_or_document_has_no_interval(scores, groups):
    for end in mean_interval(scores, groups=groups):
        assert end.shape == torch.as_tensor(scores).shape[:-1]
        assert end.isnan().all()


def test_ends_are_within_the_range_of_the_scores():
    low, high = ends([0.99, 1.0, 0.6])
    assert high > 1
    assert ends([0.99, 1.0, 0.6], bounds=(-1, 1)) == [low, 1]
    rows = tensor([[-0.9, -0.9, 0.5], [-3.9, -3.9, 0.5]])
    assert ends(rows, bounds=(tensor([-1.0, -4.0]), 1.0))[0] == [-1, -4]
    a, b = [0.0] * 6, [2.0, 2.0, 2.0, 2.0, 2.0, -2.0]
    assert compare_paired(a, b).high > 2
    assert compare_paired(a, b, bounds=(-1, 1)).high == 2


@pytest.mark.parametrize("count", [6, 9, 13])
def test_the_p_value_of_few_texts_counts_all_permutations(count):
    a, b = two_systems(count)
    # Equal differences and one of 0 give choices of signs with equal sums.
    b[1], b[2] = a[1] + (b[0] - a[0]), a[2]
    steps = ((b.double() - a.double()) / 1e-6).round().tolist()
    sums = [abs(sum(map(operator.mul, signs, steps))) for signs in itertools.product((-1, 1), repeat=count)]
    expected = sum(x >= abs(sum(steps)) for x in sums) / len(sums)
    assert compare_paired(a, b).p_value == pytest.approx(expected, abs=1e-12)
    assert compare_paired(a, a).p_value == 1


@pytest.mark.parametrize("count", [14, 60, 200])
def test_the_p_value_is_that_of_scipys_permutation_test(count):
    a, b = two_systems(count)
    differences = (b.double() - a.double()).numpy()
    options = {"permutation_type": "samples", "n_resamples": 20_000, "rng": np.random.default_rng(5)}
    expected = stats.permutation_test((differences,), np.mean, vectorized=True, batch=2000, **options)
    compared, swapped = compare_paired(a, b), compare_paired(b.tolist(), a.tolist())
    assert compared.difference == pytest.approx(differences.mean())
    assert 1e-3 < compared.p_value < 0.9
    assert [compared.p_value, swapped.p_value] == pytest.approx([expected.pvalue] * 2, abs=0.02)
    assert (swapped.low, swapped.high) == pytest.approx((-compared.high, -compared.low))


@pytest.mark.parametrize("unit", [0.1, 0.7, 0.01])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("count", [12, 24])
def test_rounding_of_scores_makes_no_difference(count, dtype, unit):
    drawn = torch.Generator().manual_seed(count)
    a, b = torch.randint(10, (2, count), generator=drawn, dtype=torch.float64)
    assert compare_paired((a * unit).to(dtype), (b * unit).to(dtype)).p_value == compare_paired(a, b).p_value
    noise = torch.where(torch.arange(count) % 2 == 0, 1e-7, -3e-7)
    assert compare_paired(a, a + noise).p_value == 1
    assert compare_paired(a, a + noise, groups=[0, *range(count - 1)]).p_value == 1


@pytest.mark.parametrize("count", [6, 9, 40])
def test_equal_differences_are_as_likely_in_unequal_groups(count):
    groups, a = [0, *range(count)], np.linspace(0, 1, count + 1)
    compared = compare_paired(a, a + 0.1, groups=groups)
    # All signs equal: two of the choices of signs.
    assert compared.p_value == 2 / 2**count
    assert compared.low == pytest.approx(0.1)
    # With a difference that is rounding, too.
    for gain, texts in itertools.product((1e-7, 9e-7), (groups, None)):
        compared = compare_paired(a, a + gain, groups=texts)
        assert (compared.difference, compared.low, compared.high, compared.p_value) == (0, 0, 0, 1)
        assert (compared.wins, compared.ties, compared.losses) == (0, len(a), 0)


@pytest.mark.parametrize(("count", "groups"), [(8, None), (40, None), (40, [0, *range(39)]), (5, None)])
def test_several_systems_are_compared_as_two_are(count, groups):
    drawn = torch.Generator().manual_seed(4)
    scores = torch.rand(4, count, generator=drawn)
    scores[2, 0] = scores[1, 0] + 7e-7
    pairs = [(0, 1), (1, 2), (3, 0), (2, 2)]
    options = {"bounds": (0, 1), "groups": groups}
    compared = compare_systems(scores, pairs, **options)
    test = "t" if groups else {5: None, 8: "exact permutations", 40: "drawn permutations"}[count]
    for (a, b), comparison in zip(pairs, compared, strict=True):
        assert repr(comparison) == repr(compare_paired(scores[a], scores[b], **options))
        assert comparison.test == test
        assert comparison.wins == (scores[b] - scores[a] > 1e-6).sum()
        assert comparison.ties == (scores[b] - scores[a]).abs().lt(1e-6).sum()
        assert comparison.wins + comparison.ties + comparison.losses == count


def test_only_a_p_value_of_drawn_permutations_is_an_upper_bound():
    a = torch.zeros(30)
    compared = compare_paired(a, a + torch.linspace(0.1, 0.2, 30))
    assert (compared.p_value, compared.test, compared.is_p_value_at_most) == (2e-4, "drawn permutations", True)
    compared = compare_paired(a, a + torch.linspace(0.1, 0.2, 30), groups=[0, *range(29)])
    assert compared.p_value < 2e-4
    assert (compared.test, compared.is_p_value_at_most) == ("t", False)


@pytest.mark.parametrize("numbers_per_step", [1, 51, 10**9])
def test_neither_memory_nor_the_random_state_changes_results(monkeypatch, numbers_per_step):
    a, b = two_systems(25)
    expected = compare_paired(a, b)
    np.random.seed(numbers_per_step)
    monkeypatch.setattr("bertscore_tm.statistics._BATCH", numbers_per_step)
    assert compare_paired(a, b) == expected


@pytest.mark.parametrize("count", [2, 5])
def test_fewer_than_six_texts_or_documents_are_not_tested(count):
    a, b = two_systems(count)
    compared = compare_paired(a, b)
    assert math.isnan(compared.p_value)
    assert [compared.low, compared.high] == ends(b - a, bounds=(-2, 2))
    assert math.isnan(compare_paired([0.1] * 10, [0.2] * 10, groups=[0, 0, 1, 1, 2, 2, 3, 3, 4, 4]).p_value)


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
def test_a_mean_of_0_has_the_p_value_1(unit):
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


@pytest.mark.parametrize("gain", [0, 1e-8, -1e-8])
def test_equal_group_gains_of_0_have_the_p_value_1(gain):
    # Rounded to whole numbers of the smallest gain, these gains have sums other than 0.
    gains = np.tile([100_000.4e-6, 100_000.4e-6, -200_000.8e-6], 7)
    groups = np.arange(6).repeat([3, 3, 3, 3, 3, 6])
    compared = compare_paired(np.zeros(21), gains + gain, groups=groups)
    assert (compared.test, compared.p_value) == ("t", 1)
    assert compare_paired(np.zeros(21), gains + 0.01, groups=groups).p_value == 2**-5


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
