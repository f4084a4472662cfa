"""``bertscore-tm show``: the tokens of a pair in the terminal, in pictures and in a web page."""

import json
import re
from functools import partial
from xml.etree import ElementTree

import pytest

from bertscore_tm import BERTScore, align
from bertscore_tm.functional import bert_score
from tests.support.report_pages import read_data
from tests.support.shell import check_error, run_here, write_records

CANDIDATE, REFERENCE = "A cat sleeps on the mat.", "The kitten is sleeping, on the mat"


@pytest.fixture
def command(minilm, encoder, capsys):
    return partial(run_here, capsys, "show", "-m", minilm, "-l", encoder.num_layers, "--device", "cpu")


def test_the_text_is_that_of_the_alignment(command, encoder):
    shown = f"{align(CANDIDATE, REFERENCE, encoder)!r}\n\nsignature: {BERTScore(encoder).signature()}\n"
    assert command(CANDIDATE, REFERENCE).out == shown


def test_weights_and_baseline(command, tmp_path, encoder, table):
    corpus = ["the cat sat", "a dog and a cat", "the mat", "on and on"]
    (tmp_path / "corpus.txt").write_text("\n".join(corpus))
    printed = command(CANDIDATE, REFERENCE, "--idf-from", str(tmp_path / "corpus.txt"), "--rescale-from", table).out
    scores, first, second, _ = printed.split("\n\n")
    expected = bert_score(CANDIDATE, REFERENCE, encoder, idf=corpus, rescale=table)
    for name, text, table_of_text in (("P", "precision", first), ("R", "recall", second)):
        assert f"{name} {expected[text].item():.4f}" in scores
        header, *lines = (re.split(r" {2,}", line.strip()) for line in table_of_text.splitlines())
        assert header[2:] == ["similarity", "weight", f"part of {text}"]
        assert sum(float(line[-1]) for line in lines) == pytest.approx(expected[text].item(), abs=1e-3)
    # log((4 + 1) / (2 + 1)): two of the four texts have it.
    assert next(line for line in first.splitlines() if " cat " in line).split()[-2] == "0.5108"


def test_columns_are_aligned_in_every_script_and_truncation_is_warned_about(command):
    first = command("今天 very nice e\u0301", "昨天 was nice").out.split("\n\n")[1]
    widths = {"今": 2, "天": 2, "昨": 2, "\u0301": 0}
    ends = {sum(widths.get(c, 1) for c in line) for line in first.splitlines()}
    assert len(ends) == 1
    printed = command(CANDIDATE, REFERENCE, "--max-length", "6")
    assert len(printed.out.split("\n\n")[1].splitlines()) == 1 + 4
    warning = "2 texts are longer than 6 tokens and were truncated; --long-text window scores whole texts"
    assert printed.err == f"bertscore-tm: warning: {warning}\n"


STARTS = {"png": b"\x89PNG\r\n", "PDF": b"%PDF-", "svg": b"<?xml", "html": b"<!doctype"}


@pytest.mark.parametrize("suffix", STARTS)
def test_pictures_and_the_page(command, tmp_path, suffix):
    path = tmp_path / f"shown.{suffix}"
    assert command(CANDIDATE, REFERENCE, "--output", path) == ("", f"bertscore-tm: wrote {path}\n")
    assert path.read_bytes().startswith(STARTS[suffix])
    if suffix == "svg":
        assert "precision-matches" in {element.get("id") for element in ElementTree.parse(path).iter()}
    if suffix == "html":
        assert "sleeping" in str(read_data(path)["alignment"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("a",), "give two texts, a candidate and its reference, or files and --row or --worst"),
        (("-c", "c.txt", "-r", "c.txt"), "give either --row N or --worst N"),
        (("c.txt", "c.txt"), "c.txt is a file: add --row N or --worst N to show pairs of files"),
        (("c.txt", "c.txt", "--worst", "0"), "argument --worst: must be at least 1, got '0'"),
        (("c.txt", "c.txt", "--worst", "-1"), "argument --worst: must be at least 1, got '-1'"),
        (("-c", "c.txt", "--worst", "2", "-o", "a.png"), "a.png can show one pair"),
    ],
)
def test_errors_are_one_line(command, monkeypatch, tmp_path, arguments, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "c.txt").touch()
    check_error(command(*arguments, exit_code=2), f"^{re.escape(message)}")
    assert list(tmp_path.iterdir()) == [tmp_path / "c.txt"]


def test_rows_and_the_worst_of_a_file(command, tmp_path, encoder, monkeypatch):
    monkeypatch.chdir(tmp_path)
    candidates = ["a cat sat", "", "rain tomorrow", "the dog ran away"]
    references = [["stocks fell", "the cat sat"], ["a text"], ["it will rain"], ["the dog ran off"]]
    rows = zip(candidates, references, strict=True)
    write_records(tmp_path / "pairs.jsonl", [{"candidate": c, "references": r} for c, r in rows])
    rows = json.loads(command("-c", "pairs.jsonl", "--row", "4", "1", "--json").out)
    assert [pair["row"] for pair in rows["pairs"]] == [4, 1]
    first = rows["pairs"][1]
    assert (first["candidate_text"], first["reference_text"]) == ("a cat sat", "the cat sat")
    expected = bert_score("a cat sat", "the cat sat", encoder)
    for score, name in (("precision", "candidate"), ("recall", "reference")):
        side = first["alignment"][name]
        assert first["alignment"][score] == pytest.approx(expected[score].item(), abs=2e-6)
        assert sum(side["shares"]) + side["special_share"] == pytest.approx(expected[score].item(), abs=1e-5)
        assert len(side["tokens"]) == len(side["matches"]) == len(side["best"]) == 3
    worst = json.loads(command("-c", "pairs.jsonl", "--worst", "3", "--json").out)["pairs"]
    scores = bert_score(candidates, references, encoder)["f1"]
    assert [pair["row"] for pair in worst] == [i + 1 for i in scores.argsort().tolist()[:3]]
    assert worst[0]["alignment"] is None  # the empty text
    printed = command("-c", "pairs.jsonl", "--worst", "2").out
    assert printed.startswith("row 2\ncandidate: \nreference: a text\na text has no tokens to match\n\nrow ")
    assert "nothing to draw" in command("-c", "pairs.jsonl", "--worst", "1", "-o", "row.png", exit_code=2).err
    assert command("pairs.jsonl", "--row", "3").out == command("-c", "pairs.jsonl", "--row", "3").out
    for row in ("0", "5"):
        error = command("-c", "pairs.jsonl", "--row", row, exit_code=2).err
        assert "argument --row: pairs.jsonl has the rows 1 to 4" in error
