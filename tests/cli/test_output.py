"""Where the commands write and in which format: devices, pipes and links stay, and suffixes decide."""

import csv
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from unittest.mock import Mock

import pytest

from bertscore_tm.cli.__main__ import run
from bertscore_tm.cli.errors import CommandError
from bertscore_tm.cli.output import write_output
from tests.support.forked_programs import run_command, run_forked
from tests.support.markdown_blocks import ROOT
from tests.support.models import save_tiny_model
from tests.support.shell import Printed, run_here, write_lines, write_records

TEXTS = [f"{start} {end}" for start in ("the cat", "a dog", "it") for end in ("sat on the mat", "ran home", "slept")]
# Arguments of each command, and what its text output, or its file where it has one format, starts with.
COMMANDS = {
    "score": (["-c", "hyps.txt", "-r", "refs.txt"], "P "),
    "compare": (["-c", "hyps.txt", "other.txt", "-r", "refs.txt"], "system "),
    "show": (["the cat sat", "a cat"], "P "),
    "rank": (["samples.jsonl"], '{"candidate"'),
    "baseline": (["refs.txt", "--pairs", "20"], 'LAYER,P,R,"F # {""model"": '),
}
SUFFIXES = {
    "score": [".txt", ".json"],
    "compare": [".txt", ".json", ".md", ".tex"],
    "show": [".txt", ".json", ".html", ".svg"],
    "rank": [".jsonl"],
    "baseline": [".csv"],
}


def words_of(name):
    """Return the arguments of a command in the folder of the texts."""
    layer = ["-l", "2"]
    if name == "baseline":
        layer = []
    return [name, *COMMANDS[name][0], "-m", "model", *layer, "--device", "cpu"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("texts")
    save_tiny_model("bert", folder / "model")
    write_lines(folder / "hyps.txt", TEXTS)
    write_lines(folder / "refs.txt", TEXTS[1:] + TEXTS[:1])
    write_lines(folder / "other.txt", TEXTS[3:] + TEXTS[:3])
    write_records(folder / "samples.jsonl", [{"candidates": TEXTS[i : i + 3]} for i in range(3)])
    return folder


@pytest.fixture
def command(folder, monkeypatch, capsys):
    """Run a command in the folder of the texts; returns what it printed."""
    monkeypatch.chdir(folder)

    def run(name, *arguments, exit_code=0):
        return run_here(capsys, *words_of(name), *arguments, exit_code=exit_code)

    return run


@pytest.mark.parametrize("name", COMMANDS)
def test_a_named_pipe_gets_the_output(command, tmp_path, name):
    pipe, read = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: read.append(pipe.read_text(encoding="utf-8")), daemon=True)
    reader.start()
    command(name, "-o", pipe)

    reader.join(30)

    assert read[0].startswith(COMMANDS[name][1])
    assert list(tmp_path.iterdir()) == [pipe]
    assert pipe.is_fifo()


@pytest.mark.parametrize(
    ("name", "suffix"), [(name, suffix) for name, suffixes in SUFFIXES.items() for suffix in suffixes]
)
def test_the_suffix_decides_the_format(command, tmp_path, name, suffix):
    path = tmp_path / f"out{suffix.upper()}"
    command(name, "-o", path)

    text = path.read_text(encoding="utf-8")

    if suffix == ".json":
        assert json.loads(text) == json.loads(command(name, "--json").out)
    elif name not in ("rank", "baseline") and suffix == ".txt":
        assert text == command(name).out
    else:
        starts = {".md": "| system ", ".tex": r"\begin{tabular}", ".html": "<!doctype html>", ".svg": "<?xml"}
        assert text.startswith(starts.get(suffix, COMMANDS[name][1]))


def test_tables_of_pairs(command, tmp_path):
    printed = command("score", "-s").out
    with_tabs, with_commas = tmp_path / "a.tsv", tmp_path / "a.csv"

    assert command("score", "-s", "-o", with_tabs).out == ""
    assert with_tabs.read_text() == printed
    # A CSV file has no comments: the means and the signature are printed.
    assert command("score", "-s", "-o", with_commas).out == command("score").out

    with with_commas.open(newline="") as file:
        rows = list(csv.reader(file, strict=True))
    assert rows == [line.split("\t") for line in printed.splitlines() if not line.startswith("#")]
    assert len(rows) == len(TEXTS) + 1


@pytest.mark.distributed
@pytest.mark.skipif(not Path("/dev/stdout").exists(), reason="the system does not name standard output")
@pytest.mark.parametrize("output", ["-", "/dev/stdout"])
def test_standard_output_is_not_opened_again(folder, tmp_path, output):
    log = tmp_path / "log"
    log.write_text("before\n")

    done = run_command([*words_of("score"), "-o", output], folder, stdout=str(log))

    assert done.exit_code == 0
    before, printed, *_ = log.read_text().splitlines()
    assert before == "before"
    assert printed.startswith("P ")


ESCAPE = "\x1b[2J\x9b1m\x07name"


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("compare", ["-c", "rows.jsonl", "--system-column", "system"]),
        ("show", [ESCAPE, "a", "--json"]),
        ("score", ["-c", f"{ESCAPE}.jsonl", "-r", "rows.jsonl"]),
    ],
)
def test_escapes_of_data_do_not_reach_the_terminal(folder, tmp_path, monkeypatch, capsys, name, arguments):
    monkeypatch.chdir(tmp_path)
    rows = [{"candidate": text, "reference": "a cat", "system": label} for label in ("other", ESCAPE) for text in TEXTS]
    write_records(tmp_path / "rows.jsonl", rows)
    # The signature names the model's folder.
    shutil.copytree(folder / "model", tmp_path / ESCAPE)
    options = ["-m", ESCAPE, "--device", "cpu", "-l", "2"]
    printed = run_here(capsys, name, *arguments, *options, exit_code=2 if name == "score" else 0)
    shown = printed.out + printed.err

    assert "[2J" in shown
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", shown)
    if name == "show":
        assert json.loads(printed.out)["candidate_text"] == ESCAPE
    if name == "compare":
        assert len({len(line) for line in printed.out.splitlines()[:3]}) == 1


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("bertscore-tm bas", "baseline"),
        ("bertscore-tm compare --conf", "--confidence"),
        ("bertscore-tm score --long-text w", "window"),
    ],
)
def test_the_shell_completes_commands_and_options(tmp_path, line, expected):
    pytest.importorskip("argcomplete")
    completing = {"_ARGCOMPLETE": "1", "COMP_LINE": line, "COMP_POINT": str(len(line))}
    # What the script of register-python-argcomplete does.
    redirected = f"exec {sys.executable} -m bertscore_tm.cli 8>{tmp_path / 'words'} 9>/dev/null"

    done = subprocess.run(["/bin/sh", "-c", redirected], env=os.environ | completing, capture_output=True, check=False)

    assert done.stdout == b""
    assert (tmp_path / "words").read_text().rstrip() == expected


CLOSED = None
FULL = "/dev/full"
IS_CLOSED = "error: standard output is closed: the result was not printed"
NO_SPACE = "error: standard output: No space left on device"
# The command, its further options, its file, the streams that cannot be written, the exit code and the error.
UNWRITTEN = {
    "closed output": ("score", ["--json", "--report"], "page.html", {"stdout": CLOSED}, 1, IS_CLOSED),
    "full output": ("compare", ["--json", "--report"], "page.html", {"stdout": FULL}, 1, NO_SPACE),
    "closed messages": ("score", ["--json", "--report"], "page.html", {"stderr": CLOSED}, 0, ""),
    "closed summary": ("rank", ["--json", "-o"], "best.jsonl", {"stdout": CLOSED}, 1, "standard output is closed"),
    "full summary": ("baseline", ["--json", "-o"], "table.csv", {"stdout": FULL}, 1, NO_SPACE),
    "full messages": ("show", ["-o"], "pair.json", {"stderr": FULL}, 1, ""),
}


def check_unwritten(done, path, exit_code, error):
    """Check that a command reported a stream that it could not write, and wrote its file."""
    assert done.exit_code == exit_code
    assert error in done.err
    assert "Traceback" not in done.err
    assert "Exception ignored" not in done.err
    assert path.stat().st_size > 0


@pytest.mark.distributed
@pytest.mark.skipif(not Path(FULL).exists(), reason="the system has no device that is always full")
@pytest.mark.parametrize(
    ("name", "options", "file", "streams", "exit_code", "error"), UNWRITTEN.values(), ids=UNWRITTEN
)
def test_streams_that_cannot_be_written_lose_no_file(folder, tmp_path, name, options, file, streams, exit_code, error):
    """A page was not written after a result that could not be printed, and messages were in the JSON."""
    path = tmp_path / file

    done = run_command([*words_of(name), *options, path], folder, **streams)

    check_unwritten(done, path, exit_code, error)
    if "stdout" in streams or name == "show":
        assert done.out == ""
    else:
        json.loads(done.out)
    if path.suffix == ".json":
        json.loads(path.read_text())


def run_in_bash(words, redirection, folder):
    """Run the command in a new interpreter, with streams as a shell redirects them."""
    command = f"{shlex.join([sys.executable, '-m', 'bertscore_tm.cli', *map(str, words)])} {redirection}"
    done = subprocess.run(["bash", "-c", command], cwd=folder, capture_output=True, text=True, check=False)
    return Printed(done.returncode, done.stdout, done.stderr)


def test_an_output_that_the_shell_closed_loses_no_file(folder, tmp_path):
    """As above, in an interpreter that starts with the closed stream."""
    path = tmp_path / "best.jsonl"

    done = run_in_bash([*words_of("rank"), "--json", "-o", path], ">&-", folder)

    check_unwritten(done, path, 1, "standard output is closed")
    assert done.out == ""


def run_and_open_a_file(path):
    """Run the command, and write the number that the system gives to the next file."""
    sys.argv = ["bertscore-tm", "score", "missing.txt", "missing.txt"]
    run()
    with path.open("w") as file:
        file.write(str(file.fileno()))


@pytest.mark.distributed
@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_no_file_gets_the_number_of_a_closed_stream(tmp_path, stream):
    """Libraries in C would write their messages to such a file."""
    path = tmp_path / "number.txt"

    run_forked(run_and_open_a_file, path, folder=tmp_path, streams={stream: CLOSED})

    assert int(path.read_text()) > 2


def test_no_message_is_printed_in_place_of_the_result(tmp_path):
    done = run_in_bash(["score", "missing.txt", "other.txt"], "2>&-", tmp_path)

    assert (done.exit_code, done.out) == (2, "")


@pytest.mark.parametrize("error", [KeyboardInterrupt(), RuntimeError("a bug")])
@pytest.mark.parametrize("options", [[], ["--per-segment", "-o", "scores.csv"]])
def test_a_page_that_is_not_finished_loses_no_result(command, monkeypatch, capsys, error, options):
    """The result was printed after the page, and lost if the user interrupted it or the page had a bug."""
    expected = command("score").out
    monkeypatch.setattr("bertscore_tm.report.Report.to_html", Mock(side_effect=error))

    if isinstance(error, KeyboardInterrupt):
        printed = command("score", *options, "--report", "page.html", exit_code=130)
    else:
        with pytest.raises(RuntimeError, match="a bug"):
            command("score", *options, "--report", "page.html")
        printed = capsys.readouterr()

    assert printed.out == expected
    assert not Path("page.html").exists()


@pytest.mark.parametrize("is_pipe", [False, True])
def test_failures_of_file_and_standard_output_are_both_reported(tmp_path, monkeypatch, capsys, is_pipe):
    """The reason why the file could not be written was lost."""
    path = tmp_path / "scores.txt"
    path.mkdir()
    stdout = None
    if is_pipe:
        reader, writer = os.pipe()
        os.close(reader)
        stdout = os.fdopen(writer, "w")
    monkeypatch.setattr(sys, "stdout", stdout)

    with pytest.raises(CommandError, match=r"scores\.txt: Is a directory"):
        write_output("F1 0.5", str(path))

    if is_pipe:
        # Python writes what a stream still holds when it closes it.
        stdout.close()
        assert capsys.readouterr().err == ""
    else:
        assert "standard output is closed" in capsys.readouterr().err


def documented_keys():
    """Return the keys of JSON objects that the page names, by command: those without options, and all."""
    page = (ROOT / "examples/docs/shell.md").read_text(encoding="utf-8")
    documented = {}
    for line in page.partition("| command | object |")[2].partition("\n\n")[0].splitlines()[2:]:
        command, path, option, keys = (cell.strip().strip("`") for cell in line.strip("|").split("|"))
        without_options, with_options = documented.setdefault(command, ({}, {}))
        names = set(re.findall(r"\w+", keys))
        with_options.setdefault(path, set()).update(names)
        if not option:
            without_options.setdefault(path, set()).update(names)
    return documented


def keys_of_objects(value, path="."):
    """Return the keys of all objects in a document by their paths, which are written as in jq."""
    found = {}
    if isinstance(value, dict):
        found[path] = set(value)
        for key, inner in value.items():
            found |= keys_of_objects(inner, f"{path.removesuffix('.')}.{key}")
    elif isinstance(value, list):
        for inner in value:
            found |= keys_of_objects(inner, f"{path}[]")
    # Objects within a group have the keys of those outside.
    return {path: keys for path, keys in found.items() if not path.startswith(".groups[].")}


GROUPED = ["--group-column", "domain"]
OPTIONS = {
    "score": [*GROUPED, "--worst", "1", "--per-segment", "--sources", "refs.txt"],
    "compare": GROUPED,
    "show": [],
    "rank": [],
    "baseline": [],
}


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize("has_options", [False, True])
def test_the_page_names_the_keys_of_json(folder, command, monkeypatch, tmp_path, name, has_options):
    """The table had keys that a document lacks, and lacked keys that a document has."""
    if has_options:
        options = OPTIONS[name]
        rows = [{"candidate": text, "domain": "ab"[number % 2]} for number, text in enumerate(TEXTS)]
        write_records(folder / "rows.jsonl", rows)
        monkeypatch.setitem(COMMANDS, "score", (["-c", "rows.jsonl", "-r", "refs.txt"], ""))
        monkeypatch.setitem(COMMANDS, "compare", (["-c", "rows.jsonl", "other.txt", "-r", "refs.txt"], ""))
    else:
        options = []
    files = {"rank": ["-o", tmp_path / "best.jsonl"], "baseline": ["-o", tmp_path / "table.csv"]}
    document = json.loads(command(name, *options, *files.get(name, []), "--json").out)
    found = keys_of_objects(document)

    if name == "rank":
        first, *_ = (tmp_path / "best.jsonl").read_text().splitlines()
        found["each line of the output"] = set(json.loads(first))

    assert found == documented_keys()[name][has_options]
