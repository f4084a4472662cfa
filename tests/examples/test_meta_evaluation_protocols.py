"""The protocols of the meta-evaluation compute the figures of scipy, of plain loops and of known cases."""

from __future__ import annotations

import random
import statistics
from collections import Counter
from itertools import combinations, product

import numpy as np
import pytest
from scipy import stats

from examples.meta_evaluation import protocols, run
from examples.meta_evaluation.readers import Judged
from examples.meta_evaluation.run import Setting, evaluate, table


def made_scores(settings: int, rows: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(settings, rows))


def test_ranked_pairs_count_ties_as_discordant():
    better = np.array([[0.9, 0.8, 0.7, 0.6], [0.9, 0.8, 0.7, 0.6]])
    worse = np.array([[0.1, 0.9, 0.2, 0.6], [0.1, 0.1, 0.2, 0.6]])
    # Two of four concordant, then three.
    assert protocols.ranked_pairs(better, worse) == {"kendall": [0.0, 0.5]}


def test_segment_level_is_scipys():
    scores, human = made_scores(1, 60, 2), np.random.default_rng(3).integers(1, 6, 60).astype(float)
    figures = protocols.segment_level(scores, human)
    for name, test in {"pearson": stats.pearsonr, "spearman": stats.spearmanr, "kendall": stats.kendalltau}.items():
        assert figures[name] == [pytest.approx(test(scores[0], human).statistic)]


def test_system_level_against_loops():
    systems = [f"S{i % 7}" for i in range(70)]
    random.Random(0).shuffle(systems)
    human = np.random.default_rng(4).normal(size=70)
    scores = made_scores(3, 70, 5) + np.array([[0.2], [0.8], [1.5]]) * human
    names = sorted(set(systems))

    def means(values):
        return [np.mean([v for v, s in zip(values, systems, strict=True) if s == name]) for name in names]

    of_people, of_settings = means(human), [means(row) for row in scores]
    pearson = [stats.pearsonr(row, of_people).statistic for row in of_settings]
    best = max(range(3), key=lambda i: pearson[i])
    figures = protocols.system_level(scores, human, systems)
    assert figures["pearson"] == pytest.approx(pearson)
    assert figures["p"][best] is None
    for other in set(range(3)) - {best}:
        between = stats.pearsonr(of_settings[best], of_settings[other]).statistic
        expected = protocols.williams_test(pearson[best], pearson[other], between, 7)
        assert figures["p"][other] == pytest.approx(expected)
        assert 0 < expected < 0.5


def test_williams_test_on_published_examples():
    # The example of https://github.com/inmoonlight/nlp-williams, one-sided.
    assert protocols.williams_test(0.65, 0.55, 0.3, 50) == pytest.approx(0.20928617286753592)
    # Steiger's example (1980) as in the manual of R's psych package: two-sided p = 0.37.
    assert 2 * protocols.williams_test(0.5, 0.4, 0.1, 103) == pytest.approx(0.37, abs=0.01)


def test_hybrids_take_one_row_of_each_document():
    documents = ["b", "a", "b", "c", "a", "b"]
    hybrids = protocols.draw_hybrids(documents, 6000, np.random.default_rng(0))
    assert hybrids.shape == (6000, 3)
    counts = Counter(map(tuple, hybrids.tolist()))
    assert set(counts) == set(product((1, 4), (0, 2, 5), (3,)))
    assert stats.chisquare(list(counts.values())).pvalue > 1e-3


def test_pools_are_uniform_subsets():
    pools = protocols.draw_pools(6, 3, 20_000, np.random.default_rng(0))
    assert pools.shape == (3, 20_000)
    counts = Counter(tuple(sorted(pool)) for pool in pools.T.tolist())
    assert set(counts) == set(combinations(range(6), 3))
    assert stats.chisquare(list(counts.values())).pvalue > 1e-3
    everything = protocols.draw_pools(4, 4, 5, np.random.default_rng(0))
    assert all(sorted(pool) == [0, 1, 2, 3] for pool in everything.T.tolist())


def selection(scores, human, documents, num_hybrids=40, size=10, repeats=60):
    draws = np.random.default_rng(1)
    hybrids = protocols.draw_hybrids(documents, num_hybrids, draws)
    pools = protocols.draw_pools(num_hybrids, size, repeats, draws)
    return hybrids, pools, protocols.model_selection(scores, human, hybrids, pools)


def test_model_selection_against_loops():
    documents = [f"d{i % 9}" for i in range(45)]
    human = np.random.default_rng(7).integers(1, 6, 45) / 3
    scores = made_scores(2, 45, 8) + np.array([[0.3], [1.0]]) * human
    hybrids, pools, figures = selection(scores, human, documents)
    for setting, row in enumerate(scores):
        ratings = [round(sum(human[i] for i in hybrid) / 9, 9) for hybrid in hybrids]
        means = [sum(row[i] for i in hybrid) / 9 for hybrid in hybrids]
        hits, reciprocal, lost = [], [], []
        for pool in pools.T.tolist():
            chosen = max(pool, key=lambda hybrid: means[hybrid])
            in_human_order = sorted((ratings[hybrid] for hybrid in pool), reverse=True)
            rank = in_human_order.index(ratings[chosen]) + 1
            hits.append(rank == 1)
            reciprocal.append(1 / rank)
            lost.append(in_human_order[0] - ratings[chosen])
        assert figures["hits@1"][setting] == pytest.approx(np.mean(hits))
        assert figures["mrr"][setting] == pytest.approx(np.mean(reciprocal))
        assert figures["difference"][setting] == pytest.approx(np.mean(lost))
        assert figures["pearson"][setting] == pytest.approx(stats.pearsonr(means, ratings).statistic)
    assert 0 < figures["hits@1"][1] < 1


def test_equally_good_hybrids_are_all_hits():
    # People find all documents' candidates equal, however the thirds are added up, but for one document's.
    documents = [f"d{i // 2}" for i in range(8)]
    human = [1 / 3, 1 / 3, 2 / 3, 2 / 3, 0.1, 0.1, 1.0, 2.0]
    _, _, figures = selection(np.asarray([human]) + 0.01 * made_scores(1, 8, 10), human, documents)
    assert figures["hits@1"] == [1.0]


def test_area_counts_pairs():
    labels = [float(i % 3 == 0) for i in range(60)]
    scores = (made_scores(2, 60, 13) + np.outer([0, 1], labels)).round(1)
    areas, low, high = protocols.area_under_curve(scores, labels)
    for row, area in zip(scores, areas, strict=True):
        wins = 0.0
        for positive, negative in product(range(0, 60, 3), (i for i in range(60) if i % 3)):
            a, b = row[positive], row[negative]
            wins += 1.0 if a > b else 0.5 if a == b else 0.0
        assert area == pytest.approx(wins / (20 * 40))
    # Hanley and McNeil's standard error (1982).
    squares = areas**2
    variance = areas * (1 - areas) + 19 * (areas / (2 - areas) - squares) + 39 * (2 * squares / (1 + areas) - squares)
    np.testing.assert_allclose(high - low, 2 * 1.96 * np.sqrt(variance / 800), rtol=0.15)


def test_selection_is_averaged_over_draws(monkeypatch):
    monkeypatch.setattr(run, "HYBRIDS", 120)
    monkeypatch.setattr(run, "REPEATS", 50)
    rows = 40
    judged = Judged(
        ["c"] * rows,
        [["r"]] * rows,
        ["r"] * rows,
        {"quality": list(np.random.default_rng(11).normal(size=rows))},
        [f"S{i % 8}" for i in range(rows)],
        [f"d{i // 8}" for i in range(rows)],
    )
    scores = made_scores(2, rows, 12)
    [result] = evaluate(judged, scores, ["selection"])
    assert [result] == evaluate(judged, scores, ["selection"])
    # The mean and the spread over draws, one after the other from the same generator.
    generator, draws = np.random.default_rng(0), []
    for _ in range(run.DRAWS):
        hybrids = protocols.draw_hybrids(judged.documents, 120, generator)
        pools = protocols.draw_pools(120, 100, 50, generator)
        draws.append(protocols.model_selection(scores, judged.ratings["quality"], hybrids, pools))
    for name in ("pearson", "hits@1", "mrr", "difference"):
        for setting in range(2):
            values = [draw[name][setting] for draw in draws]
            assert result.figures[name][setting] == pytest.approx(statistics.mean(values))
            assert result.spreads[name][setting] == pytest.approx(statistics.stdev(values))
    shown = table("file", [Setting(1, False), Setting(1, True)], result, None)
    assert f"{result.figures['mrr'][1]:.4f} ± {result.spreads['mrr'][1]:.4f}" in shown.splitlines()[-1]
    assert [result.protocol for result in evaluate(judged, scores, ["segment", "system"])] == ["segment", "system"]
