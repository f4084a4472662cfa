"""Errors that end a command with one line and an exit code."""

from __future__ import annotations

import re
import sys

__all__ = ["BAD_INPUT", "FAILED", "CommandError", "expected_errors", "in_options"]

FAILED = 1
BAD_INPUT = 2


class CommandError(Exception):
    """Ends a command: one line on standard error, no traceback.

    Args:
        message: what is wrong and what to do about it; begins with ``file:line:`` where a file is to blame.
        exit_code: 2 for bad usage or bad input, 1 for everything else.

    Example:
        >>> str(CommandError("refs.txt:17: not valid UTF-8"))
        'refs.txt:17: not valid UTF-8'
    """

    def __init__(self, message: str, exit_code: int = BAD_INPUT) -> None:
        super().__init__(" ".join(message.split()))
        self.exit_code = exit_code

    def __reduce__(self) -> tuple[type[CommandError], tuple[str, int]]:
        return type(self), (str(self), self.exit_code)


def expected_errors() -> tuple[type[Exception], ...]:
    """Return the kinds of errors in which the library says what to do about arguments, files, models and memory.

    Returns:
        The kinds; that of torch only where torch is loaded.

    Example:
        >>> issubclass(FileNotFoundError, expected_errors())
        True
    """
    torch = sys.modules.get("torch")
    return (ValueError, OSError, ImportError, *(() if torch is None else (torch.OutOfMemoryError,)))


# The library's arguments and the options that set them.
_OPTIONS = {
    "all_layers": "--all-layers",
    "baseline_path": "--baseline",
    "batch_size": "--batch-size",
    "device": "--device",
    "idf_sents": "--idf-file",
    "long_text": "--long-text",
    "max_length": "--max-length",
    "model_name_or_path": "--model",
    "num_layers": "--num-layers",
    "rescale_with_baseline": "--rescale",
    "stride": "--stride",
    "trust_remote_code": "--trust-remote-code",
}
# As `num_layers=7`, and names that are no English words alone too; not within a path or a longer word.
_ALONE = "|".join(name for name in _OPTIONS if "_" in name)
_ARGUMENT = re.compile(rf"(?<![\w/\\.-])(?:({'|'.join(_OPTIONS)})=(?:True\b)?|({_ALONE})(?![\w/\\.-]))")


def in_options(message: str) -> str:
    """Say what the library says about its arguments in terms of the command's options.

    Args:
        message: an error or a warning of the library.

    Returns:
        The message to print.

    Example:
        >>> in_options("num_layers=7 does not exist: a/num_layers has layers 0 to 6")
        '--num-layers 7 does not exist: a/num_layers has layers 0 to 6'
    """
    return _ARGUMENT.sub(lambda found: f"{_OPTIONS[found[1]]} " if found[1] else _OPTIONS[found[2]], message)
