"""Errors that end a command with one line and an exit code."""

import os
import signal
import sys
from pathlib import Path
from typing import Self

from bertscore_tm.utilities.untrusted_text import for_terminal

FAILED = 1
BAD_INPUT = 2


class CommandError(Exception):
    """End a command with one line on standard error, which starts with ``file:line:`` if a file causes the error."""

    def __init__(self, message: str, exit_code: int = BAD_INPUT) -> None:
        super().__init__(" ".join(message.split()))
        self.exit_code = exit_code

    def __reduce__(self) -> tuple[type[Self], tuple[str, int]]:
        return type(self), (str(self), self.exit_code)


def expected_errors() -> tuple[type[Exception], ...]:
    """Return the error classes whose messages are for users; any other error is a bug and keeps its traceback."""
    torch = sys.modules.get("torch")
    return (CommandError, ValueError, OSError, ImportError, *(() if torch is None else (torch.OutOfMemoryError,)))


def as_command_error(error: Exception) -> CommandError:
    """Return an expected error of the library as one of the command; invalid values and files are bad input."""
    if isinstance(error, CommandError):
        return error
    message = f"{error.filename}: {error.strerror}" if isinstance(error, OSError) and error.filename else str(error)
    if isinstance(error, ModuleNotFoundError):
        message += ": pip install 'bertscore-tm[cli,report,parquet]'"
    return CommandError(message, BAD_INPUT if isinstance(error, ValueError | OSError) else FAILED)


def is_only_rank() -> bool:
    """Return whether this process is not one of several that ``torchrun`` started."""
    return os.environ.get("WORLD_SIZE", "1") == "1"


def print_message(message: str) -> None:
    """Print a line on standard error, with the control characters of names and texts in it escaped.

    All ranks read the same texts, so the first one prints for all.
    """
    if is_only_rank() or os.environ.get("RANK", "0") == "0":
        print(f"bertscore-tm: {for_terminal(message)}", file=sys.stderr)


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
            claim.touch(exist_ok=False)
            is_first = True
        except FileExistsError:
            is_first = False
    if is_first:
        print(f"bertscore-tm: error: {for_terminal(str(error))}", file=sys.stderr, flush=True)
