"""``bertscore-tm score``: the numbers of the reference package, and what is printed where."""

import io
import json
import os
import re
import shutil
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from bert_score.utils import get_hash

from bertscore_tm import BERTScore, FrozenEncoder
from bertscore_tm.cli import COMMANDS, main
from bertscore_tm.encoder import default_device
from bertscore_tm.statistics import mean_interval
from tests.support.oracle import oracle_scores
from tests.support.processes import run_process
from tests.support.shell import add_defaults, check_error, run_here, write_lines, write_records
from tests.support.texts import real_pairs, several_references

SCORES = ("precision", "recall", "f1")
# 1e-6 for the scores, and what rounding to six decimals adds.
TOLERANCE = 1.6e-6
COUNT = 6
LAYER = 5


@pytest.fixture(scope="module")
def folder(tmp_path_factory, table):
    """Files of the same texts: lines, further references, and JSON with one to three references each."""
    folder = tmp_path_factory.mktemp("texts")
    candidates, references = pairs()
    second = references[1:] + references[:1]
    for name, lines in (("hyps", candidates), ("refs", references), ("more", second)):
        write_lines(folder / f"{name}.txt", lines)
    rows = zip(candidates, several_references(references), strict=True)
    write_records(folder / "pairs.jsonl", [{"candidate": text, "references": texts} for text, texts in rows])
    shutil.copy(table, folder / "baseline.csv")
    return folder


@pytest.fixture
def command(folder, minilm, monkeypatch, capsys):
    """Run the command in the folder of the texts; returns what it printed."""
    monkeypatch.chdir(folder)

    def run(*arguments, exit_code=0):
        words = add_defaults(arguments, model=minilm, device="cpu")
        return run_here(capsys, "score", *words, exit_code=exit_code)

    return run


def pairs():
    """Short texts: most of these tests' time is the model's."""
    return real_pairs(COUNT, words=16)


def segments(document):
    return torch.tensor([document["segments"][name] for name in SCORES], dtype=torch.float64)


def test_equals_the_reference_package(command, minilm):
    candidates, references = pairs()
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
    candidates, references = pairs()
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
    candidates, references = pairs()
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
        (["--idf-from", "more.txt", "--long-text", "window", "--max-length", "12"], {"idf": pairs()[1]}),
    ],
)
def test_the_signature_is_that_of_the_metric(command, minilm, arguments, options):
    windows = {"long_text": "window", "max_length": 12} if "window" in arguments else {}
    printed = command("-c", "hyps.txt", "-r", "refs.txt", "-l", str(LAYER), *arguments).out
    metric = BERTScore(FrozenEncoder(minilm, num_layers=LAYER, **windows), **options)
    metric.update(*pairs())
    expected = metric.compute()
    assert printed.splitlines()[-1] == f"signature: {metric.signature()}"
    assert printed.startswith(f"P {expected['precision']:.4f}  R {expected['recall']:.4f}  ")


@pytest.mark.parametrize(
    "arguments",
    [
        ["score", "-c", "a.txt", "-r", "b.txt", "-o", "b.txt"],
        ["score", "-c", "a.txt", "-r", "c.txt", "--idf-from", "b.txt", "-o", "link.txt"],
        ["compare", "-c", "a.txt", "b.txt", "-r", "c.txt", "-o", "b.txt"],
        ["show", "a cat", "the cat", "--idf-from", "b.txt", "-o", "./b.txt"],
        ["baseline", "b.txt", "-o", "b.txt"],
        ["score", "a.txt", "c.txt", "--rescale-from", "b.txt", "-o", "b.txt"],
        ["score", "a.txt", "c.txt", "--rescale_with_baseline", "--baseline_path", "b.txt", "-o", "b.txt"],
        ["compare", "a.txt", "c.txt", "-r", "c.txt", "--rescale-from", "b.txt", "-o", "link.txt"],
    ],
)
def test_inputs_are_never_replaced(arguments, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name in ("a.txt", "b.txt", "c.txt"):
        Path(name).write_text("a cat\n")
    Path("link.txt").symlink_to("b.txt")
    assert main(arguments) == 2
    assert f"argument --output: {arguments[-1]} is read too, and would be replaced" in capsys.readouterr().err
    assert Path("b.txt").read_text() == "a cat\n"


@pytest.mark.parametrize("command", ["score c.txt r.txt", "compare a.txt b.txt -r r.txt", "rank c.jsonl -o a.jsonl"])
@pytest.mark.parametrize("flag", ["--idf", "--rescale"])
@pytest.mark.parametrize("file", ["c.txt", "-"])
def test_an_option_never_takes_a_file_given_in_order(capsys, command, flag, file):
    name, *files = command.split()
    printed = run_here(capsys, name, flag, file, *files, exit_code=2)
    check_error(printed, f"argument {flag}: takes no file, got '{file}'. Give {flag}-from {file}, or {flag} after the")


def test_the_idf_of_references_or_of_a_file(command):
    files = ["hyps.txt", "refs.txt", "-l", "1"]
    assert command("-c", "hyps.txt", "-r", "refs.txt", "-l", "1", "--idf").out == command(*files, "--idf").out
    of_file = command("--idf-from", "more.txt", *files).out
    assert of_file == command(*files, "--idf-from", "more.txt").out
    assert f"|idf:{COUNT}" in of_file.splitlines()[-1]
    check_error(command(*files, "--idf", "--idf-from", "more.txt", exit_code=2), "not allowed with argument --idf")


@pytest.fixture
def listed_folder(minilm, tmp_path):
    """A model with a published baseline, which its configuration names as its origin."""
    path = Path(shutil.copytree(minilm, tmp_path / "model"), "config.json")
    path.write_text(json.dumps(json.loads(path.read_text()) | {"_name_or_path": "distilbert-base-uncased"}))
    return str(path.parent)


HASHES = [(5, False, False), (3, True, False), (5, False, True)]


@pytest.mark.parametrize(
    "words", [["score", "hyps.txt", "refs.txt"], ["compare", "hyps.txt", "more.txt", "-r", "refs.txt"]]
)
@pytest.mark.parametrize("option", ["--hash", "--model"])
def test_a_hash_of_the_reference_package_gives_the_options(folder, listed_folder, monkeypatch, capsys, words, option):
    monkeypatch.chdir(folder)
    words = [*words, "--device", "cpu"]
    for layer, idf, rescale in HASHES:
        text = get_hash(listed_folder, layer, idf, rescale, False, False)
        flags = ["--idf"] * idf + ["--rescale"] * rescale
        expected = run_here(capsys, *words, "-m", listed_folder, "-l", layer, *flags)
        assert expected.err == ""
        printed = run_here(capsys, *words, option, text)
        assert printed.out == expected.out
        remedy = "Publish the signature of these"
        if idf:
            remedy = "If its idf counted other texts than the references, pass them with --idf-from FILE"
        said = f"published scores of {text} may differ from these, which do not use its versions. {remedy}"
        assert printed.err == f"bertscore-tm: warning: {said}\n"


def test_an_invalid_hash_shows_a_valid_one(command, minilm):
    given = ["hyps.txt", "refs.txt", "-m", minilm, "-l", "0"]
    printed = command(*given, "--hash", "garbage", exit_code=2)
    check_error(printed, "^argument --hash: 'garbage' is not a hash of bert-score, .*. Give one such as ")
    (example,) = re.findall(r"Give one such as (\S+)", printed.err)
    assert "published scores of" in command(*given, "--hash", example).err


def test_options_next_to_a_hash_come_first(command, folder, minilm, capsys):
    text = get_hash("roberta-large", 17, True, False, False, False)
    given = ["hyps.txt", "refs.txt", "-l", "0", "--idf-from", "more.txt"]
    printed = command(*given, "--hash", text)  # with the folder of the model
    assert printed.out == command(*given).out
    assert printed.err.endswith("Publish the signature of these\n")
    check_error(
        run_here(capsys, "baseline", folder / "refs.txt", "-m", text, "-o", folder / "t.csv", exit_code=2),
        "is a hash, not",
    )


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


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-l", "9"], "num_layers (--num-layers) 9 is not one of the layers 0 to"),
        ([], "no tuned layer is published for"),
        (["-l", "1", "-m", "nowhere"], "could not load the configuration of 'nowhere'"),
        (["-l", "1", "--rescale"], "no baseline for language 'en' and model"),
        (["-l", "1", "--rescale-from", "no.csv"], "no.csv: No such file or directory"),
        (["-l", "1", "--rescale-from", "hyps.txt"], "baseline table hyps.txt must start with the header"),
        (
            ["-m", "nowhere", "--rescale-from", "hyps.txt"],
            "baseline table hyps.txt must start with the header LAYER,P,",
        ),
        (
            ["-m", "nowhere", "--listed-as", "robert"],
            "no tuned layer is published for 'robert': listed_as (--listed-as) must be ",
        ),
        (["-l", "1", "--max-length", "6", "--long-text", "error"], "the text "),
    ],
)
def test_errors_are_one_line(command, arguments, message):
    printed = command("-c", "hyps.txt", "-r", "refs.txt", *arguments, exit_code=2)
    check_error(printed, f"^{re.escape(message)}")


@pytest.mark.parametrize("device", ["cuda", "cuda:1", "mps", "xpu", "hpu", "meta", "abacus"])
def test_a_device_that_is_not_here_is_an_error_with_the_remedy(command, device):
    kind = device.partition(":")[0]
    if kind in ("cuda", "mps", "xpu") and torch.get_device_module(kind).is_available():
        pytest.skip(f"{kind} is here")
    printed = command("-c", "hyps.txt", "-r", "refs.txt", "-l", "1", "--device", device, exit_code=2)
    remedy = f"Remove --device to use {default_device()}"
    check_error(printed, rf"^argument --device: '{device}' cannot be used here: .{{10,300}}. {remedy}$")


@pytest.mark.parametrize(("start", "end"), [(b"\xef\xbb\xbf", b""), (b"", b"\r\n\n  \n")])
def test_tables_have_marks_and_blank_lines_as_other_files(command, folder, tmp_path, start, end):
    table = (folder / "baseline.csv").read_bytes()
    (tmp_path / "other.csv").write_bytes(start + table + end)
    arguments = ["hyps.txt", "refs.txt", "-l", "1", "--rescale-from"]
    printed, expected = (command(*arguments, path).out for path in (tmp_path / "other.csv", "baseline.csv"))
    assert printed.splitlines()[:2] == expected.splitlines()[:2]


def test_blank_lines_in_files_of_references_are_none(command, minilm, tmp_path):
    """The form of test sets whose inputs have different numbers of references."""
    candidates, references = pairs()
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


def test_an_interrupt_prints_one_line(monkeypatch, capsys):
    monkeypatch.setattr("bertscore_tm.cli.score.run", Mock(side_effect=KeyboardInterrupt))
    assert run_here(capsys, "score", exit_code=130) == ("", "bertscore-tm: interrupted\n")


def test_bugs_are_not_hidden(monkeypatch):
    monkeypatch.setattr("bertscore_tm.cli.score.run", Mock(side_effect=RuntimeError("a bug")))
    with pytest.raises(RuntimeError, match="a bug"):
        main(["score"])


def test_the_options_of_bert_score_are_accepted_and_not_listed(command, folder, capsys):
    old = ["--cand", "hyps.txt", "--ref", "refs.txt", "more.txt", "--num_layers", "1", "--batch_size", "2", "-s"]
    new = ["-c", "hyps.txt", "-r", "refs.txt", "more.txt", "-l", "1", "-b", "2", "--per-segment"]
    baseline = ["--rescale_with_baseline", "--baseline_path", "baseline.csv", "--lang", "en-us"]
    printed = command(*old, *baseline, "--nthreads", "4")
    assert printed.out == command(*new, "--language", "en-us", "--rescale-from", "baseline.csv").out
    assert printed.err == "bertscore-tm: warning: --nthreads: no effect here. Remove unused options\n"
    with pytest.raises(SystemExit):
        main(["score", "--help"])
    listed = capsys.readouterr().out
    assert not [name for name in ("seg_level", "--num_layers", "--cand ", "nthreads") if name in listed]


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


@pytest.mark.parametrize("arguments", [["--help"], *([name, "--help"] for name in COMMANDS)])
def test_every_command_has_help_of_80_columns(capsys, monkeypatch, arguments):
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit, match="0"):
        main(arguments)
    printed = capsys.readouterr().out
    assert "usage: bertscore-tm" in printed
    assert max(map(len, printed.splitlines())) <= 80


@pytest.mark.parametrize("command", ["score no.txt no.txt", "compare -c no.txt -r no.txt", "baseline no.txt"])
def test_a_missing_file_needs_no_heavy_import(command):
    code = (
        f"import sys; from bertscore_tm.cli import main; assert main({command.split()}) == 2; "
        "print(*sorted({'torch', 'transformers', 'numpy', 'matplotlib', 'scipy', 'tqdm'} & set(sys.modules)))"
    )
    assert run_process(sys.executable, "-c", code).stdout.strip() == ""


@pytest.mark.parametrize(("module", "entry", "frozen"), [("cli.__main__", "run", True), ("cli", "main", False)])
def test_only_the_shells_process_skips_garbage_collection(minilm, module, entry, frozen):
    words = ["show", "a cat", "the cat", "-m", str(minilm), "-l", "1"]
    code = (
        "import atexit, gc, sys\nbefore = gc.get_threshold()\n"
        "atexit.register(lambda: print(gc.get_freeze_count() > 100_000, gc.get_threshold() != before))\n"
        f"from bertscore_tm.{module} import {entry}\nsys.argv[1:] = {words}\nassert {entry}() == 0"
    )
    assert run_process(sys.executable, "-c", code).stdout.splitlines()[-1] == f"{frozen} {frozen}"
