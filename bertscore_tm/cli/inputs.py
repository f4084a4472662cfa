"""Read files of texts in several formats; errors name the file and the place."""

import csv
import gzip
import io
import json
import re
import sys
import zlib
from collections import Counter
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertscore_tm.cli.errors import CommandError
from bertscore_tm.utilities.chats import is_chat, read_answer
from bertscore_tm.utilities.user_warnings import warn_user

FORMATS = ("txt", "tsv", "csv", "jsonl", "json", "parquet")
STDIN = "-"
# The value of a column that a row lacks.
_MISSING = object()
# The largest that the csv module takes on every platform.
_CSV_CELL_LIMIT = 2**31 - 1
_SPREADSHEETS = ("xlsx", "xls", "ods")
# Lines of WMT's SGML files and of the output of fairseq-generate, whose marks would be scored as text.
_MARKED_LINE = re.compile(r"\s*</?(seg|doc|refset|srcset|tstset|p|hl|mteval)\b|[STHDP]-\d+\t", re.IGNORECASE)
_MARKED_PAGE = "https://github.com/bertscore-tm/bertscore-tm/blob/main/examples/shell.md#files-of-fairseq-and-wmt"


@dataclass(frozen=True)
class Table:
    """The rows of a file, texts or objects. Errors name the line of a row, else its number, from 1.

    ``keys`` are those of a JSON object of texts, whose rows have no columns. ``repeated`` are names that more than one
    column has.
    """

    name: str
    rows: list[Any]
    lines: Sequence[int] | None = None
    keys: Sequence[str] | None = None
    repeated: Collection[str] = ()

    def has_column(self, name: str) -> bool:
        """Check whether the first row has a column."""
        return self.has_columns and _look_up(self.rows[0], name) is not _MISSING

    @property
    def has_columns(self) -> bool:
        """Whether rows have several values: not those of plain lines, of JSON arrays of strings and of texts by key."""
        return self.keys is None and not all(isinstance(row, str) for row in self.rows)

    def values(self, *columns: str) -> list[Any]:
        """Return the value of each row in the one of several columns that it has; without columns, the row."""
        return [self._value(i, columns) for i in range(len(self.rows))] if self.has_columns else self.rows

    def text_lists(self, *columns: str, may_be_missing: bool = False) -> list[list[Any]]:
        """Return the texts of each row, at least one, of a chat its answer; a single text need not be in an array.

        With ``may_be_missing`` texts may be null, and arrays empty.
        """
        if not self.rows:
            raise CommandError(f"{self.name}: the file contains no texts")
        values, lists = self.values(*columns), []
        for row, value in enumerate(values):
            texts = value if isinstance(value, list) and not is_chat(value) else [value]
            try:
                lists.append([read_answer(text) if is_chat(text) else text for text in texts])
            except ValueError as error:
                raise self.error(row, f"{columns[0]!r} is {error}") from error
            allowed = str | None if may_be_missing else str
            has_texts = may_be_missing or len(texts) > 0
            if not has_texts or not all(isinstance(text, allowed) for text in lists[row]):
                raise self.error(row, f"{columns[0]!r} must be a text or an array of texts, got {value!r:.80}")
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

    def column_names(self) -> list[str]:
        """Return the names of the columns that any row has."""
        if not self.has_columns:
            return []
        return list(dict.fromkeys(name for row in self.rows if isinstance(row, dict) for name in row))

    def optional_values(self, column: str) -> list[Any] | None:
        """Return the key of each row, or its value in a column, ``None`` if it lacks one.

        Without keys and without one column of this name, the result is ``None``.
        """
        if self.keys is not None:
            return list(self.keys)
        if not self.has_columns or column in self.repeated:
            return None
        values = [_look_up(row, column) if isinstance(row, dict) else _MISSING for row in self.rows]
        if all(value is _MISSING for value in values):
            return None
        return [None if value is _MISSING else value for value in values]

    def error(self, row: int, message: str) -> CommandError:
        """Return an error at the place of a row, from 0."""
        place = f" row {row + 1}" if self.lines is None else self.lines[row]
        return CommandError(f"{self.name}:{place}: {message}")

    def _value(self, row: int, columns: Sequence[str]) -> Any:
        record = self.rows[row]
        if not isinstance(record, dict):
            raise self.error(row, f"must be an object, got {record!r:.80}")
        if repeated := [name for name in columns if name in self.repeated]:
            place = f"{self.name}:1:" if self.lines else f"{self.name}:"
            raise CommandError(f"{place} more than one column is named {repeated[0]!r}")
        values = {name: value for name in columns if (value := _look_up(record, name)) is not _MISSING}
        if len(values) > 1:
            both = " and ".join(map(repr, values))
            raise self.error(row, f"the columns {both} both exist: choose with --reference-column")
        if not values:
            names = ", ".join(map(repr, record)) or "none"
            raise self.error(row, f"no column or key {columns[0]!r}; there are {names}")
        return next(iter(values.values()))


def _look_up(record: dict[str, Any], name: str) -> Any:
    """Return the value of a column, or of a dotted name the one in the object of its first part."""
    if name in record:
        return record[name]
    outer, _, inner = name.partition(".")
    nested = record.get(outer)
    return _look_up(nested, inner) if isinstance(nested, dict) and inner else _MISSING


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
        return _read_parquet(data, name)
    text = _decode(data, name)
    if file_format == "csv":
        return _with_header(name, _quoted_rows(text, name, ","), columns)
    if file_format == "tsv":
        return _with_header(name, _tab_rows(text, name), columns)
    if file_format == "json":
        return _read_json(text, name)
    lines = _split_lines(text)
    if file_format == "txt":
        num_marked = sum(_MARKED_LINE.match(line) is not None for line in lines)
        if 2 * num_marked > len(lines):
            warn_user(f"{name}: most lines have marks of SGML or fairseq. Convert the file first: {_MARKED_PAGE}")
        return Table(name, lines, range(1, len(lines) + 1))
    while lines and not lines[-1].strip():
        lines.pop()
    numbers = range(1, len(lines) + 1)
    return Table(name, [_parse_json(line, name, number) for number, line in zip(numbers, lines, strict=True)], numbers)


def read_texts(path: str, file_format: str | None = None, column: str = "text") -> list[str]:
    """Read one text per row of a file; the column is ignored for plain lines."""
    return read_table(path, file_format, [column]).texts(column)


def _format_of(path: str, file_format: str | None) -> tuple[str, bool]:
    """Return the given format of a file, by default that of its suffix, and whether it is compressed."""
    name = Path(path.lower())
    is_compressed = name.suffix == ".gz"
    suffix = (name.with_suffix("") if is_compressed else name).suffix.removeprefix(".")
    if not suffix or suffix.isdecimal():
        # A number is that of a version or of a reference, as in refs.0.
        suffix = "txt"
    if suffix in _SPREADSHEETS:
        raise CommandError(f"{path}: a spreadsheet: save it as CSV")
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


def _read_parquet(data: bytes, name: str) -> Table:
    from pyarrow import ArrowInvalid, parquet

    try:
        # The threads of parquet.read_table abort a process that ends soon after it, such as with an error.
        table = parquet.ParquetFile(io.BytesIO(data), pre_buffer=False).read(use_threads=False)
    except ArrowInvalid as error:
        raise CommandError(f"{name}: not a valid Parquet file: {error}: give --format of what it contains") from error
    return Table(name, table.to_pylist(), repeated=_find_repeated(table.column_names))


def _read_json(text: str, name: str) -> Table:
    """Return the rows of an array, of an object of texts by key, or of the annotations of COCO."""
    value = _parse_json(text, name)
    if isinstance(value, dict) and isinstance(value.get("annotations"), list):
        value = value["annotations"]
    if isinstance(value, list):
        return Table(name, value)
    if not isinstance(value, dict) or not all(isinstance(texts, str | list) for texts in value.values()):
        raise CommandError(f"{name}: the file must contain a JSON array of objects or strings, or an object of texts")
    for key, texts in value.items():
        if not is_chat(texts) and any(isinstance(record, dict) for record in texts):
            raise CommandError(f"{name}: the objects are within {key!r}: save that array as a file")
    return Table(name, list(value.values()), keys=list(value))


def _find_repeated(names: Sequence[str]) -> set[str]:
    return {name for name, count in Counter(names).items() if count > 1}


def _parse_json(text: str, name: str, line: int | None = None) -> Any:
    """Return the value of a file of JSON, or of one of its lines."""

    def unite(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        record = dict(pairs)
        if len(record) < len(pairs):
            place = f"{name}:" if line is None else f"{name}:{line}:"
            repeated = min(_find_repeated([key for key, _ in pairs]))
            raise CommandError(f"{place} more than one key of an object is {repeated!r}")
        return record

    try:
        return json.loads(text, object_pairs_hook=unite)
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
    if len(header) == 1 and header[0] not in columns and (mark := re.search(r"[;|,\t]", header[0])):
        raise CommandError(
            f"{name}:1: one column, {header[0]!r}, whose columns seem to be separated by {mark[0]!r}: separate them by "
            f"commas in .csv, by tabs in .tsv"
        )
    records = [dict(zip(header, cells, strict=True)) for _, cells in rows]
    return Table(name, records, [line for line, _ in rows], repeated=_find_repeated(header))


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
