"""The documents that texts belong to: texts of one document depend on each other."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence

from bertscore_tm.cli.errors import CommandError
from bertscore_tm.cli.inputs import STDIN, STREAMED_FORMATS, format_of, read_parts, read_table
from bertscore_tm.cli.tables import Table

__all__ = ["add_document_argument", "document_labels", "read_documents"]

_ROWS_PER_PART = 10_000


def add_document_argument(group: argparse._ArgumentGroup) -> None:
    """Declare the argument for the column of the documents.

    Args:
        group: the group of arguments.
    """
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
    file_format, column = arguments.format, arguments.document_column
    if column is None:
        return None
    path = next((path for path in paths if format_of(path, file_format)[0] != "txt"), None)
    if path is None or path == STDIN:
        raise CommandError("argument --document-column: give a file with columns, such as .tsv or .jsonl, to -c or -r")
    labels = [label for table in _read_parts(path, file_format) for label in document_labels(table, column)]
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


def _read_parts(path: str, file_format: str | None) -> Iterator[Table]:
    if format_of(path, file_format)[0] in STREAMED_FORMATS:
        return read_parts(path, _ROWS_PER_PART, file_format)
    return iter([read_table(path, file_format)])
