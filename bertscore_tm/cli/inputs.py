"""Texts from files: plain lines, tab-separated columns or JSON lines, checked, with errors that name file and line."""

from __future__ import annotations

import gzip
import json
import sys
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertscore_tm.cli.errors import CommandError

__all__ = ["FORMATS", "STDIN", "Table", "check_lengths", "check_standard_input", "read_table", "read_texts"]

FORMATS = ("txt", "tsv", "jsonl")
STDIN = "-"


@dataclass(frozen=True)
class Table:
    """The rows of a file.

    Args:
        name: what errors call the file.
        file_format: ``"txt"``, ``"tsv"`` or ``"jsonl"``.
        lines: the file's lines, without their ends.
    """

    name: str
    file_format: str
    lines: list[str]

    def texts(self, column: str) -> list[str]:
        """Return one text per row.

        Args:
            column: name of a TSV column or JSON key, or a TSV column's number from 1 in a file without header. Files
                of plain lines have one column, whatever its name.

        Returns:
            The texts; blank lines are empty texts.

        Raises:
            CommandError: a row lacks the column, or has no text there.
        """
        (texts,) = self.columns([column])
        return [self.text(row, text, column) for row, text in enumerate(texts)]

    def text(self, row: int, value: Any, column: str) -> str:
        """Check that a value is a text.

        Args:
            row: number of its row, from 0.
            value: the value, as :meth:`columns` returns it.
            column: what errors call it.

        Returns:
            The value.

        Raises:
            CommandError: it is none.
        """
        if not isinstance(value, str):
            raise self.error(row, f"{column!r} is {_kind(value)}, not a text")
        if self.file_format == "jsonl" and not _is_unicode(value):
            raise self.error(row, f"{column!r} has half of a surrogate pair, which is no character")
        return value

    def columns(self, columns: Sequence[str]) -> list[list[Any]]:
        """Return the values of several columns.

        Args:
            columns: names or numbers as in :meth:`texts`. A TSV file has a header unless all of them are numbers.

        Returns:
            For each column its values: strings, or for JSON lines whatever the values are.

        Raises:
            CommandError: a row is malformed or lacks a column.
        """
        if self.file_format == "jsonl":
            return self._json_columns(columns)
        if self.file_format == "tsv":
            return self._tab_columns(columns)
        return [list(self.lines) for _ in columns]

    def names(self) -> list[str]:
        """Return the names in the first line: a TSV file's header, or the first object's keys.

        Returns:
            The names; none for plain lines and files without any line.
        """
        if not self.lines or self.file_format == "txt":
            return []
        return self.lines[0].split("\t") if self.file_format == "tsv" else list(self._object(0))

    def error(self, row: int, message: str, *, header: bool = False) -> CommandError:
        """Make an error about a row.

        Args:
            row: number of the row, from 0.
            message: what is wrong with it.
            header: whether a header stands before the rows.

        Returns:
            The error, which names file and line.
        """
        return CommandError(f"{self.name}:{row + 1 + header}: {message}")

    def _has_header(self, columns: Sequence[str]) -> bool:
        return self.file_format == "tsv" and not all(column.isdecimal() for column in columns)

    def _tab_columns(self, columns: Sequence[str]) -> list[list[Any]]:
        if not self.lines:
            return [[] for _ in columns]
        header = self._has_header(columns)
        first = self.lines[0].split("\t")
        numbers = []
        for column in columns:
            if column.isdecimal() and 1 <= int(column) <= len(first):
                numbers.append(int(column) - 1)
            elif not column.isdecimal() and first.count(column) == 1:
                numbers.append(first.index(column))
            elif column.isdecimal():
                raise self.error(0, f"there is no column {column}: the line has {len(first)}, numbered from 1")
            else:
                problem = "more than one column is" if column in first else "no column is"
                known = ", ".join(repr(name) for name in first)
                raise self.error(0, f"{problem} named {column!r}; the header has {known}")
        found: list[list[Any]] = [[] for _ in columns]
        for row, line in enumerate(self.lines[header:]):
            cells = line.split("\t")
            if len(cells) != len(first):
                raise self.error(row, f"{len(cells)} columns, but the first line has {len(first)}", header=header)
            for values, number in zip(found, numbers, strict=True):
                values.append(cells[number])
        return found

    def _json_columns(self, columns: Sequence[str]) -> list[list[Any]]:
        found: list[list[Any]] = [[] for _ in columns]
        for row in range(len(self.lines)):
            record = self._object(row)
            for values, column in zip(found, columns, strict=True):
                if column not in record:
                    known = ", ".join(repr(name) for name in record)
                    raise self.error(row, f"no key {column!r}; the object has {known or 'none'}")
                values.append(record[column])
        return found

    def _object(self, row: int) -> dict[str, Any]:
        try:
            record = json.loads(self.lines[row])
        except json.JSONDecodeError as error:
            raise self.error(row, f"not valid JSON: {error.msg} at column {error.colno}") from error
        except RecursionError as error:
            raise self.error(row, "JSON that is nested too deeply") from error
        if not isinstance(record, dict):
            raise self.error(row, f"{_kind(record)}, not a JSON object")
        return record


def read_table(path: str, file_format: str | None = None) -> Table:
    """Read a file.

    Args:
        path: the file, ``-`` for standard input; ``.gz`` files are unpacked.
        file_format: ``"txt"``, ``"tsv"`` or ``"jsonl"``. Default: by the file's suffix, ``"txt"`` for all others.

    Returns:
        Its rows.

    Raises:
        CommandError: the file cannot be read or is not UTF-8.
    """
    name = "standard input" if path == STDIN else path
    try:
        data = sys.stdin.buffer.read() if path == STDIN else Path(path).read_bytes()
        suffixes = [suffix.lower() for suffix in Path(path).suffixes]
        if suffixes and suffixes[-1] == ".gz":
            suffixes.pop()
            data = gzip.decompress(data)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise CommandError(f"{name}: not a valid gzip file: {error}") from error
    except OSError as error:
        raise CommandError(f"{name}: {error.strerror or error}") from error
    if file_format is None:
        suffix = suffixes[-1].removeprefix(".") if suffixes else ""
        file_format = suffix if suffix in FORMATS else "txt"
    return Table(name, file_format, _lines(data, name))


def read_texts(path: str, file_format: str | None = None, column: str = "text") -> list[str]:
    """Read one text per row of a file.

    Args:
        path: the file, ``-`` for standard input.
        file_format: ``"txt"``, ``"tsv"`` or ``"jsonl"``. Default: by the file's suffix.
        column: the column's name or number, or the key; plain lines need none.

    Returns:
        At least one text.

    Raises:
        CommandError: the file cannot be read, has no such column, or has no rows.
    """
    table = read_table(path, file_format)
    texts = table.texts(column)
    if not texts:
        raise CommandError(f"{table.name}:1: there is no text in it")
    return texts


def check_standard_input(paths: Sequence[str | None]) -> None:
    """Check that standard input is not to be read more than once.

    Args:
        paths: all files that a command reads, ``None`` for those that are not given.

    Raises:
        CommandError: two of them are ``-``.
    """
    if paths.count(STDIN) > 1:
        raise CommandError("standard input (-) can be read once only; put the other texts into a file")


def check_lengths(tables: Sequence[Table], lengths: Sequence[int]) -> None:
    """Check that files have equally many rows.

    Args:
        tables: the files.
        lengths: how many rows each has.

    Raises:
        CommandError: one has fewer than another; it is named with the line where it ends.
    """
    longest = max(range(len(tables)), key=lambda i: lengths[i])
    for table, length in zip(tables, lengths, strict=True):
        if length != lengths[longest]:
            raise CommandError(
                f"{table.name}:{len(table.lines)}: the file ends here, but {tables[longest].name} has "
                f"{lengths[longest]} texts"
            )


def _lines(data: bytes, name: str) -> list[str]:
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        # With a byte order mark the decoder counts from behind it.
        line = error.object.count(b"\n", 0, error.start) + 1
        start = error.object.rfind(b"\n", 0, error.start) + 1
        byte = error.object[error.start]
        raise CommandError(
            f"{name}:{line}: not valid UTF-8: byte {error.start - start + 1} of the line is 0x{byte:02x}; convert the "
            f"file to UTF-8 first"
        ) from error
    # Not str.splitlines, which also splits at characters that occur within texts, such as U+2028.
    lines = text.split("\n")
    if not lines[-1]:
        lines.pop()
    return [line.removesuffix("\r") for line in lines]


def _is_unicode(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _kind(value: Any) -> str:
    if value is None:
        return "null"
    kinds = {bool: "a truth value", int: "a number", float: "a number", list: "a list", dict: "an object"}
    return kinds.get(type(value), "a text")
