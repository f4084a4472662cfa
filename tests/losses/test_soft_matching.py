"""Matchings of the loss: by name, as callables, on plain tensors, and by transport."""

import math
from typing import get_args

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from bertscore_tm.core.matching import TokenMass
from bertscore_tm.losses import SoftBERTScoreLoss, soft_precision_recall_f1, transported_similarity
from bertscore_tm.losses.soft_matching import MATCHINGS, MatchingName, match_by_transport, resolve_matching
from tests.support.soft_predictions import labels_of, near_labels


def optimum(similarities, rows, columns):
    """The linear program's own solution."""
    m, n = similarities.shape
    limits = np.zeros((m + n, m * n))
    for i in range(m):
        limits[i, i * n : (i + 1) * n] = 1
    for j in range(n):
        limits[m + j, j::n] = 1
    found = linprog(-similarities.ravel(), A_ub=limits, b_ub=np.concatenate([rows, columns]), bounds=(0, None))
    return -found.fun


def problem(seed, m=6, n=4):
    generator = torch.Generator().manual_seed(seed)
    similarities = torch.rand(1, m, n, generator=generator, dtype=torch.float64) * 1.4 - 0.4
    return similarities, *(torch.rand(1, size, generator=generator, dtype=torch.float64) for size in (m, n))


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 10**6), st.integers(1, 8), st.integers(1, 8))
def test_never_above_the_optimum_and_near_it(seed, m, n):
    similarities, rows, columns = problem(seed, m, n)
    best = optimum(similarities[0].numpy(), rows[0].numpy(), columns[0].numpy())
    found = transported_similarity(similarities, rows, columns).item()
    assert found <= best + 1e-9
    assert found >= 0.85 * best - 1e-3
    many = transported_similarity(similarities, rows, columns, steps=2000).item()
    assert many == pytest.approx(best, abs=2e-2 * max(best, 0.1))


def test_order_and_padding_do_not_matter():
    similarities, rows, columns = problem(3)
    expected = transported_similarity(similarities, rows, columns)
    order = torch.tensor([3, 1, 0, 5, 4, 2])
    assert torch.allclose(transported_similarity(similarities[:, order], rows[:, order], columns), expected)
    wide = torch.nn.functional.pad(similarities, (0, 3, 0, 2), value=0.9)
    rows, columns = torch.nn.functional.pad(rows, (0, 2)), torch.nn.functional.pad(columns, (0, 3))
    assert torch.allclose(transported_similarity(wide, rows, columns), expected, atol=1e-12)
    turned = transported_similarity(wide.mT, columns, rows, steps=500)
    assert torch.allclose(turned, transported_similarity(wide, rows, columns, steps=500), atol=1e-2)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_transport_in_half_precision_is_computed_in_float32(dtype):
    half = [tensor.to(dtype) for tensor in problem(3)]
    assert torch.equal(transported_similarity(*half), transported_similarity(*(tensor.float() for tensor in half)))


def test_gradcheck():
    similarities, rows, columns = problem(5)
    rows[0, 1], columns[0, 2] = 0, 0
    assert torch.autograd.gradcheck(
        lambda s: transported_similarity(s, rows, columns), similarities.clone().requires_grad_()
    )
    rows = rows + 0.1
    assert torch.autograd.gradcheck(
        lambda w: transported_similarity(similarities, w, columns), rows.clone().requires_grad_()
    )


@pytest.mark.parametrize("value", [-1.0, 0.0, 1.0])
@pytest.mark.parametrize("weight", [0.0, 1.0])
@pytest.mark.parametrize("temperature", [0.1, 1e-6])
def test_finite_at_the_edges(value, weight, temperature):
    similarities = torch.full((2, 3, 2), value, requires_grad=True)
    total = transported_similarity(similarities, torch.full((2, 3), weight), torch.full((2, 2), weight), temperature)
    total.sum().backward()
    assert similarities.grad.isfinite().all()
    assert total.tolist() == pytest.approx([max(value, 0) * 2 * weight] * 2, abs=1e-4)


def test_settings_that_cannot_be():
    with pytest.raises(ValueError, match="temperature must be above 0, got 0"):
        transported_similarity(*problem(0), temperature=0)
    with pytest.raises(ValueError, match="steps must be at least 1, got 0"):
        transported_similarity(*problem(0), steps=0)


def test_names_of_matchings():
    assert {*MATCHINGS} == {*get_args(MatchingName)}
    assert resolve_matching(match_by_transport) is match_by_transport
    with pytest.raises(ValueError, match=r"matching='greedy' is not a callable or one of 'max', 'softmax'"):
        resolve_matching("greedy")


def mean_matching(similarities, candidate, reference, temperature):
    """Match each token with the mean of the other text."""
    sums = []
    for matrix, queries, keys in ((similarities, candidate, reference), (similarities.mT, reference, candidate)):
        shares = keys.mask / keys.mask.sum(1, keepdim=True)
        sums.append(((matrix @ shares[:, :, None])[..., 0] * queries.weights).sum(1))
    return tuple(sums)


def test_a_callable_of_the_users_is_the_limit_of_softmax_at_a_high_temperature(encoder):
    labels = labels_of(encoder)
    logits = near_labels(encoder, labels)
    own = SoftBERTScoreLoss(encoder, matching=mean_matching)(logits, labels)
    soft = SoftBERTScoreLoss(encoder, matching="softmax", matching_temperature=1e5)(logits, labels)
    assert own.item() == pytest.approx(soft.item(), abs=1e-5)
    assert own.item() > SoftBERTScoreLoss(encoder)(logits, labels).item() + 0.05


@pytest.mark.parametrize("name", MATCHINGS)
def test_scores_of_plain_tensors_by_hand(name):
    """Weights, a mask of padding, and a text without weight."""
    s = torch.tensor([[[0.9, 0.2, 0.7], [0.1, 0.4, 0.8]], [[0.5, 0.5, 0.5], [0.5, 0.5, 0.5]]], dtype=torch.float64)
    weights, mask = torch.tensor([[2.0, 1.0], [0.0, 0.0]]), torch.tensor([[True, True, False], [True, True, True]])
    scores = soft_precision_recall_f1(s, weights, mask, name, 1e-3)
    # The third reference token is padding. Transport leaves the reference's tokens half of the candidate's first.
    expected = {"precision": 2.2 / 3, "recall": 1.3 / 2}
    if name == "transport":
        expected = {"precision": 1.3 / 3, "recall": 1.3 / 2}
    precision, recall = expected.values()
    expected["f1"] = 2 * precision * recall / (precision + recall)
    for score, value in expected.items():
        assert scores[score][0].item() == pytest.approx(value, abs=3e-3)
        assert scores[score][1] == 0 or (name != "transport" and score == "recall")


def test_tokens_of_weight_0_can_be_matched():
    s = torch.tensor([[[0.9, 0.2], [0.1, 0.4]]])
    weights = torch.tensor([[0.0, 1.0]])
    matchable = TokenMass(torch.ones(1, 2) > 0, weights)
    for candidate, reference, precision, recall in (
        (weights, weights, 0.4, 0.4),
        (matchable, matchable, 0.4, 0.4),
        (weights, TokenMass(matchable.mask, torch.tensor([[1.0, 0.0]])), 0.4, 0.1),
    ):
        scores = soft_precision_recall_f1(s, candidate, reference, "max")
        assert scores["precision"].item() == pytest.approx(precision)
        assert scores["recall"].item() == pytest.approx(recall)
        assert math.isclose(scores["f1"].item(), 2 * precision * recall / (precision + recall), rel_tol=1e-5)
