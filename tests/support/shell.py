"""Running the command: in this process, in the session's gloo ranks, or in new processes."""

import io
import json
import os
import re
import sys
from collections.abc import Iterable
from contextlib import chdir, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import pytest
import torch.distributed as dist

from bertscore_tm.cli import main
from tests.support.ranks import run_ranks


def run_here(capsys: Any, *arguments: Any, exit_code: int = 0) -> Any:
    """Run the command in this process and return what it printed."""
    capsys.readouterr()
    assert main([str(argument) for argument in arguments]) == exit_code
    return capsys.readouterr()


def add_defaults(arguments: Iterable[Any], **defaults: Any) -> list[Any]:
    """Return the arguments and the options that they lack: an option with one value is given once."""
    words = list(arguments)
    options = {f"--{name}": value for name, value in defaults.items()}
    aliases = {"--model": "-m", "--output": "-o"}
    for name, value in options.items():
        if name not in words and aliases.get(name) not in words:
            words += [name, value]
    return words


def check_error(printed: Any, message: str) -> None:
    """Check that a command printed one line, an error that a regular expression matches."""
    assert printed.out == ""
    (line,) = printed.err.splitlines()
    assert line.startswith("bertscore-tm: error: ")
    assert re.search(message, line.removeprefix("bertscore-tm: error: "))


def from_stdin(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    """Let the command read these bytes from standard input."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data), encoding="utf-8"))


class Printed(NamedTuple):
    """Exit code, standard output and standard error of one rank."""

    exit_code: int
    out: str
    err: str


def run_on_ranks(folder: Path, *arguments: list[Any]) -> list[Printed]:
    """Run the command as ``torchrun`` does, but on the session's ranks, each with its own arguments."""
    return run_ranks(run_rank, len(arguments), str(folder), [list(map(str, words)) for words in arguments])


def run_rank(rank: int, folder: str, arguments: list[list[str]]) -> Printed:
    """Run the command on one rank, in the group that it has joined."""
    os.environ |= {"WORLD_SIZE": str(dist.get_world_size()), "RANK": str(rank), "LOCAL_RANK": str(rank)}
    out, err = io.StringIO(), io.StringIO()
    # The rank is already in its default process group.
    init, destroy = (patch(f"torch.distributed.{name}_process_group") for name in ("init", "destroy"))
    with chdir(folder), redirect_stdout(out), redirect_stderr(err), init, destroy:
        exit_code = main(arguments[rank])
    return Printed(exit_code, out.getvalue(), err.getvalue())


def numbers_in(line: str) -> list[float]:
    """Return all decimal numbers in a line of a table."""
    return [float(number) for number in re.findall(r"(?<![\w.])[+-]?\d+\.\d+(?!\w)", line)]


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """Write a text file."""
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")


def write_records(path: Path, records: Iterable[dict[str, Any]]) -> None:
    """Write JSON lines."""
    write_lines(path, map(json.dumps, records))
