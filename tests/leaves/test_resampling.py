"""The bootstrap of a mean, beside scipy's and beside distributions that are known exactly."""

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

from bertscore_tm import resampling
from bertscore_tm.resampling import mean_interval

pytestmark = pytest.mark.usefixtures("one_thread")

# A right implementation leaves these bounds once in 15,000 times; all seeds are fixed.
DEVIATIONS = 4


def data(kind: str, count: int, seed: int = 0) -> np.ndarray:
    """Data of which the interval is to be found: scores as they come, a heavy tail, few distinct values."""
    random = np.random.default_rng(seed)
    if kind == "scores":
        return random.beta(8, 2, count)
    return random.standard_t(3, count) if kind == "heavy tail" else random.integers(0, 4, count).astype(float)


def tensor(values: Any) -> Tensor:
    return torch.as_tensor(np.asarray(values), dtype=torch.float64)


@pytest.mark.parametrize("confidence", [0.5, 0.8, 0.95, 0.99])
@pytest.mark.parametrize("count", [2, 7, 60])
@pytest.mark.parametrize("kind", ["scores", "heavy tail", "few values"])
def test_agrees_with_scipy(kind, count, confidence):
    """Each end is a quantile of B resampled means.

    The part of all resampled means that lies below the p quantile of B of them has the standard deviation
    sqrt(p (1 - p) / B), so scipy's quantiles of many more bracket ours.
    """
    values, many, few = data(kind, count), 40_000, 1000
    theirs = stats.bootstrap(
        (values,),
        np.mean,
        n_resamples=many,
        confidence_level=confidence,
        method="percentile",
        rng=np.random.default_rng(1),
    )
    ends = [end.item() for end in mean_interval(tensor(values), confidence, few)]
    assert all(end.dtype == torch.float64 and end.shape == () for end in mean_interval(tensor(values), confidence))
    for end, their_end, part in zip(
        ends, theirs.confidence_interval, ((1 - confidence) / 2, (1 + confidence) / 2), strict=True
    ):
        error = DEVIATIONS * math.sqrt(part * (1 - part) * (1 / few + 1 / many))
        low, high = np.quantile(theirs.bootstrap_distribution, [max(part - error, 0), min(part + error, 1)])
        assert low - 1e-12 <= end <= high + 1e-12
        assert low <= their_end <= high


@pytest.mark.parametrize("confidence", [0.6, 0.9, 0.99])
@pytest.mark.parametrize(("ones", "count"), [(1, 2), (3, 8), (29, 40)])
def test_agrees_with_the_binomial_distribution(ones, count, confidence):
    """The resampled mean of k ones among n values is Binomial(n, k / n) / n, exactly."""
    distribution = stats.binom(count, ones / count)
    values, resamples = tensor([1.0] * ones + [0.0] * (count - ones)), 4000
    ends = mean_interval(values, confidence, resamples)
    for end, part in zip(ends, ((1 - confidence) / 2, (1 + confidence) / 2), strict=True):
        error = DEVIATIONS * math.sqrt(part * (1 - part) / resamples)
        bracket = distribution.ppf([max(part - error, 0), min(part + error, 1)]) / count
        assert bracket[0] - 1e-12 <= end.item() <= bracket[1] + 1e-12


@pytest.mark.parametrize("confidence", [0.5, 0.9])
def test_over_many_seeds_ends_are_distributed_as_order_statistics(confidence):
    """The part of all resampled means below an end is a known mixture of Beta distributions.

    With q = p (B - 1) the end lies between the order statistics floor(q) + 1 and floor(q) + 2 of B uniform numbers,
    whose mean and variance, at integer q, are those of Beta(q + 1, B - q).
    """
    values, resamples, seeds = data("scores", 30), 201, 400
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


@pytest.mark.parametrize("confidence", [0.8, 0.96])
def test_covers_the_true_mean_as_often_as_theory_says(confidence):
    """Of n normal values the interval is mean +- z s sqrt((n - 1) / n) / sqrt(n), where z is the quantile of its ends.

    It covers the true mean with the probability that Student's t with n - 1 degrees of freedom lies within
    z sqrt((n - 1) / n), a little less than it is named for. That B resamples are not all takes a bit more off it: the
    part of all resampled means below the lower end is (p (B - 1) + 1) / (B + 1) on average instead of p.
    """
    count, trials, resamples, mean = 40, 1500, 201, 0.7
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


def test_leaves_random_states_alone_and_does_not_depend_on_them():
    values = tensor(data("scores", 25))
    torch.manual_seed(1)
    first = mean_interval(values, 0.9)
    torch.manual_seed(2)
    before = torch.get_rng_state()
    numpy_before = np.random.get_state()[1].copy()
    second = mean_interval(values, 0.9)
    assert torch.equal(torch.get_rng_state(), before)
    assert (np.random.get_state()[1] == numpy_before).all()
    assert torch.equal(torch.stack(first), torch.stack(second))


@pytest.mark.parametrize("draws_per_batch", [1, 24, 25, 26, 999, 24_999, 10**9])
def test_does_not_depend_on_how_much_is_drawn_at_a_time(monkeypatch, draws_per_batch):
    values = tensor([data("scores", 25, seed) for seed in range(2)])
    expected = torch.stack(mean_interval(values, 0.9))
    monkeypatch.setattr(resampling, "_DRAWS_PER_BATCH", draws_per_batch)
    assert torch.equal(torch.stack(mean_interval(values, 0.9)), expected)


def test_more_values_than_are_drawn_at_a_time(monkeypatch):
    values = torch.linspace(0, 1, 5000, dtype=torch.float64)
    expected = mean_interval(values, 0.9, 50)
    monkeypatch.setattr(resampling, "_DRAWS_PER_BATCH", 100)
    assert torch.equal(torch.stack(mean_interval(values, 0.9, 50)), torch.stack(expected))


@pytest.mark.parametrize("shape", [(3,), (2, 4), (1,)])
def test_rows_are_resampled_alike(shape):
    random = np.random.default_rng(2)
    values = tensor(random.normal(size=(*shape, 17)))
    found = mean_interval(values, 0.8, 300)
    for end, side in zip(found, range(2), strict=True):
        assert end.shape == shape
        rows = [mean_interval(row, 0.8, 300)[side] for row in values.reshape(-1, 17)]
        assert torch.equal(end.flatten(), torch.stack(rows))


@pytest.mark.parametrize("confidence", [0.01, 0.5, 0.999])
def test_one_value_and_none(confidence):
    for value in (0.3, -2.0, 0.0):
        assert [end.item() for end in mean_interval(tensor([value]), confidence)] == [value, value]
    for shape in ((0,), (2, 0), (3, 1, 0)):
        for end in mean_interval(torch.empty(shape), confidence):
            assert torch.equal(end, torch.zeros(shape[:-1], dtype=torch.float64))


def test_values_of_other_dtypes_with_a_gradient():
    values = tensor(data("scores", 20)).float().requires_grad_()
    found, expected = mean_interval(values, 0.9), mean_interval(values.detach().double(), 0.9)
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one, other)
        assert one.dtype == torch.float64
        assert not one.requires_grad
    with torch.inference_mode():
        assert torch.equal(torch.stack(mean_interval(values, 0.9)), torch.stack(expected))


numbers = st.lists(st.floats(-1, 1, width=32), min_size=1, max_size=12)
quick = settings(max_examples=40, deadline=None)


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
def test_more_confidence_takes_a_wider_interval(values, confidences):
    ends = [mean_interval(tensor(values), confidence, 200) for confidence in sorted(confidences)]
    lows, highs = (torch.stack(side) for side in zip(*ends, strict=True))
    assert (lows.diff() <= 1e-15).all()
    assert (highs.diff() >= -1e-15).all()
    assert (lows <= highs).all()
    assert min(values) - 1e-15 <= lows.min() <= highs.max() <= max(values) + 1e-15


@quick
@given(values=numbers, confidence=st.floats(0.05, 0.99), count=st.integers(1, 12))
def test_equal_values_have_an_interval_of_no_width(values, confidence, count):
    for end in mean_interval(tensor([values[0]] * count), confidence, 50):
        assert end.item() == pytest.approx(values[0], abs=1e-15)


@quick
@given(count=st.integers(2, 200), seed=st.integers(0, 2**32))
def test_narrows_as_the_root_of_the_number_of_values(count, seed):
    """Half the width is z times the standard error of the mean, as the central limit theorem has it."""
    values = np.random.default_rng(seed).uniform(size=count)
    assume(values.std() > 0.1)
    low, high = (end.item() for end in mean_interval(tensor(values), 0.9, 2000))
    error = values.std() / math.sqrt(count)
    middle, half = (low + high) / 2, (high - low) / 2
    assert abs(middle - values.mean()) < error
    assert half == pytest.approx(stats.norm.ppf(0.95) * error, rel=0.25 if count > 5 else 0.6)
