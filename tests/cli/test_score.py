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
from tests.support.shell import write_lines, write_records
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


@pytest.mark.slow
def test_idf_references_and_baseline_equal_the_reference_package(command, minilm):
    candidates, references = few_pairs()
    reference_lists = several_references(references)
    expected = oracle_scores(minilm, candidates, reference_lists, LAYER, idf=True, table="baseline.csv").double()
    arguments = ["-c", "pairs.jsonl", "-l", str(LAYER), "--idf", "--rescale-from", "baseline.csv"]
    document = json.loads(command(*arguments, "--json", "--per-segment").out)
    assert (segments(document) - expected).abs().max() < TOLERANCE
    assert [document[name] for name in SCORES] == pytest.approx(expected.mean(-1).tolist(), abs=TOLERANCE)
    assert document["num_candidates"] == COUNT
    assert document["num_references"] == sum(map(len, reference_lists))
    # The line per segment holds the same, and the reference that is best on its own.
    lines = [line for line in command(*arguments, "--per-segment").out.splitlines() if not line.startswith("# ")]
    assert lines[0].split("\t") == ["segment", "layer", *SCORES, "best_reference"]
    rows = [line.split("\t") for line in lines[1:]]
    assert [row[:2] for row in rows] == [[str(i), str(LAYER)] for i in range(1, COUNT + 1)]
    cells = torch.tensor([[float(cell) for cell in row[2:5]] for row in rows], dtype=torch.float64).T
    assert torch.equal(cells, segments(document))
    flat = [(c, r) for c, group in zip(candidates, reference_lists, strict=True) for r in group]
    single = oracle_scores(minilm, [c for c, _ in flat], [r for _, r in flat], LAYER, idf=True)[2]
    best = [scores.argmax().item() for scores in single.split([len(group) for group in reference_lists])]
    assert [int(row[5]) - 1 for row in rows] == best == document["segments"]["best_reference"]


@pytest.mark.parametrize("rescaled", [False, True])
def test_intervals_end_where_scores_do_and_one_pair_has_none(command, tmp_path, monkeypatch, rescaled):
    monkeypatch.chdir(tmp_path)
    write_lines(tmp_path / "some.txt", ["rain today", "a dog", "the end"])
    write_lines(tmp_path / "refs2.txt", ["rain today", "a dog", "stock prices fell"])
    write_lines(tmp_path / "table.csv", ["LAYER,P,R,F", *(f"{layer},0.2,0.2,0.2" for layer in range(7))])
    options = ["-l", "5", "--confidence", "0.999", *(["--rescale-from", "table.csv"] if rescaled else [])]
    document = json.loads(command("some.txt", "refs2.txt", *options, "--json").out)
    least = -1.5 if rescaled else -1
    assert [(document[f"{name}_low"], document[f"{name}_high"]) for name in SCORES] == [(least, 1)] * 3
    options += ["--candidate-text", "rain today", "--reference-text", "rain tomorrow"]
    assert re.fullmatch(r"P [\d.]+ -  R [\d.]+ -  F1 [\d.]+ -", command(*options).out.splitlines()[0])
    document = json.loads(command(*options, "--json").out)
    assert [document[f"{name}_{end}"] for name in SCORES for end in ("low", "high")] == [None] * 6


def test_intervals_of_documents(command, tmp_path):
    candidates, references = few_pairs()
    documents = [str(i // 2) for i in range(COUNT)]
    rows = zip(candidates, references, documents, strict=True)
    write_records(tmp_path / "pairs.jsonl", [{"candidate": c, "reference": r, "article": d} for c, r, d in rows])
    options = ["-c", str(tmp_path / "pairs.jsonl"), "-l", "5", "--confidence", "0.9", "--document-column", "article"]
    document = json.loads(command(*options, "--json", "--per-segment").out)
    for name, scores in zip(SCORES, segments(document), strict=True):
        ends = mean_interval(scores, 0.9, groups=documents, bounds=(-1, 1))
        for key, end in zip(("low", "high"), ends, strict=True):
            assert document[f"{name}_{key}"] == pytest.approx(end.item(), abs=TOLERANCE)
    assert document["num_documents"] == len(set(documents))
    line, caption = command(*options).out.splitlines()[:2]
    assert caption == f"90% intervals of the means from {len(set(documents))} documents"
    expected = [document[name + end] for name in SCORES for end in ("", "_low", "_high")]
    assert [float(x) for x in re.findall(r"\d\.\d+", line)] == pytest.approx(expected, abs=6e-5)
    printed = command(*options[:4], *options[6:], exit_code=2).err
    assert "--document-column: article changes intervals only. Give --confidence 0.95 too, or remove it" in printed
    write_lines(tmp_path / "short.tsv", ["reference\tarticle", *(f"{text}\tnews" for text in references)])
    lines = command("-c", "hyps.txt", "-r", str(tmp_path / "short.tsv"), *options[2:]).out.splitlines()
    assert "90% intervals of the means from 1 document" in lines


@pytest.mark.parametrize(
    ("arguments", "options"),
    [
        ([], {}),
        (["--idf", "--rescale-from", "baseline.csv"], {"idf": True, "rescale": "baseline.csv"}),
        (["--idf-from", "more.txt", "--long-text", "window", "--max-length", "12"], {"idf": few_pairs()[1]}),
    ],
)
def test_the_signature_is_that_of_the_metric(command, minilm, arguments, options):
    windows = {"long_text": "window", "max_length": 12} if "window" in arguments else {}
    printed = command("-c", "hyps.txt", "-r", "refs.txt", "-l", str(LAYER), *arguments).out
    metric = BERTScore(FrozenEncoder(minilm, num_layers=LAYER, **windows), **options)
    metric.update(*few_pairs())
    expected = metric.compute()
    assert printed.splitlines()[-1] == f"signature: {metric.signature()}"
    assert printed.startswith(f"P {expected['precision']:.4f}  R {expected['recall']:.4f}  ")


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_results_are_printed_in_any_locale(folder, minilm, monkeypatch, encoding):
    monkeypatch.chdir(folder)
    text = "der Bär \N{GRINNING FACE} schläft"
    for arguments in (["--json"], []):
        monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding=encoding))
        assert main(["show", text, "der Hund", "-m", minilm, "-l", "1", "--device", "cpu", *arguments]) == 0
        printed = sys.stdout.buffer.getvalue().decode(encoding)
        if arguments:
            pair = json.loads(printed)
            assert pair["candidate_text"] == text
        else:
            assert "signature: model:" in printed


@pytest.mark.parametrize(("start", "end"), [(b"\xef\xbb\xbf", b""), (b"", b"\r\n\n  \n")])
def test_tables_have_marks_and_blank_lines_as_other_files(command, folder, tmp_path, start, end):
    table = (folder / "baseline.csv").read_bytes()
    (tmp_path / "other.csv").write_bytes(start + table + end)
    arguments = ["hyps.txt", "refs.txt", "-l", "1", "--rescale-from"]
    printed, expected = (command(*arguments, path).out for path in (tmp_path / "other.csv", "baseline.csv"))
    assert printed.splitlines()[:2] == expected.splitlines()[:2]


def test_blank_lines_in_files_of_references_are_none(command, minilm, tmp_path):
    """The form of test sets whose inputs have different numbers of references."""
    candidates, references = few_pairs()
    lists = [[text, *references[:i]][: 1 + i % 3] for i, text in enumerate(references)]
    write_lines(tmp_path / "hyp", candidates)
    # The first reference of an input may be in any of the files.
    rows = [dict(enumerate(texts, i % (4 - len(texts)))) for i, texts in enumerate(lists)]
    for number in range(3):
        write_lines(tmp_path / f"ref{number}", [row.get(number, "") for row in rows])
    files = ["-c", str(tmp_path / "hyp"), "-r", *(str(tmp_path / f"ref{number}") for number in range(3))]
    document = json.loads(command(*files, "-l", str(LAYER), "--idf", "--json", "--per-segment").out)
    counted = [text for texts in lists for text in texts]
    expected = oracle_scores(minilm, candidates, lists, LAYER, idf=True).double()
    assert (segments(document) - expected).abs().max() <= TOLERANCE
    assert all(best in row for best, row in zip(document["segments"]["best_reference"], rows, strict=True))
    assert document["num_references"] == len(counted)
    assert f"|idf:{len(counted)}|" in document["signature"]


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
