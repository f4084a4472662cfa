"""Read texts from files of plain lines, TSV, CSV, JSON lines, JSON and Parquet; errors name the file and the place."""

from __future__ import annotations

import csv
import gzip
import io
import json
import sys
import zlib
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from bertscore_tm.cli.errors import CommandError
from bertscore_tm.cli.tables import Table

__all__ = [
    "FORMATS",
    "STDIN",
    "STREAMED_FORMATS",
    "check_standard_input",
    "format_of",
    "read_parts",
    "read_table",
    "read_texts",
]

FORMATS = ("txt", "tsv", "csv", "jsonl", "json", "parquet")
# Formats of files that are read part by part.
STREAMED_FORMATS = ("txt", "jsonl")
STDIN = "-"
# The largest that the csv module takes on every platform.
_CSV_CELL_LIMIT = 2**31 - 1


def read_table(path: str, file_format: str | None = None) -> Table:
    """Read a file into rows.

    Args:
        path: the file, ``-`` for standard input; ``.gz`` files are decompressed.
        file_format: one of ``FORMATS``. Default: by the file's suffix; plain lines for standard input and files without
            a suffix.

    Returns:
        The rows, without blank lines at the end of files that are not plain lines.

    Raises:
        CommandError: the file cannot be read, is malformed, or its suffix is unknown.
    """
    name = "standard input" if path == STDIN else path
    found_format, is_compressed = format_of(path, file_format)
    try:
        data = sys.stdin.buffer.read() if path == STDIN else Path(path).read_bytes()
        if is_compressed:
            data = gzip.decompress(data)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise CommandError(f"{name}: not a valid gzip file: {error}") from error
    except OSError as error:
        raise CommandError(f"{name}: {error.strerror or error}") from error
    if found_format == "parquet":
        return Table(name, found_format, _parquet_rows(data, name))
    if found_format == "json":
        return Table(name, found_format, _json_rows(_decode(data, name), name))
    if found_format == "csv":
        rows, line_numbers = _csv_rows(_decode(data, name), name)
        return Table(name, found_format, rows, line_numbers=line_numbers)
    lines = _lines(data, name)
    # A row of empty cells in TSV has tabs.
    filled = [line.replace("\t", ".") for line in lines] if found_format == "tsv" else lines
    return Table(name, found_format, lines if found_format == "txt" else lines[: _num_filled(filled)])


def read_parts(path: str, size: int, given_format: str | None = None) -> Iterator[Table]:
    """Read a file of plain lines or JSON lines part by part, in bounded memory.

    Args:
        path: the file; ``.gz`` files are decompressed.
        size: lines per part.
        given_format: one of ``STREAMED_FORMATS``. Default: by the file's suffix.

    Yields:
        The next lines, at most ``size`` of them.

    Raises:
        CommandError: the file cannot be read or is not UTF-8, or its suffix is that of another format.
    """
    file_format, is_compressed = format_of(path, given_format)
    if file_format not in STREAMED_FORMATS:
        raise CommandError(
            f"{path}: {file_format.upper()} files are not read in parts: convert it to JSON lines (.jsonl)"
        )
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
        file_format: one of ``FORMATS``. Default: by the file's suffix.
        column: the column's name or, in TSV and CSV, its number, or the JSON key; ignored for plain lines.

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


def format_of(path: str, given: str | None = None) -> tuple[str, bool]:
    """Find the format of a file.

    Args:
        path: the file.
        given: one of ``FORMATS``. Default: by the suffix.

    Returns:
        The format, and whether the file is compressed.

    Raises:
        CommandError: the suffix is unknown.

    Example:
        >>> format_of("texts.jsonl.gz")
        ('jsonl', True)
    """
    suffixes = [suffix.lower() for suffix in Path(path).suffixes]
    is_compressed = bool(suffixes) and suffixes[-1] == ".gz"
    if is_compressed:
        suffixes.pop()
    suffix = suffixes[-1].removeprefix(".") if suffixes else "txt"
    if given is None and suffix not in FORMATS:
        raise CommandError(
            f"{path}: the suffix .{suffix} is not one of {', '.join(FORMATS)}: give --format (txt for plain lines)"
        )
    return given or suffix, is_compressed


def _decode(data: bytes, name: str, num_before: int = 0) -> str:
    try:
        return data.decode("utf-8" if num_before else "utf-8-sig")
    except UnicodeDecodeError as error:
        # The decoder counts from after a byte order mark.
        line = num_before + error.object.count(b"\n", 0, error.start) + 1
        start = error.object.rfind(b"\n", 0, error.start) + 1
        byte = error.object[error.start]
        raise CommandError(
            f"{name}:{line}: not valid UTF-8: byte {error.start - start + 1} of the line is 0x{byte:02x}; convert the "
            f"file to UTF-8"
        ) from error


def _lines(data: bytes, name: str, num_before: int = 0) -> list[str]:
    text = _decode(data, name, num_before)
    # str.splitlines would also split at characters that occur within texts, such as U+2028.
    lines = text.split("\n")
    if not lines[-1]:
        lines.pop()
    return [line.removesuffix("\r") for line in lines]


def _num_filled(lines: list[str]) -> int:
    """Return the number of lines up to the last one that is not blank."""
    return next((number for number in range(len(lines), 0, -1) if lines[number - 1].strip()), 0)


def _csv_rows(text: str, name: str) -> tuple[list[list[str]], list[int]]:
    """Return the cells of each row of a CSV file, and the number of the line on which it starts."""
    # The default limit is shorter than many documents.
    csv.field_size_limit(_CSV_CELL_LIMIT)
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    rows: list[list[str]] = []
    line_numbers: list[int] = []
    start = 1
    try:
        for row in reader:
            rows.append(row)
            line_numbers.append(start)
            start = reader.line_num + 1
    except csv.Error as error:
        raise CommandError(f"{name}:{start}: not valid CSV: {error}") from error
    while rows and not rows[-1]:
        rows.pop()
    return rows, line_numbers[: len(rows)]


def _json_rows(text: str, name: str) -> list[Any]:
    """Return the elements of a JSON array."""
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        lines = "; for one object per line give --format jsonl" if error.msg == "Extra data" else ""
        raise CommandError(
            f"{name}:{error.lineno}: not valid JSON: {error.msg} at column {error.colno}{lines}"
        ) from error
    except ValueError as error:
        raise CommandError(f"{name}: a number has more than {sys.get_int_max_str_digits()} digits") from error
    except RecursionError as error:
        raise CommandError(f"{name}: the JSON value is nested too deeply") from error
    if not isinstance(value, list):
        raise CommandError(f"{name}: the file must contain a JSON array of objects or strings")
    return value


def _parquet_rows(data: bytes, name: str) -> list[dict[str, Any]]:
    """Return the rows of a Parquet file as objects."""
    try:
        from pyarrow import ArrowException, parquet
    except ImportError as error:
        raise CommandError(f"{name}: Parquet files need pyarrow: pip install 'bertscore-tm[parquet]'") from error
    try:
        # The threads of parquet.read_table abort a process that ends soon after it, such as with an error.
        table = parquet.ParquetFile(io.BytesIO(data), pre_buffer=False).read(use_threads=False)
    except ArrowException as error:
        raise CommandError(f"{name}: not a valid Parquet file: {error}") from error
    for column in table.column_names:
        if table.column_names.count(column) > 1:
            raise CommandError(f"{name}: more than one column is named {column!r}")
    rows: list[dict[str, Any]] = table.to_pylist()
    return rows
