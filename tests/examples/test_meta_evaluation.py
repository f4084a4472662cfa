"""The meta-evaluation reads judgements, scores them and reports the figures of the reference package."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path

import numpy as np
import pytest

from examples.meta_evaluation import __main__ as command
from examples.meta_evaluation import paraphrases, run
from examples.meta_evaluation.readers import Judged, read
from examples.meta_evaluation.run import Result, Setting, differences, possible, table
from examples.meta_evaluation.scoring import score_file

RANKED = {"reference": "a cat sat", "better": "a cat was sitting", "worse": "the dog"}
RATED = {"candidate": "a cat", "references": ["a cat sat", "the cat"], "human": {"fluency": 3, "relevance": 2.5}}

# Single pairs are too small for several threads.
pytestmark = pytest.mark.usefixtures("one_thread")


def write(path: Path, rows: list) -> Path:
    content = "".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows)
    path.write_bytes(gzip.compress(content.encode()) if path.suffix == ".gz" else content.encode())
    return path


def rated_rows(num: int = 5) -> list[dict]:
    return [{**RATED, "human": {"fluency": i, "relevance": -i}} for i in range(num)]


def test_reads_ranked_pairs(tmp_path):
    judged = read(write(tmp_path / "pairs.jsonl.gz", [{**RANKED, "worse": f"dog {i}"} for i in range(6)]))
    assert judged.candidates == [RANKED["better"]] * 6 + [f"dog {i}" for i in range(6)]
    assert judged.references == [["a cat sat"]] * 12
    # Each judgement's reference counts once, although two candidates are scored against it.
    assert judged.idf_texts == ["a cat sat"] * 6
    assert possible(judged) == ["ranked"]


def test_reads_ratings(tmp_path):
    plain = read(write(tmp_path / "rated.jsonl", rated_rows()))
    assert plain.ratings == {"fluency": [0.0, 1.0, 2.0, 3.0, 4.0], "relevance": [0.0, -1.0, -2.0, -3.0, -4.0]}
    assert (plain.systems, plain.documents) == (None, None)
    assert plain.references == [RATED["references"]] * 5
    assert plain.idf_texts == RATED["references"] * 5
    assert possible(plain) == ["segment"]

    rows = [{**row, "system": f"S{i}", "document": "d"} for i, row in enumerate(rated_rows())]
    full = read(write(tmp_path / "full.jsonl", rows), num_references=1)
    assert full.references == [["a cat sat"]] * 5
    assert full.systems == ["S0", "S1", "S2", "S3", "S4"]
    assert full.documents == ["d"] * 5
    assert possible(full) == ["segment", "system", "selection"]

    few_systems = [{**row, "system": f"S{i % 4}", "document": f"d{i}"} for i, row in enumerate(rated_rows(8))]
    assert possible(read(write(tmp_path / "few.jsonl", few_systems))) == ["segment"]


@pytest.mark.parametrize(
    ("good", "bad", "message"),
    [
        (RANKED, "{", "invalid JSON"),
        (RANKED, "[]", "'row' must be a JSON object"),
        (RANKED, {**RANKED, "worse": 1}, "'worse' must be a str, got 1"),
        (RANKED, {**RANKED, "reference": None}, "or 'reference' a string"),
        (RATED, {**RATED, "references": []}, r"'references' must be a list of strings.*, got \[\]"),
        (RATED, {**RATED, "human": None}, "'human' must be a dict"),
        (
            RATED,
            {**RATED, "human": {"fluency": 3}},
            r"must be a mapping of \['fluency', 'relevance'\] to finite numbers",
        ),
        (RATED, {**RATED, "human": {"fluency": float("nan"), "relevance": 1}}, "finite numbers, got .*nan"),
        ({**RATED, "system": "S"}, RATED, "'system' must be a str, got None"),
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
        ([RATED] * 5, r"odd\.jsonl: all values of 'fluency' are 3\.0"),
    ],
)
def test_files_that_allow_no_statistics(tmp_path, rows, message):
    with pytest.raises(ValueError, match=message):
        read(write(tmp_path / "odd.jsonl", rows))


def test_equal_pairs_are_scored_once_and_idf_counts_all():
    calls = []

    def score(candidates, references, corpus):
        calls.append((list(zip(candidates, references, strict=True)), corpus))
        return np.array([[float(len(text)) for text in candidates], [float(len(text[0])) for text in references]])

    judged = Judged(["aa", "aa", "b", "ccc", "b", "ccc"], [["r"], ["r"], ["rr"]] * 2, ["r", "r", "rr"])
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


@pytest.fixture
def judged_files(tmp_path, pairs) -> list[Path]:
    """Made judgements of real texts: ratings of 6 systems' texts for 4 documents, and ranked pairs."""
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
    return [write(tmp_path / "rated.jsonl.gz", rated), write(tmp_path / "ranked.jsonl", ranked)]


@pytest.mark.slow
def test_command_beside_the_reference_package(judged_files, monkeypatch, capsys):
    monkeypatch.setattr(run, "HYBRIDS", 150)
    monkeypatch.setattr(run, "REPEATS", 300)
    options = ["--layers", "2", "5", "--idf", "--compare-with-reference"]
    assert command.main([*map(str, judged_files), *options]) == 0
    shown = capsys.readouterr().out
    # Four settings of 2 ratings of 3 + 2 + 4 figures, and of one of ranked pairs; the best of either has no p-value.
    assert "74 figures; the largest difference from bert-score is" in shown
    assert shown.count("| 5 | yes | ") == 7


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--protocol", "system"], "ranked.jsonl supports the protocols ['ranked']: pass another --protocol"),
        (["--layers", "9"], "num_layers"),
        (["no_such_file.jsonl"], "no_such_file.jsonl"),
    ],
)
def test_command_refuses(judged_files, capsys, options, message):
    with pytest.raises(SystemExit) as caught:
        command.main([str(judged_files[1]), *options])
    assert caught.value.code == 2
    assert message in capsys.readouterr().err


def test_made_pairs_exchange_words_of_one_kind():
    text = "We said on Monday that Oslo met all 12 guests who came from Berlin and stayed for 30 days"
    made = {paraphrases.exchange(text, random.Random(seed)) for seed in range(50)}
    kinds = [("Monday", "Berlin"), ("Oslo", "Berlin"), ("12", "30")]
    assert made == {text.replace(a, "_").replace(b, a).replace("_", b) for a, b in kinds}
    assert paraphrases.exchange("Oslo and Bergen, Narvik are 3 or 4 towns", random.Random(0)) is None


def test_areas_of_made_pairs(tmp_path, judged_files, capsys):
    names = {"Oslo": "Anna", "Paris": "Berta", "Rome": "Carla"}
    texts = {town: f"In {town} the old mayor said {name} had won" for town, name in names.items()}
    rows = [{"reference": text, "better": f"{town} won", "worse": "x"} for town, text in texts.items()] * 3
    # Preferred most often, but not always; preferred twice only; nothing to exchange.
    rows += [{**rows[0], "better": "bad"}] * 4 + [{**rows[0], "worse": "bad"}]
    rows += [{**RANKED, "reference": "In Bergen the old mayor said Dora had won"}] * 2 + [RANKED] * 3
    file = write(tmp_path / "ranked.jsonl", rows)
    swapped = {town: f"In {name} the old mayor said {town} had won" for town, name in names.items()}
    made = [[(texts[town], f"{town} won", 1), (texts[town], swapped[town], 0)] for town in texts]
    assert paraphrases.make_pairs(read(file)) == [pair for pairs in made for pair in pairs]

    assert command.main(["paraphrases", str(file)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "3 paraphrases and 3 others"
    parts = [
        f"{part}, layer {layer}{idf}" for idf in ("", ", idf") for part in ("P", "R", "F1") for layer in range(1, 7)
    ]
    assert [line.split(" | ")[0] for line in lines[4:]] == [f"| {name}" for name in (*parts, "BLEU", "chrF")]
    # Without idf, two words of seven never score higher than all words, of which two changed places.
    assert all(line.endswith("| 0.0000 | 0.0000 to 0.0000 |") for line in lines[4:22])
    with pytest.raises(SystemExit):
        command.main(["paraphrases", str(judged_files[0])])
    assert "must have ranked pairs" in capsys.readouterr().err
