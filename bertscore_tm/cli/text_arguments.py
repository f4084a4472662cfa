"""Arguments for candidates and references, and reading them from files or from the command line."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from bertscore_tm.cli.errors import CommandError
from bertscore_tm.cli.inputs import FORMATS, STDIN, Table, check_lengths, format_of, read_table

if TYPE_CHECKING:
    from bertscore_tm.scoring.texts import TextPairs

__all__ = [
    "add_column_arguments",
    "add_document_argument",
    "add_file_arguments",
    "add_pair_arguments",
    "document_labels",
    "read_documents",
    "read_files",
    "read_pairs",
    "read_references",
]

CANDIDATE = "candidate"
# The column of the references if none is given: a file has one of these.
REFERENCES = ("reference", "references")


def add_pair_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments for candidates and references."""
    group = add_file_arguments(parser)
    group.add_argument("--candidate-text", metavar="TEXT", help="a single text to score, instead of files")
    group.add_argument(
        "--reference-text",
        metavar="TEXT",
        action="append",
        help="reference of --candidate-text; repeat for several references",
    )
    add_column_arguments(parser)


def add_file_arguments(parser: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    """Declare the arguments for files of candidates and references.

    Args:
        parser: the command's parser.

    Returns:
        The group of arguments, to add further ones.
    """
    group = parser.add_argument_group("texts")
    group.add_argument(
        "-c",
        "--candidates",
        metavar="FILE",
        help="texts to score, one per line; - is standard input; .tsv, .csv, .jsonl, .json and .parquet files may also "
        "contain the references",
    )
    group.add_argument(
        "-r",
        "--references",
        metavar="FILE",
        nargs="+",
        action="extend",
        help="references of the candidates, line by line; each further file adds one reference to every candidate",
    )
    return group


def add_column_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments for file formats and columns."""
    group = parser.add_argument_group("file formats")
    group.add_argument(
        "--format",
        choices=FORMATS,
        help="format of all files (default: by suffix, where .txt.gz is .txt; txt for standard input and files without "
        "a suffix)",
    )
    group.add_argument(
        "--candidate-column",
        metavar="NAME",
        default=CANDIDATE,
        help="column or JSON key of the candidates (default: %(default)s); in TSV and CSV files without header the "
        "number of the column, from 1",
    )
    group.add_argument(
        "--reference-column",
        metavar="NAME",
        action="append",
        help="column or JSON key of the references; a JSON value may be an array of texts; repeat for several "
        "columns (default: reference or references)",
    )


def read_pairs(arguments: argparse.Namespace) -> TextPairs:
    """Read the candidates and their references.

    Args:
        arguments: the parsed arguments of :func:`add_pair_arguments`.

    Returns:
        Candidates with their references, at least one pair.

    Raises:
        CommandError: arguments contradict each other, or a file is malformed.
    """
    from bertscore_tm.scoring.texts import TextPairs

    if arguments.candidate_text is not None or arguments.reference_text is not None:
        if arguments.candidates is not None or arguments.references is not None:
            raise CommandError("give files (-c, -r) or texts (--candidate-text, --reference-text), not both")
        if arguments.candidate_text is None or arguments.reference_text is None:
            raise CommandError("--candidate-text and --reference-text need each other: give both")
        return TextPairs([arguments.candidate_text], [arguments.reference_text])
    if arguments.candidates is None:
        raise CommandError("no texts: give -c FILE -r FILE, or --candidate-text TEXT --reference-text TEXT")
    return read_files(arguments)


def read_files(arguments: argparse.Namespace) -> TextPairs:
    """Read the candidates and their references from files.

    Args:
        arguments: the parsed arguments of :func:`add_file_arguments` and :func:`add_column_arguments`.

    Returns:
        Candidates with their references, at least one pair.

    Raises:
        CommandError: a file is malformed, or there are no references.
    """
    from bertscore_tm.scoring.texts import TextPairs

    table = read_table(arguments.candidates, arguments.format)
    candidates = table.texts(arguments.candidate_column)
    if arguments.references is None and not table.has_columns:
        raise CommandError(
            f"no references: give -r FILE, or --format tsv or jsonl if {table.name} also contains the references"
        )
    return TextPairs(candidates, read_references(arguments, table, len(candidates)))


def read_references(arguments: argparse.Namespace, candidates: Table, num_candidates: int) -> list[list[str]]:
    """Return the references of every candidate: those of all files, or of the file of the candidates.

    Args:
        arguments: the parsed arguments of :func:`add_file_arguments` and :func:`add_column_arguments`.
        candidates: the file of the candidates.
        num_candidates: number of candidates.

    Returns:
        At least one reference per candidate.

    Raises:
        CommandError: a file is malformed or has a different number of rows.
    """
    paths, columns = arguments.references, arguments.reference_column
    tables = [candidates] if paths is None else [read_table(path, arguments.format) for path in paths]
    references: list[list[str]] = [[] for _ in range(num_candidates)]
    for table in tables:
        if columns is None:
            found = [table.one_of(REFERENCES)]
        else:
            values = zip(columns, table.columns(columns), strict=True)
            found = [[(name, value) for value in column] for name, column in values]
        check_lengths([candidates, table], [num_candidates, len(found[0])])
        for column in found:
            for row, (name, value) in enumerate(column):
                references[row] += _as_texts(table, row, value, name)
    return references


def _as_texts(table: Table, row: int, value: Any, name: str) -> list[str]:
    if isinstance(value, list):
        if not value:
            raise table.error(row, f"{name!r} is an empty array: every candidate needs at least one reference")
        return [table.check_text(row, item, f"{name}[{i}]") for i, item in enumerate(value)]
    return [table.check_text(row, value, name)]


def add_document_argument(group: argparse._ArgumentGroup) -> None:
    """Declare the argument for the column of the documents."""
    group.add_argument(
        "--document-column",
        metavar="NAME",
        help="column or JSON key of each text's document, in the first file with columns of -c and -r: intervals and "
        "tests resample whole documents (default: all texts are independent)",
    )


def read_documents(paths: Sequence[str], arguments: argparse.Namespace, num_texts: int) -> list[str] | None:
    """Read the document of each text from the first file that has columns.

    Args:
        paths: files with one row per text.
        arguments: the parsed arguments.
        num_texts: number of texts.

    Returns:
        One label per text, or ``None`` without ``--document-column``.

    Raises:
        CommandError: no file has columns, or that file is standard input, malformed, or does not fit.
    """
    if arguments.document_column is None:
        return None
    path = next((path for path in paths if format_of(path, arguments.format)[0] != "txt"), None)
    if path is None or path == STDIN:
        raise CommandError("argument --document-column: give a file with columns, such as .tsv or .jsonl, to -c or -r")
    labels = document_labels(read_table(path, arguments.format), arguments.document_column)
    if len(labels) != num_texts:
        raise CommandError(f"argument --document-column: {path} has {len(labels)} rows for {num_texts} texts")
    return labels


def document_labels(table: Table, column: str) -> list[str]:
    """Return the document of each row.

    Args:
        table: the rows.
        column: name or number of the column.

    Returns:
        One label per row.

    Raises:
        CommandError: a row lacks the column, or its value is neither a string nor an integer.
    """
    (values,) = table.columns([column])
    return [
        str(value) if type(value) is int else table.check_text(row, value, column) for row, value in enumerate(values)
    ]
