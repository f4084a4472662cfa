"""Programs in processes forked from the session's server, because a new interpreter imports torch for seconds."""

import gc
import multiprocessing
import os
import runpy
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.support.ranks import HANGS_AFTER_S, start_rank_server
from tests.support.shell import Printed

STREAMS = {"stdout": 1, "stderr": 2}
# Files of standard output and standard error by their names. A stream without a file is closed.
Streams = Mapping[str, str | None]


def run_forked(
    function: Callable[..., Any], *args: Any, folder: Path, streams: Streams | None = None, **variables: str | None
) -> Printed:
    """Run a function like a program, and return its exit code and what it printed.

    Args:
        function: importable; may call ``sys.exit``.
        *args: its arguments.
        folder: its working directory.
        streams: files that get the output instead.
        **variables: environment variables that are changed or, where they are ``None``, removed.
    """
    start_rank_server()
    with TemporaryDirectory() as scratch:
        files = {name: f"{scratch}/{name}" for name in STREAMS}
        redirected = files | dict(streams or {})
        job = (function, args, folder, redirected, variables)
        process = multiprocessing.get_context("forkserver").Process(target=_run, args=job)
        process.start()
        process.join(HANGS_AFTER_S)
        process.kill()
        process.join()
        printed = [_read(path) for path in files.values()]
    assert process.exitcode is not None
    return Printed(process.exitcode, *printed)


def run_command(words: list[Any], folder: Path, **streams: str | None) -> Printed:
    """Run the shell command with these arguments, and with the files of ``stdout`` or ``stderr`` that are given."""
    return run_forked(_run_command, [str(word) for word in words], folder=folder, streams=streams)


def run_program(path: Path) -> None:
    """Run a file in this process as the interpreter does."""
    sys.argv = [str(path)]
    runpy.run_path(str(path), run_name="__main__")


def _run(
    function: Callable[..., Any], args: Any, folder: Path, streams: Streams, variables: Mapping[str, str | None]
) -> None:
    """Run a function in this process."""
    # A garbage collection would copy all imported objects into this process, because it writes to each of them.
    gc.freeze()
    # The processes that the function starts are started like those of a new interpreter, not by a server too.
    multiprocessing.set_start_method(None, force=True)
    os.chdir(folder)
    for name, value in variables.items():
        os.environ.pop(name, None)
        if value is not None:
            os.environ[name] = value
    for name, path in streams.items():
        _redirect(name, path)
    function(*args)


def _run_command(words: list[str]) -> None:
    """Run the shell command in this process."""
    from bertscore_tm.cli.__main__ import run

    sys.argv = ["bertscore-tm", *words]
    sys.exit(run())


def _redirect(name: str, path: str | None) -> None:
    """Redirect a stream to a file, or close it as a shell does before the interpreter starts."""
    number = STREAMS[name]
    if path is None:
        os.close(number)
        # Python has None in place of a stream that was closed when it started.
        setattr(sys, name, None)
        setattr(sys, f"__{name}__", None)
        return
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(file, number)
    os.close(file)


def _read(path: str) -> str:
    """Return the text of a file that exists unless its stream was redirected."""
    file = Path(path)
    if not file.exists():
        return ""
    return file.read_text(encoding="utf-8")
