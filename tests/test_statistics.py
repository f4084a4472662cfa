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
    """Return numbers as a tensor in float64."""
    return torch.as_tensor(np.asarray(values), dtype=torch.float64)


def ends(scores: Any, confidence: float = 0.95, **options: Any) -> list[Any]:
    """Return both ends of an interval as numbers."""
    low, high = mean_interval(scores, confidence, **options)
    return [low.tolist(), high.tolist()]


def two_systems(count: int, gain: float = 0.02) -> tuple[Tensor, Tensor]:
    """Return scores of two systems, of which the second is better on average."""
    generator = torch.Generator().manual_seed(1)
    a = torch.rand(count, generator=generator)
    noise = torch.randn(count, generator=generator)
    return a, a + gain + 0.1 * noise


def number_documents(sizes: list[int]) -> Any:
    """Return the number of the document of each text."""
    return np.arange(len(sizes)).repeat(sizes)


@pytest.mark.parametrize("count", [2, 6, 101])
@pytest.mark.parametrize("confidence", [0.5, 0.95, 0.999])
def test_the_interval_is_that_of_scipys_t_test(count, confidence):
    rows = np.random.default_rng(count).standard_t(3, (2, 3, count))
    expected = stats.ttest_1samp(rows, 0, axis=-1).confidence_interval(confidence)

    low, high = mean_interval(tensor(rows).requires_grad_(), confidence)

    np.testing.assert_allclose(low, expected.low, rtol=1e-9)
    np.testing.assert_allclose(high, expected.high, rtol=1e-9)
    for end in (low, high):
        assert end.dtype == torch.float64
        assert end.shape == (2, 3)
        assert not end.requires_grad


def test_documents_of_one_size_are_averaged():
    rng = np.random.default_rng(8)
    groups = number_documents([5] * 8)
    # Texts of one document have most in common.
    scores = rng.normal(size=8)[groups] + 0.3 * rng.normal(size=40)
    means = scores.reshape(8, 5).mean(1)
    low, high = stats.ttest_1samp(means, 0).confidence_interval(0.9)
    test = stats.permutation_test((means,), np.mean, permutation_type="samples", n_resamples=np.inf)
    order = rng.permutation(40)

    labels = [f"document {group}" for group in groups[order]]
    interval = ends(scores[order], 0.9, groups=labels)
    compared = compare_paired(np.zeros(40), scores[order], confidence=0.9, groups=torch.from_numpy(groups[order]))

    assert interval == pytest.approx([low, high])
    assert [compared.low, compared.high] == pytest.approx([low, high])
    assert compared.p_value == pytest.approx(test.pvalue, abs=1e-12)


def bell_mccaffrey(values, groups):
    """Standard error and degrees of freedom of the mean by matrices, as in Bell and McCaffrey (2002), section 2."""
    count = len(values)
    hat = np.full((count, count), 1 / count)
    residual_maker = np.eye(count) - hat
    residuals = np.asarray(values) - np.mean(values)
    variance = 0.0
    columns = []
    for group in sorted(set(groups)):
        rows = [i for i, label in enumerate(groups) if label == group]
        # The symmetric root of (I - H)^-1 of the group.
        eigenvalues, vectors = np.linalg.eigh(residual_maker[np.ix_(rows, rows)])
        root = vectors @ np.diag(eigenvalues**-0.5) @ vectors.T
        adjusted = root @ np.full(len(rows), 1 / count)
        variance += (residuals[rows] @ adjusted) ** 2
        columns.append(residual_maker[:, rows] @ adjusted)
    stacked = np.stack(columns, 1)
    eigenvalues = np.linalg.eigvalsh(stacked.T @ stacked)
    freedom = eigenvalues.sum() ** 2 / (eigenvalues**2).sum()
    return math.sqrt(variance), freedom


def test_documents_of_several_sizes_agree_with_matrices():
    values = [0.1, 0.5, 0.3, 0.9, 0.2, 0.7, 0.4]
    groups = ["a", "b", "a", "c", "b", "a", "d"]
    error, freedom = bell_mccaffrey(values, groups)
    margin = stats.t.ppf(0.975, freedom) * error
    mean = np.mean(values)

    interval = ends(values, groups=groups)

    assert interval == pytest.approx([mean - margin, mean + margin])


def test_documents_of_one_text_each_are_independent_texts():
    values = [0.1, 0.5, 0.3, 0.9, 0.2, 0.7, 0.4]

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
    rng = np.random.default_rng(7)
    groups = number_documents(sizes)
    of_documents = rng.normal(size=(10_000, len(sizes)))[:, groups]  # (simulations, texts)
    of_texts = rng.normal(size=of_documents.shape)
    scores = math.sqrt(share) * of_documents + math.sqrt(1 - share) * of_texts

    low, high = mean_interval(tensor(scores), groups=groups)

    covered = (low < 0) & (high > 0)
    # The simulation's standard error is 0.22%.
    assert 0.9385 < covered.double().mean() < 0.9645


@pytest.mark.parametrize("gain", [0.0, 0.7])
@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
def test_the_interval_excludes_0_where_the_p_value_is_below_005(sizes, gain):
    rng = np.random.default_rng(3)
    groups = number_documents(sizes)
    for _ in range(50):
        scores = gain + rng.normal(size=len(sizes))[groups] + rng.normal(size=len(groups))

        compared = compare_paired(np.zeros(len(groups)), scores, groups=groups)

        excludes_0 = compared.low > 0 or compared.high < 0
        assert excludes_0 == (compared.p_value < 0.05)


@pytest.mark.parametrize(
    ("scores", "groups"), [([0.961], None), ([], None), (torch.empty(3, 1, 0), None), ([0.1, 0.2, 0.3], ["a"] * 3)]
)
def test_one_text_or_document_has_no_interval(scores, groups):
    for end in mean_interval(scores, groups=groups):
        assert end.shape == torch.as_tensor(scores).shape[:-1]
        assert end.isnan().all()


def test_ends_are_within_the_range_of_the_scores():
    scores = [0.99, 1.0, 0.6]
    rows = tensor([[-0.9, -0.9, 0.5], [-3.9, -3.9, 0.5]])
    low, high = ends(scores)

    bounded = ends(scores, bounds=(-1, 1))
    low_by_row, _ = ends(rows, bounds=(tensor([-1.0, -4.0]), 1.0))

    assert high > 1
    assert bounded == [low, 1]
    assert low_by_row == [-1, -4]


def test_differences_are_within_the_range_of_two_scores():
    a, b = [0.0] * 6, [2.0, 2.0, 2.0, 2.0, 2.0, -2.0]

    assert compare_paired(a, b).high > 2
    assert compare_paired(a, b, bounds=(-1, 1)).high == 2


def count_permutations(differences):
    """P-value by all choices of signs, for differences that are whole numbers."""
    total = abs(sum(differences))
    as_large = 0
    for signs in itertools.product((-1, 1), repeat=len(differences)):
        permuted = sum(map(operator.mul, signs, differences))
        as_large += abs(permuted) >= total
    return as_large / 2 ** len(differences)


@pytest.mark.parametrize("count", [6, 9, 13])
def test_the_p_value_of_few_texts_counts_all_permutations(count):
    a, b = two_systems(count)
    # Equal differences and one of 0 give choices of signs with equal sums.
    b[1] = a[1] + (b[0] - a[0])
    b[2] = a[2]
    steps = ((b.double() - a.double()) / 1e-6).round().tolist()

    compared = compare_paired(a, b)

    assert compared.p_value == pytest.approx(count_permutations(steps), abs=1e-12)
    assert compare_paired(a, a).p_value == 1


@pytest.mark.parametrize("count", [14, 60, 200])
def test_the_p_value_is_that_of_scipys_permutation_test(count):
    a, b = two_systems(count)
    differences = (b.double() - a.double()).numpy()
    options = {"permutation_type": "samples", "n_resamples": 20_000, "rng": np.random.default_rng(5)}
    expected = stats.permutation_test((differences,), np.mean, vectorized=True, batch=2000, **options)

    compared = compare_paired(a, b)

    assert compared.difference == pytest.approx(differences.mean())
    assert 1e-3 < compared.p_value < 0.9
    assert compared.p_value == pytest.approx(expected.pvalue, abs=0.02)


@pytest.mark.parametrize("count", [14, 200])
def test_swapped_systems_have_the_opposite_interval(count):
    a, b = two_systems(count)
    compared = compare_paired(a, b)

    swapped = compare_paired(b.tolist(), a.tolist())

    assert [swapped.low, swapped.high] == pytest.approx([-compared.high, -compared.low])
    assert swapped.p_value == pytest.approx(compared.p_value, abs=0.02)


@pytest.mark.parametrize("unit", [0.1, 0.7, 0.01])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("count", [12, 24])
def test_rounding_of_scores_makes_no_difference(count, dtype, unit):
    generator = torch.Generator().manual_seed(count)
    a, b = torch.randint(10, (2, count), generator=generator, dtype=torch.float64)
    expected = compare_paired(a, b).p_value

    compared = compare_paired((a * unit).to(dtype), (b * unit).to(dtype))

    assert compared.p_value == expected


@pytest.mark.parametrize("count", [12, 24])
@pytest.mark.parametrize("is_grouped", [False, True])
def test_differences_by_rounding_have_the_p_value_1(count, is_grouped):
    scores = torch.linspace(0, 9, count, dtype=torch.float64)
    noise = torch.where(torch.arange(count) % 2 == 0, 1e-7, -3e-7)
    groups = [0, *range(count - 1)] if is_grouped else None

    assert compare_paired(scores, scores + noise, groups=groups).p_value == 1


@pytest.mark.parametrize("count", [6, 9, 40])
def test_equal_differences_are_as_likely_in_unequal_groups(count):
    groups = [0, *range(count)]
    a = np.linspace(0, 1, count + 1)

    compared = compare_paired(a, a + 0.1, groups=groups)

    # All signs equal: two of the choices of signs.
    assert compared.p_value == 2 / 2**count
    assert compared.low == pytest.approx(0.1)


@pytest.mark.parametrize("gain", [1e-7, 9e-7])
@pytest.mark.parametrize("is_grouped", [False, True])
def test_equal_differences_by_rounding_are_ties(gain, is_grouped):
    groups = [0, *range(9)] if is_grouped else None
    a = np.linspace(0, 1, 10)

    compared = compare_paired(a, a + gain, groups=groups)

    assert compared.difference == compared.low == compared.high == 0
    assert compared.p_value == 1
    assert (compared.wins, compared.ties, compared.losses) == (0, 10, 0)


@pytest.mark.parametrize(
    ("count", "groups", "test"),
    [
        (8, None, "exact permutations"),
        (40, None, "drawn permutations"),
        (40, [0, *range(39)], "t"),
        (5, None, None),
    ],
)
def test_several_systems_are_compared_as_two_are(count, groups, test):
    scores = torch.rand(4, count, generator=torch.Generator().manual_seed(4))
    # A difference that counts as a tie.
    scores[2, 0] = scores[1, 0] + 7e-7
    pairs = [(0, 1), (1, 2), (3, 0), (2, 2)]
    options = {"bounds": (0, 1), "groups": groups}

    compared = compare_systems(scores, pairs, **options)

    for (a, b), comparison in zip(pairs, compared, strict=True):
        gains = scores[b] - scores[a]
        assert comparison.wins == (gains > 1e-6).sum()
        assert comparison.ties == (gains.abs() < 1e-6).sum()
        assert comparison.wins + comparison.ties + comparison.losses == count
        assert comparison.test == test
        assert repr(comparison) == repr(compare_paired(scores[a], scores[b], **options))


def test_only_a_p_value_of_drawn_permutations_is_an_upper_bound():
    a = torch.zeros(30)
    b = torch.linspace(0.1, 0.2, 30)

    drawn = compare_paired(a, b)
    by_t_test = compare_paired(a, b, groups=[0, *range(29)])

    assert (drawn.p_value, drawn.test, drawn.is_p_value_at_most) == (2e-4, "drawn permutations", True)
    assert by_t_test.p_value < 2e-4
    assert (by_t_test.test, by_t_test.is_p_value_at_most) == ("t", False)


@pytest.mark.parametrize("numbers_per_step", [1, 51, 10**9])
def test_neither_memory_nor_the_random_state_changes_results(monkeypatch, numbers_per_step):
    a, b = two_systems(25)
    expected = compare_paired(a, b)
    np.random.seed(numbers_per_step)
    monkeypatch.setattr("bertscore_tm.statistics._BATCH", numbers_per_step)

    assert compare_paired(a, b) == expected


@pytest.mark.parametrize("count", [2, 5])
def test_fewer_than_six_texts_are_not_tested(count):
    a, b = two_systems(count)

    compared = compare_paired(a, b)

    assert math.isnan(compared.p_value)
    assert [compared.low, compared.high] == ends(b - a, bounds=(-2, 2))


def test_fewer_than_six_documents_are_not_tested():
    compared = compare_paired([0.1] * 10, [0.2] * 10, groups=[0, 0, 1, 1, 2, 2, 3, 3, 4, 4])

    assert math.isnan(compared.p_value)


def close_by_bonferroni(p_values):
    """Adjusted p-values of the closed test: a comparison counts if Bonferroni rejects every set that it is in."""
    adjusted = []
    for i in range(len(p_values)):
        others = [j for j in range(len(p_values)) if j != i]
        largest = 0.0
        for size in range(len(p_values)):
            for rest in itertools.combinations(others, size):
                smallest = min(p_values[j] for j in (i, *rest))
                largest = max(largest, min(1, (1 + size) * smallest))
        adjusted.append(largest)
    return adjusted


def test_holm_is_the_closed_bonferroni_test():
    p_values = [0.012, 0.2, 0.03, 0.011, 0.9, 0.03]

    assert holm(p_values) == pytest.approx(close_by_bonferroni(p_values))
    assert holm([]) == []


def test_holm_leaves_an_array_as_it_is():
    p_values = np.array([0.25, 0.01, 0.5])

    adjusted = holm(p_values)

    assert adjusted == [0.5, 0.03, 0.5]
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
def test_bad_arguments_are_refused(call, message):
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
    scores = torch.stack([base, base + cancels, better])

    comparisons = compare_all_pairs(scores, range(3), groups=groups)

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
    better = compare_paired(np.zeros(21), gains + 0.01, groups=groups)

    assert (compared.test, compared.p_value) == ("t", 1)
    assert better.p_value == 2**-5


NAMES = ["gamma", "alpha", "delta", "beta", "epsilon"]


@pytest.fixture
def five_systems():
    """Scores of the systems of ``NAMES``: beta is as good as alpha, and the others are worse."""
    base = torch.linspace(0.2, 0.8, 20)
    scores = torch.stack([base - 0.1, base, base - 0.2, base, base - 0.3])
    scores[3, ::2] -= 0.001
    scores[3, 1::2] += 0.0009
    return scores


def test_the_verdict_names_all_systems(five_systems):
    means = five_systems.mean(1).tolist()

    verdict = describe_best(NAMES, means, compare_all_pairs(five_systems, range(5)))

    others = "Not significantly below it: beta. Below (p < .05, Holm): gamma, delta, epsilon."
    assert verdict == f"Best: alpha. {others}"


def test_the_verdict_on_two_systems_names_no_correction(five_systems):
    scores = five_systems[:2]

    verdict = describe_best(NAMES[:2], scores.mean(1).tolist(), compare_all_pairs(scores, range(2)))

    assert verdict == "Best: alpha. Below (p < .05): gamma."


def test_there_is_no_verdict_on_systems_with_few_texts(five_systems):
    means = five_systems.mean(1).tolist()

    assert describe_best(NAMES, means, compare_all_pairs(five_systems[:, :5], range(5))) == ""


def test_the_verdict_names_only_systems_that_were_compared(five_systems):
    means = five_systems.mean(1).tolist()

    verdict = describe_best(NAMES, means, compare_all_pairs(five_systems, [1, 2]))

    assert verdict == "Best: alpha. Below (p < .05): delta."
