"""Layers ranked by agreement with people, against scipy and plain loops, and the program that prints them."""

import json
import math
from functools import partial

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from bertscore_tm import FrozenEncoder, bert_score
from examples.research.tune_layers import __main__ as command
from examples.research.tune_layers.layers import (
    Estimate,
    LayerAgreement,
    correlation,
    rank_layers,
    rank_layers_by_preference,
    rank_with_ties,
    system_means,
)
from tests.support.shell import numbers_in, write_records
from tests.support.texts import real_pairs

pytestmark = pytest.mark.nightly

COUNT = 12
SYSTEMS = [f"system {i % 6}" for i in range(COUNT)]
QUALITY = np.random.default_rng(0).normal(size=COUNT)
# More and more like the quality from layer to layer.
SCORES = QUALITY + np.random.default_rng(1).normal(size=(7, COUNT)) / np.arange(1, 8)[:, None]
HUMAN = {"adequacy": np.round(3 + QUALITY).tolist(), "fluency": np.random.default_rng(2).integers(1, 6, COUNT).tolist()}
COEFFICIENTS = {"pearson": stats.pearsonr, "spearman": stats.spearmanr, "kendall": stats.kendalltau}


@pytest.mark.parametrize("how", COEFFICIENTS)
def test_layers_are_ranked_by_the_mean_of_scipys_correlations(how):
    ranked = rank_layers(SCORES, HUMAN, how)

    assert sorted(layer.layer for layer in ranked) == list(range(7))
    assert [layer.mean for layer in ranked] == sorted((layer.mean for layer in ranked), reverse=True)
    for layer in ranked:
        row = SCORES[layer.layer]
        expected = {kind: COEFFICIENTS[how](row, judged).statistic for kind, judged in HUMAN.items()}
        assert {kind: x.value for kind, x in layer.agreement.items()} == pytest.approx(expected)
        assert all(x.low < x.value < x.high for x in layer.agreement.values())
        assert layer.mean == pytest.approx(sum(expected.values()) / 2)


def test_systems():
    table = pd.DataFrame(dict(enumerate(SCORES)))
    expected = table.groupby(SYSTEMS, sort=False).mean().to_numpy().T

    np.testing.assert_allclose(system_means(SCORES, SYSTEMS), expected)


def test_preferences_agree_with_a_loop():
    ranked = rank_layers_by_preference(SCORES[:, 0::2], SCORES[:, 1::2])

    assert [layer.mean for layer in ranked] == sorted((layer.mean for layer in ranked), reverse=True)
    for layer in ranked:
        row = SCORES[layer.layer]
        pairs = COUNT // 2
        agreed = sum(row[i] > row[i + 1] for i in range(0, COUNT, 2))
        low, high = stats.binomtest(agreed, pairs).proportion_ci(method="wilson")
        expected = {"value": 2 * agreed / pairs - 1, "low": 2 * low - 1, "high": 2 * high - 1}
        assert layer.agreement.keys() == {"darr"}
        assert vars(layer.agreement["darr"]) == pytest.approx(expected)


def test_of_equal_layers_the_lower_is_first():
    scores = np.tile(np.random.default_rng(3).random(8), (3, 1))

    assert [layer.layer for layer in rank_layers(scores, {"human": list(range(8))})] == [0, 1, 2]
    agreement = LayerAgreement(3, {"a": Estimate(0.5, 0, 1), "b": Estimate(-0.1, 0, 1)})
    assert agreement.mean == pytest.approx(0.2)


@pytest.mark.parametrize("how", COEFFICIENTS)
def test_a_layer_whose_scores_are_equal_is_last(how):
    scores = SCORES.copy()
    scores[6] = 0.5 + 1e-9 * np.arange(COUNT)
    *ranked, last = rank_layers(scores, HUMAN, how)

    others = rank_layers(SCORES[:6], HUMAN, how)

    assert [layer.layer for layer in ranked] == [layer.layer for layer in others]
    assert last.layer == 6
    for estimate in last.agreement.values():
        assert np.isnan(list(vars(estimate).values())).all()


def judgements(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return scores, and judgements on a scale of five with ties."""
    rng = np.random.default_rng(0)
    scores = rng.normal(size=count)
    return scores, np.clip(np.round(3 + scores + rng.normal(size=count)), 1, 5)


@pytest.mark.parametrize("how", COEFFICIENTS)
def test_correlation_agrees_with_scipy(how):
    scores, human = judgements(300)
    ours = correlation(scores, human.tolist(), how, confidence=0.9)

    assert ours.value == pytest.approx(COEFFICIENTS[how](scores, human).statistic)
    # The formulae of Bonett and Wright.
    variance = {"pearson": 1 / 297, "spearman": (1 + ours.value**2 / 2) / 297, "kendall": 0.437 / 296}[how]
    ends = math.atanh(ours.value) + stats.norm.ppf([0.05, 0.95]) * math.sqrt(variance)
    assert [ours.low, ours.high] == pytest.approx(np.tanh(ends))
    perfect = correlation([1, 2, 3, 4, 5], [2, 4, 6, 8, 10], how)
    assert (perfect.value, perfect.low, perfect.high) == pytest.approx((1, 1, 1))


@pytest.mark.parametrize("how", ["spearman", "kendall"])
def test_rounding_does_not_order_equal_scores(how):
    """Exact copies score 1 and repeated texts alike, up to rounding in float32."""
    rng = np.random.default_rng(0)
    exact = rng.choice([0.7, 0.8, 0.9, 1.0], 200)
    human = np.round(exact * 4 + rng.normal(size=200))
    noisy = (exact + rng.uniform(-2e-7, 2e-7, 200)).astype(np.float32)
    expected = COEFFICIENTS[how](exact, human).statistic

    assert abs(COEFFICIENTS[how](noisy, human).statistic - expected) > 1e-4
    assert correlation(noisy, human.tolist(), how).value == pytest.approx(expected, abs=1e-12)
    with pytest.raises(ValueError, match="all values of x are equal: the correlation is undefined"):
        correlation([1.0, 1 - 1e-7, 1.0, 1 - 2e-7, 1.0], [1, 2, 3, 4, 5], how)


@pytest.mark.parametrize("how", ["spearman", "kendall"])
def test_judgements_are_tied_only_where_they_are_equal(how):
    """Judgements have no rounding: of ratings as small as 1e-6 each step counts."""
    scores = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8]
    human = [3e-7, 1e-7, 9e-7, 5e-7, 7e-7, 1.1e-6, 1.1e-6, 2e-6]

    assert correlation(scores, human, how).value == pytest.approx(COEFFICIENTS[how](scores, human).statistic, abs=1e-12)


def test_ranks_are_of_values_that_differ_by_more_than_rounding():
    rows = [[0.5, 0.7, 0.5 - 1e-7, 1.0, 0.3], [2, 1, 2, 3, 4]]

    assert rank_with_ties(rows).tolist() == [[1, 2, 1, 3, 0], [1, 0, 1, 2, 3]]
    # Steps below 1e-6 do not chain all values into one rank.
    assert rank_with_ties(np.arange(6) * 4e-7).tolist() == [0, 0, 0, 1, 1, 1]


EIGHT = np.arange(16.0).reshape(2, 8)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: rank_layers(EIGHT, {"human": [1, 2]}), r"got shapes \(8,\) and \(2,\)"),
        (lambda: rank_layers(EIGHT, {"human": [1] * 8}), "all values of y are equal"),
        (lambda: rank_layers(EIGHT, {}), "human is empty: pass at least one kind of judgement"),
        (lambda: rank_layers(np.ones((2, 8)), {"human": [1] * 8}), "at every layer all scores are equal"),
        *((partial(system_means, EIGHT, ["a"] * n), f"one name for each of 8 texts, got {n} names") for n in (7, 9)),
        (lambda: rank_layers_by_preference(EIGHT, EIGHT[:1]), r"got \(2, 8\) and \(1, 8\)"),
        (lambda: rank_layers_by_preference(EIGHT[0], EIGHT[0]), "better and worse must both"),
        (lambda: rank_layers_by_preference(EIGHT[:, :1], EIGHT[:, :1]), "with 2 pairs or more"),
        (lambda: rank_layers_by_preference(EIGHT, EIGHT, confidence=1), "confidence must be between 0 and 1, got 1"),
        (lambda: correlation([1, 2, 3, 4], [1, 2, 3, 4]), "at least 5 texts, got 4"),
        (lambda: correlation([1, 1, 1, 1, 1], [1, 2, 3, 4, 5]), "all values of x are equal"),
        (lambda: correlation([1, 2, 3, 4, 5], [1, 2, math.nan, 4, 5]), "y has values that are not finite"),
        (lambda: correlation([1, 2, 3, 4, 5], [1, 2, 3, 4, 5], "tau"), "how='tau' is not one of pearson, spearman, ke"),
        (lambda: correlation([1, 2, 3, 4, 5], [1, 2, 3, 4, 5], confidence=0), "confidence"),
    ],
)
def test_bad_arguments(call, message):
    with pytest.raises(ValueError, match=message):
        call()


CANDIDATES, REFERENCES = real_pairs(COUNT, words=9)
SEVERAL = [[reference, REFERENCES[i - 1]] for i, reference in enumerate(REFERENCES)]


@pytest.fixture
def rated(tmp_path):
    """A file of candidates with two ratings each, and their systems."""
    rows = []
    for i, candidate in enumerate(CANDIDATES):
        ratings = {kind: values[i] for kind, values in HUMAN.items()}
        rows.append({"candidate": candidate, "references": SEVERAL[i], "system": SYSTEMS[i], "human": ratings})
    write_records(tmp_path / "rated.jsonl", rows)
    return tmp_path / "rated.jsonl"


@pytest.fixture
def ranked_pairs(tmp_path):
    """A file of preferences."""
    pairs = zip(REFERENCES, CANDIDATES, CANDIDATES[1:] + CANDIDATES[:1], strict=True)
    rows = [{"reference": reference, "better": better, "worse": worse} for reference, better, worse in pairs]
    write_records(tmp_path / "pairs.jsonl", rows)
    return tmp_path / "pairs.jsonl"


def printed_by(capsys, *arguments):
    """Return the lines of the table, the caption, the signature and the row that the program prints."""
    command.main([str(argument) for argument in arguments])
    header, _, *table, caption, signature, row = capsys.readouterr().out.splitlines()
    return header, table, caption, signature, json.loads(row.removeprefix("row: "))


def check_table(table, ranked):
    assert [int(line.split()[0]) for line in table] == [layer.layer for layer in ranked]
    for line, layer in zip(table, ranked, strict=True):
        cells = [value for estimate in layer.agreement.values() for value in vars(estimate).values()]
        assert numbers_in(line) == pytest.approx([layer.mean, *cells], abs=6e-5)


@pytest.mark.parametrize(("how", "idf"), [("pearson", True), ("kendall", False)])
def test_the_program_prints_the_ranking_of_rated_texts(rated, minilm, capsys, how, idf):
    options = ["--coefficient", how, "--confidence", 0.8, "--component", "recall"]
    weighting = "|idf:no|"
    if idf:
        options.append("--idf")
        weighting = f"|idf:{2 * COUNT}#"
    header, table, caption, signature, row = printed_by(capsys, rated, *options)
    scores = bert_score(CANDIDATES, SEVERAL, FrozenEncoder(minilm, all_layers=True), idf=idf)["recall"]
    ranked = rank_layers(scores.double().numpy(), HUMAN, how, confidence=0.8)
    check_table(table, ranked)

    assert header.split() == ["layer", "mean", "adequacy", "fluency"]
    assert caption == f"recall and {COUNT} texts: {how}, 80% intervals"
    assert weighting in signature
    assert "|layer:0-6|" in signature
    best = {"num_layers": ranked[0].layer, "component": "recall", "data": "rated.jsonl"}
    assert row == {"model": "model", **best, how: pytest.approx(ranked[0].mean, abs=6e-7)}


def test_the_program_ranks_by_systems(rated, minilm, capsys):
    _, table, caption, *_ = printed_by(capsys, rated, "--systems", "--num-layers", 2)
    scores = bert_score(CANDIDATES, SEVERAL, FrozenEncoder(minilm, num_layers=2, all_layers=True))["f1"]
    human = {kind: system_means(ratings, SYSTEMS) for kind, ratings in HUMAN.items()}
    check_table(table, rank_layers(system_means(scores, SYSTEMS), human))

    assert caption == "f1 and 6 systems: pearson, 95% intervals"


def test_the_program_ranks_by_preferences(ranked_pairs, minilm, capsys):
    header, table, caption, signature, row = printed_by(capsys, ranked_pairs, "--idf")
    encoder = FrozenEncoder(minilm, all_layers=True)
    # The reference of a preference counts once.
    better = bert_score(CANDIDATES, REFERENCES, encoder, idf=REFERENCES)["f1"]
    worse = bert_score(CANDIDATES[1:] + CANDIDATES[:1], REFERENCES, encoder, idf=REFERENCES)["f1"]
    ranked = rank_layers_by_preference(better.double().numpy(), worse.double().numpy())
    check_table(table, ranked)

    assert header.split() == ["layer", "mean", "darr"]
    assert caption == f"f1 and {COUNT} preferences: share of concordant minus share of discordant pairs, 95% intervals"
    assert f"|idf:{COUNT}#" in signature
    assert row["darr"] == pytest.approx(ranked[0].mean, abs=6e-7)


def test_a_rating_may_be_a_number(tmp_path, capsys):
    rows = zip(CANDIDATES, REFERENCES, HUMAN["fluency"], strict=True)
    write_records(tmp_path / "a.jsonl", [{"candidate": c, "reference": r, "human": human} for c, r, human in rows])
    header, *_ = printed_by(capsys, tmp_path / "a.jsonl", "--num-layers", 1)

    assert header.split() == ["layer", "mean", "human"]
    with pytest.raises(ValueError, match=r"a\.jsonl: rows have no key 'system', which --systems needs"):
        command.main([str(tmp_path / "a.jsonl"), "--systems", "--num-layers", "1"])
