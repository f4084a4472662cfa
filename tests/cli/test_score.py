"""``bertscore-tm score``: the numbers of the reference package, and what is printed where."""

import io
import json
import os
import re
import sys

import pytest
import torch

from bertscore_tm import BERTScore, FrozenEncoder
from bertscore_tm.cli import main
from bertscore_tm.statistics import mean_interval
from tests.support.oracle import oracle_scores
from tests.support.processes import run_process
from tests.support.scored_files import COUNT, few_pairs
from tests.support.shell import check_error, numbers_in, write_lines, write_records
from tests.support.texts import several_references

SCORES = ("precision", "recall", "f1")
# 1e-6 for the scores, and what rounding to six decimals adds.
TOLERANCE = 1.6e-6
LAYER = 5


def segments(document):
    return torch.tensor([document["segments"][name] for name in SCORES], dtype=torch.float64)


def test_equals_the_reference_package(command, minilm):
    candidates, references = few_pairs()
    expected = oracle_scores(minilm, candidates, references, LAYER).double()
    # Files may be given in order.
    printed = command("hyps.txt", "refs.txt", "-l", str(LAYER))

    first, second, signature = printed.out.splitlines()

    assert first == "P {:.4f}  R {:.4f}  F1 {:.4f}".format(*expected.mean(-1).tolist())
    assert second == f"{COUNT} candidates, {COUNT} references, paired by order"
    assert signature.startswith("signature: model:")
    assert printed.err == ""


WEIGHTED = ["-c", "pairs.jsonl", "-l", str(LAYER), "--idf", "--rescale-from", "baseline.csv"]


@pytest.fixture(scope="module")
def weighted(minilm, table):
    """The reference package's scores of the pairs with several references each, weighted and rescaled."""
    candidates, references = few_pairs()
    lists = several_references(references)
    return oracle_scores(minilm, candidates, lists, LAYER, idf=True, table=table).double()


@pytest.fixture(scope="module")
def best_references(minilm):
    """The reference of each pair that has the best F1 on its own."""
    candidates, references = few_pairs()
    lists = several_references(references)
    idf = [text for texts in lists for text in texts]
    best = []
    for candidate, texts in zip(candidates, lists, strict=True):
        f1 = oracle_scores(minilm, [candidate] * len(texts), texts, LAYER, idf=idf)[2]
        best.append(f1.argmax().item())
    return best


def test_documents_equal_the_reference_package(command, weighted, best_references):
    document = json.loads(command(*WEIGHTED, "--json", "--per-segment").out)

    assert (segments(document) - weighted).abs().max() < TOLERANCE
    assert [document[name] for name in SCORES] == pytest.approx(weighted.mean(-1).tolist(), abs=TOLERANCE)
    assert document["segments"]["best_reference"] == best_references
    assert document["num_candidates"] == COUNT
    # One, two or three references each.
    assert document["num_references"] == 12


def test_tables_equal_the_reference_package(command, weighted, best_references):
    printed = command(*WEIGHTED, "--per-segment").out

    header, *lines = [line for line in printed.splitlines() if not line.startswith("# ")]
    assert header.split("\t") == ["segment", "layer", *SCORES, "best_reference"]
    assert len(lines) == COUNT
    for number, line in enumerate(lines):
        segment, layer, *scores, best = line.split("\t")
        assert (segment, layer, best) == (str(number + 1), str(LAYER), str(best_references[number] + 1))
        assert [float(score) for score in scores] == pytest.approx(weighted[:, number].tolist(), abs=TOLERANCE)


ENDS = [f"{name}_{end}" for name in SCORES for end in ("low", "high")]


@pytest.mark.parametrize(("options", "least"), [([], -1), (["--rescale-from", "table.csv"], -1.5)])
def test_intervals_end_where_scores_do(command, tmp_path, monkeypatch, options, least):
    monkeypatch.chdir(tmp_path)
    write_lines(tmp_path / "some.txt", ["rain today", "a dog", "the end"])
    write_lines(tmp_path / "refs2.txt", ["rain today", "a dog", "stock prices fell"])
    write_lines(tmp_path / "table.csv", ["LAYER,P,R,F", *(f"{layer},0.2,0.2,0.2" for layer in range(7))])

    printed = command("some.txt", "refs2.txt", "-l", "5", "--confidence", "0.999", *options, "--json").out

    document = json.loads(printed)
    assert [document[end] for end in ENDS] == [least, 1] * 3


def test_one_pair_has_no_interval(command):
    words = ["--candidate-text", "rain today", "--reference-text", "rain tomorrow", "-l", "5", "--confidence", "0.9"]

    first, *_ = command(*words).out.splitlines()
    document = json.loads(command(*words, "--json").out)

    assert re.fullmatch(r"P [\d.]+ -  R [\d.]+ -  F1 [\d.]+ -", first)
    assert [document[end] for end in ENDS] == [None] * 6


DOCUMENTS = ["0", "0", "1", "1", "2", "2"]
OF_DOCUMENTS = ["-l", "5", "--confidence", "0.9", "--document-column", "article"]


@pytest.fixture
def articles(tmp_path):
    """File of pairs, of which two each belong to one document."""
    rows = []
    for candidate, reference, document in zip(*few_pairs(), DOCUMENTS, strict=True):
        rows.append({"candidate": candidate, "reference": reference, "article": document})
    path = tmp_path / "pairs.jsonl"
    write_records(path, rows)
    return str(path)


def test_intervals_of_documents(command, articles):
    document = json.loads(command("-c", articles, *OF_DOCUMENTS, "--json", "--per-segment").out)

    assert document["num_documents"] == 3
    for name, scores in zip(SCORES, segments(document), strict=True):
        low, high = mean_interval(scores, 0.9, groups=DOCUMENTS, bounds=(-1, 1))
        assert document[f"{name}_low"] == pytest.approx(low.item(), abs=TOLERANCE)
        assert document[f"{name}_high"] == pytest.approx(high.item(), abs=TOLERANCE)


def test_the_terminal_shows_intervals_of_documents(command, articles):
    document = json.loads(command("-c", articles, *OF_DOCUMENTS, "--json").out)

    line, caption, *_ = command("-c", articles, *OF_DOCUMENTS).out.splitlines()

    assert caption == "90% intervals of the means from 3 documents"
    expected = [document[name + end] for name in SCORES for end in ("", "_low", "_high")]
    assert numbers_in(line) == pytest.approx(expected, abs=6e-5)


def test_documents_change_intervals_only(command, articles):
    printed = command("-c", articles, "--document-column", "article", exit_code=2)

    check_error(printed, "--document-column: article changes intervals only. Give --confidence 0.95 too, or remove it")


def test_one_document_is_counted_as_one(command, tmp_path):
    path = tmp_path / "short.tsv"
    write_lines(path, ["reference\tarticle", *(f"{text}\tnews" for text in few_pairs()[1])])

    printed = command("-c", "hyps.txt", "-r", str(path), *OF_DOCUMENTS).out

    assert "90% intervals of the means from 1 document" in printed.splitlines()


@pytest.mark.parametrize(
    ("arguments", "options", "encoder_options"),
    [
        ([], {}, {}),
        (["--idf", "--rescale-from", "baseline.csv"], {"idf": True, "rescale": "baseline.csv"}, {}),
        (
            ["--idf-from", "more.txt", "--long-text", "window", "--max-length", "12"],
            {"idf": few_pairs()[1]},
            {"long_text": "window", "max_length": 12},
        ),
    ],
)
def test_the_signature_is_that_of_the_metric(command, minilm, arguments, options, encoder_options):
    printed = command("-c", "hyps.txt", "-r", "refs.txt", "-l", str(LAYER), *arguments).out

    metric = BERTScore(FrozenEncoder(minilm, num_layers=LAYER, **encoder_options), **options)
    metric.update(*few_pairs())
    expected = metric.compute()
    assert printed.splitlines()[-1] == f"signature: {metric.signature()}"
    assert printed.startswith(f"P {expected['precision']:.4f}  R {expected['recall']:.4f}  ")


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_results_are_printed_in_any_locale(folder, minilm, monkeypatch, encoding):
    monkeypatch.chdir(folder)
    text = "der Bär \N{GRINNING FACE} schläft"
    words = ["show", text, "der Hund", "-m", minilm, "-l", "1", "--device", "cpu"]

    def print_in_locale(*options):
        monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding=encoding))
        assert main([*words, *options]) == 0
        return sys.stdout.buffer.getvalue().decode(encoding)

    assert json.loads(print_in_locale("--json"))["candidate_text"] == text
    assert "signature: model:" in print_in_locale()


@pytest.mark.parametrize(("start", "end"), [(b"\xef\xbb\xbf", b""), (b"", b"\r\n\n  \n")])
def test_tables_have_marks_and_blank_lines_as_other_files(command, folder, tmp_path, start, end):
    table = (folder / "baseline.csv").read_bytes()
    (tmp_path / "other.csv").write_bytes(start + table + end)
    words = ["hyps.txt", "refs.txt", "-l", "1", "--rescale-from"]
    expected = command(*words, "baseline.csv").out.splitlines()

    printed = command(*words, tmp_path / "other.csv").out.splitlines()

    assert printed[:2] == expected[:2]


# References of each text, by the numbers of the texts, and the files that have them.
SHIFTED = [
    {"ref0": 0},
    {"ref1": 1, "ref2": 0},
    {"ref0": 2, "ref1": 0, "ref2": 1},
    {"ref0": 3},
    {"ref1": 4, "ref2": 0},
    {"ref0": 5, "ref1": 0, "ref2": 1},
]


def test_blank_lines_in_files_of_references_are_none(command, minilm, tmp_path):
    """The form of test sets whose inputs have different numbers of references; the first may be in any file."""
    candidates, references = few_pairs()
    write_lines(tmp_path / "hyp", candidates)
    names = ["ref0", "ref1", "ref2"]
    for name in names:
        write_lines(tmp_path / name, [references[row[name]] if name in row else "" for row in SHIFTED])
    lists = [[references[number] for number in row.values()] for row in SHIFTED]
    expected = oracle_scores(minilm, candidates, lists, LAYER, idf=True).double()
    files = ["-c", tmp_path / "hyp", "-r", *(tmp_path / name for name in names)]

    document = json.loads(command(*map(str, files), "-l", str(LAYER), "--idf", "--json", "--per-segment").out)

    assert (segments(document) - expected).abs().max() <= TOLERANCE
    for best, row in zip(document["segments"]["best_reference"], SHIFTED, strict=True):
        assert names[best] in row
    assert document["num_references"] == 12
    assert "|idf:12|" in document["signature"]


def test_a_closed_pipe_is_not_an_error(folder, minilm, monkeypatch, capsys):
    reader, writer = os.pipe()
    os.close(reader)
    monkeypatch.chdir(folder)

    with os.fdopen(writer, "w") as closed:
        monkeypatch.setattr(sys, "stdout", closed)
        assert main(["score", "-c", "hyps.txt", "-r", "refs.txt", "-l", "1", "-m", minilm]) == 141

    assert capsys.readouterr().err == ""


def test_a_progress_bar_on_a_terminal_and_on_request(command, folder, monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    files = ("-c", "hyps.txt", "-r", "refs.txt", "-l", "1")
    expected = command(*files).out
    assert f"{COUNT}/{COUNT}" in terminal.getvalue()
    monkeypatch.undo()
    monkeypatch.chdir(folder)
    assert command(*files) == (expected, "")
    printed = command(*files, "-v")
    assert f"{COUNT}/{COUNT}" in printed.err
    assert printed.out == expected


HEAVY = ["matplotlib", "numpy", "scipy", "torch", "tqdm", "transformers"]
MISSING_FILES = ["score no.txt no.txt", "compare -c no.txt -r no.txt", "baseline no.txt"]


def test_a_missing_file_needs_no_heavy_import():
    code = f"""
import sys
from bertscore_tm.cli import main

for command in {MISSING_FILES}:
    assert main(command.split()) == 2
print(sorted({set(HEAVY)} & set(sys.modules)))
"""

    printed = run_process(sys.executable, "-c", code).stdout

    assert printed == "[]\n"


@pytest.mark.parametrize(("module", "entry", "is_frozen"), [("cli.__main__", "run", True), ("cli", "main", False)])
def test_only_the_shells_process_skips_garbage_collection(module, entry, is_frozen):
    code = f"""
import atexit, gc, sys

before = gc.get_threshold()
atexit.register(lambda: print(gc.get_freeze_count() > 1_000, gc.get_threshold() != before))
from bertscore_tm.{module} import {entry}

sys.argv[1:] = {MISSING_FILES[0].split()}
assert {entry}() == 2
"""

    printed = run_process(sys.executable, "-c", code).stdout

    assert printed == f"{is_frozen} {is_frozen}\n"
