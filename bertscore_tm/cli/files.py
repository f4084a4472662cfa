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
from typing import Any, NamedTuple

from bertscore_tm.cli.errors import CommandError, is_closed
from bertscore_tm.utilities.chats import is_chat, read_answer
from bertscore_tm.utilities.warnings import warn_user

FORMATS = ("txt", "tsv", "csv", "jsonl", "json", "parquet")
STDIN = "-"
# The value of a column that a row lacks. None is not used for this, because a null is a value of a row.
_MISSING = object()
# The remedy for a column that no option of the command names.
_OTHER_COLUMN = "Choose another column"
# The largest limit that the csv module takes on every platform: its size is that of a C long.
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
        repeated: names that more than one column has. Reading such a column is an error.
    """

    name: str
    rows: list[Any]
    numbers: Sequence[int]
    has_lines: bool = False
    is_object: bool = False
    repeated: Collection[str] = ()

    def has_column(self, name: str) -> bool:
        """Check whether the first row has a column."""
        # The other rows are checked when the column is read, with an error for a row without it.
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

    def values(self, *columns: str, remedy: str = _OTHER_COLUMN) -> list[Any]:
        """Return a value per row, from the only one of the named columns that the row has.

        The names do not matter for files without columns, whose values are their texts. ``remedy`` ends the error about
        a row that has none of the columns.
        """
        if self.is_object:
            return [row["text"] for row in self.rows]
        if not self.has_columns:
            return self.rows
        for name in columns:
            if name in self.repeated:
                raise self._repeated_error(name)
        return [self._value(number, columns, remedy) for number in range(len(self.rows))]

    def text_lists(self, *columns: str, remedy: str = _OTHER_COLUMN, may_be_missing: bool = False) -> list[list[Any]]:
        """Return a list of texts per row, from a cell that has one text or an array of texts.

        A chat is replaced by its answer. Null texts and empty arrays are errors, unless ``may_be_missing`` is set.
        A row must have only one of the columns, as in :meth:`values`. Errors name the first column.
        """
        if not self.rows:
            raise CommandError(f"{self.name}: the file contains no texts. Give a file with at least one")
        lists = []
        for row, value in enumerate(self.values(*columns, remedy=remedy)):
            texts = self._read_answers(row, value, columns[0])
            given = [text for text in texts if text is not None]
            is_empty = len(given) == 0
            has_gaps = len(given) < len(texts) or is_empty
            has_other_values = not all(isinstance(text, str) for text in given)
            if has_other_values or (has_gaps and not may_be_missing):
                message = f"{columns[0]!r} must be a text or an array of texts, got {value!r:.80}. Correct this row"
                raise self.error(row, message)
            lists.append(texts)
        return lists

    def _read_answers(self, row: int, value: Any, column: str) -> list[Any]:
        """Return the items of a cell, which has an array or a single item. A chat is replaced by its answer."""
        items = [value]
        if isinstance(value, list) and not is_chat(value):
            items = value
        answers = []
        for item in items:
            answer = item
            if is_chat(item):
                try:
                    answer = read_answer(item)
                except ValueError as error:
                    raise self.error(row, f"{column!r} is {error}. Correct this row") from error
            answers.append(answer)
        return answers

    def texts(self, column: str, *, remedy: str = _OTHER_COLUMN) -> list[str]:
        """Return the text of each row. A text may be the only item of an array."""
        single_texts = []
        for row, texts in enumerate(self.text_lists(column, remedy=remedy)):
            if len(texts) > 1:
                message = f"{column!r} must be a single text, got an array of {len(texts)}. Keep one of them"
                raise self.error(row, message)
            single_texts.append(texts[0])
        return single_texts

    def labels(self, column: str, *, remedy: str = _OTHER_COLUMN) -> list[str]:
        """Return the value of each row as a string. The value must be a string or a whole number."""
        labels = []
        for row, value in enumerate(self.values(column, remedy=remedy)):
            if not isinstance(value, str | int):
                message = f"{column!r} must be a string or a whole number, got {value!r:.80}. Correct this row"
                raise self.error(row, message)
            labels.append(str(value))
        return labels

    def column_names(self) -> list[str]:
        """Return the names of the columns that any row has."""
        if not self.has_columns:
            return []
        # A dictionary keeps the order of the columns, which a set would not.
        names: dict[str, None] = {}
        for row in self.rows:
            if isinstance(row, dict):
                names |= dict.fromkeys(row)
        return list(names)

    def optional_values(self, column: str) -> list[Any] | None:
        """Return the value of each row in a column, ``None`` if no row has the column, or its name is repeated.

        A row without the column has the value ``None``. In a JSON object of texts, the keys are the values of any
        column.
        """
        if self.is_object:
            # The object's keys are stored as "id". They have no column name, so they are returned for each name.
            return [row["id"] for row in self.rows]
        if not self.has_columns or column in self.repeated:
            return None
        values: list[Any] = []
        is_found = False
        for row in self.rows:
            value = _MISSING
            if isinstance(row, dict):
                value = _look_up(row, column)
            if value is _MISSING:
                values.append(None)
            else:
                values.append(value)
                is_found = True
        if not is_found:
            return None
        return values

    def place(self, row: int) -> str:
        """Return the place of a row for messages, such as "line 3" or "row 3". The index of the row counts from 0."""
        if self.has_lines:
            return f"line {self.numbers[row]}"
        return f"row {self.numbers[row]}"

    def error(self, row: int, message: str) -> CommandError:
        """Return an error that names the file and the place of a row, whose index counts from 0."""
        if self.has_lines:
            return CommandError(f"{self.name}:{self.numbers[row]}: {message}")
        return CommandError(f"{self.name}: {self.place(row)}: {message}")

    def _repeated_error(self, column: str) -> CommandError:
        place = self.name
        if self.has_lines:
            # The header, where the name is repeated, is the first line.
            place = f"{self.name}:1"
        return CommandError(f"{place}: more than one column is named {column!r}. Rename one of them")

    def _value(self, row: int, columns: Sequence[str], remedy: str) -> Any:
        """Return the value of a row in one of the columns. Raise an error if the row has none or several of them."""
        record = self.rows[row]
        if not isinstance(record, dict):
            raise self.error(row, f"a row must be an object, got {record!r:.80}. Write it as names and values")
        values = {}
        for name in columns:
            value = _look_up(record, name)
            if value is not _MISSING:
                values[name] = value
        if len(values) > 1:
            both = " and ".join(map(repr, values))
            raise self.error(row, f"the columns {both} both exist. Choose one with --reference-column NAME")
        if not values:
            raise self._missing_error(row, columns[0], remedy)
        (value,) = values.values()
        return value

    def _missing_error(self, row: int, column: str, remedy: str) -> CommandError:
        """Return the error about a row without a column."""
        record = self.rows[row]
        # Users of jq may write choices[0].text, where this package reads choices.0.text.
        dotted = _INDEX.sub(r".\1", column)
        if _look_up(record, dotted) is not _MISSING:
            remedy = f"Write the name as {dotted}"
        names = ", ".join(map(repr, record)) or "none"
        return self.error(row, f"no column or key {column!r}; there are {names}. {remedy}")


def choose_with(option: str) -> str:
    """Return the remedy for a column that does not exist: the option that names it."""
    return f"Choose a column with {option} NAME"


def _look_up(value: Any, name: str) -> Any:
    """Return the value of a column, or ``_MISSING``. A dotted name such as choices.0.text leads into nested values."""
    # A column's name may contain dots, so the whole name is tried first.
    if isinstance(value, dict) and name in value:
        return value[name]
    outer, _, inner = name.partition(".")
    if isinstance(value, list) and outer.isdecimal() and int(outer) < len(value):
        item = value[int(outer)]
        if not inner:
            return item
        return _look_up(item, inner)
    if isinstance(value, dict) and outer in value and inner:
        return _look_up(value[outer], inner)
    return _MISSING


def read_table(path: str, file_format: str | None = None, columns: Sequence[str] = ()) -> Table:
    """Read a file, by default in the format of its suffix, into rows; ``-`` is standard input.

    Files with the suffix .gz are decompressed. Blank lines at the end are dropped, except of plain lines. TSV and CSV
    have a header, unless all ``columns`` that will be read are numbers. TSV has the quoting of CSV where the whole file
    parses with it, else literal quotes.
    """
    name = path
    if path == STDIN:
        name = "standard input"
    # The suffix is checked before the file is read, because a spreadsheet may be large.
    file_format, is_compressed = _format_of(path, file_format)
    data = _read_bytes(path)
    if is_compressed:
        data = _decompress(data, name)
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
    return _read_lines(text, name)


def read_texts(
    path: str, file_format: str | None = None, column: str = "text", *, remedy: str = _OTHER_COLUMN
) -> list[str]:
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


def _decompress(data: bytes, name: str) -> bytes:
    try:
        return gzip.decompress(data)
    except (EOFError, OSError, zlib.error) as error:
        raise CommandError(f"{name}: not a valid gzip file: {error}. Compress it again with gzip") from error


def _format_of(path: str, file_format: str | None) -> tuple[str, bool]:
    """Return the given format of a file, by default that of its suffix, and whether it is compressed."""
    name = Path(path.lower())
    is_compressed = name.suffix == ".gz"
    if is_compressed:
        name = name.with_suffix("")
    suffix = name.suffix.removeprefix(".")
    if not suffix or suffix.isdecimal():
        # A number is not a format: it counts versions or references, as in refs.0.
        suffix = "txt"
    # No format fits these files, so --format does not help.
    if suffix in _SPREADSHEETS:
        raise CommandError(f"{path}: .{suffix} files are not read. Save the spreadsheet as CSV")
    if suffix in _DECOMPRESS:
        command = f"{_DECOMPRESS[suffix]} {shlex.quote(path)}"
        raise CommandError(f"{path}: of compressed files only .gz is read. Decompress the file first: {command}")
    if file_format is not None:
        return file_format, is_compressed
    if suffix in _CONVERT:
        raise CommandError(f"{path}: .{suffix} files are not read. Convert the file to lines: {_CONVERT[suffix]}")
    if suffix not in FORMATS:
        raise CommandError(f"{path}: the suffix .{suffix} is not one of {', '.join(FORMATS)}. Give --format NAME")
    return suffix, is_compressed


def _decode(data: bytes, name: str) -> str:
    """Return the text of a file in UTF-8, with or without the mark that Excel writes at the start."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise CommandError(f"{name}:{line}: not valid UTF-8: {error.reason}. Convert the file to UTF-8") from error
    if "\0" in text:
        # ASCII in UTF-16 has a zero byte next to each letter, and is valid UTF-8.
        raise CommandError(f"{name}: NUL bytes: the file seems to be UTF-16. Convert the file to UTF-8")
    return text


def _read_lines(text: str, name: str) -> Table:
    lines = _split_lines(text)
    num_marked = 0
    for line in lines:
        if _MARKED_LINE.match(line):
            num_marked += 1
    # Texts about SGML may have marks too, but not in most lines.
    if 2 * num_marked > len(lines):
        warn_user(f"{name}: most lines have marks of SGML or fairseq. Convert the file first: {_MARKED_PAGE}")
    return Table(name, lines, _number_from_one(lines), has_lines=True)


def _split_lines(text: str) -> list[str]:
    if not text:
        return []
    # str.splitlines would also split at characters that occur within texts, such as U+2028.
    lines = text.removesuffix("\n").split("\n")
    return [line.removesuffix("\r") for line in lines]


def _read_parquet(data: bytes, name: str) -> Table:
    from pyarrow import ArrowInvalid, parquet

    try:
        # The threads of parquet.read_table abort a process that ends soon after it, such as with an error.
        table = parquet.ParquetFile(io.BytesIO(data), pre_buffer=False).read(use_threads=False)
    except ArrowInvalid as error:
        raise CommandError(f"{name}: not a valid Parquet file: {error}. Give --format of what it contains") from error
    rows = table.to_pylist()
    return Table(name, rows, _number_from_one(rows), repeated=_find_repeated(table.column_names))


def _read_json(text: str, name: str) -> Table:
    """Return the rows of an array, of an object of texts by key, or of the annotations of COCO."""
    try:
        value = _parse_json(text, name)
    except CommandError:
        first_line = text.lstrip().partition("\n")[0]
        # A JSON document of several lines, with an error in one of them, has only a part of a value in its first line.
        if _is_json(first_line) and not _is_json(text):
            message = f"{name}: the file has a JSON value per line. Name it .jsonl, or give --format jsonl"
            raise CommandError(message) from None
        raise
    if isinstance(value, dict) and isinstance(value.get("annotations"), list):
        value = value["annotations"]
    if isinstance(value, list):
        return Table(name, value, _number_from_one(value))
    rows = _rows_of_object(value, name)
    return Table(name, rows, _number_from_one(rows), is_object=True)


def _rows_of_object(value: Any, name: str) -> list[dict[str, Any]]:
    """Return the texts by key of a JSON object as rows, or raise an error."""
    items = {}
    if isinstance(value, dict):
        items = value
    for key, texts in items.items():
        _require_no_objects(texts, key, name)
    has_texts = all(isinstance(texts, str | list) for texts in items.values())
    if not isinstance(value, dict) or not has_texts:
        expected = "an array of objects or strings, or an object of texts"
        raise CommandError(f"{name}: the JSON document is {value!r:.80}. Write {expected}")
    return [{"id": key, "text": texts} for key, texts in items.items()]


def _require_no_objects(texts: Any, key: str, name: str) -> None:
    """Raise an error if the value of a key is an array of objects, such as rows or the articles of SQuAD."""
    # A chat is an array of objects too, but counts as a single text.
    if not isinstance(texts, list) or is_chat(texts):
        return
    for record in texts:
        if isinstance(record, dict) and "paragraphs" in record:
            raise CommandError(f"{name}: the texts are nested as in SQuAD. Convert the file first: {_OTHER_PAGE}")
        if isinstance(record, dict):
            # The key is quoted in brackets, because jq does not accept names such as .my-key.
            command = shlex.join(["jq", f".[{json.dumps(key)}]"])
            raise CommandError(
                f"{name}: the objects are within {key!r}. Save that array as a .json file, as {command} prints it"
            )


def _read_json_lines(text: str, name: str) -> Table:
    """Return the rows of a file with a JSON value in each line, without blank lines at the end."""
    lines = _split_lines(text)
    while lines and not lines[-1].strip():
        lines.pop()
    # A single line with an object is both a document and a row, and is read as a row.
    may_be_document = len(lines) > 1 or text.lstrip().startswith("[")
    if may_be_document and _is_json(text):
        raise CommandError(f"{name}: the file is one JSON document. Name it .json, or give --format json")
    rows = [_parse_json(line, name, number) for number, line in enumerate(lines, start=1)]
    return Table(name, rows, _number_from_one(rows), has_lines=True)


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except json.JSONDecodeError:
        return False
    return True


def _find_repeated(names: Sequence[str]) -> set[str]:
    """Return the names that occur more than once."""
    return {name for name, count in Counter(names).items() if count > 1}


def _parse_json(text: str, name: str, line: int | None = None) -> Any:
    """Return the value of a JSON document. ``line`` is its line in a JSONL file, ``None`` for a whole file."""

    def make_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        record = dict(pairs)
        if len(record) < len(pairs):
            place = name
            if line is not None:
                place = f"{name}:{line}"
            repeated = min(_find_repeated([key for key, _ in pairs]))
            raise CommandError(f"{place}: more than one key of an object is {repeated!r}. Rename one of them")
        return record

    try:
        # Without the hook, Python's json would keep the last value of a repeated key without an error.
        return json.loads(text, object_pairs_hook=make_object)
    except json.JSONDecodeError as error:
        place = f"{name}:{line or error.lineno}"
        reason = f"{error.msg} at column {error.colno}"
        raise CommandError(f"{place}: not valid JSON: {reason}. Correct this line") from error


class _Row(NamedTuple):
    """A row of a TSV or CSV file, and the line at which it starts, from 1."""

    line: int
    cells: list[str]


def _with_header(name: str, rows: list[_Row], columns: Sequence[str]) -> Table:
    """Return the table of a TSV or CSV file. The first row is the header, unless all columns to read are numbers."""
    header: list[str] = []
    if rows:
        header = rows[0].cells
    if _SEPARATOR_LINE.fullmatch("".join(header)):
        raise CommandError(f"{name}:1: the line 'sep=' is for Excel, and not a header. Remove this line")
    for line, cells in rows:
        if len(cells) != len(header):
            found = f"{len(cells)} columns, but the first line has {len(header)}: {header!r:.80}"
            raise CommandError(f"{name}:{line}: {found}. Correct the separators and quotes of this row")
    are_numbers = [column.isdecimal() for column in columns]
    if are_numbers and all(are_numbers):
        header = [str(number) for number in range(1, len(header) + 1)]
    else:
        rows = rows[1:]
    if len(header) == 1:
        if header[0] not in columns:
            _require_no_other_separator(name, header[0])
    else:
        _warn_of_empty_rows(name, rows)
    records = [dict(zip(header, cells, strict=True)) for _, cells in rows]
    lines = [line for line, _ in rows]
    return Table(name, records, lines, has_lines=True, repeated=_find_repeated(header))


def _require_no_other_separator(name: str, header: str) -> None:
    """Raise an error if the name of the only column contains a separator that the file's format does not have."""
    mark = re.search(r"[;|,\t]", header)
    if mark is not None:
        raise CommandError(
            f"{name}:1: the only column, {header!r:.80}, seems to be separated by {mark[0]!r}. Use commas in .csv "
            f"and tabs in .tsv"
        )


def _number_from_one(rows: Sequence[Any]) -> range:
    """Return the numbers of rows, from 1."""
    return range(1, len(rows) + 1)


def _warn_of_empty_rows(name: str, rows: list[_Row]) -> None:
    """Warn of rows of empty cells at the end, which spreadsheets write below the texts."""
    first_line = None
    for line, cells in reversed(rows):
        if not _is_empty(cells):
            break
        first_line = line
    if first_line is not None:
        warn_user(
            f"{name}:{first_line}: all cells are empty from this line on, and count as empty texts. Delete these "
            f"lines if a spreadsheet left them over"
        )


def _is_empty(cells: Sequence[str]) -> bool:
    return not "".join(cells).strip()


def _tab_rows(text: str, name: str) -> list[_Row]:
    """Return the rows of a TSV file. Quotes are read as in CSV if the whole file parses that way, else as characters.

    Quotation marks within texts may parse too, if one opens in a row and closes in another. Rows that were joined this
    way are not accepted.
    """
    literal = [_Row(number, line.split("\t")) for number, line in enumerate(_split_lines(text), 1)]
    # Blank lines at the end are not rows. They have one cell, while a row of empty cells has tabs, and so several.
    while literal and len(literal[-1].cells) == 1 and _is_empty(literal[-1].cells):
        literal.pop()
    starts_with_quote = False
    is_in_quotes = False
    for _, cells in literal:
        for cell in cells:
            starts_with_quote |= cell.startswith('"')
            is_in_quotes |= len(cell) > 1 and cell[0] == cell[-1] == '"'
    if not starts_with_quote:
        return literal
    with suppress(CommandError):
        rows = _quoted_rows(text, name, "\t")
        if not _joins_lines(rows):
            return rows
    if is_in_quotes:
        warn_user(
            f"{name}: the quotes around cells are read as characters, because quoting does not fit all rows. Quote "
            f"cells as CSV does to leave them out"
        )
    return literal


def _joins_lines(rows: list[_Row]) -> bool:
    """Check whether quotation marks within texts joined lines.

    Then rows have different numbers of cells, or a cell contains both tabs and line breaks.
    """
    num_columns = len(rows[0].cells)
    for _, cells in rows:
        if len(cells) != num_columns:
            return True
        for cell in cells:
            if "\t" in cell and "\n" in cell:
                return True
    return False


def _quoted_rows(text: str, name: str, separator: str) -> list[_Row]:
    """Return the rows of a file with the quoting of CSV."""
    # The default limit is shorter than many documents.
    csv.field_size_limit(_CSV_CELL_LIMIT)
    # Without newline="" StringIO would change the line breaks within quoted cells.
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
    rows = []
    line = 1
    try:
        for cells in reader:
            rows.append(_Row(line, cells))
            # A row with quoted line breaks has several lines, so its number is not that of the line.
            line = reader.line_num + 1
    except csv.Error as error:
        raise CommandError(f"{name}:{line}: not valid CSV: {error}. Correct the quotes of this row") from error
    # The reader returns a blank line as a row without cells. Blank lines at the end are not rows.
    while rows and not rows[-1].cells:
        rows.pop()
    return rows
