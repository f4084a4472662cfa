"""The bootstrap against scipy's and against distributions with a closed form."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor

from bertscore_tm.statistics import bootstrap_interval, mean_interval, paired_bootstrap

pytestmark = pytest.mark.usefixtures("one_thread")

# A correct implementation exceeds these bounds once in 15,000 times; all seeds are fixed.
DEVIATIONS = 4


def data(kind: str, count: int, seed: int = 0) -> np.ndarray:
    """Draw typical scores, a heavy tail, or few distinct values."""
    random = np.random.default_rng(seed)
    if kind == "scores":
        return random.beta(8, 2, count)
    return random.standard_t(3, count) if kind == "heavy tail" else random.integers(0, 4, count).astype(float)


def tensor(values: Any) -> Tensor:
    return torch.as_tensor(np.asarray(values), dtype=torch.float64)


def two_systems(count: int, gain: float = 0.02) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    a = torch.rand(count, generator=generator)
    return a, a + gain + 0.1 * torch.randn(count, generator=generator)


@pytest.mark.parametrize(
    ("kind", "count", "confidence"),
    [
        ("scores", 20, 0.95),
        ("scores", 60, 0.5),
        ("heavy tail", 21, 0.8),
        ("heavy tail", 60, 0.99),
        ("few values", 24, 0.95),
    ],
)
def test_agrees_with_scipy(kind, count, confidence):
    """Each end is a quantile of B resampled means.

    The proportion of all resampled means below the p quantile of B of them has the standard deviation
    sqrt(p (1 - p) / B), so scipy's quantiles of many more bracket ours.
    """
    values, many, few = data(kind, count), 40_000, 1000
    expected = stats.bootstrap(
        (values,),
        np.mean,
        n_resamples=many,
        confidence_level=confidence,
        method="percentile",
        rng=np.random.default_rng(1),
    )
    ends = mean_interval(tensor(values), confidence, few)
    assert all(end.dtype == torch.float64 and end.shape == () for end in ends)
    for end, expected_end, part in zip(
        ends, expected.confidence_interval, ((1 - confidence) / 2, (1 + confidence) / 2), strict=True
    ):
        error = DEVIATIONS * math.sqrt(part * (1 - part) * (1 / few + 1 / many))
        low, high = np.quantile(expected.bootstrap_distribution, [max(part - error, 0), min(part + error, 1)])
        assert low - 1e-12 <= end.item() <= high + 1e-12
        assert low <= expected_end <= high


@pytest.mark.parametrize(("ones", "count", "confidence"), [(1, 20, 0.6), (8, 21, 0.99), (29, 40, 0.9)])
def test_agrees_with_the_binomial_distribution(ones, count, confidence):
    """The resampled mean of k ones among n values is Binomial(n, k / n) / n, exactly."""
    distribution = stats.binom(count, ones / count)
    values, resamples = tensor([1.0] * ones + [0.0] * (count - ones)), 4000
    ends = mean_interval(values, confidence, resamples)
    for end, part in zip(ends, ((1 - confidence) / 2, (1 + confidence) / 2), strict=True):
        error = DEVIATIONS * math.sqrt(part * (1 - part) / resamples)
        bracket = distribution.ppf([max(part - error, 0), min(part + error, 1)]) / count
        assert bracket[0] - 1e-12 <= end.item() <= bracket[1] + 1e-12


def test_over_many_seeds_ends_are_distributed_as_order_statistics():
    """The proportion of all resampled means below an end is a known mixture of Beta distributions.

    With q = p (B - 1) the end lies between the order statistics floor(q) + 1 and floor(q) + 2 of B uniform numbers,
    whose mean and variance, at integer q, are those of Beta(q + 1, B - q).
    """
    values, resamples, seeds, confidence = data("scores", 30), 201, 400, 0.9
    many = torch.randint(30, (100_000, 30), generator=torch.Generator().manual_seed(99))
    reference = np.sort(values[many.numpy()].mean(-1))
    found = [mean_interval(tensor(values), confidence, resamples, seed) for seed in range(seeds)]
    for which, part in enumerate(((1 - confidence) / 2, (1 + confidence) / 2)):
        place = part * (resamples - 1)
        assert place == pytest.approx(round(place))
        beta = stats.beta(round(place) + 1, resamples - round(place))
        levels = np.searchsorted(reference, [ends[which].item() for ends in found]) / len(reference)
        # The reference is a sample itself.
        error = math.sqrt(beta.var() / seeds + part * (1 - part) / len(reference))
        assert abs(levels.mean() - beta.mean()) < DEVIATIONS * error
        assert stats.kstest(levels, beta.cdf).pvalue > 1e-4


def test_covers_the_true_mean_as_often_as_theory_predicts():
    """Of n normal values the interval is mean +- z s sqrt((n - 1) / n) / sqrt(n), where z is the quantile of its ends.

    It covers the true mean with the probability that Student's t with n - 1 degrees of freedom lies within
    z sqrt((n - 1) / n), slightly less than the nominal coverage. The finite number B of resamples reduces it further:
    the proportion of all resampled means below the lower end is (p (B - 1) + 1) / (B + 1) on average instead of p.
    """
    count, trials, resamples, mean, confidence = 40, 1500, 201, 0.7, 0.8
    samples = np.random.default_rng(5).normal(mean, 0.1, (trials, count))
    ends = [mean_interval(tensor(row), confidence, resamples, seed) for seed, row in enumerate(samples)]
    covered = sum(low.item() <= mean <= high.item() for low, high in ends) / trials
    outside = ((1 - confidence) / 2 * (resamples - 1) + 1) / (resamples + 1)
    z = -stats.norm.ppf(outside)
    expected = 1 - 2 * stats.t.sf(z * math.sqrt((count - 1) / count), count - 1)
    assert expected < confidence
    assert abs(covered - expected) < DEVIATIONS * math.sqrt(expected * (1 - expected) / trials)


def test_is_seeded():
    values = tensor(data("scores", 25))
    first, again, other = (mean_interval(values, 0.9, seed=seed) for seed in (3, 3, 4))
    assert torch.equal(torch.stack(first), torch.stack(again))
    assert not torch.equal(torch.stack(first), torch.stack(other))
    assert torch.equal(torch.stack(mean_interval(values, 0.9)), torch.stack(mean_interval(values, 0.9, 1000, 0)))


def test_keeps_its_random_stream():
    # Other numbers here change the intervals that users have logged.
    low, high = mean_interval(torch.arange(20.0) ** 2, 0.9)
    assert [low.item(), high.item()] == pytest.approx([81.34, 167.8025], abs=1e-12)


def test_is_independent_of_the_global_random_state():
    values = tensor(data("scores", 25))
    torch.manual_seed(1)
    first = mean_interval(values, 0.9)
    torch.manual_seed(2)
    before = torch.get_rng_state()
    second = mean_interval(values, 0.9)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(torch.stack(first), torch.stack(second))


@pytest.mark.parametrize("draws_per_step", [1, 51, 10**9])
def test_the_draws_per_step_do_not_change_results(monkeypatch, draws_per_step):
    values = tensor([data("scores", 25, seed) for seed in range(2)])
    a, b = values
    expected, compared = torch.stack(mean_interval(values, 0.9)), paired_bootstrap(a, b, num_resamples=101)
    monkeypatch.setattr("bertscore_tm.statistics._DRAWS_PER_STEP", draws_per_step)
    assert torch.equal(torch.stack(mean_interval(values, 0.9)), expected)
    assert paired_bootstrap(a, b, num_resamples=101) == compared


@pytest.mark.parametrize("count", [7, 27])
@pytest.mark.parametrize("shape", [(1,), (2, 4)])
def test_rows_are_resampled_alike(shape, count):
    random = np.random.default_rng(2)
    values = tensor(random.normal(size=(*shape, count)))
    found = mean_interval(values, 0.8, 300)
    for end, side in zip(found, range(2), strict=True):
        assert end.shape == shape
        rows = [mean_interval(row, 0.8, 300)[side] for row in values.reshape(-1, count)]
        torch.testing.assert_close(end.flatten(), torch.stack(rows), rtol=0, atol=1e-12)


def test_one_value_and_none():
    for value in (0.3, -2.0, 0.0):
        assert [end.item() for end in mean_interval(tensor([value]), 0.9)] == [value, value]
    for shape in ((0,), (3, 1, 0)):
        for end in mean_interval(torch.empty(shape), 0.9):
            assert torch.equal(end, torch.zeros(shape[:-1], dtype=torch.float64))


def test_float32_values_with_a_gradient():
    values = tensor(data("scores", 20)).float().requires_grad_()
    found, expected = mean_interval(values, 0.9), mean_interval(values.detach().double(), 0.9)
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one, other)
        assert one.dtype == torch.float64
        assert not one.requires_grad
    with torch.inference_mode():
        assert torch.equal(torch.stack(mean_interval(values, 0.9)), torch.stack(expected))


@pytest.mark.parametrize("count", [2, 3, 4, 11, 19])
@pytest.mark.parametrize("confidence", [0.5, 0.95, 0.999])
def test_the_interval_of_few_values_is_students(count, confidence):
    values = data("scores", count)
    expected = stats.ttest_1samp(values, 0).confidence_interval(confidence)
    for found in (mean_interval(tensor(values), confidence), mean_interval(tensor(values).float(), confidence)):
        assert [end.item() for end in found] == pytest.approx(list(expected), rel=1e-6, abs=1e-6)
    tested = bootstrap_interval(values.tolist(), confidence=confidence)
    assert [tested.low, tested.high] == pytest.approx(list(expected), rel=1e-9)


@pytest.mark.parametrize("count", [6, 9, 14])
def test_the_p_value_of_few_texts_is_that_of_the_exact_randomisation_test(count):
    a, b = two_systems(count)
    # Equal differences and one of 0 give choices of signs with equal sums.
    b[1], b[2] = a[1] + (b[0] - a[0]), a[2]
    differences = (b.double() - a.double()).numpy()
    expected = stats.permutation_test((differences,), np.mean, permutation_type="samples", n_resamples=np.inf)
    found = paired_bootstrap(a, b)
    assert found.p_value == pytest.approx(expected.pvalue, abs=1e-12)
    assert [found.low, found.high] == pytest.approx(list(stats.ttest_1samp(differences, 0).confidence_interval()))
    assert paired_bootstrap(a, a).p_value == 1


def test_few_texts_without_a_difference_have_small_p_values_as_rarely_as_they_should():
    """Whatever the sizes of the differences, of all choices of their signs at most a share of x has a p-value of x."""
    sizes = tensor(data("heavy tail", 7))
    signs = torch.cartesian_prod(*[tensor([-1, 1])] * 7)
    p_values = tensor([paired_bootstrap(torch.zeros(7), row * sizes).p_value for row in signs])
    for level in (0.02, 0.05, 0.1, 0.5):
        assert (p_values <= level).double().mean() <= level
    assert p_values.min() <= 0.05


@pytest.mark.parametrize("count", [2, 5])
def test_fewer_than_six_texts_are_not_tested(count):
    a, b = two_systems(count)
    with pytest.raises(ValueError, match=f"needs at least 6 texts to reach a p-value below 0.05, got {count}"):
        paired_bootstrap(a, b)


def test_bootstrap_interval_is_the_interval_of_the_mean():
    scores = two_systems(60)[0]
    found = bootstrap_interval(scores, confidence=0.9, num_resamples=500, seed=7)
    assert found.value == pytest.approx(scores.double().mean().item())
    assert [found.low, found.high] == [end.item() for end in mean_interval(scores, 0.9, 500, 7)]
    assert bootstrap_interval(scores.tolist(), confidence=0.9, num_resamples=500, seed=7) == found
    assert bootstrap_interval(scores) == bootstrap_interval(scores, confidence=0.95, num_resamples=10_000, seed=0)


def test_paired_bootstrap_agrees_with_scipy():
    a, b = two_systems(80)
    differences = (b.double() - a.double()).numpy()
    expected = stats.bootstrap(
        (differences,), np.mean, n_resamples=20_000, method="percentile", rng=np.random.default_rng(5)
    )
    means = expected.bootstrap_distribution
    found = paired_bootstrap(a, b)
    assert found.difference == pytest.approx((b - a).double().mean().item())
    assert [found.low, found.high] == pytest.approx(expected.confidence_interval, abs=1e-3)
    assert 0.01 < found.p_value < 0.9
    assert found.p_value == pytest.approx(2 * min((means <= 0).mean(), (means >= 0).mean()), abs=0.01)
    assert found == paired_bootstrap(a, b, confidence=0.95, num_resamples=10_000, seed=0)


def test_agrees_with_bca_and_students_t():
    a, b = two_systems(200)
    found = paired_bootstrap(a, b)
    bca = stats.bootstrap(((b - a).double().numpy(),), np.mean, method="BCa", rng=np.random.default_rng(0))
    t_test = stats.ttest_rel(b.double(), a.double())
    for low, high in (bca.confidence_interval, t_test.confidence_interval()):
        assert [found.low, found.high] == pytest.approx([low, high], abs=1e-3)
    assert found.p_value == pytest.approx(t_test.pvalue, abs=5e-3)


def test_paired_bootstrap_is_seeded_and_antisymmetric():
    a, b = two_systems(50)
    first = paired_bootstrap(a, b, seed=3)
    assert first == paired_bootstrap(a, b, seed=3)
    assert first != paired_bootstrap(a, b, seed=4)
    swapped = paired_bootstrap(b, a, seed=3)
    assert (swapped.low, swapped.high) == (pytest.approx(-first.high), pytest.approx(-first.low))
    assert swapped.p_value == first.p_value


def test_p_value_is_small_only_for_a_difference():
    generator = torch.Generator().manual_seed(0)
    a = torch.rand(300, generator=generator)
    noise = torch.randn(300, generator=generator)
    assert paired_bootstrap(a, a + 0.1 * (noise - noise.mean())).p_value > 0.8
    assert paired_bootstrap(a, a + 0.05 + 0.1 * noise).p_value < 0.01
    assert paired_bootstrap(a, a).p_value == 1
    # Never 0, which a finite number of resamples cannot show.
    assert paired_bootstrap(a, a + 1, num_resamples=99).p_value == pytest.approx(0.02)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("count", [12, 24])
def test_p_values_do_not_depend_on_the_unit_of_scores_on_a_scale(count, dtype):
    drawn = torch.Generator().manual_seed(count)
    a, b = torch.randint(10, (2, count), generator=drawn, dtype=torch.float64)
    expected = paired_bootstrap(a, b).p_value
    for unit in (0.1, 0.7, 1 / 3):
        assert paired_bootstrap((a * unit).to(dtype), (b * unit).to(dtype)).p_value == expected


numbers = st.lists(st.floats(-1, 1, width=32), min_size=20, max_size=30)
quick = settings(max_examples=25, deadline=None)


@quick
@given(values=numbers, shift=st.floats(-10, 10), scale=st.floats(0.01, 100), confidence=st.floats(0.05, 0.99))
def test_moves_and_stretches_with_the_data(values, shift, scale, confidence):
    low, high = mean_interval(tensor(values), confidence, 200)
    for stretch, ends in ((scale, (low, high)), (-scale, (high, low))):
        found = mean_interval(shift + stretch * tensor(values), confidence, 200)
        for one, end in zip(found, ends, strict=True):
            torch.testing.assert_close(one, shift + stretch * end, rtol=0, atol=1e-12 * (abs(shift) + scale + 1))


@quick
@given(values=numbers, confidences=st.lists(st.floats(0.01, 0.99), min_size=2, max_size=4, unique=True))
def test_more_confidence_gives_a_wider_interval_within_the_data(values, confidences):
    ends = [mean_interval(tensor(values), confidence, 200) for confidence in sorted(confidences)]
    lows, highs = (torch.stack(side) for side in zip(*ends, strict=True))
    assert (lows.diff() <= 1e-15).all()
    assert (highs.diff() >= -1e-15).all()
    assert (lows <= highs).all()
    # For equal values this is an interval of width 0.
    assert min(values) - 1e-15 <= lows.min() <= highs.max() <= max(values) + 1e-15


@quick
@given(count=st.integers(20, 200), seed=st.integers(0, 2**32))
def test_narrows_as_the_root_of_the_number_of_values(count, seed):
    """By the central limit theorem, half the width is z times the standard error of the mean."""
    values = np.random.default_rng(seed).uniform(size=count)
    assume(values.std() > 0.1)
    low, high = (end.item() for end in mean_interval(tensor(values), 0.9, 2000))
    error = values.std() / math.sqrt(count)
    middle, half = (low + high) / 2, (high - low) / 2
    assert abs(middle - values.mean()) < error
    assert half == pytest.approx(stats.norm.ppf(0.95) * error, rel=0.25)
