"""Rows of a file of texts, and errors that name the file and the row."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bertscore_tm.cli.errors import CommandError

__all__ = ["Table", "check_lengths"]

_CELLS = ("tsv", "csv")


@dataclass(frozen=True)
class Table:
    """The rows of a file.

    Args:
        name: the file's name in error messages.
        file_format: ``"txt"``, ``"tsv"``, ``"csv"``, ``"jsonl"``, ``"json"`` or ``"parquet"``.
        rows: the file's lines without line ends, a header included; for CSV lists of cells; for JSON and Parquet
            objects, or strings for a JSON array of them.
        num_before: number of lines of the file before these.
        line_numbers: number of the line on which each row starts, where rows may have several lines.
    """

    name: str
    file_format: str
    rows: list[Any]
    num_before: int = 0
    line_numbers: Sequence[int] = ()

    @property
    def has_columns(self) -> bool:
        """Whether rows have several values: not those of plain lines and of JSON arrays of strings."""
        is_array_of_texts = self.file_format == "json" and all(isinstance(row, str) for row in self.rows)
        return self.file_format != "txt" and not is_array_of_texts

    @property
    def ends_blank(self) -> bool:
        """Whether the last of several plain lines is blank."""
        is_several = self.num_before + len(self.rows) > 1
        return self.file_format == "txt" and is_several and len(self.rows) > 0 and not self.rows[-1].strip()

    def texts(self, column: str) -> list[str]:
        """Return one text per row.

        Args:
            column: name of a column or JSON key, or in a TSV or CSV file without header the column's number from 1. It
                is ignored for rows without columns.

        Returns:
            The texts; a blank line is an empty text.

        Raises:
            CommandError: a row lacks the column, or its value is not a string.
        """
        (texts,) = self.columns([column])
        return [self.check_text(row, text, column) for row, text in enumerate(texts)]

    def check_text(self, row: int, value: Any, column: str) -> str:
        """Check that a value is a string of valid Unicode.

        Args:
            row: number of its row, from 0.
            value: the value, as :meth:`columns` returns it.
            column: its name in error messages.

        Returns:
            The value.

        Raises:
            CommandError: it is not a string, or not valid Unicode.
        """
        if not isinstance(value, str):
            raise self.error(row, f"{column!r} must be a string, got {_describe_type(value)}")
        if self.file_format in ("jsonl", "json") and not _is_unicode(value):
            raise self.error(row, f"{column!r} contains an unpaired surrogate, which is not a character")
        return value

    def columns(self, columns: Sequence[str]) -> list[list[Any]]:
        """Return the values of several columns.

        Args:
            columns: names or numbers as in :meth:`texts`. A TSV or CSV file has a header unless all are numbers.

        Returns:
            The values of each column: strings, or for JSON and Parquet any values.

        Raises:
            CommandError: a row is malformed or lacks a column.
        """
        if self.file_format in _CELLS:
            return self._cell_columns(columns)
        if not self.has_columns:
            return [list(self.rows) for _ in columns]
        records = [self._record(row) for row in range(len(self.rows))]
        return [[self._entry(row, record, [column])[1] for row, record in enumerate(records)] for column in columns]

    def one_of(self, columns: Sequence[str]) -> list[tuple[str, Any]]:
        """Return the values of the one column that exists, of several possible ones.

        Args:
            columns: the possible names, of which objects may have different ones.

        Returns:
            Name and value of each row.

        Raises:
            CommandError: a row is malformed, or has none or several of them.
        """
        if self.file_format in _CELLS:
            known = [name for name in columns if self.rows and name in self._cells(0)]
            column = self._single(0, known) or columns[0]
            return [(column, value) for value in self._cell_columns([column])[0]]
        if not self.has_columns:
            return [(columns[0], row) for row in self.rows]
        return [self._entry(row, self._record(row), columns) for row in range(len(self.rows))]

    def has_header(self, columns: Sequence[str]) -> bool:
        """Return whether the first line has the names of columns: in TSV and CSV, unless all given are numbers."""
        return self.file_format in _CELLS and not all(column.isdecimal() for column in columns)

    def error(self, row: int, message: str, *, header: bool = False) -> CommandError:
        """Return an error that names the file and the place of a row.

        Args:
            row: number of the row, from 0.
            message: what is wrong with the row.
            header: whether the file has a header above the rows.

        Returns:
            The error.
        """
        number = row + header
        if self.file_format in ("json", "parquet"):
            return CommandError(f"{self.name}: row {number + 1}: {message}")
        return CommandError(f"{self.name}:{self._line_number(number)}: {message}")

    def _line_number(self, number: int) -> int:
        return self.line_numbers[number] if 0 <= number < len(self.line_numbers) else self.num_before + number + 1

    def _record(self, row: int) -> dict[str, Any]:
        """Return the object of a row of JSON lines, JSON or Parquet."""
        value = self.rows[row]
        try:
            if self.file_format == "jsonl":
                value = json.loads(value)
        except json.JSONDecodeError as error:
            raise self.error(row, f"not valid JSON: {error.msg} at column {error.colno}") from error
        except ValueError as error:
            raise self.error(row, f"a number has more than {sys.get_int_max_str_digits()} digits") from error
        except RecursionError as error:
            raise self.error(row, "the JSON value is nested too deeply") from error
        if not isinstance(value, dict):
            what = "line" if self.file_format == "jsonl" else "element"
            raise self.error(row, f"the {what} must be a JSON object, got {_describe_type(value)}")
        return value

    def _entry(self, row: int, record: dict[str, Any], columns: Sequence[str]) -> tuple[str, Any]:
        """Return name and value of the one of several keys that an object has."""
        name = self._single(row, [name for name in columns if name in record])
        if name is None:
            keys = ", ".join(repr(name) for name in record)
            raise self.error(row, f"no key {columns[0]!r}; the object has {keys or 'none'}")
        return name, record[name]

    def _single(self, row: int, known: Sequence[str]) -> str | None:
        if len(known) > 1:
            raise self.error(
                row, f"the columns {' and '.join(map(repr, known))} both exist: choose with --reference-column"
            )
        return known[0] if known else None

    def _cells(self, number: int) -> list[str]:
        row = self.rows[number]
        return row.split("\t") if self.file_format == "tsv" else list(row)

    def _cell_columns(self, columns: Sequence[str]) -> list[list[Any]]:
        if not self.rows:
            return [[] for _ in columns]
        header = self.has_header(columns)
        first = self._cells(0)
        numbers = []
        for column in columns:
            if column.isdecimal() and 1 <= int(column) <= len(first):
                numbers.append(int(column) - 1)
            elif not column.isdecimal() and first.count(column) == 1:
                numbers.append(first.index(column))
            elif column.isdecimal():
                raise self.error(0, f"column {column} does not exist: the line has {len(first)}, numbered from 1")
            else:
                problem = "more than one column is" if column in first else "no column is"
                known = ", ".join(repr(name) for name in first)
                raise self.error(0, f"{problem} named {column!r}; the header has {known}")
        found: list[list[Any]] = [[] for _ in columns]
        for row in range(len(self.rows) - header):
            cells = self._cells(row + header)
            if len(cells) != len(first):
                raise self.error(row, f"{len(cells)} columns, but the first line has {len(first)}", header=header)
            for values, number in zip(found, numbers, strict=True):
                values.append(cells[number])
        return found


def check_lengths(tables: Sequence[Table], lengths: Sequence[int]) -> None:
    """Check that files have equal numbers of rows.

    Args:
        tables: the files.
        lengths: number of rows of each file.

    Raises:
        CommandError: a file has fewer rows than another; the message names it and its last row. Or columns of one file
            are given by name and by number.
    """
    if len({table.name for table in tables}) == 1 and len(set(lengths)) > 1:
        # One of the columns was read with the header.
        raise CommandError(f"{tables[0].name}: give all columns by name, or of a file without header all by number")
    longest = max(range(len(tables)), key=lambda i: lengths[i])
    for table, length in zip(tables, lengths, strict=True):
        if length != lengths[longest]:
            other = tables[longest]
            raise table.error(
                len(table.rows) - 1,
                f"the file ends here, but {other.name} has {other.num_before + lengths[longest]} texts"
                f"{', as its blank last line is an empty text' if other.ends_blank else ''}",
            )


def _is_unicode(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _describe_type(value: Any) -> str:
    if value is None:
        return "null"
    names = {
        bool: "a boolean",
        int: "a number",
        float: "a number",
        list: "an array",
        dict: "an object",
        str: "a string",
    }
    # Parquet has further types, such as bytes.
    return names.get(type(value), type(value).__name__)
