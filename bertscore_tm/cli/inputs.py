"""Read texts from plain, tab-separated and JSON lines files; errors name the file and the line."""

from __future__ import annotations

import gzip
import json
import sys
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from bertscore_tm.cli.errors import CommandError

__all__ = [
    "FORMATS",
    "STDIN",
    "Table",
    "check_lengths",
    "check_standard_input",
    "read_parts",
    "read_table",
    "read_texts",
]

FORMATS = ("txt", "tsv", "jsonl")
STDIN = "-"


@dataclass(frozen=True)
class Table:
    """The rows of a file.

    Args:
        name: the file's name in error messages.
        file_format: ``"txt"``, ``"tsv"`` or ``"jsonl"``.
        lines: the file's lines, without line ends.
        num_before: number of lines of the file before these.
    """

    name: str
    file_format: str
    lines: list[str]
    num_before: int = 0

    def texts(self, column: str) -> list[str]:
        """Return one text per row.

        Args:
            column: name of a TSV column or JSON key, or in a TSV file without header the column's number from 1. It is
                ignored for plain lines.

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
        if self.file_format == "jsonl" and not _is_unicode(value):
            raise self.error(row, f"{column!r} contains an unpaired surrogate, which is not a character")
        return value

    def columns(self, columns: Sequence[str]) -> list[list[Any]]:
        """Return the values of several columns.

        Args:
            columns: names or numbers as in :meth:`texts`. A TSV file has a header unless all of them are numbers.

        Returns:
            The values of each column: strings, or for JSON lines any JSON values.

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
            The names; an empty list for plain lines and empty files.
        """
        if not self.lines or self.file_format == "txt":
            return []
        return self.lines[0].split("\t") if self.file_format == "tsv" else list(self._object(0))

    def error(self, row: int, message: str, *, header: bool = False) -> CommandError:
        """Return an error that names the file and the line of a row.

        Args:
            row: number of the row, from 0.
            message: what is wrong with the row.
            header: whether the file has a header above the rows.

        Returns:
            The error.
        """
        return CommandError(f"{self.name}:{self.num_before + row + 1 + header}: {message}")

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
                raise self.error(0, f"column {column} does not exist: the line has {len(first)}, numbered from 1")
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
        except ValueError as error:
            raise self.error(row, f"a number has more than {sys.get_int_max_str_digits()} digits") from error
        except RecursionError as error:
            raise self.error(row, "the JSON value is nested too deeply") from error
        if not isinstance(record, dict):
            raise self.error(row, f"the line must be a JSON object, got {_describe_type(record)}")
        return record


def read_table(path: str, file_format: str | None = None) -> Table:
    """Read a file into rows.

    Args:
        path: the file, ``-`` for standard input; ``.gz`` files are decompressed.
        file_format: ``"txt"``, ``"tsv"`` or ``"jsonl"``. Default: by the file's suffix, ``"txt"`` for any other suffix.

    Returns:
        The rows, without blank lines at the end of JSON lines.

    Raises:
        CommandError: the file cannot be read or is not UTF-8.
    """
    name = "standard input" if path == STDIN else path
    try:
        data = sys.stdin.buffer.read() if path == STDIN else Path(path).read_bytes()
        found_format, is_compressed = _format_of(path)
        if is_compressed:
            data = gzip.decompress(data)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise CommandError(f"{name}: not a valid gzip file: {error}") from error
    except OSError as error:
        raise CommandError(f"{name}: {error.strerror or error}") from error
    file_format = file_format or found_format
    lines = _lines(data, name)
    return Table(name, file_format, lines[: _num_filled(lines)] if file_format == "jsonl" else lines)


def read_parts(path: str, size: int) -> Iterator[Table]:
    """Read a file of plain lines or JSON lines part by part, in bounded memory.

    Args:
        path: the file; ``.gz`` files are decompressed.
        size: lines per part.

    Yields:
        The next lines, at most ``size`` of them.

    Raises:
        CommandError: the file cannot be read or is not UTF-8, or its suffix is that of a TSV file.
    """
    file_format, is_compressed = _format_of(path)
    if file_format == "tsv":
        raise CommandError(f"{path}: TSV files are not read in parts: convert it to JSON lines (.jsonl)")
    num_before = 0
    # Blank lines of JSON lines, until it is known whether they are the last ones.
    blank: list[str] = []
    try:
        with gzip.open(path) if is_compressed else Path(path).open("rb") as file:
            while data := b"".join(islice(file, size)):
                lines = [*blank, *_lines(data, path, num_before + len(blank))]
                num_filled = _num_filled(lines) if file_format == "jsonl" else len(lines)
                lines, blank = lines[:num_filled], lines[num_filled:]
                if lines:
                    yield Table(path, file_format, lines, num_before)
                    num_before += len(lines)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise CommandError(f"{path}: not a valid gzip file: {error}") from error
    except OSError as error:
        raise CommandError(f"{path}: {error.strerror or error}") from error


def read_texts(path: str, file_format: str | None = None, column: str = "text") -> list[str]:
    """Read one text per row of a file.

    Args:
        path: the file, ``-`` for standard input.
        file_format: ``"txt"``, ``"tsv"`` or ``"jsonl"``. Default: by the file's suffix.
        column: the TSV column's name or number, or the JSON key; ignored for plain lines.

    Returns:
        At least one text.

    Raises:
        CommandError: the file cannot be read, has no such column, or has no rows.
    """
    table = read_table(path, file_format)
    texts = table.texts(column)
    if not texts:
        raise table.error(0, "the file contains no texts")
    return texts


def check_standard_input(paths: Sequence[str | None]) -> None:
    """Check that standard input is given at most once.

    Args:
        paths: all files that a command reads, ``None`` for files that are not given.

    Raises:
        CommandError: two of them are ``-``.
    """
    if paths.count(STDIN) > 1:
        raise CommandError("standard input (-) can be read only once: put the other texts into a file")


def check_lengths(tables: Sequence[Table], lengths: Sequence[int]) -> None:
    """Check that files have equal numbers of rows.

    Args:
        tables: the files.
        lengths: number of rows of each file.

    Raises:
        CommandError: a file has fewer rows than another; the message names it and its last line.
    """
    longest = max(range(len(tables)), key=lambda i: lengths[i])
    for table, length in zip(tables, lengths, strict=True):
        if length != lengths[longest]:
            raise CommandError(
                f"{table.name}:{table.num_before + len(table.lines)}: the file ends here, but {tables[longest].name} "
                f"has {tables[longest].num_before + lengths[longest]} texts"
            )


def _format_of(path: str) -> tuple[str, bool]:
    """Return the format that a file's suffix stands for, and whether it is compressed."""
    suffixes = [suffix.lower() for suffix in Path(path).suffixes]
    is_compressed = bool(suffixes) and suffixes[-1] == ".gz"
    if is_compressed:
        suffixes.pop()
    suffix = suffixes[-1].removeprefix(".") if suffixes else ""
    return suffix if suffix in FORMATS else "txt", is_compressed


def _lines(data: bytes, name: str, num_before: int = 0) -> list[str]:
    try:
        text = data.decode("utf-8" if num_before else "utf-8-sig")
    except UnicodeDecodeError as error:
        # The decoder counts from after a byte order mark.
        line = num_before + error.object.count(b"\n", 0, error.start) + 1
        start = error.object.rfind(b"\n", 0, error.start) + 1
        byte = error.object[error.start]
        raise CommandError(
            f"{name}:{line}: not valid UTF-8: byte {error.start - start + 1} of the line is 0x{byte:02x}; convert the "
            f"file to UTF-8"
        ) from error
    # str.splitlines would also split at characters that occur within texts, such as U+2028.
    lines = text.split("\n")
    if not lines[-1]:
        lines.pop()
    return [line.removesuffix("\r") for line in lines]


def _num_filled(lines: list[str]) -> int:
    """Return the number of lines up to the last one that is not blank."""
    return next((number for number in range(len(lines), 0, -1) if lines[number - 1].strip()), 0)


def _is_unicode(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _describe_type(value: Any) -> str:
    if value is None:
        return "null"
    names = {bool: "a boolean", int: "a number", float: "a number", list: "an array", dict: "an object"}
    return names.get(type(value), "a string")
