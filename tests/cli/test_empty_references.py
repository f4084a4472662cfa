"""Texts without a reference, which score 0 or are skipped."""

import json

import pytest

from bertscore_tm import BERTScore
from tests.support.oracle import oracle_scores, take_empty_texts
from tests.support.report_pages import read_data
from tests.support.shell import check_error, run_here, write_lines, write_records
from tests.support.texts import real_pairs

CANDIDATES, REFERENCES = real_pairs(9, words=8)
# Two texts have no reference.
BLANK = ["" if i == 2 else " " if i == 5 else text for i, text in enumerate(REFERENCES)]
KEPT = [i for i, text in enumerate(BLANK) if text.strip()]
OTHERS = CANDIDATES[1:] + CANDIDATES[:1]
DOCUMENTS = ["a", "a", "b", "a", "c", "b", "c", "d", "d"]
SKIP = ["--empty-references", "skip"]
NAMES = ("precision", "recall", "f1")


@pytest.fixture
def command(minilm, tmp_path, monkeypatch, capsys):
    """Run a command in a folder with the texts, and with those that have a reference; returns what it printed."""
    monkeypatch.chdir(tmp_path)
    for end, rows in (("", range(9)), ("-kept", KEPT)):
        write_lines(tmp_path / f"hyps{end}.txt", [CANDIDATES[i] for i in rows])
        write_lines(tmp_path / f"others{end}.txt", [OTHERS[i] for i in rows])
        records = [{"reference": BLANK[i], "document": DOCUMENTS[i]} for i in rows]
        write_records(tmp_path / f"refs{end}.jsonl", records)
    write_lines(tmp_path / "blank.txt", [""] * 9)
    return lambda *words, **options: run_here(capsys, *words, "-m", minilm, "-l", 5, "--device", "cpu", **options)


@pytest.mark.parametrize("idf", [False, True])
def test_skipped_texts_are_counted_and_have_no_score(command, minilm, encoder, monkeypatch, idf):
    take_empty_texts(monkeypatch)
    words = ["score", "hyps.txt", "refs.jsonl", *SKIP, *["--idf"] * idf]
    printed = command(*words, "-s", "--json")
    assert printed.err == ""
    document = json.loads(printed.out)
    counted = [text.strip() for text in BLANK] if idf else False
    kept = [[texts[i] for i in KEPT] for texts in (CANDIDATES, BLANK)]
    expected = oracle_scores(minilm, *kept, 5, idf=counted)
    for name, scores in zip(NAMES, expected, strict=True):
        segments = document["segments"][name]
        assert [i for i, score in enumerate(segments) if score is not None] == KEPT
        assert [segments[i] for i in KEPT] == pytest.approx(scores.tolist(), abs=2e-6)
        assert document[name] == pytest.approx(scores.mean().item(), abs=2e-6)
    assert [document[f"num_{noun}"] for noun in ("candidates", "references", "skipped")] == [7, 7, 2]
    metric = BERTScore(encoder, idf=idf, empty_references="skip")
    metric.update(CANDIDATES, BLANK)
    metric.compute()
    assert document["signature"] == str(metric.signature())
    first, second, *_ = lines = command(*words, "-s").out.splitlines()
    assert first == "# P {:.4f}  R {:.4f}  F1 {:.4f}".format(*expected.mean(-1).tolist())
    assert second == "# 7 candidates, 7 references, 2 skipped"
    assert [line.split("\t")[0] for line in lines if "nan" in line] == ["3", "6"]
    zero = json.loads(command("score", "hyps.txt", "refs.jsonl", *["--idf"] * idf, "--json").out)
    assert zero["f1"] == pytest.approx(expected[2].sum().item() / 9, abs=2e-6)
    assert (zero["num_candidates"], zero["num_skipped"]) == (9, None)


def test_systems_are_compared_without_skipped_texts(command, tmp_path):
    words = ["--json", "--document-column", "document", "--report", "page.html"]
    skipped = json.loads(command("compare", "hyps.txt", "others.txt", "-r", "refs.jsonl", *SKIP, *words).out)
    page = read_data(tmp_path / "page.html")
    names = ["--names", "hyps.txt", "others.txt"]
    files = ["hyps-kept.txt", "others-kept.txt", "-r", "refs-kept.jsonl"]
    kept = json.loads(command("compare", *files, *names, *words).out)
    assert (skipped.pop("num_skipped"), kept.pop("num_skipped")) == (2, None)
    assert skipped.pop("signature") == f"{kept.pop('signature')}|empty_references:skip(2)"
    assert skipped == kept
    expected = read_data(tmp_path / "page.html")
    assert page["signature"] != expected["signature"]
    assert page | {"signature": ""} == expected | {"signature": ""}
    lines = command("compare", "hyps.txt", "others.txt", "-r", "refs.jsonl", *SKIP).out.splitlines()
    assert "7 texts, 7 references, 2 skipped; paired permutation test, Student's t intervals" in lines


@pytest.mark.parametrize(
    "words", [["score", "hyps.txt", "blank.txt"], ["compare", "hyps.txt", "others.txt", "-r", "blank.txt"]]
)
def test_nothing_but_skipped_texts_is_an_error(command, words):
    check_error(command(*words, *SKIP, exit_code=2), "^all texts are skipped, as all of their references are empty$")
