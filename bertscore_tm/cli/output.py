"""Tables, JSON documents, and the file or standard output that they go to."""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tabulate import tabulate

from bertscore_tm.cli.errors import (
    FAILED,
    CommandError,
    as_command_error,
    discard_output,
    expected_errors,
    is_closed,
    print_message,
)
from bertscore_tm.cli.options import input_files
from bertscore_tm.utilities.checks import SCORE_NAMES as SCORE_NAMES
from bertscore_tm.utilities.files import is_special, write_atomically
from bertscore_tm.utilities.untrusted_text import for_terminal

if TYPE_CHECKING:
    from bertscore_tm.cli.scoring import ScoredSystems

SCORE_LABELS = {"precision": "P", "recall": "R", "f1": "F1"}

_FORMATS = {".txt": "plain", ".md": "pipe", ".tex": "latex_booktabs"}
# Characters that Markdown interprets, each with a backslash in front.
_MARKDOWN = str.maketrans({character: f"\\{character}" for character in "\\`*_<>|"})
# Numbers of a JSON document that may be far smaller than a score.
_SMALL = ("p_value", "p_value_holm", "standard_error", "weights", "shares", "special_share")
# A minus sign in front of a number, but not a hyphen in a name such as gpt-4.
_MINUS = re.compile(r"(?<![\w.])-(?=\d)")


@dataclass(frozen=True)
class Output:
    """Where a command writes.

    Args:
        path: the file of the result. ``None`` is standard output.
        suffix: the format of the result, as the suffix of a file.
        is_json: whether what is printed is one JSON document.
        report: the file of the web page. ``None`` if none is requested.
        title: heading of the page. ``None`` for the names of the systems.
    """

    path: str | None
    suffix: str
    is_json: bool
    report: str | None
    title: str | None


def choose_output(arguments: argparse.Namespace) -> Output:
    """Choose a format by the output's suffix, and check, before scores are computed, that files can be written.

    The first suffix, or ".json" with ``--json``, is the format on standard output, on devices and in pipes. Files that
    are read are not replaced.
    """
    inputs = input_files(arguments)
    # With a single format the output is always a file, and --json changes the printed summary instead of the output.
    is_result_json = arguments.json and len(arguments.suffixes) > 1
    default = arguments.suffixes[0]
    if is_result_json:
        default = ".json"
    suffix = _check_output("output", arguments.output, arguments.suffixes, default, inputs)
    if is_result_json and suffix != ".json":
        remedy = "Name the file .json, or remove --json"
        raise CommandError(f"--json and --output {arguments.output} exclude each other. {remedy}")
    _check_output("report", arguments.report, (".html",), ".html", inputs)
    return Output(arguments.output, suffix, arguments.json, arguments.report, arguments.title)


def _check_output(option: str, path: str | None, suffixes: Sequence[str], default: str, inputs: Sequence[str]) -> str:
    """Return the suffix of a file to write, or the default one without a file.

    Raise an error if the file cannot be written, is read by the command too, or has another suffix than those allowed.
    """
    if path in ("-", "/dev/stdout"):
        raise CommandError(f"argument --{option}: {path} is standard output, which has the summary. Give a file")
    if path is None:
        return default
    target = Path(path)
    folder = target.resolve().parent
    if not folder.is_dir():
        raise CommandError(f"argument --{option}: the folder {folder} does not exist. Create it first")
    # A device or a pipe has no suffix that could name a format.
    if is_special(target):
        return default
    for name in inputs:
        # Two names may be links to one file.
        if Path(name).resolve() == target.resolve():
            raise CommandError(f"argument --{option}: {path} is read too, and would be replaced. Give another file")
    suffix = target.suffix.lower()
    if suffix not in suffixes:
        allowed = " or ".join(suffixes)
        raise CommandError(f"argument --{option}: {path} has another suffix. Give a file that ends with {allowed}")
    return suffix


def write_output(content: str | bytes, path: str | None) -> None:
    """Write a text, or the bytes of a picture, to standard output or atomically to a file.

    If the file cannot be written, a text is printed, so that it is not lost.
    """
    if path is None:
        assert isinstance(content, str)
        _print_result(content)
        return
    try:
        write_atomically(path, content)
    except OSError as error:
        if isinstance(content, str):
            _print_unwritten(content)
        raise CommandError(str(error), FAILED) from error
    print_message(f"wrote {path}")


def _print_unwritten(text: str) -> None:
    """Print a text whose file could not be written.

    If printing fails too, report that and continue, because the caller raises the error of the file.
    """
    try:
        _print_result(text)
    except BrokenPipeError:
        discard_output()
    except CommandError as error:
        print_message(str(error))


def write_results(results: Sequence[tuple[str, str | None]], write_page: Callable[[], None]) -> None:
    """Write texts to their paths, or print those whose path is ``None``, and then write the web page.

    A write that fails does not prevent the others.
    """
    writes: list[Callable[[], None]] = [partial(write_output, text, path) for text, path in results]
    # The page comes last, because it takes longest: an interruption or a bug while it is made loses no result.
    writes.append(write_page)
    errors = []
    for write in writes:
        # Try all writes, because another file may be on another disk than a full one.
        try:
            write()
        except expected_errors() as error:
            errors.append(error)
    for other in errors[1:]:
        print_message(str(as_command_error(other)))
    if errors:
        raise errors[0]


def _print_result(text: str) -> None:
    """Print on standard output. Escape control characters, and characters that the stream's encoding lacks."""
    if is_closed(sys.stdout):
        raise CommandError("standard output is closed: the result was not printed. Pass --output FILE", FAILED)
    encoding = _encoding_of_output()
    # Replace characters that the encoding lacks, which is possible unless it is UTF-8.
    shown = for_terminal(text, keep="\n\t").encode(encoding, "backslashreplace")
    try:
        sys.stdout.write(shown.decode(encoding))
        # Flush here, because Python would report an error at exit with a traceback.
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        discard_output()
        message = f"standard output: {error.strerror}: the result was not printed. Pass --output FILE"
        raise CommandError(message, FAILED) from error


def _encoding_of_output() -> str:
    return getattr(sys.stdout, "encoding", None) or "utf-8"


def write_report(scored: ScoredSystems, output: Output) -> None:
    """Write the web page, if one is requested."""
    if output.report is None:
        return
    from bertscore_tm.report import Report

    systems = scored.systems
    results = {}
    for number, name in enumerate(systems.texts):
        scores_of_system = scored.scores[:, 0, :, number]  # (3, texts)
        results[name] = dict(zip(SCORE_NAMES, scores_of_system, strict=True))
        results[name]["best_reference"] = scored.best_reference[0, :, number]
    page = Report(
        systems.texts,
        systems.references,
        results,
        settings=scored.settings,
        signature=scored.signature,
        groups=systems.documents,
        sources=systems.sources,
        labels=systems.labels,
        title=output.title,
    )
    write_output(page.to_html().encode(), output.report)


def to_json(document: dict[str, Any]) -> str:
    """Return a JSON document in a line. NaN is written as null.

    Numbers are rounded to six decimals, and those in ``_SMALL`` to six significant digits.
    """
    # Use the escapes of JSON if the encoding of standard output may lack characters. for_terminal also escapes unpaired
    # surrogates, which no encoding can write.
    is_ascii = not _encoding_of_output().lower().startswith("utf")
    content = json.dumps(_round(document), ensure_ascii=is_ascii, allow_nan=False)
    return for_terminal(content) + "\n"


def _round(value: Any, *, is_small: bool = False) -> Any:
    """Round all numbers of a JSON document. ``is_small`` is whether they are within a value named in ``_SMALL``."""
    if isinstance(value, dict):
        return {key: _round(item, is_small=is_small or key in _SMALL) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_round(item, is_small=is_small) for item in value]
    if not isinstance(value, float):
        return value
    # Return null, because JSON has no NaN.
    if math.isnan(value):
        return None
    if is_small:
        return float(f"{value:.6g}")
    return round(value, 6)


def format_count(number: int, noun: str) -> str:
    """Return a number with its noun in the singular or plural."""
    if number == 1:
        return f"{number} {noun}"
    return f"{number} {noun}s"


def format_counts(document: dict[str, Any], nouns: Iterable[str]) -> str:
    """Return the counts in a document for some nouns, such as "2 candidates, 3 references"."""
    return ", ".join(format_count(document[f"num_{noun}s"], noun) for noun in nouns)


def describe_pairing(column: str | None) -> dict[str, Any]:
    """Return how rows of files were paired, as entries of a JSON document. ``None`` means by their order."""
    if column is None:
        return {"paired_by": "order", "key": None}
    return {"paired_by": "key", "key": column}


def format_pairing(document: dict[str, Any]) -> str:
    """Return how the rows of files were paired, as text."""
    if document["key"] is None:
        return "paired by order"
    return f"paired by {document['key']!r}"


def format_interval(low: float, high: float, sign: str = "") -> str:
    """Return an interval with four decimals, or a dash if its ends are NaN. The sign "+" shows that of each number."""
    # The ends are NaN for a single text, which has no interval.
    if math.isnan(low):
        return "-"
    return f"[{low:{sign}.4f}, {high:{sign}.4f}]"


def format_texts(pair: dict[str, Any]) -> str:
    """Return the texts of a pair, each in a line."""
    lines = []
    for name, text in pair.items():
        side, suffix, _ = name.partition("_text")
        if suffix:
            lines.append(f"{side}: {for_terminal(text)}")
    return "\n".join(lines)


def format_rows(rows: Sequence[Sequence[str]], suffix: str = ".txt") -> str:
    r"""Format the rows of a table, of which the first is the header, as text, Markdown or LaTeX (with booktabs).

    The first column is left-aligned, the others are right-aligned. Control characters are escaped.

    Example:
        >>> print(format_rows([["system", "F1"], ["a_b", "0.41"]], ".md"), end="")
        | system   |   F1 |
        |:---------|-----:|
        | a\_b     | 0.41 |
    """
    cells = [list(map(for_terminal, row)) for row in rows]
    if suffix == ".md":
        # tabulate does not escape characters of Markdown in names of systems.
        cells = [[cell.translate(_MARKDOWN) for cell in row] for row in cells]
    alignment = ["left", *["right"] * (len(rows[0]) - 1)]
    # Disable the number format of tabulate, because the cells are formatted already.
    table: str = tabulate(cells[1:], cells[0], tablefmt=_FORMATS[suffix], colalign=alignment, disable_numparse=True)
    if suffix == ".tex":
        table = _MINUS.sub("$-$", table).replace("≤", r"$\leq$")
        # LaTeX reads a bracket at the start of a row as the optional length of the line break before it.
        table = re.sub(r"^ *\[", "{}[", table, flags=re.MULTILINE)
    return f"{table}\n"
