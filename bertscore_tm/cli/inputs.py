"""Read files of plain lines, TSV, CSV, JSON lines, JSON and Parquet; errors name the file and the place."""

from __future__ import annotations

import argparse
import csv
import gzip
import io
import json
import sys
import zlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertscore_tm.cli.errors import CommandError
from bertscore_tm.utilities.user_warnings import warn_user

if TYPE_CHECKING:
    from bertscore_tm.scoring.texts import TextPairs

FORMATS = ("txt", "tsv", "csv", "jsonl", "json", "parquet")
STDIN = "-"
# The column of the references if none is given: a file has one of these.
REFERENCES = ("reference", "references")
# The largest that the csv module takes on every platform.
_CSV_CELL_LIMIT = 2**31 - 1


@dataclass(frozen=True)
class Table:
    """The rows of a file, texts or objects. Errors name the line of a row, else its number, from 1."""

    name: str
    rows: list[Any]
    lines: Sequence[int] | None = None

    @property
    def has_columns(self) -> bool:
        """Whether rows have several values: not those of plain lines and of JSON arrays of strings."""
        return not all(isinstance(row, str) for row in self.rows)

    def values(self, *columns: str) -> list[Any]:
        """Return the value of each row in the one of several columns that it has; a row that is a text, itself."""
        return [row if isinstance(row, str) else self._value(i, columns) for i, row in enumerate(self.rows)]

    def text_lists(self, *columns: str) -> list[list[str]]:
        """Return the texts of each row, at least one; a single text need not be in an array."""
        if not self.rows:
            raise CommandError(f"{self.name}: the file contains no texts")
        values = self.values(*columns)
        lists = [value if isinstance(value, list) else [value] for value in values]
        for row, texts in enumerate(lists):
            if not texts or not all(isinstance(text, str) for text in texts):
                raise self.error(row, f"{columns[0]!r} must be a text or an array of texts, got {values[row]!r:.80}")
        return lists

    def texts(self, column: str) -> list[str]:
        """Return the text of each row, which may be in an array."""
        lists = self.text_lists(column)
        for row, texts in enumerate(lists):
            if len(texts) > 1:
                raise self.error(row, f"{column!r} must be a single text, got an array of {len(texts)}")
        return [text for (text,) in lists]

    def labels(self, column: str) -> list[str]:
        """Return the value of each row, a string or a whole number, as a string."""
        values = self.values(column)
        for row, value in enumerate(values):
            if not isinstance(value, str | int):
                raise self.error(row, f"{column!r} must be a string or a whole number, got {value!r:.80}")
        return list(map(str, values))

    def error(self, row: int, message: str) -> CommandError:
        """Return an error at the place of a row, from 0."""
        place = f" row {row + 1}" if self.lines is None else self.lines[row]
        return CommandError(f"{self.name}:{place}: {message}")

    def _value(self, row: int, columns: Sequence[str]) -> Any:
        record = self.rows[row]
        if not isinstance(record, dict):
            raise self.error(row, f"must be an object, got {record!r:.80}")
        names = [name for name in columns if name in record]
        if len(names) > 1:
            both = " and ".join(map(repr, names))
            raise self.error(row, f"the columns {both} both exist: choose with --reference-column")
        if not names:
            raise self.error(
                row, f"no column or key {columns[0]!r}; there are {', '.join(map(repr, record)) or 'none'}"
            )
        return record[names[0]]


def read_table(path: str, file_format: str | None = None, columns: Sequence[str] = ()) -> Table:
    """Read a file, by default in the format of its suffix, into rows; ``-`` is standard input.

    Files with the suffix .gz are decompressed. Blank lines at the end are dropped, except of plain lines. TSV and CSV
    have a header, unless all ``columns`` that will be read are numbers. TSV has the quoting of CSV where the whole file
    parses with it, else literal quotes.
    """
    name = "standard input" if path == STDIN else path
    file_format, is_compressed = _format_of(path, file_format)
    data = sys.stdin.buffer.read() if path == STDIN else Path(path).read_bytes()
    if is_compressed:
        try:
            data = gzip.decompress(data)
        except (EOFError, OSError, zlib.error) as error:
            raise CommandError(f"{name}: not a valid gzip file: {error}") from error
    if file_format == "parquet":
        from pyarrow import parquet

        # The threads of parquet.read_table abort a process that ends soon after it, such as with an error.
        file = parquet.ParquetFile(io.BytesIO(data), pre_buffer=False)
        return Table(name, file.read(use_threads=False).to_pylist())
    text = _decode(data, name)
    if file_format == "csv":
        return _with_header(name, _quoted_rows(text, name, ","), columns)
    if file_format == "tsv":
        return _with_header(name, _tab_rows(text, name), columns)
    lines = _split_lines(text)
    if file_format == "txt":
        return Table(name, lines, range(1, len(lines) + 1))
    if file_format == "json":
        value = _parse_json(text, name)
        if not isinstance(value, list):
            raise CommandError(f"{name}: the file must contain a JSON array of objects or strings")
        return Table(name, value)
    while lines and not lines[-1].strip():
        lines.pop()
    numbers = range(1, len(lines) + 1)
    return Table(name, [_parse_json(line, name, number) for number, line in zip(numbers, lines, strict=True)], numbers)


def read_texts(path: str, file_format: str | None = None, column: str = "text") -> list[str]:
    """Read one text per row of a file; the column is ignored for plain lines."""
    return read_table(path, file_format, [column]).texts(column)


def read_pairs(
    arguments: argparse.Namespace, *others: str | None, keep_blank: bool = False
) -> tuple[TextPairs, list[Table]]:
    """Read the candidates and their references, at least one pair, and return their files too, the candidates' first.

    ``others`` are further columns that will be read, and ``keep_blank`` is that of :func:`read_references`.
    """
    table = read_candidates(arguments.candidates, arguments, *others)
    candidates = table.texts(arguments.candidate_column)
    if arguments.references is None and not table.has_columns:
        raise CommandError(f"no references: give -r FILE, or --format if {table.name} also contains them")
    references, tables = read_references(arguments, table, keep_blank=keep_blank)

    from bertscore_tm.scoring.texts import TextPairs

    return TextPairs(candidates, references), [table, *tables]


def read_candidates(path: str, arguments: argparse.Namespace, *others: str | None) -> Table:
    """Read a file of candidates, which may contain their references and other columns too."""
    columns = [arguments.candidate_column, *filter(None, others)]
    if arguments.references is None:
        columns += arguments.reference_column or REFERENCES
    return read_table(path, arguments.format, columns)


def read_references(
    arguments: argparse.Namespace, candidates: Table, *, keep_blank: bool = False
) -> tuple[list[list[str]], list[Table]]:
    """Return the references of every candidate, at least one, those of all files and columns, and the files.

    Without files of references, those of the candidates have them. Blank ones next to others are left out, as files
    have blank lines where a candidate has fewer references, unless ``keep_blank`` asks for all.
    """
    from bertscore_tm.scoring.texts import omit_blank

    columns, tables = arguments.reference_column or REFERENCES, [candidates]
    if arguments.references is not None:
        tables = [read_table(path, arguments.format, columns) for path in arguments.references]
        check_lengths(candidates, *tables)
    groups = [REFERENCES] if arguments.reference_column is None else [[column] for column in columns]
    lists = [table.text_lists(*group) for table in tables for group in groups]
    references = [[text for texts in row for text in texts] for row in zip(*lists, strict=True)]
    return references if keep_blank else [omit_blank(texts) for texts in references], tables


def read_documents(tables: Sequence[Table], arguments: argparse.Namespace) -> list[str] | None:
    """Return the document of each text in the first file with columns; ``None`` without ``--document-column``."""
    if arguments.document_column is None:
        return None
    table = next((table for table in tables if table.has_columns), None)
    if table is None:
        raise CommandError("argument --document-column: give a file with columns, such as .tsv or .jsonl, to -c or -r")
    return table.labels(arguments.document_column)


def check_lengths(first: Table, *others: Table) -> None:
    """Check that files have equal numbers of rows."""
    for table in others:
        if len(table.rows) != len(first.rows):
            counts = f"got {len(first.rows)} and {len(table.rows)}"
            raise CommandError(f"{first.name} and {table.name} must have equal numbers of texts, {counts}")


def _format_of(path: str, file_format: str | None) -> tuple[str, bool]:
    """Return the given format of a file, by default that of its suffix, and whether it is compressed."""
    name = Path(path.lower())
    is_compressed = name.suffix == ".gz"
    suffix = (name.with_suffix("") if is_compressed else name).suffix.removeprefix(".")
    if not suffix or suffix.isdecimal():
        # A number is that of a version or of a reference, as in refs.0.
        suffix = "txt"
    if file_format is None and suffix not in FORMATS:
        raise CommandError(f"{path}: the suffix .{suffix} is not one of {', '.join(FORMATS)}: give --format")
    return file_format or suffix, is_compressed


def _decode(data: bytes, name: str) -> str:
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise CommandError(f"{name}:{line}: not valid UTF-8: {error.reason}; convert the file to UTF-8") from error
    if "\0" in text:
        raise CommandError(f"{name}: NUL bytes: the file seems to be UTF-16; convert the file to UTF-8")
    return text


def _split_lines(text: str) -> list[str]:
    # str.splitlines would also split at characters that occur within texts, such as U+2028.
    return [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")] if text else []


def _parse_json(text: str, name: str, line: int | None = None) -> Any:
    """Return the value of a file of JSON, or of one of its lines."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        place = f"{name}:{line or error.lineno}"
        raise CommandError(f"{place}: not valid JSON: {error.msg} at column {error.colno}") from error


def _with_header(name: str, rows: list[tuple[int, list[str]]], columns: Sequence[str]) -> Table:
    """Return a table of cells with their lines, whose first row is the header unless all columns are numbers."""
    header = rows[0][1] if rows else []
    for line, cells in rows:
        if len(cells) != len(header):
            raise CommandError(f"{name}:{line}: {len(cells)} columns, but the first line has {len(header)}: {header}")
    if columns and all(column.isdecimal() for column in columns):
        header = [str(number) for number in range(1, len(header) + 1)]
    else:
        rows = rows[1:]
    if repeated := sorted({column for column in columns if header.count(column) > 1}):
        raise CommandError(f"{name}:1: more than one column is named {', '.join(map(repr, repeated))}")
    if (
        len(header) == 1
        and header[0] not in columns
        and (mark := next((mark for mark in ";|,\t" if mark in header[0]), None))
    ):
        raise CommandError(
            f"{name}:1: one column, {header[0]!r}, whose columns seem to be separated by {mark!r}: separate them by "
            f"commas in .csv, by tabs in .tsv"
        )
    return Table(name, [dict(zip(header, cells, strict=True)) for _, cells in rows], [line for line, _ in rows])


def _tab_rows(text: str, name: str) -> list[tuple[int, list[str]]]:
    """Return the rows and their lines, with the quoting of CSV where the whole file parses with it.

    Quotes of speech may parse too, if one opens in a row and closes in another: then a cell has tabs and line breaks.
    """
    literal = [(number, line.split("\t")) for number, line in enumerate(_split_lines(text), 1)]
    # A row of empty cells has tabs.
    while literal and len(literal[-1][1]) == 1 and not literal[-1][1][0].strip():
        literal.pop()
    cells = [cell for _, row in literal for cell in row]
    if any(cell.startswith('"') for cell in cells):
        with suppress(CommandError):
            rows = _quoted_rows(text, name, "\t")
            is_joined = any("\t" in cell and "\n" in cell for _, row in rows for cell in row)
            if len({len(row) for _, row in rows}) == 1 and not is_joined:
                return rows
        if any(len(cell) > 1 and cell[0] == cell[-1] == '"' for cell in cells):
            warn_user(f"{name}: the quotes around cells are read as characters, since quoting does not fit all rows")
    return literal


def _quoted_rows(text: str, name: str, separator: str) -> list[tuple[int, list[str]]]:
    """Return the rows, and the line at which each starts."""
    # The default limit is shorter than many documents.
    csv.field_size_limit(_CSV_CELL_LIMIT)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
    rows, line = [], 1
    try:
        for row in reader:
            rows.append((line, row))
            line = reader.line_num + 1
    except csv.Error as error:
        raise CommandError(f"{name}:{line}: not valid CSV: {error}") from error
    while rows and not rows[-1][1]:
        rows.pop()
    return rows
