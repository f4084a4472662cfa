"""Sums of scores do not depend on order and split, and keep every digit."""

from __future__ import annotations

import math
from itertools import pairwise

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from torch import Tensor

from bertscore_tm import BERTScore, FrozenEncoder
from bertscore_tm.functional import SCORES
from bertscore_tm.metric.states import mean_of_sums, sums_of_scores
from tests.support.short_pairs import (
    CORPUS,
    COUNT,
    LAYERS,
    PREDS,
    TARGET,
    stacked,
    updated,
)

pytestmark = pytest.mark.usefixtures("one_thread")


def parts_of(count: int) -> st.SearchStrategy[list[list[int]]]:
    """Numbers in any order, cut anywhere."""

    def cut(drawn: tuple[list[int], list[int]]) -> list[list[int]]:
        order, cuts = drawn
        return [order[start:stop] for start, stop in pairwise([0, *sorted(cuts), count])]

    return st.tuples(st.permutations(range(count)), st.lists(st.integers(0, count), max_size=6)).map(cut)


@settings(max_examples=60, deadline=None)
@given(
    parts=parts_of(60),
    seed=st.integers(0, 2**32),
    scale=st.sampled_from([1.0, 0.01, 1e-6]),
    layers=st.integers(1, 3),
    order=st.randoms(use_true_random=False),
)
def test_sums_do_not_depend_on_split_and_order(parts, seed, scale, layers, order):
    scores = np.random.default_rng(seed).uniform(-scale, scale, (3, layers, 60)).astype(np.float32)
    whole = sums_of_scores(torch.from_numpy(scores))
    sums = [sums_of_scores(torch.from_numpy(scores[..., part])) for part in parts]
    order.shuffle(sums)
    # Added up as a tree, which no order of ranks does.
    while len(sums) > 1:
        sums = [sum(pair) for pair in zip(sums[::2], sums[1::2], strict=False)] + sums[len(sums) // 2 * 2 :]
    assert torch.equal(sums[0], whole)
    exact = np.array([[math.fsum(row) / 60 for row in layer] for layer in scores])
    assert np.abs(mean_of_sums(whole).numpy() - exact).max() <= 2**-32
    # Sums of floats do depend on the order, or there would be nothing to test.
    floats = {np.float32(sum(map(np.float32, np.roll(scores[0, 0], k)))) for k in range(60)}
    assert len(floats) > 1


@pytest.fixture(scope="module")
def single(minilm: str) -> list[BERTScore]:
    """A metric for each pair."""
    encoder = FrozenEncoder(minilm, num_layers=LAYERS)
    metrics = [BERTScore(encoder, idf_sents=CORPUS) for _ in range(COUNT)]
    for metric, pred, target in zip(metrics, PREDS, TARGET, strict=True):
        metric.update(pred, target)
    return metrics


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(parts=parts_of(COUNT), whole=st.booleans())
def test_a_mean_does_not_depend_on_split_and_order(single, parts, whole):
    """Metrics that saw the same pairs, one at a time, and were added up in any way, agree in every bit."""
    expected = merged([single])
    found = merged([[single[i] for i in part] for part in parts], whole)
    assert all(torch.equal(found[name], expected[name]) for name in SCORES)
    exact = math.fsum(metric.compute()["f1"].item() for metric in single) / COUNT
    assert found["f1"].item() == pytest.approx(exact, abs=2**-24)


def merged(parts: list[list[BERTScore]], state_only: bool = False) -> dict[str, Tensor]:
    first = parts[0][0] if parts[0] else next(part[0] for part in parts if part)
    total = first.clone()
    total.reset()
    for part in parts:
        rank = total.clone()
        rank.reset()
        for metric in part:
            rank.merge_state(metric.metric_state if state_only else metric)
        total.merge_state(rank)
    found: dict[str, Tensor] = total.compute()
    return found


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(order=st.permutations(range(COUNT)), how=st.lists(st.sampled_from(["update", "forward"]), min_size=COUNT))
def test_pairs_may_come_in_any_order(single, order, how):
    metric = single[0].clone()
    metric.reset()
    for i, one in zip(order, how, strict=False):
        getattr(metric, one)(PREDS[i], TARGET[i])
    expected = merged([single])
    assert all(torch.equal(metric.compute()[name], expected[name]) for name in SCORES)


@pytest.mark.parametrize("sign", [1, -1])
def test_two_billion_pairs_fit(encoder, sign):
    """Scores of 1 have the largest sums; a state merged into itself 31 times has 2**31 pairs."""
    metric = BERTScore(encoder)
    metric.update("a cat", "a cat")
    extreme = torch.full((3, 1, 1), float(sign))
    metric.totals = sums_of_scores(extreme)
    for doubled in range(1, 32):
        metric.merge_state(dict(metric.metric_state))
        assert metric.totals[0] == 2**doubled
        # Without a warning of candidates that score 0.
        assert {name: value.item() for name, value in metric.compute().items()} == dict.fromkeys(SCORES, float(sign))


def test_many_pairs_keep_every_digit(encoder):
    """A billion times the same pairs have the same mean, where sums of float32 would have lost them."""
    metric = updated(BERTScore(encoder))
    expected = metric.compute()
    for _ in range(27):
        metric.merge_state(dict(metric.metric_state))
    assert metric.totals[0] == COUNT * 2**27
    found = metric.compute()
    assert all(torch.equal(found[name], expected[name]) for name in SCORES)


@pytest.mark.parametrize("wrong", [torch.tensor([[101, 1037, 102]]), torch.tensor(5), torch.zeros(1, 3)], ids=str)
def test_tensors_are_refused(encoder, wrong):
    metric = updated(BERTScore(encoder))
    before = metric.compute()
    for preds, target, name in ((wrong, ["a"], "preds"), (["a"], wrong, "target"), (["a"], [wrong], r"target\[0\]")):
        with pytest.raises(TypeError, match=f"{name} must be texts.*batch_decode"):
            metric.update(preds, target)
    assert torch.equal(stacked(metric.compute()), stacked(before))
