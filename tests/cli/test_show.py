"""``bertscore-tm show``: the tokens of a pair in the terminal, in pictures and in a web page."""

import json
import re
from functools import partial
from operator import attrgetter
from xml.etree import ElementTree

import pytest

from bertscore_tm import BERTScore, align
from bertscore_tm.functional import bert_score
from tests.support.report_pages import read_data
from tests.support.shell import run_here
from tests.support.shell_cases import MODEL, ShellCase, check_case

CANDIDATE, REFERENCE = "A cat sleeps on the mat.", "The kitten is sleeping, on the mat"


@pytest.fixture
def command(minilm, encoder, capsys):
    return partial(run_here, capsys, "show", "-m", minilm, "-l", encoder.num_layers, "--device", "cpu")


def test_the_text_is_that_of_the_alignment(command, encoder):
    shown = f"{align(CANDIDATE, REFERENCE, encoder)!r}\n\nsignature: {BERTScore(encoder).signature()}\n"
    assert command(CANDIDATE, REFERENCE).out == shown


CORPUS = ["the cat sat", "a dog and a cat", "the mat", "on and on"]


def test_weights_and_baseline(command, tmp_path, encoder, table):
    (tmp_path / "corpus.txt").write_text("\n".join(CORPUS))
    expected = bert_score(CANDIDATE, REFERENCE, encoder, idf=CORPUS, rescale=table)

    printed = command(CANDIDATE, REFERENCE, "--idf-from", tmp_path / "corpus.txt", "--rescale-from", table).out

    scores, first, second, _ = printed.split("\n\n")
    for label, name, part in (("P", "precision", first), ("R", "recall", second)):
        score = expected[name].item()
        assert f"{label} {score:.4f}" in scores
        header, *lines = [re.split(r" {2,}", line.strip()) for line in part.splitlines()]
        assert header[2:] == ["similarity", "weight", f"part of {name}"]
        assert sum(float(line[-1]) for line in lines) == pytest.approx(score, abs=1e-3)
    (cat,) = [line.split() for line in first.splitlines() if " cat " in line]
    # Two of the four texts have it: log((4 + 1) / (2 + 1)).
    assert cat[-2] == "0.5108"


def test_columns_are_aligned_in_every_script(command):
    table = command("今天 very nice e\u0301", "昨天 was nice").out.split("\n\n")[1]

    # Columns of a terminal that a character takes, where it is not one.
    widths = {"今": 2, "天": 2, "昨": 2, "\u0301": 0}
    ends = {sum(widths.get(character, 1) for character in line) for line in table.splitlines()}
    assert len(ends) == 1


def test_truncated_texts_are_a_warning_with_a_remedy(command):
    printed = command(CANDIDATE, REFERENCE, "--max-length", "6")

    # The header, and four tokens between the special ones.
    assert len(printed.out.split("\n\n")[1].splitlines()) == 5
    remedy = "Set the encoder's long_text (--long-text) to 'window' to score whole texts"
    warning = f"2 texts are longer than 6 tokens and were truncated. {remedy}"
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


BAD_COMMANDS = [
    ShellCase("show a", error="the following arguments are required: REFERENCE..."),
    ShellCase("show a b c", error="unrecognized arguments: c..."),
    ShellCase(f"show a ' ' {MODEL}", error="reference=' ' has no tokens except special ones..."),
    ShellCase(
        "show a b -o a.tsv",
        error="argument --output: a.tsv has another suffix. Give a file that ends with .txt or...",
    ),
]


@pytest.mark.parametrize("case", BAD_COMMANDS, ids=attrgetter("arguments"))
def test_a_bad_pair_ends_in_one_line(tmp_path, capsys, minilm, case):
    check_case(case, tmp_path, capsys, minilm)


def test_the_document_is_that_of_the_alignment(command, encoder):
    document = json.loads(command(CANDIDATE, REFERENCE, "--json").out)
    texts = {"candidate_text": CANDIDATE, "reference_text": REFERENCE}

    alignment = align(CANDIDATE, REFERENCE, encoder).to_dict()

    assert document == {**texts, "alignment": alignment, "signature": str(BERTScore(encoder).signature())}
