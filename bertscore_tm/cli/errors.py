"""Errors that end a command with one line and an exit code."""

import os
import signal
import sys
from pathlib import Path
from typing import Self, TextIO

from bertscore_tm.utilities.untrusted_text import for_terminal

FAILED = 1
BAD_INPUT = 2

# Messages of this run that could not be written to standard error, for example because the disk was full.
lost_messages: list[str] = []


class CommandError(Exception):
    """End a command with one line on standard error, which starts with ``file:line:`` if a file causes the error."""

    def __init__(self, message: str, exit_code: int = BAD_INPUT) -> None:
        # Join the lines of the message, because that of a library may have several.
        super().__init__(" ".join(message.split()))
        self.exit_code = exit_code

    # Ranks send their errors to each other by pickle, which would drop the exit code without this method.
    def __reduce__(self) -> tuple[type[Self], tuple[str, int]]:
        return type(self), (str(self), self.exit_code)


def expected_errors() -> tuple[type[Exception], ...]:
    """Return the error classes whose messages are for users; any other error is a bug and keeps its traceback."""
    expected = (CommandError, ValueError, OSError, ImportError)
    # If torch is not imported yet, it cannot have raised the error. To import it here would take seconds.
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
        # The text of an OSError starts with the number of the error, which does not help users.
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
    """Return whether a standard stream is closed. A stream that the shell closed with ``>&-`` is ``None`` in Python."""
    return stream is None or stream.closed


def discard_output() -> None:
    """Discard the buffer of standard output, because Python would try, and fail, to write it again at exit."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)


def _print_line(line: str) -> None:
    """Print a line on standard error. A line that cannot be written is added to ``lost_messages``."""
    # A user who closed standard error wants no messages. print would write to standard output in place of None.
    if is_closed(sys.stderr):
        return
    try:
        print(line, file=sys.stderr, flush=True)
    except OSError:
        # The run continues, because its results are not written yet. main returns a failure at the end.
        lost_messages.append(line)


def print_message(message: str) -> None:
    """Print a line on standard error, and escape control characters, which names and texts in it may contain.

    Only the first rank prints, because all ranks have the same messages.
    """
    if is_only_rank() or os.environ.get("RANK", "0") == "0":
        _print_line(f"bertscore-tm: {for_terminal(message)}")


def print_error(error: CommandError) -> None:
    """Print an error, unless another rank has printed one.

    Not all ranks know of each error, so the rank that first creates a shared file prints.
    """
    record = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if record is None:
        prints = os.environ.get("LOCAL_RANK", "0") == "0"
    else:
        # torchrun stops the other ranks when one has ended. This rank ignores the signal, prints its line and ends.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        prints = _is_first_to_print(Path(record))
    if prints:
        _print_line(f"bertscore-tm: error: {for_terminal(str(error))}")


def _is_first_to_print(record: Path) -> bool:
    """Return whether no other rank has printed an error; ``record`` is this rank's error file of torchrun."""
    # torchrun writes RUN/RANK/error.json, so RUN is a folder that all ranks share.
    run_folder = record.parent.parent
    try:
        # Only one process can create this file.
        (run_folder / "bertscore-tm").touch(exist_ok=False)
    except FileExistsError:
        return False
    return True
