"""The meta-evaluation example, against slow loops, scipy, answers known beforehand, and the reference package."""

from __future__ import annotations

import gzip
import json
import random
import sys
from collections import Counter
from itertools import combinations, product
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from bertscore_tm.statistics import williams_test
from examples.meta_evaluation import __main__ as command
from examples.meta_evaluation import paraphrases, protocols
from examples.meta_evaluation.readers import Labelled, Ranked, Rated, read
from examples.meta_evaluation.report import Setting, differences, table
from examples.meta_evaluation.run import Result, Sampling, evaluate, possible
from examples.meta_evaluation.scoring import idf_corpus, reference_package, score_file

RANKED = {"reference": "a cat sat", "better": "a cat was sitting", "worse": "the dog"}
RATED = {"candidate": "a cat", "references": ["a cat sat", "the cat"], "human": {"fluency": 3, "relevance": 2.5}}
LABELLED = {"candidate": "a cat", "reference": "the cat", "label": 1}


# Single pairs, as the reference package scores them here, are too small for threads.
pytestmark = pytest.mark.usefixtures("one_thread")


def write(path: Path, rows: list) -> Path:
    content = "".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows)
    path.write_bytes(gzip.compress(content.encode()) if path.suffix == ".gz" else content.encode())
    return path


def rated_rows(num: int = 5) -> list[dict]:
    return [{**RATED, "human": {"fluency": i, "relevance": -i}} for i in range(num)]


def test_reads_ranked_pairs(tmp_path):
    judged = read(write(tmp_path / "pairs.jsonl.gz", [{**RANKED, "worse": f"dog {i}"} for i in range(6)]))
    assert isinstance(judged, Ranked)
    assert judged.worse == [f"dog {i}" for i in range(6)]
    assert judged.better == [RANKED["better"]] * 6
    assert judged.references == [["a cat sat"]] * 6
    candidates, references = judged.pairs()
    assert candidates == judged.better + judged.worse
    assert references == judged.references * 2
    # Each judgement's reference counts once, although two candidates are scored against it.
    assert idf_corpus(judged) == ["a cat sat"] * 6
    assert possible(judged) == ["ranked"]


def test_reads_ratings(tmp_path):
    plain = read(write(tmp_path / "rated.jsonl", rated_rows()))
    assert isinstance(plain, Rated)
    assert plain.ratings == {"fluency": [0.0, 1.0, 2.0, 3.0, 4.0], "relevance": [0.0, -1.0, -2.0, -3.0, -4.0]}
    assert plain.systems is None
    assert plain.documents is None
    assert plain.references == [RATED["references"]] * 5
    assert idf_corpus(plain) == RATED["references"] * 5
    assert possible(plain) == ["segment"]

    rows = [{**row, "system": f"S{i}", "document": "d"} for i, row in enumerate(rated_rows())]
    full = read(write(tmp_path / "full.jsonl", rows), num_references=1)
    assert isinstance(full, Rated)
    assert full.references == [["a cat sat"]] * 5
    assert full.systems == ["S0", "S1", "S2", "S3", "S4"]
    assert full.documents == ["d"] * 5
    assert possible(full) == ["segment", "system", "selection"]

    few_systems = [{**row, "system": f"S{i % 4}", "document": f"d{i}"} for i, row in enumerate(rated_rows(8))]
    assert possible(read(write(tmp_path / "few.jsonl", few_systems))) == ["segment"]


def test_reads_paraphrases(tmp_path):
    judged = read(write(tmp_path / "labelled.jsonl", [{**LABELLED, "label": i % 2} for i in range(5)]))
    assert isinstance(judged, Labelled)
    assert judged.labels == [0, 1, 0, 1, 0]
    assert judged.references == [["the cat"]] * 5
    assert possible(judged) == ["paraphrase"]


def without(row: dict, key: str) -> dict:
    return {name: value for name, value in row.items() if name != key}


@pytest.mark.parametrize(
    ("good", "bad", "message"),
    [
        (RANKED, "{", "invalid JSON"),
        (RANKED, "[1]", "must be a JSON object"),
        (RANKED, without(RANKED, "worse"), "'worse' must be a string, got None"),
        (RANKED, {**RANKED, "better": 3}, "'better' must be a string, got 3"),
        (RANKED, without(RANKED, "reference"), "either 'reference'"),
        (RANKED, {**RANKED, "references": ["x"]}, "either 'reference'"),
        (RATED, {**RATED, "references": []}, r"'references' must be a list of at least one string, got \[\]"),
        (RATED, {**RATED, "references": "a text"}, "'references' must be a list"),
        (RATED, {**RATED, "references": ["x", None]}, "'references' must be a list"),
        (RATED, without(RATED, "human"), "'human' must map"),
        (RATED, {**RATED, "human": {}}, "'human' must map"),
        (RATED, {**RATED, "human": {"fluency": 3}}, r"ratings \['fluency'\] differ from those of the first row"),
        (RATED, {**RATED, "human": {"fluency": "3", "relevance": 1}}, "'fluency' must be a finite number, got '3'"),
        (RATED, {**RATED, "human": {"fluency": True, "relevance": 1}}, "'fluency' must be a finite number, got True"),
        (RATED, {**RATED, "human": {"fluency": float("nan"), "relevance": 1}}, "must be a finite number, got nan"),
        ({**RATED, "system": "S"}, RATED, "'system' must be a string, got None"),
        ({**RATED, "document": "d"}, {**RATED, "document": 4}, "'document' must be a string, got 4"),
        (LABELLED, {**LABELLED, "label": 2}, r"'label' must be 1 \(paraphrase\) or 0, got 2"),
        (LABELLED, {**LABELLED, "label": "1"}, "'label' must be"),
        (LABELLED, {**LABELLED, "candidate": None}, "'candidate' must be a string, got None"),
    ],
)
def test_bad_rows_are_named(tmp_path, good, bad, message):
    path = write(tmp_path / "bad.jsonl", [good, good, good, bad, good, good])
    with pytest.raises(ValueError, match=rf"bad\.jsonl, line 4: .*{message}"):
        read(path)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([RANKED] * 4, r"odd\.jsonl: 4 rows; statistics require at least 5"),
        ([], r"odd\.jsonl: 0 rows"),
        ([{"candidate": "a", "reference": "b"}] * 5, r"odd\.jsonl, line 1: requires 'better'"),
        ([RATED] * 5, r"odd\.jsonl: all ratings 'fluency' are 3\.0"),
        ([LABELLED] * 5, r"odd\.jsonl: all labels are 1"),
    ],
)
def test_files_that_allow_no_statistics(tmp_path, rows, message):
    with pytest.raises(ValueError, match=message):
        read(write(tmp_path / "odd.jsonl", rows))


def made_scores(settings: int, rows: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(settings, rows))


def test_ranked_pairs_count_ties_as_discordant():
    better = np.array([[0.9, 0.8, 0.7, 0.6], [0.9, 0.8, 0.7, 0.6]])
    worse = np.array([[0.1, 0.9, 0.2, 0.6], [0.1, 0.1, 0.2, 0.6]])
    # Two of four concordant, then three.
    assert protocols.ranked_pairs(better, worse) == {"kendall": [0.0, 0.5]}

    better, worse = made_scores(3, 200, 0), made_scores(3, 200, 1)
    expected = []
    for high, low in zip(better, worse, strict=True):
        concordant = sum(1 for h, w in zip(high, low, strict=True) if h > w)
        expected.append((concordant - (200 - concordant)) / 200)
    assert protocols.ranked_pairs(better, worse)["kendall"] == pytest.approx(expected)


def test_rounding_makes_no_order():
    exact = np.array([[0.5, 0.7, 0.5, 1.0, 1.0, 0.3]])
    noisy = exact + np.array([[1e-7, 0, -1e-7, 2e-7, -2e-7, 0]])
    np.testing.assert_array_equal(protocols.with_ties(noisy), [[1, 2, 1, 3, 3, 0]])
    human = [1.0, 2.0, 3.0, 4.0, 3.5, 2.0]
    figures = protocols.segment_level(noisy, human)
    assert figures["spearman"] == pytest.approx([stats.spearmanr(exact[0], human).statistic])
    assert figures["kendall"] == pytest.approx([stats.kendalltau(exact[0], human).statistic])


def test_segment_level_is_scipys():
    scores, human = made_scores(3, 60, 2), np.random.default_rng(3).integers(1, 6, 60).astype(float)
    figures = protocols.segment_level(scores, human)
    for i, row in enumerate(scores):
        assert figures["pearson"][i] == pytest.approx(stats.pearsonr(row, human).statistic)
        assert figures["spearman"][i] == pytest.approx(stats.spearmanr(row, human).statistic)
        assert figures["kendall"][i] == pytest.approx(stats.kendalltau(row, human).statistic)


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
        expected = williams_test(pearson[best], pearson[other], between, 7).p_value
        assert figures["p"][other] == pytest.approx(expected)
        assert 0 < expected < 0.5


def test_a_setting_is_not_tested_against_its_double():
    human, systems = np.arange(12.0) % 5, [f"S{i % 6}" for i in range(12)]
    row = made_scores(1, 12, 6)
    assert protocols.system_level(np.concatenate([row, 2 * row + 1]), human, systems)["p"] == [None, None]


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


def test_model_selection_of_the_best_and_the_worst_metric():
    documents = [f"d{i % 9}" for i in range(45)]
    human = np.random.default_rng(9).normal(size=45)
    _, _, figures = selection(np.stack([human, -human]), human, documents)
    assert figures["hits@1"] == [1.0, 0.0]
    assert figures["mrr"] == pytest.approx([1.0, 1 / 10])  # first, and last, of ten
    assert figures["difference"][0] == 0
    assert figures["pearson"] == pytest.approx([1.0, -1.0])


def test_equally_good_hybrids_are_all_hits():
    # People find all documents' candidates equal, however the thirds are added up, but for one document's.
    documents = [f"d{i // 2}" for i in range(8)]
    human = [1 / 3, 1 / 3, 2 / 3, 2 / 3, 0.1, 0.1, 1.0, 2.0]
    _, _, figures = selection(np.asarray([human]) + 0.01 * made_scores(1, 8, 10), human, documents)
    assert figures["hits@1"] == [1.0]


def test_auc_counts_pairs():
    scores = np.array([[0.9, 0.4, 0.4, 0.1, 0.7, 0.2]])
    labels = [1, 1, 0, 0, 0, 1]
    wins = 0.0
    for positive, negative in product((0, 1, 5), (2, 3, 4)):
        a, b = scores[0, positive], scores[0, negative]
        wins += 1.0 if a > b else 0.5 if a == b else 0.0
    assert protocols.paraphrase_auc(scores, labels)["auc"] == pytest.approx([wins / 9])
    assert protocols.paraphrase_auc(np.array([[1.0, 2.0, -1.0, 0.0]]), [1, 1, 0, 0])["auc"] == [1.0]


def test_equal_seeds_give_equal_figures():
    rows = 40
    judged = Rated(
        ["c"] * rows,
        [["r"]] * rows,
        {"quality": list(np.random.default_rng(11).normal(size=rows))},
        [f"S{i % 8}" for i in range(rows)],
        [f"d{i // 8}" for i in range(rows)],
    )
    scores = made_scores(2, rows, 12)
    first, again, other = (
        evaluate(judged, scores, ["selection"], Sampling(hybrids=120, repeats=50, seed=seed)) for seed in (3, 3, 4)
    )
    assert first == again != other
    assert [result.protocol for result in evaluate(judged, scores, ["segment", "system"])] == ["segment", "system"]


@pytest.mark.parametrize(
    ("options", "message"), [({"hybrids": 99}, "hybrids must be at least 100"), ({"repeats": 0}, "repeats must")]
)
def test_sampling_limits(options, message):
    with pytest.raises(ValueError, match=message):
        Sampling(**options)


def test_equal_pairs_are_scored_once_and_idf_counts_all():
    calls = []

    def score(candidates, references, corpus):
        calls.append((list(zip(candidates, references, strict=True)), corpus))
        return np.array([[float(len(text)) for text in candidates], [float(len(text[0])) for text in references]])

    judged = Ranked(["aa", "aa", "b"], ["ccc", "b", "ccc"], [["r"], ["r"], ["rr"]])
    scores = score_file(judged, score, with_idf=True)
    np.testing.assert_array_equal(scores, [[2, 2, 1, 3, 1, 3], [1, 1, 2, 1, 1, 2]] * 2)
    (plain, no_corpus), (weighted, corpus) = calls
    assert plain == weighted == [("aa", ["r"]), ("b", ["r"]), ("ccc", ["r"]), ("b", ["rr"]), ("ccc", ["rr"])]
    assert no_corpus is None
    assert corpus == ["r", "r", "rr"]


def test_differences_tell_packages_apart():
    ours = Result("system", "fluency", "5 systems", {"pearson": [0.5, 0.25], "p": [None, 0.01]})
    theirs = Result("system", "fluency", "5 systems", {"pearson": [0.5, 0.5], "p": [0.01, None]})
    assert differences(ours, ours) == [0, 0, 0]
    assert differences(ours, theirs) == [0, 0.25, float("inf"), float("inf")]
    lines = table("f.jsonl", [Setting(5, False), Setting(5, True)], ours, theirs).splitlines()
    assert lines == [
        "### f.jsonl: system, fluency, 5 systems",
        "",
        "| layer | idf | pearson | pearson (bert-score) | p | p (bert-score) |",
        "| --- | --- | --- | --- | --- | --- |",
        "| 5 | no | 0.5000 | 0.5000 | - | 0.0100 |",
        "| 5 | yes | 0.2500 | 0.5000 | 0.0100 | - |",
    ]


@pytest.mark.parametrize(
    ("text", "layers"), [("5", [5]), ("1-3", [1, 2, 3]), ("0,4-6,5", [0, 4, 5, 6]), ("2-2", [2]), ("6,1", [1, 6])]
)
def test_layers(text, layers):
    assert command.parse_layers(text) == layers


@pytest.mark.parametrize("text", ["", "x", "3-1", "1-", "-1", "1,,2"])
def test_no_layers(text):
    with pytest.raises(command.argparse.ArgumentTypeError, match="layers must have the form"):
        command.parse_layers(text)


def test_a_missing_reference_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "bert_score", None)
    with pytest.raises(ImportError, match="pip install bert-score"):
        reference_package()


@pytest.fixture
def judged_files(tmp_path, pairs) -> list[Path]:
    """Made judgements of real texts: ratings of 6 systems' texts for 4 documents, ranked pairs, and labelled pairs."""
    summaries, openings = pairs
    numbers = random.Random(0)
    rated = [
        {
            "document": f"d{document}",
            "system": f"S{system}",
            "candidate": summaries[document if system < 3 else 6 * system + document],
            "references": [*openings[6 * document : 6 * document + 1 + document % 3], openings[document]],
            "human": {"fluency": numbers.randint(1, 5), "relevance": numbers.random() - system},
        }
        for document in range(4)
        for system in range(6)
    ]
    ranked = [
        {"reference": openings[i % 7], "better": summaries[i % 7], "worse": summaries[(i + 1 + i // 7) % 12]}
        for i in range(30)
    ]
    # They differ in nothing that an uncased encoder sees.
    ranked.append({"reference": openings[0], "better": summaries[0], "worse": summaries[0].upper()})
    labelled = [
        {"candidate": summaries[i], "reference": openings[i if label else i + 1], "label": label}
        for i in range(8)
        for label in (0, 1)
    ]
    return [
        write(tmp_path / "rated.jsonl.gz", rated),
        write(tmp_path / "ranked.jsonl", ranked),
        write(tmp_path / "labelled.jsonl", labelled),
    ]


@pytest.mark.slow
def test_command_beside_the_reference_package(tmp_path, judged_files, minilm, capsys):
    bert_score = reference_package()
    out = tmp_path / "out.json"
    options = ["--layers", "2,5", "--idf", "--compare-with-reference", "--hybrids", "150", "--repeats", "300"]
    arguments = [*map(str, judged_files), "--model", minilm, "--json", str(out), *options]
    assert command.main(arguments) == 0
    shown = capsys.readouterr().out
    content = json.loads(out.read_text())
    assert content["encoder"]
    found = {
        (record["protocol"], record["rating"], record["figure"], record["layer"], record["idf"]): record
        for record in content["figures"]
    }
    # Per setting: 2 ratings of 3 + 2 + 4 figures, one of ranked pairs and one of paraphrases.
    assert len(found) == len(content["figures"]) == 4 * (2 * 9 + 2)
    # The best setting of either rating has no p-value.
    assert "78 figures" in shown
    assert "| 5 | yes | " in shown
    for record in found.values():
        assert (record["value"] is None) == (record["reference"] is None)
        if record["value"] is not None:
            assert record["value"] == pytest.approx(record["reference"], abs=5e-5)

    # One layer at a time the reference package takes several references itself.
    rows = [[json.loads(line) for line in gzip.decompress(judged_files[0].read_bytes()).splitlines()]]
    rows += [[json.loads(line) for line in path.read_text().splitlines()] for path in judged_files[1:]]
    for layer, idf in product((2, 5), (False, True)):

        def f1(candidates, references, corpus, layer=layer, idf=idf):
            corpus = corpus if idf else None
            scorer = bert_score.BERTScorer(minilm, num_layers=layer, idf=idf, idf_sents=corpus, nthreads=0)
            return scorer.score(candidates, references, batch_size=1)[2].numpy()

        rated = f1(
            [row["candidate"] for row in rows[0]],
            [row["references"] for row in rows[0]],
            [text for row in rows[0] for text in row["references"]],
        )
        for name in ("fluency", "relevance"):
            human = [row["human"][name] for row in rows[0]]
            expected = stats.pearsonr(rated, human).statistic
            assert found["segment", name, "pearson", layer, idf]["value"] == pytest.approx(expected, abs=5e-5)

        references = [row["reference"] for row in rows[1]]
        better = f1([row["better"] for row in rows[1]], references, references)
        worse = f1([row["worse"] for row in rows[1]], references, references)
        concordant = sum(b > w for b, w in zip(better, worse, strict=True))
        assert better[-1] == worse[-1]
        assert found["ranked", None, "kendall", layer, idf]["value"] == pytest.approx(2 * concordant / 31 - 1)


def test_command_says_when_figures_differ(judged_files, minilm, monkeypatch, capsys):
    real = command.reference_score
    monkeypatch.setattr(command, "reference_score", lambda model, layers: real(model, [layer - 1 for layer in layers]))
    arguments = [str(judged_files[0]), "--model", minilm, "--layers", "6", "--protocol", "segment"]
    assert command.main([*arguments, "--compare-with-reference"]) == 1
    assert "6 figures" in capsys.readouterr().out
    assert command.main(arguments) == 0
    assert "bert-score" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--protocol", "system"], "ranked.jsonl supports the protocols ranked, not system"),
        (["--layers", "9"], "num_layers"),
        (["--references", "0"], "--references must be at least 1, got 0"),
        (["--hybrids", "5"], "hybrids must be at least 100"),
        (["no_such_file.jsonl"], "no_such_file.jsonl"),
    ],
)
def test_command_refuses(judged_files, minilm, capsys, options, message):
    with pytest.raises(SystemExit) as caught:
        command.main([str(judged_files[1]), "--model", minilm, *options])
    assert caught.value.code == 2
    assert message in capsys.readouterr().err


def test_makes_paraphrases(tmp_path, capsys):
    references = [
        ["the red cat sat", "a cat was sitting", "a cat was sitting"],
        ["the red dog sat", "a dog was sitting down"],
        ["nothing of that kind"],
    ]
    rows = [
        {**RATED, "references": several, "human": {"fluency": i}}
        for i, several in enumerate([*references, *references])
    ]
    out = tmp_path / "labelled.jsonl.gz"
    paraphrases.main([str(write(tmp_path / "rated.jsonl", rows)), str(out)])
    made = [json.loads(line) for line in gzip.decompress(out.read_bytes()).splitlines()]
    assert [tuple(row.values()) for row in made] == [
        ("the red cat sat", "a cat was sitting", 1),
        ("the red cat sat", "the red dog sat", 0),
        ("the red dog sat", "a dog was sitting down", 1),
        ("the red dog sat", "the red cat sat", 0),
    ]
    with pytest.raises(SystemExit):
        paraphrases.main([str(write(tmp_path / "ranked.jsonl", [RANKED] * 5)), str(out)])
    assert "at least one row must have two different references" in capsys.readouterr().err
