"""Layers ranked by agreement with people, against scipy and plain loops on the reference package's scores."""

import bert_score as oracle_package
import numpy as np
import pytest
import torch
from scipy import stats

from bertscore_tm import FrozenEncoder, bert_score
from bertscore_tm.layer_tuning import (
    Estimate,
    LayerAgreement,
    correlation,
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
        kept = len(words) * (COUNT - i) // COUNT
        candidates.append(" ".join(words[:kept] + others[kept:]))
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
    human = texts[2]
    ranked = rank_layers(scores["f1"], human, how)
    assert sorted(found.layer for found in ranked) == list(range(7))
    means = {}
    for found in ranked:
        expected = {name: function(oracle_f1[found.layer], judged).statistic for name, judged in human.items()}
        assert {name: x.value for name, x in found.agreement.items()} == pytest.approx(expected, abs=1e-4)
        assert all(x.low < x.value < x.high for x in found.agreement.values())
        means[found.layer] = sum(expected.values()) / 2
        assert found.mean == pytest.approx(means[found.layer], abs=1e-4)
    assert [found.mean for found in ranked] == sorted((found.mean for found in ranked), reverse=True)
    assert means[ranked[0].layer] == pytest.approx(max(means.values()), abs=1e-4)


def test_confidence_widens_the_interval(texts, scores):
    narrow, wide = (rank_layers(scores["f1"], texts[2], confidence=x)[0].agreement["adequacy"] for x in (0.5, 0.99))
    assert wide.low < narrow.low < narrow.high < wide.high


def test_systems(texts, scores, oracle_f1):
    human = torch.tensor(texts[2]["adequacy"])
    ranked = rank_layers(system_means(scores["f1"], SYSTEMS), {"adequacy": system_means(human, SYSTEMS)})
    for found in ranked:
        by_system = []
        for values in (oracle_f1[found.layer], human.tolist()):
            members = {
                name: [x for x, system in zip(values, SYSTEMS, strict=True) if system == name] for name in SYSTEMS
            }
            by_system.append([sum(several) / len(several) for several in members.values()])
        assert found.mean == pytest.approx(stats.pearsonr(*by_system).statistic, abs=1e-4)


def test_preferences_agree_with_a_loop(texts, scores, oracle_f1):
    # Of each two neighbours the first is the better one, in quality as made above.
    better, worse = scores["f1"][:, 0::2], scores["f1"][:, 1::2]
    ranked = rank_layers_by_preference(better, worse)
    for found in ranked:
        row = oracle_f1[found.layer]
        agreed = [1 if row[i] > row[i + 1] else -1 for i in range(0, COUNT, 2)]
        assert found.mean == pytest.approx(sum(agreed) / len(agreed))
        low, high = stats.binomtest(agreed.count(1), len(agreed)).proportion_ci(method="wilson")
        assert vars(found.agreement["darr"]) == pytest.approx(
            {"value": found.mean, "low": 2 * low - 1, "high": 2 * high - 1}
        )
        assert set(found.agreement) == {"darr"}
    values = [found.mean for found in ranked]
    assert values == sorted(values, reverse=True)


def test_of_equal_layers_the_lower_is_first():
    scores = torch.rand(1, 8).expand(3, 8)
    assert [found.layer for found in rank_layers(scores, {"human": list(range(8))})] == [0, 1, 2]
    agreement = LayerAgreement(3, {"a": Estimate(0.5, 0, 1), "b": Estimate(-0.1, 0, 1)})
    assert agreement.mean == pytest.approx(0.2)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: rank_layers(torch.rand(8), {"human": list(range(8))}), "shape .layers, texts."),
        (lambda: rank_layers(torch.rand(2, 8), {}), "at least one kind"),
        (
            lambda: rank_layers(torch.rand(2, 8), {"human": [1, 2]}),
            r"layer 0 .* 'human' .* got shapes \(8,\) and \(2,\)",
        ),
        (lambda: rank_layers(torch.rand(2, 8), {"human": [1] * 8}), "'human' .* all values of y are 1.0"),
        (
            lambda: rank_layers(torch.rand(2, 8), {"human": list(range(8))}, "rank"),
            "how='rank' is not one of 'pearson', 'spearman', 'kendall'",
        ),
        (lambda: rank_layers_by_preference(torch.rand(2, 8), torch.rand(2, 7)), "shape .layers, pairs."),
        (lambda: rank_layers_by_preference(torch.rand(2, 1), torch.rand(2, 1)), "better and worse must both"),
        (lambda: rank_layers_by_preference(torch.rand(2, 8), torch.rand(2, 8), confidence=1), "confidence must be"),
        (lambda: system_means(torch.rand(2, 8), ["A"]), "each of 8 texts, got 1"),
    ],
)
def test_bad_arguments(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_the_correlation_is_pearsons_with_an_interval_of_95_percent():
    x, y = np.random.default_rng(0).normal(size=(2, 20))
    expected = stats.pearsonr(x, x + y)
    found = correlation(x.tolist(), (x + y).tolist())
    low, high = expected.confidence_interval(0.95)
    assert (found.value, found.low, found.high) == pytest.approx((expected.statistic, low, high), abs=1e-9)
