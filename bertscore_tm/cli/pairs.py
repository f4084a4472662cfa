"""Candidates and references, from files or from the command line."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from bertscore_tm.cli.errors import CommandError
from bertscore_tm.cli.inputs import FORMATS, Table, check_lengths, read_table

if TYPE_CHECKING:
    from bertscore_tm.texts import TextPairs

__all__ = ["add_column_arguments", "add_pair_arguments", "read_candidates", "read_pairs", "read_references"]

CANDIDATE = "candidate"
# Where no name is given, a file has one of these.
REFERENCES = ("references", "reference")


def add_pair_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare where candidates and references come from.

    Args:
        parser: the command's parser.
    """
    group = parser.add_argument_group("texts")
    group.add_argument(
        "-c",
        "--candidates",
        metavar="FILE",
        help="the texts to score, one per line; - is standard input; .tsv and .jsonl files may hold the references too",
    )
    group.add_argument(
        "-r",
        "--references",
        metavar="FILE",
        nargs="+",
        action="extend",
        help="their references, line by line; each further file adds one reference to every candidate",
    )
    group.add_argument("--candidate-text", metavar="TEXT", help="a single text to score, instead of files")
    group.add_argument(
        "--reference-text", metavar="TEXT", action="append", help="its reference; may be repeated for several"
    )
    add_column_arguments(parser)


def add_column_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare how files of candidates and references are read.

    Args:
        parser: the command's parser.
    """
    group = parser.add_argument_group("file formats")
    group.add_argument(
        "--format",
        choices=FORMATS,
        help="how to read all files; default: by suffix (.txt.gz is .txt), txt for standard input",
    )
    group.add_argument(
        "--candidate-column",
        metavar="NAME",
        default=CANDIDATE,
        help="TSV column or JSON key of the candidates (default: %(default)s); TSV columns of a file without header by "
        "number from 1",
    )
    group.add_argument(
        "--reference-column",
        metavar="NAME",
        action="append",
        help="TSV column or JSON key of the references, where a JSON value may be a list of texts; may be repeated for "
        "several (default: reference or references)",
    )


def read_pairs(arguments: argparse.Namespace) -> TextPairs:
    """Read what :func:`add_pair_arguments` declared.

    Args:
        arguments: the parsed arguments.

    Returns:
        Candidates with their references, at least one pair.

    Raises:
        CommandError: arguments contradict each other, or a file is malformed.
    """
    from bertscore_tm.texts import TextPairs

    if arguments.candidate_text is not None or arguments.reference_text is not None:
        if arguments.candidates is not None or arguments.references is not None:
            raise CommandError("give files (-c, -r) or texts (--candidate-text, --reference-text), not both")
        if arguments.candidate_text is None or arguments.reference_text is None:
            raise CommandError("--candidate-text and --reference-text go together")
        return TextPairs([arguments.candidate_text], [arguments.reference_text])
    if arguments.candidates is None:
        raise CommandError("no texts: give -c FILE -r FILE, or --candidate-text TEXT --reference-text TEXT")
    table = read_table(arguments.candidates, arguments.format)
    candidates = read_candidates(table, arguments.candidate_column)
    if arguments.references is None:
        if table.file_format == "txt":
            raise CommandError(
                f"no references: give -r FILE, or --format tsv or jsonl if {table.name} holds them with the candidates"
            )
        tables = [table]
    else:
        tables = [read_table(path, arguments.format) for path in arguments.references]
    return TextPairs(candidates, read_references(tables, arguments.reference_column, table, len(candidates)))


def read_candidates(table: Table, column: str = CANDIDATE) -> list[str]:
    """Return the candidates of a file.

    Args:
        table: the file.
        column: name or number of their column.

    Returns:
        At least one text.

    Raises:
        CommandError: the file is malformed or has no rows.
    """
    candidates = table.texts(column)
    if not candidates:
        raise CommandError(f"{table.name}:1: there is no text in it")
    return candidates


def read_references(
    tables: Sequence[Table], columns: Sequence[str] | None, candidates: Table, num_candidates: int
) -> list[list[str]]:
    """Return the references of every candidate.

    Args:
        tables: files with one row per candidate; the references of all files are put together.
        columns: names or numbers of their columns. Default: ``reference`` or ``references``, whichever is there.
        candidates: the file of the candidates, for errors.
        num_candidates: how many candidates there are.

    Returns:
        For each candidate at least one reference.

    Raises:
        CommandError: a file is malformed or has another number of rows.
    """
    found: list[list[str]] = [[] for _ in range(num_candidates)]
    for table in tables:
        names = [_reference_column(table)] if columns is None else columns
        values = table.columns(names)
        check_lengths([candidates, table], [num_candidates, len(values[0])])
        for name, column in zip(names, values, strict=True):
            for row, value in enumerate(column):
                found[row] += _texts(table, row, value, name)
    return found


def _texts(table: Table, row: int, value: Any, name: str) -> list[str]:
    if isinstance(value, list):
        if not value:
            raise table.error(row, f"{name!r} is an empty list: every candidate needs at least one reference")
        return [table.text(row, item, f"{name}[{i}]") for i, item in enumerate(value)]
    return [table.text(row, value, name)]


def _reference_column(table: Table) -> str:
    names = table.names()
    known = [name for name in REFERENCES if name in names]
    if len(known) == 2:
        raise table.error(0, "both 'reference' and 'references' are there: choose with --reference-column")
    return known[0] if known else "reference"
