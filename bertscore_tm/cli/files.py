"""Read files of texts in several formats; errors name the file and the place."""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
import shlex
import sys
import zlib
from collections import Counter
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bertscore_tm.cli.errors import CommandError, is_closed
from bertscore_tm.utilities.chats import is_chat, read_answer
from bertscore_tm.utilities.warnings import warn_user

FORMATS = ("txt", "tsv", "csv", "jsonl", "json", "parquet")
STDIN = "-"
# The value of a column that a row lacks.
_MISSING = object()
# The largest that the csv module takes on every platform.
_CSV_CELL_LIMIT = 2**31 - 1
_SPREADSHEETS = ("xlsx", "xls", "ods")
# Commands that decompress files.
_DECOMPRESS = {
    "bz2": "bzip2 -dk",
    "xz": "xz -dk",
    "zst": "zstd -d",
    "zip": "unzip",
    "tar": "tar -xf",
    "tgz": "tar -xf",
}
# The first line of a CSV file for Excel, without the commas.
_SEPARATOR_LINE = re.compile(r"sep=[;|\t]?", re.IGNORECASE)
# An index as in choices[0].
_INDEX = re.compile(r"\[(\d+)\]")
# Lines of WMT's SGML files and of the output of fairseq-generate, whose marks would be scored as text.
_MARKED_LINE = re.compile(r"\s*</?(seg|doc|refset|srcset|tstset|p|hl|mteval)\b|[STHDP]-\d+\t", re.IGNORECASE)
_PAGE = "https://github.com/bertscore-tm/bertscore-tm/blob/main/examples/docs/shell.md"
_MARKED_PAGE = f"{_PAGE}#files-of-fairseq-and-wmt"
_OTHER_PAGE = f"{_PAGE}#files-of-other-kinds"
# Pages that say how files are converted to lines of text.
_CONVERT = {
    "sgm": _MARKED_PAGE,
    "sgml": _MARKED_PAGE,
    "xml": _MARKED_PAGE,
    "srt": _OTHER_PAGE,
    "vtt": _OTHER_PAGE,
}


@dataclass(frozen=True)
class Table:
    """The rows of a file, texts or objects. Errors name the line of a row, or its number in a file without lines.

    Args:
        name: the file, as messages call it.
        rows: texts, or objects with the columns.
        numbers: line or number of each row, from 1.
        has_lines: whether the numbers are those of lines.
        is_object: whether the file is a JSON object of texts by key. Its rows are ``{"id": key, "text": text}``.
        repeated: names that more than one column has.
    """

    name: str
    rows: list[Any]
    numbers: Sequence[int]
    has_lines: bool = False
    is_object: bool = False
    repeated: Collection[str] = ()

    def has_column(self, name: str) -> bool:
        """Check whether the first row has a column."""
        return self.has_columns and _look_up(self.rows[0], name) is not _MISSING

    @property
    def has_columns(self) -> bool:
        """Whether rows have several values: not those of plain lines, of JSON arrays of strings and of texts by key."""
        return not self.is_object and not all(isinstance(row, str) for row in self.rows)

    def select(self, name: str, rows: Sequence[int]) -> Table:
        """Return some rows as a table with another name; errors name their places in the file."""
        selected = [self.rows[row] for row in rows]
        numbers = [self.numbers[row] for row in rows]
        return replace(self, name=name, rows=selected, numbers=numbers)

    def values(self, *columns: str, remedy: str = "") -> list[Any]:
        """Return the value of each row in the one of several columns that it has; without columns, its text.

        ``remedy`` ends the error about a row that has none of them.
        """
        if self.is_object:
            return [row["text"] for row in self.rows]
        if not self.has_columns:
            return self.rows
        return [self._value(number, columns, remedy) for number in range(len(self.rows))]

    def text_lists(self, *columns: str, remedy: str = "", may_be_missing: bool = False) -> list[list[Any]]:
        """Return the texts of each row, at least one, of a chat its answer; a single text need not be in an array.

        With ``may_be_missing`` texts may be null, and arrays empty.
        """
        if not self.rows:
            raise CommandError(f"{self.name}: the file contains no texts")
        lists = []
        for row, value in enumerate(self.values(*columns, remedy=remedy)):
            texts = value
            if not isinstance(value, list) or is_chat(value):
                texts = [value]
            try:
                answers = [read_answer(text) if is_chat(text) else text for text in texts]
            except ValueError as error:
                raise self.error(row, f"{columns[0]!r} is {error}") from error
            are_texts = all(isinstance(text, str) for text in answers) and len(answers) > 0
            are_texts_or_null = all(text is None or isinstance(text, str) for text in answers)
            if not are_texts and not (may_be_missing and are_texts_or_null):
                raise self.error(row, f"{columns[0]!r} must be a text or an array of texts, got {value!r:.80}")
            lists.append(answers)
        return lists

    def texts(self, column: str, *, remedy: str = "") -> list[str]:
        """Return the text of each row, which may be in an array."""
        lists = self.text_lists(column, remedy=remedy)
        for row, texts in enumerate(lists):
            if len(texts) > 1:
                raise self.error(row, f"{column!r} must be a single text, got an array of {len(texts)}")
        return [text for (text,) in lists]

    def labels(self, column: str, *, remedy: str = "") -> list[str]:
        """Return the value of each row, a string or a whole number, as a string."""
        values = self.values(column, remedy=remedy)
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
        """Return the value of each row in a column, ``None`` for a row without one.

        Rows of a JSON object of texts have their keys as the values of any column. The result is ``None`` without rows
        that have the column, and if several columns have the name.
        """
        if self.is_object:
            return [row["id"] for row in self.rows]
        if not self.has_columns or column in self.repeated:
            return None
        values = [_look_up(row, column) if isinstance(row, dict) else _MISSING for row in self.rows]
        if all(value is _MISSING for value in values):
            return None
        return [None if value is _MISSING else value for value in values]

    def place(self, row: int) -> str:
        """Return the line of a row, from 0, or its number where a file has no lines."""
        if self.has_lines:
            return f"line {self.numbers[row]}"
        return f"row {self.numbers[row]}"

    def error(self, row: int, message: str) -> CommandError:
        """Return an error at the place of a row, from 0."""
        if self.has_lines:
            return CommandError(f"{self.name}:{self.numbers[row]}: {message}")
        return CommandError(f"{self.name}: {self.place(row)}: {message}")

    def _value(self, row: int, columns: Sequence[str], remedy: str) -> Any:
        record = self.rows[row]
        if not isinstance(record, dict):
            raise self.error(row, f"must be an object, got {record!r:.80}")
        for name in columns:
            if name in self.repeated:
                # Files with lines have their header in the first one.
                place = f"{self.name}:1" if self.has_lines else self.name
                raise CommandError(f"{place}: more than one column is named {name!r}")
        values = {name: _look_up(record, name) for name in columns}
        values = {name: value for name, value in values.items() if value is not _MISSING}
        if len(values) > 1:
            both = " and ".join(map(repr, values))
            raise self.error(row, f"the columns {both} both exist: choose with --reference-column")
        if not values:
            names = ", ".join(map(repr, record)) or "none"
            dotted = _INDEX.sub(r".\1", columns[0])
            if _look_up(record, dotted) is not _MISSING:
                remedy = f"Write the name as {dotted}"
            message = f"no column or key {columns[0]!r}; there are {names}. {remedy}"
            raise self.error(row, message.removesuffix(". "))
        return next(iter(values.values()))


def choose_with(option: str) -> str:
    """Return the remedy for a column that does not exist: the option that names it."""
    return f"Choose a column with {option} NAME"


def _look_up(value: Any, name: str) -> Any:
    """Return the value of a column, or of a dotted name such as choices.0.text the one within objects and arrays."""
    if isinstance(value, dict) and name in value:
        return value[name]
    outer, _, inner = name.partition(".")
    if isinstance(value, list) and outer.isdecimal() and int(outer) < len(value):
        item = value[int(outer)]
        return _look_up(item, inner) if inner else item
    if isinstance(value, dict) and outer in value and inner:
        return _look_up(value[outer], inner)
    return _MISSING


def read_table(path: str, file_format: str | None = None, columns: Sequence[str] = ()) -> Table:
    """Read a file, by default in the format of its suffix, into rows; ``-`` is standard input.

    Files with the suffix .gz are decompressed. Blank lines at the end are dropped, except of plain lines. TSV and CSV
    have a header, unless all ``columns`` that will be read are numbers. TSV has the quoting of CSV where the whole file
    parses with it, else literal quotes.
    """
    name = "standard input" if path == STDIN else path
    file_format, is_compressed = _format_of(path, file_format)
    data = _read_bytes(path)
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
    if file_format == "jsonl":
        return _read_json_lines(text, name)
    lines = _split_lines(text)
    num_marked = sum(_MARKED_LINE.match(line) is not None for line in lines)
    if 2 * num_marked > len(lines):
        warn_user(f"{name}: most lines have marks of SGML or fairseq. Convert the file first: {_MARKED_PAGE}")
    return Table(name, lines, _count_from_one(lines), has_lines=True)


def read_texts(path: str, file_format: str | None = None, column: str = "text", *, remedy: str = "") -> list[str]:
    """Read one text per row of a file; the column is ignored for plain lines.

    ``remedy`` ends the error about a row without the column.
    """
    return read_table(path, file_format, [column]).texts(column, remedy=remedy)


def _read_bytes(path: str) -> bytes:
    if path != STDIN:
        return Path(path).read_bytes()
    if is_closed(sys.stdin):
        raise CommandError("standard input is closed, so - cannot be read. Give the name of a file")
    return sys.stdin.buffer.read()


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
    if suffix in _DECOMPRESS:
        command = f"{_DECOMPRESS[suffix]} {shlex.quote(path)}"
        raise CommandError(f"{path}: of compressed files only .gz is read. Decompress the file first: {command}")
    if file_format is None and suffix in _CONVERT:
        raise CommandError(f"{path}: .{suffix} files are not read. Convert the file to lines: {_CONVERT[suffix]}")
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
    rows = table.to_pylist()
    return Table(name, rows, _count_from_one(rows), repeated=_find_repeated(table.column_names))


def _read_json(text: str, name: str) -> Table:
    """Return the rows of an array, of an object of texts by key, or of the annotations of COCO."""
    try:
        value = _parse_json(text, name)
    except CommandError:
        first_line = text.lstrip().partition("\n")[0]
        if _is_json(first_line) and not _is_json(text):
            message = f"{name}: the file has a JSON value per line. Name it .jsonl, or give --format jsonl"
            raise CommandError(message) from None
        raise
    if isinstance(value, dict) and isinstance(value.get("annotations"), list):
        value = value["annotations"]
    if isinstance(value, list):
        return Table(name, value, _count_from_one(value))
    if isinstance(value, dict):
        for key, texts in value.items():
            _require_no_objects(texts, key, name)
    if not isinstance(value, dict) or not all(isinstance(texts, str | list) for texts in value.values()):
        raise CommandError(f"{name}: the file must contain a JSON array of objects or strings, or an object of texts")
    rows = [{"id": key, "text": texts} for key, texts in value.items()]
    return Table(name, rows, _count_from_one(rows), is_object=True)


def _require_no_objects(texts: Any, key: str, name: str) -> None:
    """Raise an error if the value of a key is an array of objects, such as rows or the articles of SQuAD."""
    if not isinstance(texts, list) or is_chat(texts):
        return
    for record in texts:
        if isinstance(record, dict) and "paragraphs" in record:
            raise CommandError(f"{name}: the texts are nested as in SQuAD. Convert the file first: {_OTHER_PAGE}")
        if isinstance(record, dict):
            # Names such as my-key are not valid after a dot.
            command = shlex.join(["jq", f".[{json.dumps(key)}]"])
            raise CommandError(
                f"{name}: the objects are within {key!r}. Save that array as a .json file, as {command} prints it"
            )


def _read_json_lines(text: str, name: str) -> Table:
    lines = _split_lines(text)
    while lines and not lines[-1].strip():
        lines.pop()
    may_be_document = len(lines) > 1 or text.lstrip().startswith("[")
    if may_be_document and _is_json(text):
        raise CommandError(f"{name}: the file is one JSON document. Name it .json, or give --format json")
    rows = [_parse_json(line, name, number) for number, line in enumerate(lines, start=1)]
    return Table(name, rows, _count_from_one(rows), has_lines=True)


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except json.JSONDecodeError:
        return False
    return True


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
    if _SEPARATOR_LINE.fullmatch("".join(header)):
        raise CommandError(f"{name}:1: the line 'sep=' is for Excel, and not a header. Remove this line")
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
    if len(header) > 1:
        _warn_of_empty_rows(name, rows)
    records = [dict(zip(header, cells, strict=True)) for _, cells in rows]
    lines = [line for line, _ in rows]
    return Table(name, records, lines, has_lines=True, repeated=_find_repeated(header))


def _count_from_one(rows: Sequence[Any]) -> range:
    return range(1, len(rows) + 1)


def _warn_of_empty_rows(name: str, rows: list[tuple[int, list[str]]]) -> None:
    """Warn of rows of empty cells at the end, which spreadsheets write below the texts."""
    first_line = None
    for line, cells in reversed(rows):
        if any(cell.strip() for cell in cells):
            break
        first_line = line
    if first_line is not None:
        warn_user(
            f"{name}:{first_line}: all cells are empty from this line on, and count as empty texts. If a spreadsheet "
            f"left these rows over, delete them"
        )


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
