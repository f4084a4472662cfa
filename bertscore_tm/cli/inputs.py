"""Read files of plain lines, TSV, CSV, JSON lines, JSON and Parquet; errors name the file and the place."""

from __future__ import annotations

import argparse
import csv
import gzip
import io
import json
import sys
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertscore_tm.cli.errors import CommandError

if TYPE_CHECKING:
    from bertscore_tm.scoring.texts import TextPairs

FORMATS = ("txt", "tsv", "csv", "jsonl", "json", "parquet")
STDIN = "-"
# The column of the references if none is given: a file has one of these.
REFERENCES = ("reference", "references")
# The largest that the csv module takes on every platform.
_CSV_CELL_LIMIT = 2**31 - 1
# Parquet has further types, such as bytes.
_TYPE_NAMES = {type(None): "null", bool: "a boolean", int: "a number", float: "a number"}
_TYPE_NAMES |= {list: "an array", dict: "an object", str: "a string"}


@dataclass(frozen=True)
class Table:
    """The rows of a file: texts; for TSV and CSV lists of cells, a header included; for JSON and Parquet objects.

    Error messages name the file or a row's place, such as ``"refs.txt:17"``, which is its number unless it is given.
    """

    name: str
    rows: list[Any]
    places: Sequence[str] = ()
    has_cells: bool = False

    @property
    def has_columns(self) -> bool:
        """Whether rows have several values: not those of plain lines and of JSON arrays of strings."""
        return self.has_cells or not all(isinstance(row, str) for row in self.rows)

    def texts(self, column: str) -> list[str]:
        """Return one text per row, at least one, of a column or key, which is ignored for rows without columns.

        In a TSV or CSV file without header the column is its number, from 1.
        """
        (texts,) = self.columns([column])
        if not texts:
            raise self.error(0, "the file contains no texts")
        return [self.check_text(row, text, column) for row, text in enumerate(texts)]

    def check_text(self, row: int, value: Any, column: str) -> str:
        """Return a value of a row, from 0, and of the named column if it is a valid text."""
        if not isinstance(value, str):
            raise self.error(row, f"{column!r} must be a string, got {_describe_type(value)}")
        try:
            value.encode("utf-8")
        except UnicodeEncodeError as error:
            raise self.error(row, f"{column!r} contains an unpaired surrogate, which is not a character") from error
        return value

    def check_texts(self, row: int, values: Any, column: str) -> list[str]:
        """Return the value of a row, from 0, and of the named column if it is an array of at least one text."""
        if not isinstance(values, list) or not values:
            raise self.error(row, f"{column!r} must be an array of at least one text")
        return [self.check_text(row, text, f"{column}[{i}]") for i, text in enumerate(values)]

    def columns(self, columns: Sequence[str]) -> list[list[Any]]:
        """Return the values of several columns: strings, or for JSON and Parquet any values.

        Names or numbers as in :meth:`texts`; a TSV or CSV file has a header unless all are numbers.
        """
        return [[value for _, value in column] for column in self.alternatives([[column] for column in columns])]

    def alternatives(self, groups: Sequence[Sequence[str]]) -> list[list[tuple[str, Any]]]:
        """Return, for each of several groups of columns, name and value of the one of them that each row has."""
        if self.has_cells:
            header = self.rows[0] if self.rows else ()
            columns = [self._single(0, [name for name in group if name in header]) or group[0] for group in groups]
            cells = self._cell_columns(columns)
            return [[(name, cell) for cell in column] for name, column in zip(columns, cells, strict=True)]
        if not self.has_columns:
            return [[(group[0], row) for row in self.rows] for group in groups]
        return [[self._entry(row, group) for row in range(len(self.rows))] for group in groups]

    def has_header(self, columns: Sequence[str]) -> bool:
        """Return whether the first line has the names of columns: in TSV and CSV, unless all given are numbers."""
        return self.has_cells and not all(column.isdecimal() for column in columns)

    def error(self, row: int, message: str, *, header: bool = False) -> CommandError:
        """Return an error at the place of a row, from 0; with ``header`` rows are counted after the header."""
        number = row + header
        place = self.places[number] if 0 <= number < len(self.places) else f"{self.name}:{number + 1}"
        return CommandError(f"{place}: {message}")

    def _entry(self, row: int, columns: Sequence[str]) -> tuple[str, Any]:
        """Return name and value of the one of several keys that an object has."""
        record = self.rows[row]
        if not isinstance(record, dict):
            raise self.error(row, f"the element must be a JSON object, got {_describe_type(record)}")
        name = self._single(row, [name for name in columns if name in record])
        if name is None:
            keys = ", ".join(repr(name) for name in record)
            raise self.error(row, f"no key {columns[0]!r}; the object has {keys or 'none'}")
        return name, record[name]

    def _single(self, row: int, known: Sequence[str]) -> str | None:
        if len(known) > 1:
            both = " and ".join(map(repr, known))
            raise self.error(row, f"the columns {both} both exist: choose with --reference-column")
        return known[0] if known else None

    def _cell_columns(self, columns: Sequence[str]) -> list[list[Any]]:
        if not self.rows:
            return [[] for _ in columns]
        header, first = self.has_header(columns), self.rows[0]
        numbers = [self._column_number(column, first) for column in columns]
        for row, cells in enumerate(self.rows):
            if len(cells) != len(first):
                raise self.error(row, f"{len(cells)} columns, but the first line has {len(first)}")
        return [[cells[number] for cells in self.rows[header:]] for number in numbers]

    def _column_number(self, column: str, first: Sequence[str]) -> int:
        if column.isdecimal():
            if 1 <= int(column) <= len(first):
                return int(column) - 1
            raise self.error(0, f"column {column} does not exist: the line has {len(first)}, numbered from 1")
        if first.count(column) == 1:
            return first.index(column)
        problem = "more than one column is" if column in first else "no column is"
        raise self.error(0, f"{problem} named {column!r}; the header has {', '.join(map(repr, first))}")


def read_table(path: str, file_format: str | None = None) -> Table:
    """Read a file, by default in the format of its suffix, into rows; ``-`` is standard input.

    Files with the suffix .gz are decompressed. Blank lines at the end are dropped, except of plain lines.
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
        return _number_rows(name, _parquet_rows(data, name))
    text = _decode(data, name)
    if found_format == "json":
        hint = "; for one object per line give --format jsonl"
        value = _parse_json(text, lambda line: f"{name}:{line}" if line else name, hint)
        if not isinstance(value, list):
            raise CommandError(f"{name}: the file must contain a JSON array of objects or strings")
        return _number_rows(name, value)
    if found_format == "csv":
        return _csv_table(text, name)
    # str.splitlines would also split at characters that occur within texts, such as U+2028.
    lines = [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")] if text else []
    if found_format == "txt":
        return Table(name, lines)
    # A row of empty cells in TSV has tabs.
    while lines and not (lines[-1].replace("\t", ".") if found_format == "tsv" else lines[-1]).strip():
        lines.pop()
    if found_format == "tsv":
        return Table(name, [line.split("\t") for line in lines], has_cells=True)
    return Table(name, [_json_line(line, f"{name}:{number}") for number, line in enumerate(lines, 1)])


def read_texts(path: str, file_format: str | None = None, column: str = "text") -> list[str]:
    """Read one text per row of a file; the column is ignored for plain lines."""
    return read_table(path, file_format).texts(column)


def check_lengths(tables: Sequence[Table], lengths: Sequence[int]) -> None:
    """Check that files have equal numbers of rows, the header not counted; an error names the shorter one's end."""
    if len({table.name for table in tables}) == 1 and len(set(lengths)) > 1:
        # One of the columns was read with the header.
        raise CommandError(f"{tables[0].name}: give all columns by name, or of a file without header all by number")
    longest = tables[lengths.index(max(lengths))]
    ends_blank = not longest.has_columns and len(longest.rows) > 1 and not longest.rows[-1].strip()
    for table, length in zip(tables, lengths, strict=True):
        if length != max(lengths):
            blank = ", as its blank last line is an empty text" if ends_blank else ""
            message = f"the file ends here, but {longest.name} has {max(lengths)} texts{blank}"
            raise table.error(len(table.rows) - 1, message)


def format_of(path: str, given: str | None = None) -> tuple[str, bool]:
    """Return the given format of a file, by default that of its suffix, and whether it is compressed."""
    suffixes = [suffix.lower() for suffix in Path(path).suffixes]
    is_compressed = bool(suffixes) and suffixes[-1] == ".gz"
    if is_compressed:
        suffixes.pop()
    suffix = suffixes[-1].removeprefix(".") if suffixes else "txt"
    if given is None and suffix not in FORMATS:
        raise CommandError(f"{path}: the suffix .{suffix} is not one of {', '.join(FORMATS)}: give --format")
    return given or suffix, is_compressed


def names_a_file(text: str) -> bool:
    """Return whether there is a file of this name, which may be too long for one."""
    with suppress(OSError):
        return Path(text).exists()
    return False


def read_files(arguments: argparse.Namespace) -> TextPairs:
    """Read the candidates and their references from files, at least one pair."""
    from bertscore_tm.scoring.texts import TextPairs

    table = read_table(arguments.candidates, arguments.format)
    candidates = table.texts(arguments.candidate_column)
    if arguments.references is None and not table.has_columns:
        raise CommandError(f"no references: give -r FILE, or --format if {table.name} also contains them")
    return TextPairs(candidates, read_references(arguments, table, len(candidates)))


def read_references(arguments: argparse.Namespace, candidates: Table, num_candidates: int) -> list[list[str]]:
    """Return the references of every candidate, at least one: those of all files, or of the candidates' file."""
    paths, columns = arguments.references, arguments.reference_column
    groups: list[Sequence[str]] = [REFERENCES] if columns is None else [[column] for column in columns]
    tables = [candidates] if paths is None else [read_table(path, arguments.format) for path in paths]
    references: list[list[str]] = [[] for _ in range(num_candidates)]
    for table in tables:
        found = table.alternatives(groups)
        check_lengths([candidates, table], [num_candidates, len(found[0])])
        for column in found:
            for row, (name, value) in enumerate(column):
                if isinstance(value, list):
                    references[row] += table.check_texts(row, value, name)
                else:
                    references[row].append(table.check_text(row, value, name))
    return references


def read_documents(paths: Sequence[str | None], arguments: argparse.Namespace, num_texts: int) -> list[str] | None:
    """Read the document of each text from the first file that has columns; ``None`` without ``--document-column``."""
    if arguments.document_column is None:
        return None
    path = next((path for path in paths if path and format_of(path, arguments.format)[0] != "txt"), None)
    if path is None or path == STDIN:
        raise CommandError("argument --document-column: give a file with columns, such as .tsv or .jsonl, to -c or -r")
    labels = document_labels(read_table(path, arguments.format), arguments.document_column)
    if len(labels) != num_texts:
        raise CommandError(f"argument --document-column: {path} has {len(labels)} rows for {num_texts} texts")
    return labels


def document_labels(table: Table, column: str) -> list[str]:
    """Return the document of each row, a string or an integer."""
    (values,) = table.columns([column])
    return [
        str(value) if type(value) is int else table.check_text(row, value, column) for row, value in enumerate(values)
    ]


def _number_rows(name: str, rows: list[Any]) -> Table:
    return Table(name, rows, [f"{name}: row {number}" for number in range(1, len(rows) + 1)])


def _decode(data: bytes, name: str) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        # The decoder counts from after a byte order mark.
        line = error.object.count(b"\n", 0, error.start) + 1
        start = error.object.rfind(b"\n", 0, error.start) + 1
        byte = error.object[error.start]
        place = f"byte {error.start - start + 1} of the line is 0x{byte:02x}"
        raise CommandError(f"{name}:{line}: not valid UTF-8: {place}; convert the file to UTF-8") from error


def _parse_json(text: str, place: Callable[[int], str], hint: str = "") -> Any:
    """Return the value of a JSON text; ``place`` names one of its lines, and ``hint`` a remedy for several values."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        message = f"{error.msg} at column {error.colno}{hint if error.msg == 'Extra data' else ''}"
        raise CommandError(f"{place(error.lineno)}: not valid JSON: {message}") from error
    except ValueError as error:
        raise CommandError(f"{place(0)}: a number has more than {sys.get_int_max_str_digits()} digits") from error
    except RecursionError as error:
        raise CommandError(f"{place(0)}: the JSON value is nested too deeply") from error


def _json_line(line: str, place: str) -> dict[str, Any]:
    value = _parse_json(line, lambda _: place)
    if not isinstance(value, dict):
        raise CommandError(f"{place}: the line must be a JSON object, got {_describe_type(value)}")
    return value


def _csv_table(text: str, name: str) -> Table:
    # The default limit is shorter than many documents.
    csv.field_size_limit(_CSV_CELL_LIMIT)
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    rows: list[list[str]] = []
    # Cells may have several lines.
    places: list[str] = [f"{name}:1"]
    try:
        for row in reader:
            rows.append(row)
            places.append(f"{name}:{reader.line_num + 1}")
    except csv.Error as error:
        raise CommandError(f"{places[-1]}: not valid CSV: {error}") from error
    while rows and not rows[-1]:
        rows.pop()
    return Table(name, rows, places[: len(rows)], has_cells=True)


def _parquet_rows(data: bytes, name: str) -> list[dict[str, Any]]:
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


def _describe_type(value: Any) -> str:
    return _TYPE_NAMES.get(type(value), type(value).__name__)
