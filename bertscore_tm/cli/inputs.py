"""Read files of plain lines, TSV, CSV, JSON lines, JSON and Parquet; errors name the file and the place."""

from __future__ import annotations

import argparse
import codecs
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
# Parquet has further types, such as bytes.
_TYPE_NAMES = {type(None): "null", bool: "a boolean", int: "a number", float: "a number"}
_TYPE_NAMES |= {list: "an array", dict: "an object", str: "a string"}


@dataclass(frozen=True)
class Table:
    """The rows of a file: texts; for TSV and CSV lists of cells below a header; for JSON and Parquet objects.

    Errors name the file and a row's line, which is its number, from 1, unless it is given, as ``"refs.txt:17"``. In a
    TSV or CSV file without header the columns have numbers, from 1.
    """

    name: str
    rows: list[Any]
    header: Sequence[str] | None = None
    lines: Sequence[int] = ()
    separator: str = ":"

    @property
    def has_columns(self) -> bool:
        """Whether rows have several values: not those of plain lines and of JSON arrays of strings."""
        return self.header is not None or not all(isinstance(row, str) for row in self.rows)

    def texts(self, column: str) -> list[str]:
        """Return one text per row, at least one, of a column or key, which is ignored for rows without columns.

        An array of a single text is this text.
        """
        if not self.rows:
            raise self.error(0, "the file contains no texts")
        values = (value[0] if isinstance(value, list) and len(value) == 1 else value for value in self.values(column))
        return [self.check_text(row, text, column) for row, text in enumerate(values)]

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

    def values(self, column: str) -> list[Any]:
        """Return the values of a column: strings, or for JSON and Parquet any values."""
        return [value for _, value in self.alternatives([column])]

    def alternatives(self, columns: Sequence[str]) -> list[tuple[str, Any]]:
        """Return name and value of the one of several columns that each row has."""
        if not self.has_columns:
            return [(columns[0], row) for row in self.rows]
        if self.header is None:
            return [self._entry(row, columns) for row in range(len(self.rows))]
        name = self._single(0, [name for name in columns if name in self.header]) or columns[0]
        if self.header.count(name) != 1:
            problem = "more than one column is" if name in self.header else "no column is"
            listed = ", ".join(map(repr, self.header)) + _describe_separator(self.header)
            raise CommandError(f"{self.name}:1: {problem} named {name!r}; the file has {listed}")
        number = self.header.index(name)
        return [(name, cells[number]) for cells in self.rows]

    def error(self, row: int, message: str) -> CommandError:
        """Return an error at the place of a row, from 0."""
        line = self.lines[row] if 0 <= row < len(self.lines) else row + 1
        return CommandError(f"{self.name}{self.separator}{line}: {message}")

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

    def _single(self, row: int, names: Sequence[str]) -> str | None:
        if len(names) > 1:
            both = " and ".join(map(repr, names))
            raise self.error(row, f"the columns {both} both exist: choose with --reference-column")
        return names[0] if names else None


def read_table(
    path: str, file_format: str | None = None, columns: Sequence[str] = (), *, has_quoting: bool = True
) -> Table:
    """Read a file, by default in the format of its suffix, into rows; ``-`` is standard input.

    Files with the suffix .gz are decompressed. Blank lines at the end are dropped, except of plain lines. TSV and CSV
    have a header, unless all ``columns`` that will be read are numbers. TSV has the quoting of CSV where the whole file
    parses with it, and literal quotes else and without ``has_quoting``.
    """
    name = "standard input" if path == STDIN else path
    file_format, is_compressed = format_of(path, file_format)
    try:
        data = sys.stdin.buffer.read() if path == STDIN else Path(path).read_bytes()
        if is_compressed:
            data = gzip.decompress(data)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise CommandError(f"{name}: not a valid gzip file: {error}") from error
    except OSError as error:
        raise CommandError(f"{name}: {error.strerror or error}") from error
    if file_format == "parquet":
        return Table(name, _parquet_rows(data, name), separator=": row ")
    text = _decode(data, name)
    if file_format == "json":
        value = _parse_json(text, name)
        if not isinstance(value, list):
            raise CommandError(f"{name}: the file must contain a JSON array of objects or strings")
        return Table(name, value, separator=": row ")
    if file_format in ("csv", "tsv"):
        cells, numbers = _quoted_rows(text, name, ",") if file_format == "csv" else _tab_rows(text, name, has_quoting)
        return _with_header(name, cells, numbers, columns)
    lines = _split_lines(text)
    if file_format == "txt":
        return Table(name, lines)
    while lines and not lines[-1].strip():
        lines.pop()
    return Table(name, [_json_line(line, name, number) for number, line in enumerate(lines, 1)])


def read_texts(
    path: str, file_format: str | None = None, column: str = "text", *, has_quoting: bool = True
) -> list[str]:
    """Read one text per row of a file; the column is ignored for plain lines."""
    return read_table(path, file_format, [column], has_quoting=has_quoting).texts(column)


def check_lengths(*tables: Table) -> None:
    """Check that files have equal numbers of rows; an error names the shorter one's end."""
    longest = max(tables, key=lambda table: len(table.rows))
    ends_blank = not longest.has_columns and len(longest.rows) > 1 and not longest.rows[-1].strip()
    for table in tables:
        if len(table.rows) != len(longest.rows):
            blank = ", as its blank last line is an empty text" if ends_blank else ""
            message = f"the file ends here, but {longest.name} has {len(longest.rows)} texts{blank}"
            raise table.error(len(table.rows) - 1, message)


def format_of(path: str, file_format: str | None = None) -> tuple[str, bool]:
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


def names_a_file(text: str) -> bool:
    """Return whether there is a file of this name, which may be too long for one."""
    with suppress(OSError):
        return Path(text).exists()
    return False


def read_files(arguments: argparse.Namespace, *, keep_blank: bool = False) -> TextPairs:
    """Read the candidates and their references from files, at least one pair; see :func:`read_references`."""
    from bertscore_tm.scoring.texts import TextPairs

    table = read_candidates(arguments.candidates, arguments)
    candidates = table.texts(arguments.candidate_column)
    if arguments.references is None and not table.has_columns:
        raise CommandError(f"no references: give -r FILE, or --format if {table.name} also contains them")
    return TextPairs(candidates, read_references(arguments, table, keep_blank=keep_blank))


def read_candidates(path: str, arguments: argparse.Namespace, *others: str | None) -> Table:
    """Read a file of candidates, which may contain their references and other columns too."""
    columns = [arguments.candidate_column, *filter(None, others)]
    if arguments.references is None:
        columns += arguments.reference_column or REFERENCES
    return _read_as_described(path, arguments, columns)


def _read_as_described(path: str, arguments: argparse.Namespace, columns: Sequence[str]) -> Table:
    return read_table(path, arguments.format, columns, has_quoting=not arguments.no_quoting)


def read_references(arguments: argparse.Namespace, candidates: Table, *, keep_blank: bool = False) -> list[list[str]]:
    """Return the references of every candidate, at least one: those of all files, or of the candidates' file.

    Blank ones next to others are left out, as files have blank lines where a candidate has fewer references, unless
    ``keep_blank`` asks for all.
    """
    from bertscore_tm.scoring.texts import omit_blank

    columns = arguments.reference_column
    groups: list[Sequence[str]] = [REFERENCES] if columns is None else [[column] for column in columns]
    tables = [candidates]
    if arguments.references is not None:
        tables = [_read_as_described(path, arguments, columns or REFERENCES) for path in arguments.references]
    references: list[list[str]] = [[] for _ in candidates.rows]
    for table in tables:
        check_lengths(candidates, table)
        for group in groups:
            for row, (name, value) in enumerate(table.alternatives(group)):
                is_array = isinstance(value, list)
                references[row] += (
                    table.check_texts(row, value, name) if is_array else [table.check_text(row, value, name)]
                )
    return references if keep_blank else [omit_blank(texts) for texts in references]


def read_documents(paths: Sequence[str | None], arguments: argparse.Namespace, num_texts: int) -> list[str] | None:
    """Read the document of each text from the first file that has columns; ``None`` without ``--document-column``."""
    column = arguments.document_column
    if column is None:
        return None
    path = next((path for path in paths if path and format_of(path, arguments.format)[0] != "txt"), None)
    if path is None or path == STDIN:
        raise CommandError("argument --document-column: give a file with columns, such as .tsv or .jsonl, to -c or -r")
    labels = document_labels(_read_as_described(path, arguments, [column]), column)
    if len(labels) != num_texts:
        raise CommandError(f"argument --document-column: {path} has {len(labels)} rows for {num_texts} texts")
    return labels


def document_labels(table: Table, column: str) -> list[str]:
    """Return the document of each row, a string or an integer."""
    values = enumerate(table.values(column))
    return [str(value) if type(value) is int else table.check_text(row, value, column) for row, value in values]


def _with_header(name: str, cells: list[list[str]], lines: Sequence[int], columns: Sequence[str]) -> Table:
    """Return a table of cells, whose first row is the header unless all columns are numbers."""
    header = cells[0] if cells else []
    for line, row in zip(lines, cells, strict=True):
        if len(row) != len(header):
            separator = _describe_separator(header)
            raise CommandError(f"{name}:{line}: {len(row)} columns, but the first line has {len(header)}{separator}")
    if columns and all(column.isdecimal() for column in columns):
        return Table(name, cells, [str(number) for number in range(1, len(header) + 1)], lines)
    return Table(name, cells[1:], header, lines[1:])


def _describe_separator(header: Sequence[str]) -> str:
    """Return the remedy for a header that is a single column since another character separates its columns."""
    separator = next((mark for mark in ";,\t|" if len(header) == 1 and mark in header[0]), None)
    if separator is None:
        return ""
    remedy = "separate them by commas in .csv, by tabs in .tsv"
    return f" (its columns seem to be separated by {separator!r}: {remedy})"


def _decode(data: bytes, name: str) -> str:
    remedy = "convert the file to UTF-8"
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise CommandError(f"{name}:1: not valid UTF-8: the file seems to be UTF-16; {remedy}")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        # The decoder counts from after a byte order mark.
        line = error.object.count(b"\n", 0, error.start) + 1
        column = error.start - error.object.rfind(b"\n", 0, error.start)
        place = f"byte {column} of the line is 0x{error.object[error.start]:02x}"
        raise CommandError(f"{name}:{line}: not valid UTF-8: {place}; {remedy}") from error
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        raise CommandError(f"{name}:{line}: a NUL byte: the file seems to be UTF-16; {remedy}")
    return text


def _split_lines(text: str) -> list[str]:
    # str.splitlines would also split at characters that occur within texts, such as U+2028.
    return [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")] if text else []


def _parse_json(text: str, name: str, line: int | None = None) -> Any:
    """Return the value of a file of JSON, or of one of its lines."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        hint = "; for one object per line give --format jsonl" if line is None and error.msg == "Extra data" else ""
        message = f"not valid JSON: {error.msg} at column {error.colno}{hint}"
        raise CommandError(f"{name}:{line or error.lineno}: {message}") from error
    except (ValueError, RecursionError) as error:
        # Integers of thousands of digits, and too deep nesting.
        raise CommandError(f"{name}{'' if line is None else f':{line}'}: JSON that cannot be read: {error}") from error


def _json_line(text: str, name: str, line: int) -> dict[str, Any]:
    value = _parse_json(text, name, line)
    if not isinstance(value, dict):
        raise CommandError(f"{name}:{line}: the line must be a JSON object, got {_describe_type(value)}")
    return value


def _tab_rows(text: str, name: str, has_quoting: bool) -> tuple[list[list[str]], Sequence[int]]:
    """Return the rows, and the line at which each starts, with the quoting of CSV where the whole file parses with it.

    Quotes of speech may parse too, if one opens in a row and closes in another: then a cell has tabs and line breaks.
    """
    literal = [line.split("\t") for line in _split_lines(text)]
    # A row of empty cells has tabs.
    while literal and len(literal[-1]) == 1 and not literal[-1][0].strip():
        literal.pop()
    if has_quoting and any(cell.startswith('"') for row in literal for cell in row):
        with suppress(CommandError):
            rows, lines = _quoted_rows(text, name, "\t")
            is_joined = any("\t" in cell and "\n" in cell for row in rows for cell in row)
            if len(set(map(len, rows))) == 1 and not is_joined:
                return rows, lines
        if any(len(cell) > 1 and cell[0] == cell[-1] == '"' for row in literal for cell in row):
            warn_user(f"{name}: the quotes around cells are read as characters, since quoting does not fit all rows")
    return literal, range(1, len(literal) + 1)


def _quoted_rows(text: str, name: str, separator: str) -> tuple[list[list[str]], list[int]]:
    """Return the rows, and the line at which each starts."""
    # The default limit is shorter than many documents.
    csv.field_size_limit(_CSV_CELL_LIMIT)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
    rows: list[list[str]] = []
    lines = [1]
    try:
        for row in reader:
            rows.append(row)
            lines.append(reader.line_num + 1)
    except csv.Error as error:
        raise CommandError(f"{name}:{lines[-1]}: not valid CSV: {error}") from error
    while rows and not rows[-1]:
        rows.pop()
    return rows, lines[: len(rows)]


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
    rows: list[dict[str, Any]] = table.to_pylist()
    return rows


def _describe_type(value: Any) -> str:
    return _TYPE_NAMES.get(type(value), type(value).__name__)
