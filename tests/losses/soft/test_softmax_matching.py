"""Relaxations and matchings of the loss: by name, as callables, and on plain tensors."""

import pytest
import torch

from bertscore_tm.losses import expected_embedding, soft_precision_recall_f1, softmax_relaxation
from bertscore_tm.matching.greedy import TOKENWISE_MATCHINGS, TokenMass
from tests.support.soft_predictions import normal


@pytest.mark.parametrize("temperature", [0.01, 1.0, 5.0])
@pytest.mark.parametrize("excluded", [(), (0, 6)])
def test_rows_are_the_softmax_over_content(temperature, excluded):
    z = normal(1, 2, 7, dtype=torch.float64).requires_grad_()
    p = softmax_relaxation(z, temperature, excluded)
    content = [k for k in range(7) if k not in excluded]
    weights = torch.exp(z / temperature)[..., content]
    assert torch.allclose(p[..., content], weights / weights.sum(-1, keepdim=True), rtol=1e-12)
    assert (p[..., list(excluded)] == 0).all()
    (gradient,) = torch.autograd.grad((p * normal(7, dtype=torch.float64, seed=1)).sum(), z)
    assert (gradient[..., list(excluded)] == 0).all()
    assert torch.autograd.gradcheck(lambda z: softmax_relaxation(z, temperature, excluded), z)


@pytest.mark.parametrize("shape", [(5,), (2, 3, 5)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_expected_embedding_is_the_weighted_sum_of_embeddings(shape, dtype):
    p, table = normal(*shape, dtype=dtype).softmax(-1), normal(5, 4, dtype=dtype, seed=1)
    expected = sum(p[..., k, None] * table[k] for k in range(5))
    result = expected_embedding(p, table)
    assert result.dtype == expected_embedding(p, table.bfloat16()).dtype == dtype
    assert torch.allclose(result, expected, rtol=1e-5, atol=1e-6)
    leaves = p.double().requires_grad_(), table.double().requires_grad_()
    assert torch.autograd.gradcheck(expected_embedding, leaves)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_does_not_lower_the_precision(dtype):
    z, table = normal(3, 700), normal(700, 16, seed=1)
    plain = expected_embedding(softmax_relaxation(z), table)
    with torch.autocast("cpu", dtype):
        p = softmax_relaxation(z)
        result = expected_embedding(p, table)
        assert (p @ table).dtype == dtype
    assert p.dtype == result.dtype == torch.float32
    assert torch.equal(result, plain)


@pytest.mark.parametrize("row", [[0.0, torch.nan, 1.0], [0.0, torch.inf, 1.0], [-torch.inf] * 3], ids=str)
@pytest.mark.parametrize("temperature", [0.5, 1.0])
def test_a_row_without_a_finite_maximum_is_nan(row, temperature):
    """Gradient scalers skip such a step; other rows are unaffected."""
    z = torch.tensor([[1.0, 3.0, 2.0], row], requires_grad=True)
    p = [softmax_relaxation(rows, temperature) for rows in (z, z[:1].expand(2, 3))]
    assert p[0][1].isnan().all()
    assert torch.equal(p[0][0], p[1][0])
    gradients = [torch.autograd.grad((rows[:2] * torch.arange(3)).sum(), z)[0] for rows in p]
    assert gradients[0][1].isnan().all()
    assert gradients[0][0].isfinite().all()


@pytest.mark.parametrize("temperature", [0, -1.0, float("nan")])
def test_temperatures_are_positive(temperature):
    with pytest.raises(ValueError, match="temperature must be above 0, got"):
        softmax_relaxation(torch.zeros(3), temperature)


@pytest.mark.parametrize("name", TOKENWISE_MATCHINGS)
def test_scores_of_plain_tensors_by_hand(name):
    """Weights, a mask of padding, and a text without weight."""
    s = torch.tensor([[[0.9, 0.2, 0.7], [0.1, 0.4, 0.8]], [[0.5, 0.5, 0.5], [0.5, 0.5, 0.5]]], dtype=torch.float64)
    weights, mask = torch.tensor([[2.0, 1.0], [0.0, 0.0]]), torch.tensor([[True, True, False], [True, True, True]])
    scores = soft_precision_recall_f1(s, weights, mask, name, 1e-3)
    # The third reference token is padding.
    precision, recall = 2.2 / 3, 1.3 / 2
    expected = {"precision": precision, "recall": recall, "f1": 2 * precision * recall / (precision + recall)}
    for score, value in expected.items():
        assert scores[score][0].item() == pytest.approx(value, abs=3e-3)
        assert scores[score][1] == 0


WEIGHTS = torch.tensor([[0.0, 1.0]])
MATCHABLE = TokenMass(torch.ones(1, 2) > 0, WEIGHTS)


@pytest.mark.parametrize(
    ("candidate", "reference", "precision", "recall"),
    [
        (WEIGHTS, WEIGHTS, 0.4, 0.4),
        (MATCHABLE, MATCHABLE, 0.4, 0.4),
        (WEIGHTS, TokenMass(MATCHABLE.mask, torch.tensor([[1.0, 0.0]])), 0.4, 0.1),
    ],
    ids=["weights", "masks", "other weights"],
)
def test_tokens_of_weight_0_can_be_matched(candidate, reference, precision, recall):
    scores = soft_precision_recall_f1(torch.tensor([[[0.9, 0.2], [0.1, 0.4]]]), candidate, reference, "max")
    assert scores["precision"].item() == pytest.approx(precision)
    assert scores["recall"].item() == pytest.approx(recall)
    assert scores["f1"].item() == pytest.approx(2 * precision * recall / (precision + recall))


def test_gradients_of_both_orders_and_transformed():
    """Of pairs whose P and R are both positive, both negative, and of both signs."""
    s = normal(3, 2, 4, dtype=torch.float64).tanh() + torch.tensor([1.0, -1.0, 0.0])[:, None, None]
    s[2] = torch.tensor([[-0.5, -0.5, -0.5, 0.2], [-0.5, -0.5, -0.5, 0.1]])

    def f1(s):
        return soft_precision_recall_f1(s, torch.ones(3, 2), torch.ones(3, 4))["f1"]

    scores = soft_precision_recall_f1(s, torch.ones(3, 2), torch.ones(3, 4))
    assert (scores["precision"] > 0).tolist() == [True, False, True]
    assert (scores["recall"] > 0).tolist() == [True, False, False]
    s.requires_grad_()
    assert torch.autograd.gradcheck(f1, s)
    assert torch.autograd.gradgradcheck(f1, s)
    (gradient,) = torch.autograd.grad(f1(s).sum(), s)
    torch.testing.assert_close(torch.func.grad(lambda s: f1(s).sum())(s.detach()), gradient)
