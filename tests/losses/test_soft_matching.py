"""Matchings of the loss: by name, as callables, and on plain tensors."""

import math
from typing import get_args

import pytest
import torch

from bertscore_tm.core.matching import TOKENWISE_MATCHINGS, TokenMass
from bertscore_tm.losses import SoftBERTScoreLoss, soft_precision_recall_f1
from bertscore_tm.losses.soft.matching import MatchingName
from tests.support.soft_predictions import labels_of, near_labels


def test_names_of_matchings():
    assert {*TOKENWISE_MATCHINGS} == {*get_args(MatchingName)}
    with pytest.raises(ValueError, match=r"matching='greedy' is not a callable or one of 'max', 'softmax'"):
        soft_precision_recall_f1(torch.ones(1, 1, 1), torch.ones(1, 1), torch.ones(1, 1), "greedy")


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
