"""The shell command in processes forked from one that has imported torch, because that import takes five CPU seconds.

``python -m tests.support.forked_commands`` reads jobs as JSON lines. For each it forks a process, which runs the
command and ends like the interpreter of a shell, and prints the exit code.
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from tests.support.markdown_blocks import ROOT
from tests.support.shell import Printed

IMPORTS = ["bertscore_tm.cli.scoring", "bertscore_tm.report", "transformers.models.bert.modeling_bert"]
STREAMS = {"stdin": 0, "stdout": 1, "stderr": 2}


class CommandServer:
    """Runs commands, each in a process of its own."""

    def __init__(self) -> None:
        words = [sys.executable, "-m", "tests.support.forked_commands"]
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        self.process = subprocess.Popen(
            words, cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def run(self, words: list[Any], folder: Path, scratch: Path, **streams: str | None) -> Printed:
        """Run a command in a folder and return its exit code and what it printed.

        Args:
            words: the command's arguments.
            folder: its working directory.
            scratch: folder for the files that standard output and standard error are redirected to.
            **streams: file of ``stdout`` or ``stderr`` instead. A stream that is ``None`` is closed.
        """
        files = {name: str(scratch / name) for name in ("stdout", "stderr")}
        for path in files.values():
            Path(path).unlink(missing_ok=True)
        job = {"words": [str(word) for word in words], "folder": str(folder), "streams": files | streams}
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(json.dumps(job), file=self.process.stdin, flush=True)
        exit_code = int(self.process.stdout.readline())
        printed = [Path(path).read_text(encoding="utf-8") if Path(path).is_file() else "" for path in files.values()]
        return Printed(exit_code, *printed)

    def close(self) -> None:
        """Kill the server, because its regular end would take two seconds."""
        self.process.kill()
        self.process.communicate()


def serve() -> None:
    """Run the jobs of standard input."""
    for module in IMPORTS:
        import_module(module)
    for line in sys.stdin:
        job = json.loads(line)
        child = os.fork()
        if child == 0:
            run_job(job)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def run_job(job: Mapping[str, Any]) -> None:
    """Run a command in this process and end it."""
    from bertscore_tm.cli.__main__ import run

    os.chdir(job["folder"])
    for name, path in job["streams"].items():
        redirect(name, path)
    sys.argv = ["bertscore-tm", *job["words"]]
    sys.exit(run())


def redirect(name: str, path: str | None) -> None:
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


if __name__ == "__main__":
    serve()
