"""Texts without a reference, and blank references next to others, in the shell."""

import json

import pytest

from tests.support.oracle import oracle_scores, take_empty_texts
from tests.support.report_pages import read_data
from tests.support.shell import run_here, write_lines, write_records
from tests.support.shell_cases import write_file
from tests.support.texts import real_pairs

CANDIDATES, REFERENCES = real_pairs(9, words=8)
# Two texts have no reference.
BLANK = ["" if i == 2 else " " if i == 5 else text for i, text in enumerate(REFERENCES)]
OTHERS = CANDIDATES[1:] + CANDIDATES[:1]
NAMES = ("precision", "recall", "f1")


@pytest.fixture
def command(minilm, tmp_path, monkeypatch, capsys):
    """Run a command in a folder with the texts; returns what it printed."""
    monkeypatch.chdir(tmp_path)
    write_lines(tmp_path / "hyps.txt", CANDIDATES)
    write_lines(tmp_path / "others.txt", OTHERS)
    write_lines(tmp_path / "refs.txt", BLANK)
    return lambda *words: run_here(capsys, *words, "-m", minilm, "-l", 5, "--device", "cpu")


@pytest.mark.parametrize("idf", [False, True])
def test_texts_without_a_reference_score_0(command, minilm, monkeypatch, idf):
    take_empty_texts(monkeypatch)
    printed = command("score", "hyps.txt", "refs.txt", *["--idf"] * idf, "-s", "--json")
    assert printed.err.startswith("bertscore-tm: warning: 2 candidates scored 0 because ")
    assert printed.err.count("\n") == 1
    document = json.loads(printed.out)
    expected = oracle_scores(minilm, CANDIDATES, [text.strip() for text in BLANK], 5, idf=idf)
    for name, scores in zip(NAMES, expected, strict=True):
        assert document["segments"][name] == pytest.approx(scores.tolist(), abs=2e-6)
        assert document[name] == pytest.approx(scores.mean().item(), abs=2e-6)
        assert [document["segments"][name][i] for i in (2, 5)] == [0, 0]
    assert (document["num_candidates"], document["num_references"]) == (9, 9)


@pytest.mark.parametrize("systems", [["hyps.txt"], ["hyps.txt", "others.txt"]], ids=["score", "compare"])
def test_best_references_are_counted_among_all(command, tmp_path, systems):
    lists = [["", "x", text, " "] if text.strip() else [text, ""] for text in BLANK]
    write_records(tmp_path / "refs.jsonl", [{"references": texts} for texts in lists])
    words = ["score" if len(systems) == 1 else "compare", *systems, "-r", "refs.jsonl", "--json"]
    document = json.loads(command(*words, "--report", "page.html").out)
    assert document["num_references"] == 16
    page = read_data(tmp_path / "page.html")
    assert page["references"] == lists
    assert page["chosen"] == [[2 if text.strip() else 0 for text in BLANK]] * len(systems)
    if len(systems) == 1:
        document = json.loads(command(*words, "--per-segment", "--worst", 9).out)
        assert document["segments"]["best_reference"] == page["chosen"][0]
        worst = {pair["row"] - 1: pair["reference_text"] for pair in document["worst"]}
        assert worst == dict(enumerate(BLANK))


MISSING = {"empty list": [], "null": None, "nulls only": [None, None]}
WARNING = "bertscore-tm: warning: {} scored 0 because the text or each of its references is empty\n"


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
@pytest.mark.parametrize("kind", MISSING)
def test_no_reference_at_all_counts_as_one_blank_one(command, tmp_path, suffix, kind):
    lists = [[text] for text in REFERENCES]
    lists[2], lists[5] = MISSING[kind], [None, REFERENCES[5]]
    records = [{"candidate": text, "references": texts} for text, texts in zip(CANDIDATES, lists, strict=True)]
    write_file(tmp_path / f"pairs.{suffix}", records)
    printed = command("score", f"pairs.{suffix}", "--report", "page.html", "-s", "--json")
    assert printed.err.startswith(WARNING.format("1 candidate"))
    document = json.loads(printed.out)
    write_lines(tmp_path / "refs.txt", ["" if i == 2 else text for i, text in enumerate(REFERENCES)])
    expected = json.loads(command("score", "hyps.txt", "refs.txt", "-s", "--json").out)
    for name in NAMES:
        assert document["segments"][name] == pytest.approx(expected["segments"][name], abs=2e-6)
    assert document["num_references"] == 9
    # A null next to a text counts among the references.
    assert document["segments"]["best_reference"] == [1 if i == 5 else 0 for i in range(9)]
    assert read_data(tmp_path / "page.html")["chosen"] == [document["segments"]["best_reference"]]


@pytest.mark.parametrize("kind", MISSING)
def test_a_ranking_in_the_shell_scores_them_0(command, tmp_path, kind):
    records = [
        {"candidates": CANDIDATES[:2], "references": [REFERENCES[0]]},
        {"candidates": CANDIDATES[2:5], "references": MISSING[kind]},
    ]
    write_records(tmp_path / "samples.jsonl", records)
    printed = command("rank", "samples.jsonl", "--reference-column", "references", "-o", "best.jsonl")
    assert printed.err.startswith(WARNING.format("3 candidates"))
    first, second = [json.loads(line) for line in (tmp_path / "best.jsonl").read_text().splitlines()]
    assert min(first["scores"]) > 0
    assert second["scores"] == [0, 0, 0]
