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
BLANK = [*REFERENCES[:2], "", *REFERENCES[3:5], " ", *REFERENCES[6:]]
OTHERS = CANDIDATES[1:] + CANDIDATES[:1]
NAMES = ("precision", "recall", "f1")
WARNING = "bertscore-tm: warning: {} scored 0 because the text or each of its references is empty\n"


@pytest.fixture
def command(minilm, tmp_path, monkeypatch, capsys):
    """Run a command in a folder with the texts; returns what it printed."""
    monkeypatch.chdir(tmp_path)
    write_lines(tmp_path / "hyps.txt", CANDIDATES)
    write_lines(tmp_path / "others.txt", OTHERS)
    write_lines(tmp_path / "refs.txt", BLANK)
    return lambda *words: run_here(capsys, *words, "-m", minilm, "-l", 1, "--device", "cpu")


@pytest.mark.parametrize("weights", [[], ["--idf"]], ids=["uniform", "idf"])
def test_texts_without_a_reference_score_0(command, minilm, monkeypatch, weights):
    take_empty_texts(monkeypatch)
    expected = oracle_scores(minilm, CANDIDATES, [text.strip() for text in BLANK], 1, idf=bool(weights))

    printed = command("score", "hyps.txt", "refs.txt", *weights, "-s", "--json")

    assert printed.err.startswith("bertscore-tm: warning: 2 candidates scored 0 because ")
    assert printed.err.count("\n") == 1
    document = json.loads(printed.out)
    for name, scores in zip(NAMES, expected, strict=True):
        shown = document["segments"][name]
        assert shown == pytest.approx(scores.tolist(), abs=2e-6)
        assert document[name] == pytest.approx(scores.mean().item(), abs=2e-6)
        assert shown[2] == shown[5] == 0
    assert document["num_candidates"] == 9
    assert document["num_references"] == 9


@pytest.fixture
def lists(tmp_path):
    """Four references of each text, of which the third is the right one, or two blank ones."""
    lists = []
    for text in BLANK:
        if text.strip():
            lists.append(["", "x", text, " "])
        else:
            lists.append([text, ""])
    write_records(tmp_path / "refs.jsonl", [{"references": texts} for texts in lists])
    return lists


# Number of the best reference of each text, among all of its references.
CHOSEN = [2, 2, 0, 2, 2, 0, 2, 2, 2]


@pytest.mark.parametrize(
    ("words", "num_systems"), [("score hyps.txt", 1), ("compare hyps.txt others.txt", 2)], ids=["score", "compare"]
)
def test_the_page_counts_best_references_among_all(command, tmp_path, lists, words, num_systems):
    printed = command(*words.split(), "-r", "refs.jsonl", "--json", "--report", "page.html")

    assert json.loads(printed.out)["num_references"] == 16
    page = read_data(tmp_path / "page.html")
    assert page["references"] == lists
    assert page["chosen"] == [CHOSEN] * num_systems


@pytest.mark.usefixtures("lists")
def test_the_document_counts_best_references_among_all(command):
    printed = command("score", "hyps.txt", "-r", "refs.jsonl", "--json", "--per-segment", "--worst", 9)

    document = json.loads(printed.out)
    assert document["segments"]["best_reference"] == CHOSEN
    worst = {pair["row"] - 1: pair["reference_text"] for pair in document["worst"]}
    assert worst == dict(enumerate(BLANK))


# What a row may have in place of its references.
MISSING = {"empty list": [], "null": None, "nulls only": [None, None]}


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
@pytest.mark.parametrize("missing", MISSING.values(), ids=MISSING)
def test_no_reference_at_all_counts_as_one_blank_one(command, tmp_path, suffix, missing):
    references = [[text] for text in REFERENCES]
    references[2] = missing
    # A null next to a text counts among the references.
    references[5] = [None, REFERENCES[5]]
    rows = zip(CANDIDATES, references, strict=True)
    records = [{"candidate": candidate, "references": texts} for candidate, texts in rows]
    write_file(tmp_path / f"pairs.{suffix}", records)
    write_lines(tmp_path / "refs.txt", [*REFERENCES[:2], "", *REFERENCES[3:]])
    expected = json.loads(command("score", "hyps.txt", "refs.txt", "-s", "--json").out)

    printed = command("score", f"pairs.{suffix}", "--report", "page.html", "-s", "--json")

    assert printed.err.startswith(WARNING.format("1 candidate"))
    document = json.loads(printed.out)
    for name in NAMES:
        assert document["segments"][name] == pytest.approx(expected["segments"][name], abs=2e-6)
    assert document["num_references"] == 9
    chosen = [0, 0, 0, 0, 0, 1, 0, 0, 0]
    assert document["segments"]["best_reference"] == chosen
    assert read_data(tmp_path / "page.html")["chosen"] == [chosen]


@pytest.mark.parametrize("missing", MISSING.values(), ids=MISSING)
def test_a_ranking_in_the_shell_scores_them_0(command, tmp_path, missing):
    records = [
        {"candidates": CANDIDATES[:2], "references": [REFERENCES[0]]},
        {"candidates": CANDIDATES[2:5], "references": missing},
    ]
    write_records(tmp_path / "samples.jsonl", records)

    printed = command("rank", "samples.jsonl", "--reference-column", "references", "-o", "best.jsonl")

    assert printed.err.startswith(WARNING.format("3 candidates"))
    first, second = (tmp_path / "best.jsonl").read_text().splitlines()
    assert min(json.loads(first)["scores"]) > 0
    assert json.loads(second)["scores"] == [0, 0, 0]
