"""Running the command: in this process, or in others as a shell or ``torchrun`` starts it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from bertscore_tm.cli import main

ROOT = Path(__file__).resolve().parents[2]
ONE_PROCESS = [sys.executable, "-m", "bertscore_tm.cli"]
TWO_PROCESSES = [
    sys.executable,
    *["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "bertscore_tm.cli"],
]


def run_here(capsys: Any, *arguments: Any, exit_code: int = 0) -> Any:
    """Run the command in this process and return what it printed."""
    capsys.readouterr()
    assert main([str(argument) for argument in arguments]) == exit_code
    return capsys.readouterr()


def start(program: list[str], folder: Path, *arguments: Any) -> subprocess.Popen[str]:
    """Start the command in processes of its own; with equally many threads, sums are the same to the last bit."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([*program, *map(str, arguments)], cwd=folder, env=environment, **pipes)


def run_there(program: list[str], folder: Path, *arguments: Any) -> str:
    """Run the command in processes of its own and return its standard output."""
    running = start(program, folder, *arguments)
    out, err = running.communicate()
    assert running.returncode == 0, err
    return out


def numbers_in(line: str) -> list[float]:
    """Return all decimal numbers in a line of a table."""
    return [float(number) for number in re.findall(r"(?<![\w.])[+-]?\d+\.\d+(?!\w)", line)]


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """Write a text file."""
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")


def write_records(path: Path, records: Iterable[dict[str, Any]]) -> None:
    """Write JSON lines."""
    write_lines(path, map(json.dumps, records))
