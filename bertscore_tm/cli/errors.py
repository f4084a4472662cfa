"""Errors that end a command with one line and an exit code."""

from __future__ import annotations

import re
import sys

from bertscore_tm.encoder_options import SHELL_OPTIONS
from bertscore_tm.utilities.untrusted_text import for_terminal

FAILED = 1
BAD_INPUT = 2


class CommandError(Exception):
    """End a command with one line on standard error, which starts with ``file:line:`` if a file causes the error."""

    def __init__(self, message: str, exit_code: int = BAD_INPUT) -> None:
        super().__init__(" ".join(message.split()))
        self.exit_code = exit_code

    def __reduce__(self) -> tuple[type[CommandError], tuple[str, int]]:
        return type(self), (str(self), self.exit_code)


def expected_errors() -> tuple[type[Exception], ...]:
    """Return the error classes whose messages are for users; any other error is a bug and keeps its traceback."""
    torch = sys.modules.get("torch")
    return (CommandError, ValueError, OSError, ImportError, *(() if torch is None else (torch.OutOfMemoryError,)))


def as_command_error(error: Exception) -> CommandError:
    """Return an expected error of the library as one of the command; invalid values are bad input."""
    if isinstance(error, CommandError):
        return error
    return CommandError(use_option_names(str(error)), BAD_INPUT if isinstance(error, ValueError) else FAILED)


def print_message(message: str) -> None:
    """Print a line on standard error, with the control characters of names and texts in it escaped."""
    print(f"bertscore-tm: {for_terminal(message)}", file=sys.stderr)


_OPTIONS = {name: f"--{name.replace('_', '-')}" for name in (*SHELL_OPTIONS, "language", "rescale")}
# Match `num_layers=7` and `num_layers=...`, and without `=` only names that are not English words; never within a path
# or a longer word.
_ALONE = "|".join(name for name in _OPTIONS if "_" in name)
_ARGUMENT = re.compile(rf"(?<![\w/\\.-])(?:({'|'.join(_OPTIONS)})=(?:True\b|\.\.\.)?|({_ALONE})(?![\w/\\.-]))")


def use_option_names(message: str) -> str:
    """Replace the library's argument names in a message by the command's options.

    Example:
        >>> use_option_names("num_layers=7 does not exist: a/num_layers has layers 0 to 6")
        '--num-layers 7 does not exist: a/num_layers has layers 0 to 6'
    """
    return _ARGUMENT.sub(lambda match: f"{_OPTIONS[match[1]]} " if match[1] else _OPTIONS[match[2]], message)
