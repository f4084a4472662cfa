"""Layers ranked by agreement with people, against scipy and plain loops."""

import math
from functools import partial

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats

from bertscore_tm.layer_tuning import Estimate, LayerAgreement, rank_layers, rank_layers_by_preference, system_means

COUNT = 12
SYSTEMS = [f"system {i % 6}" for i in range(COUNT)]
QUALITY = np.random.default_rng(0).normal(size=COUNT)
# More and more like the quality from layer to layer.
SCORES = torch.from_numpy(QUALITY + np.random.default_rng(1).normal(size=(7, COUNT)) / np.arange(1, 8)[:, None])
HUMAN = {"adequacy": np.round(3 + QUALITY).tolist(), "fluency": np.random.default_rng(2).integers(1, 6, COUNT).tolist()}


@pytest.mark.parametrize("how", ["pearson", "spearman", "kendall"])
def test_layers_are_ranked_by_the_mean_of_scipys_correlations(how):
    function = {"pearson": stats.pearsonr, "spearman": stats.spearmanr, "kendall": stats.kendalltau}[how]
    ranked = rank_layers(SCORES, HUMAN, how)
    assert sorted(layer.layer for layer in ranked) == list(range(7))
    assert [layer.mean for layer in ranked] == sorted((layer.mean for layer in ranked), reverse=True)
    for layer in ranked:
        expected = {name: function(SCORES[layer.layer], judged).statistic for name, judged in HUMAN.items()}
        assert {name: x.value for name, x in layer.agreement.items()} == pytest.approx(expected)
        assert all(x.low < x.value < x.high for x in layer.agreement.values())
        assert layer.mean == pytest.approx(sum(expected.values()) / 2)


def test_systems():
    table = pd.DataFrame({layer: row.numpy() for layer, row in enumerate(SCORES)})
    expected = table.groupby(SYSTEMS, sort=False).mean().to_numpy().T
    np.testing.assert_allclose(system_means(SCORES, SYSTEMS), expected)


def test_preferences_agree_with_a_loop():
    ranked = rank_layers_by_preference(SCORES[:, 0::2], SCORES[:, 1::2])
    assert [layer.mean for layer in ranked] == sorted((layer.mean for layer in ranked), reverse=True)
    for layer in ranked:
        row = SCORES[layer.layer]
        agreed = [1 if row[i] > row[i + 1] else -1 for i in range(0, COUNT, 2)]
        low, high = stats.binomtest(agreed.count(1), len(agreed)).proportion_ci(method="wilson")
        expected = {"value": sum(agreed) / len(agreed), "low": 2 * low - 1, "high": 2 * high - 1}
        assert {name: vars(estimate) for name, estimate in layer.agreement.items()} == {"darr": pytest.approx(expected)}


def test_of_equal_layers_the_lower_is_first():
    scores = torch.rand(1, 8).expand(3, 8)
    assert [layer.layer for layer in rank_layers(scores, {"human": list(range(8))})] == [0, 1, 2]
    agreement = LayerAgreement(3, {"a": Estimate(0.5, 0, 1), "b": Estimate(-0.1, 0, 1)})
    assert agreement.mean == pytest.approx(0.2)


@pytest.mark.parametrize("how", ["pearson", "spearman", "kendall"])
def test_a_layer_whose_scores_are_equal_is_last(how):
    scores = SCORES.clone()
    scores[6] = 0.5 + 1e-9 * torch.arange(COUNT)
    *ranked, last = rank_layers(scores, HUMAN, how)
    assert [layer.layer for layer in ranked] == [x.layer for x in rank_layers(SCORES[:6], HUMAN, how)]
    assert last.layer == 6
    assert all(math.isnan(x) for estimate in last.agreement.values() for x in vars(estimate).values())


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: rank_layers(torch.rand(2, 8), {"human": [1, 2]}), r"got shapes \(8,\) and \(2,\)"),
        (lambda: rank_layers(torch.rand(2, 8), {"human": [1] * 8}), "all values of y are 1.0"),
        (lambda: rank_layers(torch.rand(2, 8), {}), "human is empty: pass at least one kind of judgement"),
        *(
            (partial(system_means, torch.rand(2, 8), ["a"] * n), f"one name for each of 8 texts, got {n} names")
            for n in (7, 9)
        ),
        (lambda: rank_layers_by_preference(torch.rand(2, 8), torch.rand(3, 8)), r"got \(2, 8\) and \(3, 8\)"),
        (lambda: rank_layers_by_preference(torch.rand(8), torch.rand(8)), "better and worse must both"),
        (lambda: rank_layers_by_preference(torch.rand(2, 8), torch.rand(2, 7)), "better and worse must both"),
        (lambda: rank_layers_by_preference(torch.rand(2, 1), torch.rand(2, 1)), "better and worse must both"),
        (lambda: rank_layers_by_preference(torch.rand(2, 8), torch.rand(2, 8), confidence=1), "confidence must be"),
    ],
)
def test_bad_arguments(call, message):
    with pytest.raises(ValueError, match=message):
        call()
