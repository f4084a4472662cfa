"""Errors that end a command with one line and an exit code."""

import os
import signal
import sys
from pathlib import Path
from typing import Self, TextIO

from bertscore_tm.utilities.untrusted_text import for_terminal

FAILED = 1
BAD_INPUT = 2

# Messages of this run that standard error could not take, as on a full disk.
lost_messages: list[str] = []


class CommandError(Exception):
    """End a command with one line on standard error, which starts with ``file:line:`` if a file causes the error."""

    def __init__(self, message: str, exit_code: int = BAD_INPUT) -> None:
        # The error is one line, also if the text of a library has several.
        super().__init__(" ".join(message.split()))
        self.exit_code = exit_code

    # Ranks send their errors to each other by pickle, which would drop the exit code.
    def __reduce__(self) -> tuple[type[Self], tuple[str, int]]:
        return type(self), (str(self), self.exit_code)


def expected_errors() -> tuple[type[Exception], ...]:
    """Return the error classes whose messages are for users; any other error is a bug and keeps its traceback."""
    expected = (CommandError, ValueError, OSError, ImportError)
    # If torch is not imported yet, the error cannot be one of its own, and the import takes seconds.
    torch = sys.modules.get("torch")
    if torch is None:
        return expected
    return (*expected, torch.OutOfMemoryError)


def as_command_error(error: Exception) -> CommandError:
    """Return an expected error of the library as one of the command; invalid values and files are bad input."""
    if isinstance(error, CommandError):
        return error
    message = str(error)
    if isinstance(error, OSError) and error.filename:
        # Python's own text starts with the number of the error.
        message = f"{error.filename}: {error.strerror}"
    if isinstance(error, ModuleNotFoundError):
        message += ": pip install 'bertscore-tm[cli,report,parquet]'"
    exit_code = FAILED
    if isinstance(error, ValueError | OSError):
        exit_code = BAD_INPUT
    return CommandError(message, exit_code)


def is_only_rank() -> bool:
    """Return whether this process is not one of several that ``torchrun`` started."""
    return os.environ.get("WORLD_SIZE", "1") == "1"


def is_closed(stream: TextIO | None) -> bool:
    """Return whether a standard stream is closed. Python has ``None`` for one that the shell closed with ``>&-``."""
    return stream is None or stream.closed


def discard_output() -> None:
    """Discard what standard output still holds, or Python would fail to write it again at exit."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)


def _print_line(line: str) -> None:
    """Print a line on standard error. If it is closed, nobody wants messages; what cannot be written is a failure."""
    # print would take standard output in place of None.
    if is_closed(sys.stderr):
        return
    try:
        print(line, file=sys.stderr, flush=True)
    except OSError:
        # The run continues, because its results are still to be written.
        lost_messages.append(line)


def print_message(message: str) -> None:
    """Print a line on standard error, with the control characters of names and texts in it escaped.

    All ranks read the same texts, so the first one prints for all.
    """
    if is_only_rank() or os.environ.get("RANK", "0") == "0":
        _print_line(f"bertscore-tm: {for_terminal(message)}")


def print_error(error: CommandError) -> None:
    """Print the last line of this process, unless another rank has printed one: not all ranks know of each error."""
    is_first = os.environ.get("LOCAL_RANK", "0") == "0"
    record = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if record is not None:
        # torchrun stops the other ranks when one has ended. This rank prints its line and ends by itself.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        # The folder that torchrun makes for the ranks, with a folder for each of them.
        claim = Path(record).parents[1] / "bertscore-tm"
        try:
            # Only one process can create the file, so only one prints.
            claim.touch(exist_ok=False)
            is_first = True
        except FileExistsError:
            is_first = False
    if is_first:
        _print_line(f"bertscore-tm: error: {for_terminal(str(error))}")
