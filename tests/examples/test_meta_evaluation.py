"""The meta-evaluation reads and scores judgements, and computes the figures of scipy, plain loops and known cases."""

import gzip
import json
import random
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from bertscore_tm import FrozenEncoder, bert_score
from examples.research.meta_evaluation import __main__ as command
from examples.research.meta_evaluation import paraphrases, protocols
from examples.research.meta_evaluation.judgements import Judged, read, score

pytestmark = pytest.mark.nightly

RANKED = {"reference": "a cat sat", "better": "a cat was sitting", "worse": "the dog"}
IDF = ["a cat sat", "a dog ran", "it rains"]


def write(path: Path, rows: list[dict]) -> Path:
    """Write rows as JSON lines, compressed if the name ends in .gz."""
    content = "".join(json.dumps(row) + "\n" for row in rows).encode()
    if path.suffix == ".gz":
        content = gzip.compress(content)
    path.write_bytes(content)
    return path


def made_scores(settings: int, rows: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(settings, rows))


def test_reads_ranked_pairs(tmp_path):
    judged = read(write(tmp_path / "pairs.jsonl.gz", [{**RANKED, "worse": f"dog {i}"} for i in range(6)]))

    assert judged.candidates == [RANKED["better"]] * 6 + [f"dog {i}" for i in range(6)]
    assert judged.references == [["a cat sat"]] * 12
    # Each judgement's reference counts once, although two candidates are scored against it.
    assert judged.idf_texts == ["a cat sat"] * 6


def test_equal_pairs_score_alike_and_idf_counts_all(minilm):
    references = [["cats"], ["cats"], ["it rains"], ["cats", "a cat"]]
    judged = Judged(["a cat", "a cat", "rain", "a cat"], references, IDF)
    encoder = FrozenEncoder(minilm, all_layers=True)
    rows = score(judged, encoder, with_idf=True, parts=("recall", "f1"))
    expected = [bert_score(judged.candidates, judged.references, encoder, idf=idf) for idf in (False, IDF)]
    wanted = [scores[part][1:].double().numpy() for scores in expected for part in ("recall", "f1")]

    np.testing.assert_allclose(rows, np.concatenate(wanted), atol=1e-6)


def test_ranked_pairs_count_ties_as_discordant():
    better = np.array([[0.9, 0.8, 0.7, 0.6], [0.9, 0.8, 0.7, 0.6]])
    worse = np.array([[0.1, 0.9, 0.2, 0.6], [0.1, 0.1, 0.2, 0.6]])

    # Two of four concordant, then three.
    assert protocols.ranked_pairs(better, worse) == {"kendall": [0.0, 0.5]}


def test_system_level_against_loops():
    systems = [f"S{i % 7}" for i in range(70)]
    random.Random(0).shuffle(systems)
    human = np.random.default_rng(4).normal(size=70)
    scores = made_scores(3, 70, 5) + np.array([[0.2], [0.8], [1.5]]) * human
    names = sorted(set(systems))

    def means(values):
        return [values[np.array(systems) == name].mean() for name in names]

    of_people = means(human)
    of_settings = [means(row) for row in scores]
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


def test_area_counts_pairs():
    labels = [float(i % 3 == 0) for i in range(60)]
    scores = (made_scores(2, 60, 13) + np.outer([0, 1], labels)).round(1)
    areas, low, high = protocols.area_under_curve(scores, labels)

    for row, area in zip(scores, areas, strict=True):
        wins = 0.0
        for a, b in product(row[::3], np.delete(row, range(0, 60, 3))):
            if a > b:
                wins += 1.0
            elif a == b:
                wins += 0.5
        assert area == pytest.approx(wins / (20 * 40))
    # Hanley and McNeil's standard error (1982).
    squares = areas**2
    variance = areas * (1 - areas) + 19 * (areas / (2 - areas) - squares) + 39 * (2 * squares / (1 + areas) - squares)

    np.testing.assert_allclose(high - low, 2 * 1.96 * np.sqrt(variance / 800), rtol=0.15)


@pytest.mark.slow
def test_command_prints_the_agreement_of_bert_score(tmp_path, pairs, bert_score_f1, capsys):
    summaries, openings = pairs
    candidates = summaries[:12]
    references = [[a, b] for a, b in zip(openings[:12], openings[12:24], strict=True)]
    human = np.random.default_rng(0).normal(size=12)
    rows = []
    for i, candidate in enumerate(candidates):
        judged = {"references": references[i], "human": {"fluency": human[i]}}
        rows.append({"system": f"S{i % 6}", "candidate": candidate, **judged})
    ranked = [{"reference": openings[i], "better": summaries[i], "worse": summaries[i + 1]} for i in range(6)]
    files = [write(tmp_path / "rated.jsonl.gz", rows), write(tmp_path / "ranked.jsonl", ranked)]

    command.main([*map(str, files), "--idf"])

    shown = capsys.readouterr().out
    f1 = bert_score_f1(candidates, references).numpy()
    of_systems = stats.pearsonr(f1.reshape(2, 6).mean(0), human.reshape(2, 6).mean(0)).statistic
    texts = [row[side] for side in ("better", "worse") for row in ranked]
    better, worse = bert_score_f1(texts, [row["reference"] for row in ranked] * 2).view(2, 6)
    expected = {
        "rated.jsonl.gz: segment, fluency, 12 candidates": stats.pearsonr(f1, human).statistic,
        "rated.jsonl.gz: system, fluency, 6 systems": of_systems,
        "ranked.jsonl: ranked, 6 judgements": 2 * (better > worse).double().mean().item() - 1,
    }
    tables = shown.split("### ")[1:]
    for table, (heading, figure) in zip(tables, expected.items(), strict=True):
        assert table.splitlines()[0] == heading
        (row,) = (line for line in table.splitlines() if line.split()[1:4] == ["5", "|", "no"])
        assert float(row.split("|")[3]) == pytest.approx(figure, abs=5.1e-5)
        assert table.count("| yes ") == 6


def test_made_pairs_exchange_words_of_one_kind():
    text = "We said on Monday that Oslo met all 12 guests who came from Berlin and stayed for 30 days"
    made = {paraphrases.exchange(text, random.Random(seed)) for seed in range(50)}
    kinds = [("Monday", "Berlin"), ("Oslo", "Berlin"), ("12", "30")]

    assert made == {text.replace(a, "_").replace(b, a).replace("_", b) for a, b in kinds}
    assert paraphrases.exchange("Oslo and Bergen, Narvik are 3 or 4 towns", random.Random(0)) is None


def test_areas_of_made_pairs(tmp_path, capsys):
    names = {"Oslo": "Anna", "Paris": "Berta", "Rome": "Carla"}
    texts = {town: f"In {town} the old mayor said {name} had won" for town, name in names.items()}
    rows = [{"reference": text, "better": f"{town} won", "worse": "x"} for town, text in texts.items()] * 3
    # Preferred most often, but not always; preferred twice only; nothing to exchange.
    rows += [{**rows[0], "better": "bad"}] * 4 + [{**rows[0], "worse": "bad"}]
    rows += [{**RANKED, "reference": "In Bergen the old mayor said Dora had won"}] * 2 + [RANKED] * 3
    file = write(tmp_path / "ranked.jsonl", rows)
    swapped = {town: f"In {name} the old mayor said {town} had won" for town, name in names.items()}
    made = []
    for town in texts:
        made += [(texts[town], f"{town} won", 1), (texts[town], swapped[town], 0)]

    assert paraphrases.make_pairs(read(file)) == made

    paraphrases.main([str(file)])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "3 paraphrases and 3 others"
    layers = [f"{part}, layer {layer}" for part in ("P", "R", "F1") for layer in range(1, 7)]
    names = [*layers, *(f"{layer}, idf" for layer in layers), "BLEU", "chrF"]
    assert [line.split("|")[1].strip() for line in lines[4:]] == names
    # Without idf, two words of seven never score higher than all words, of which two changed places.
    assert all(line.count("0.0000") == 3 for line in lines[4:22])
