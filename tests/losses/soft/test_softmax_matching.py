"""Matchings of the loss on plain tensors: by hand, by loops and with gradients."""

import pytest
import torch

from bertscore_tm.losses import soft_precision_recall_f1
from bertscore_tm.matching.greedy import TOKENWISE_MATCHINGS, TokenMass
from tests.support.soft_predictions import normal


def with_f1(precision, recall):
    """Return precision and recall with their harmonic mean."""
    f1 = 2 * precision * recall / (precision + recall)
    return {"precision": precision, "recall": recall, "f1": f1}


@pytest.mark.parametrize("name", TOKENWISE_MATCHINGS)
def test_scores_of_plain_tensors_by_hand(name):
    """Weights, a mask of padding, and a text without weight."""
    similarities = [[0.9, 0.2, 0.7], [0.1, 0.4, 0.8]]
    s = torch.tensor([similarities, [[0.5] * 3] * 2], dtype=torch.float64)
    weights = torch.tensor([[2.0, 1.0], [0.0, 0.0]])
    mask = torch.tensor([[True, True, False], [True, True, True]])
    scores = soft_precision_recall_f1(s, weights, mask, name, 1e-3)
    # The third reference token is padding.
    expected = with_f1(2.2 / 3, 1.3 / 2)

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

    for name, value in with_f1(precision, recall).items():
        assert scores[name].item() == pytest.approx(value)


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
