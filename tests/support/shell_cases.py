"""Tables of commands: the files of a folder, the arguments, and what the command prints there."""

import csv
import json
import re
import shlex
from collections.abc import Mapping, Sequence
from contextlib import chdir
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from bertscore_tm.cli import main
from tests.support.shell import write_lines, write_records

# Arguments of commands that score with the real model, which `check_case` links into the folder.
MODEL = "-m model -l 5 --device cpu"
# Stands for any text in an expected line.
ANY = "..."
# What printing a number with four decimals may change.
ROUNDING = 1.01e-4
_NUMBER = re.compile(r"(?<![\w.])[+-]?\d+\.\d+(?!\w)")


@dataclass(frozen=True)
class ShellCase:
    """A command, and what it prints in a folder with some files.

    In expected lines ``...`` stands for any text and ``{}`` for the folder, and decimal numbers may be rounded.

    Attributes:
        arguments: the words of the command, as in a shell.
        files: contents by name. Rows are written in the format of the suffix, and a ``Path`` becomes a link to it.
        lines: lines of standard output.
        messages: lines of standard error without the name of the program.
        error: the only line that is printed, after ``bertscore-tm: error: ``. The exit code is 2 and no file changes.
    """

    arguments: str
    files: Mapping[str, Any] = field(default_factory=dict)
    lines: Sequence[str] = ()
    messages: Sequence[str] = ()
    error: str = ""

    def __post_init__(self) -> None:
        assert bool(self.error) != bool(self.lines or self.messages), "a case has an error or other lines"


def check_case(case: ShellCase, folder: Path, capsys: pytest.CaptureFixture[str], model: str | None = None) -> None:
    """Run a case in a folder, next to a link to the model, and compare what the command prints."""
    for name, content in case.files.items():
        write_file(folder / name, content)
    if model is not None:
        (folder / "model").symlink_to(model)
    before = _read_files(folder)
    capsys.readouterr()

    with chdir(folder):
        exit_code = main(shlex.split(case.arguments))
    printed = capsys.readouterr()

    messages = list(case.messages)
    if case.error:
        messages = [f"error: {case.error}"]
        assert exit_code == 2, printed
        assert _read_files(folder) == before
    else:
        assert exit_code == 0, printed
    check_lines(printed.out, [line.replace("{}", str(folder)) for line in case.lines])
    check_lines(printed.err, [f"bertscore-tm: {line}".replace("{}", str(folder)) for line in messages])


def check_lines(printed: str, expected: Sequence[str]) -> None:
    """Compare printed lines with expected ones, in which ``...`` stands for any text."""
    lines = printed.split("\n")
    assert lines.pop() == "", "the last line has no end"
    assert len(lines) == len(expected), printed
    for line, wanted in zip(lines, expected, strict=True):
        numbers = [float(number) for number in _NUMBER.findall(wanted)]
        pattern = re.escape(_NUMBER.sub("\0", wanted)).replace("\0", "([+-]?[0-9]+[.][0-9]+)")
        match = re.fullmatch(pattern.replace(re.escape(ANY), ".*"), line)
        assert match is not None, f"{line!r} is not {wanted!r}"
        assert [float(number) for number in match.groups()] == pytest.approx(numbers, abs=ROUNDING)


def write_file(path: Path, content: Any) -> None:
    """Write a file in the format of its suffix: bytes and texts as they are, lists of texts as lines, other rows."""
    if isinstance(content, Path):
        path.symlink_to(content)
    elif isinstance(content, bytes):
        path.write_bytes(content)
    elif isinstance(content, str):
        path.write_text(content, encoding="utf-8", newline="")
    elif path.suffix == ".json":
        path.write_text(json.dumps(content), encoding="utf-8")
    elif path.suffix == ".jsonl":
        write_records(path, content)
    elif path.suffix == ".csv":
        write_csv(path, content)
    elif path.suffix == ".parquet":
        write_parquet(path, content)
    else:
        write_lines(path, content)


def write_csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write rows as a CSV file with a header."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)


def write_parquet(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write rows as a Parquet file. Skip the test without pyarrow."""
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pyarrow.Table.from_pylist(rows), path)


def _read_files(folder: Path) -> dict[str, bytes]:
    """Return the contents of the files of a folder by their names."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
