"""Layers ranked by agreement with people, against scipy and plain loops on the reference package's scores."""

import bert_score as oracle_package
import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats

from bertscore_tm import FrozenEncoder, bert_score
from bertscore_tm.layer_tuning import (
    Estimate,
    LayerAgreement,
    rank_layers,
    rank_layers_by_preference,
    system_means,
)
from tests.support.texts import real_pairs

COUNT = 12
SYSTEMS = [f"system {i % 6}" for i in range(COUNT)]


@pytest.fixture(scope="module")
def texts():
    """Candidates of falling quality: the reference, ever more of whose words belong to another text."""
    references = real_pairs(COUNT)[1]
    candidates = []
    for i, reference in enumerate(references):
        words, others = reference.split(), references[i - 1].split()
        length = len(words) * (COUNT - i) // COUNT
        candidates.append(" ".join(words[:length] + others[length:]))
    rng = np.random.default_rng(0)
    human = {
        "adequacy": [float(x) for x in np.round(5 - np.arange(COUNT) / 3 + rng.normal(size=COUNT))],
        "fluency": [float(x) for x in rng.integers(1, 6, COUNT)],
    }
    return candidates, references, human


@pytest.fixture(scope="module")
def scores(texts, minilm):
    return bert_score(*texts[:2], FrozenEncoder(minilm, all_layers=True))


@pytest.fixture(scope="module")
def oracle_f1(texts, minilm):
    """F1 of the reference package, shape (layers, candidates)."""
    scorer = oracle_package.BERTScorer(minilm, num_layers=6, all_layers=True, nthreads=0, device="cpu")
    return scorer.score(*texts[:2], batch_size=1)[2].double().numpy()


@pytest.mark.parametrize("how", ["pearson", "spearman", "kendall"])
def test_correlations_are_scipys_of_the_reference_packages_scores(texts, scores, oracle_f1, how):
    function = {"pearson": stats.pearsonr, "spearman": stats.spearmanr, "kendall": stats.kendalltau}[how]
    ranked = rank_layers(scores["f1"], texts[2], how)
    assert sorted(layer.layer for layer in ranked) == list(range(7))
    assert [layer.mean for layer in ranked] == sorted((layer.mean for layer in ranked), reverse=True)
    for layer in ranked:
        expected = {name: function(oracle_f1[layer.layer], judged).statistic for name, judged in texts[2].items()}
        assert {name: x.value for name, x in layer.agreement.items()} == pytest.approx(expected, abs=1e-4)
        assert all(x.low < x.value < x.high for x in layer.agreement.values())
        assert layer.mean == pytest.approx(sum(expected.values()) / 2, abs=1e-4)


def test_systems(texts, scores, oracle_f1):
    human = torch.tensor(texts[2]["adequacy"])
    ranked = rank_layers(system_means(scores["f1"], SYSTEMS), {"adequacy": system_means(human, SYSTEMS)})
    for layer in ranked:
        values = pd.DataFrame({"scores": oracle_f1[layer.layer], "human": human.numpy()})
        by_system = values.groupby(SYSTEMS).mean()
        assert layer.mean == pytest.approx(stats.pearsonr(by_system["scores"], by_system["human"]).statistic, abs=1e-4)


def test_preferences_agree_with_a_loop(scores, oracle_f1):
    # Of each two neighbours the first is the better one, in quality as made above.
    ranked = rank_layers_by_preference(scores["f1"][:, 0::2], scores["f1"][:, 1::2])
    assert [layer.mean for layer in ranked] == sorted((layer.mean for layer in ranked), reverse=True)
    for layer in ranked:
        row = oracle_f1[layer.layer]
        agreed = [1 if row[i] > row[i + 1] else -1 for i in range(0, COUNT, 2)]
        low, high = stats.binomtest(agreed.count(1), len(agreed)).proportion_ci(method="wilson")
        expected = {"value": sum(agreed) / len(agreed), "low": 2 * low - 1, "high": 2 * high - 1}
        assert {name: vars(estimate) for name, estimate in layer.agreement.items()} == {"darr": pytest.approx(expected)}


def test_of_equal_layers_the_lower_is_first():
    scores = torch.rand(1, 8).expand(3, 8)
    assert [layer.layer for layer in rank_layers(scores, {"human": list(range(8))})] == [0, 1, 2]
    agreement = LayerAgreement(3, {"a": Estimate(0.5, 0, 1), "b": Estimate(-0.1, 0, 1)})
    assert agreement.mean == pytest.approx(0.2)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: rank_layers(torch.rand(2, 8), {"human": [1, 2]}), r"got shapes \(8,\) and \(2,\)"),
        (lambda: rank_layers(torch.rand(2, 8), {"human": [1] * 8}), "all values of y are 1.0"),
        (lambda: rank_layers_by_preference(torch.rand(2, 8), torch.rand(2, 7)), "better and worse must both"),
        (lambda: rank_layers_by_preference(torch.rand(2, 1), torch.rand(2, 1)), "better and worse must both"),
        (lambda: rank_layers_by_preference(torch.rand(2, 8), torch.rand(2, 8), confidence=1), "confidence must be"),
    ],
)
def test_bad_arguments(call, message):
    with pytest.raises(ValueError, match=message):
        call()
