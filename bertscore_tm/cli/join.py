"""Decide which rows of several files belong together: those with one value of an id, or those at one place.

Names decide which columns are ids, and values decide whether they fit:

1. ``--key NAME`` joins by that column, or is an error. Rows of other files that no row of the first file has are left
   out, with a message. ``--key none`` pairs rows by their order.
2. Otherwise columns that are called like an id, and the keys of JSON objects, are ids. An id fits if it names the rows
   of every system and has the same values in all files that have it. The first one that fits joins. Several rows of a
   file of references with one value are several references.
3. If files share ids and none fits, that is an error, unless the values are equal row by row.
4. Otherwise rows are paired by their order. Other columns that have the same texts in another order are an error.
"""

import re
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations

from bertscore_tm.cli.errors import CommandError

# For each text, the indices of its rows in a file, from 0. Rows[i] has several if the file has several references of
# text i.
Rows = list[list[int]]

BY_ORDER = "none"  # the value of --key that pairs rows by their order
_REMEDY = "Pass --key NAME to join rows by a column, or --key none to pair them by their order."
# Names such as id, image_id, imageId, doc.id, qid and docno.
_ID_NAME = re.compile(r"(.*[_. -])?(id|ids|key|uid|guid|uuid|docno)|(q|p|doc|seg|sent|img|image|pair|sample)id")
_WHOLE_NUMBER = re.compile(r"(0|-?[1-9][0-9]*)(\.0+)?")
_NUMBER = re.compile(r"-?[0-9.]+(e[-+]?[0-9]+)?|true|false", re.IGNORECASE)


def _default_place(row: int) -> str:
    """Return the place of a row for messages: its number, from 1."""
    return f"row {row + 1}"


@dataclass(frozen=True)
class KeyColumns:
    """The columns of a file that may tell which rows belong together.

    Args:
        name: the file, as messages call it.
        num_rows: number of rows.
        columns: values of each column without the texts, normalized by :func:`normalize_key`; empty for plain lines.
        object_keys: the normalized keys of a JSON object, which fit an id of any name. ``None`` for other files.
        place: the function that returns where a row, from 0, is in the file, as messages call it.
    """

    name: str
    num_rows: int
    columns: Mapping[str, Sequence[Hashable]] = field(default_factory=dict)
    object_keys: Sequence[Hashable] | None = None
    place: Callable[[int], str] = _default_place

    def has(self, column: str) -> bool:
        """Check whether the file has a column. The keys of a JSON object are a column of any name."""
        return self.object_keys is not None or column in self.columns

    def keys(self, column: str) -> Sequence[Hashable]:
        """Return the values of a column."""
        if self.object_keys is not None:
            return self.object_keys
        return self.columns[column]


@dataclass(frozen=True)
class Join:
    """How rows belong together.

    Args:
        column: the id by which rows were joined, even if all files have the same order. ``None`` if rows were paired by
            their order.
        rows: for each file, in the order in which files were given, its rows of each text of the first file.
        message: what the user should know about the join, or ``""``.
    """

    column: str | None
    rows: list[Rows]
    message: str = ""

    @property
    def description(self) -> str:
        """Say by what the rows are paired."""
        if self.column is None:
            return "paired by order"
        return f"paired by {self.column!r}"


def normalize_key(value: object) -> Hashable:
    """Return a value for comparison with those of other files, ``None`` if it is missing.

    Whole numbers are equal in all notations. Numbers with leading zeros are texts.

    Example:
        >>> [normalize_key(value) for value in (1, 1.0, "1.0", " 1", "01", 2.5, "", None, float("nan"))]
        ['1', '1', '1', '1', '01', '2.5', None, None, None]
    """
    # Parquet has NaN for a missing number.
    is_nan = value != value
    if value is None or is_nan:
        return None
    text = str(value).strip()
    match = _WHOLE_NUMBER.fullmatch(text)
    if match is not None:
        return match[1]
    return text or None


def is_id(name: str) -> bool:
    """Check whether a column is called like an id.

    Example:
        >>> [is_id(name) for name in ("id", "image_id", "imageId", "qid", "docno")]
        [True, True, True, True, True]
        >>> [is_id(name) for name in ("index", "idea", "width", "")]
        [False, False, False, False]
    """
    # Write imageId as image_id.
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()
    return _ID_NAME.fullmatch(words) is not None


def find_join(files: Sequence[KeyColumns], num_systems: int = 1, key: str | None = None) -> Join:
    """Decide which rows of files belong together.

    Args:
        files: the files, those of the systems first.
        num_systems: number of files with the texts of a system. The others have references or sources.
        key: the column that the user named, or ``"none"`` for the order of the rows. ``None`` to look for an id.

    Returns:
        The column that joins, if any, and the rows of each file.

    Raises:
        CommandError: the files have ids that do not fit, or other columns that contradict the order of the rows.

    Example:
        >>> candidates = KeyColumns("candidates.csv", 2, {"id": ["1", "2"]})
        >>> references = KeyColumns("references.csv", 3, {"id": ["2", "1", "2"]})
        >>> find_join([candidates, references]).rows
        [[[0], [1]], [[1], [0, 2]]]
    """
    is_single = len(files) == 1 and key is None
    if key == BY_ORDER or is_single:
        return _pair_by_order(files)
    if key is not None:
        return _join_by_named_column(files, num_systems, key)
    ids = _find_shared_ids(files)
    fitting = [name for name in ids if _fits(files, num_systems, name)]
    if fitting:
        # If another id that fits pairs rows differently, only the user knows which one is right.
        joins = [_join_by_id(files, name) for name in fitting]
        _require_one_pairing(files, joins)
        return joins[0]
    # Equal values row by row confirm the order of the rows, also if they are repeated or empty.
    for name in ids:
        _require_equal_values(files, name)
    for first, second in combinations(files, 2):
        _require_no_other_order(first, second)
    return _pair_by_order(files)


def _pair_by_order(files: Sequence[KeyColumns]) -> Join:
    """Pair rows by their order, which needs equal numbers of rows."""
    first = files[0]
    for file in files:
        _require_equal_numbers(first, file)
    return Join(None, [_one_row_each(file) for file in files])


def _require_equal_numbers(first: KeyColumns, file: KeyColumns) -> None:
    """Raise an error if two files that are paired by the order of their rows have different numbers of rows."""
    if file.num_rows != first.num_rows:
        counts = f"got {first.num_rows} and {file.num_rows}"
        raise CommandError(f"{first.name} and {file.name} must have equal numbers of texts, {counts}. {_REMEDY}")


def _join_by_named_column(files: Sequence[KeyColumns], num_systems: int, name: str) -> Join:
    """Join by the column that the user named, or raise an error."""
    for file in files:
        _require_values(file, name)
    first = files[0]
    wanted = dict.fromkeys(first.keys(name))
    message = ""
    for number, file in enumerate(files):
        _require_all_texts(first, file, name)
        is_one_of_several_systems = num_systems > 1 and number < num_systems
        if is_one_of_several_systems:
            # Each system has one text per reference, so that scores can be compared in pairs.
            _require_unique(file, name)
            _require_no_other_texts(first, file, name)
        unused = [key for key in file.keys(name) if key not in wanted]
        if unused:
            counts = f"{len(unused)} of {file.num_rows} rows of {file.name}"
            message = f"left out {counts}: {first.name} has no such {name!r}"
    # The first system may have several rows with one key, which share the references of this key.
    rows = [_one_row_each(first)]
    for file in files[1:]:
        rows.append(_find_rows(first.keys(name), file.keys(name)))
    return Join(name, rows, message or _describe_moved(files, rows, name))


def _require_values(file: KeyColumns, name: str) -> None:
    """Raise an error unless all rows of a file have a value in a column."""
    if not file.has(name):
        raise CommandError(f"{file.name} has no column {name!r}. Give --key a column that all files have.")
    keys = file.keys(name)
    if None in keys:
        place = file.place(keys.index(None))
        raise CommandError(f"{file.name}: {place} has no value of {name!r}. Write one, or give --key another column.")


def _require_all_texts(first: KeyColumns, file: KeyColumns, name: str) -> None:
    """Raise an error if a file lacks a text of the first file."""
    wanted = dict.fromkeys(first.keys(name))
    found = set(file.keys(name))
    missing = [key for key in wanted if key not in found]
    if missing:
        raise CommandError(
            f"{file.name} has no row with the {name} {missing[0]!r}: it lacks {len(missing)} of {len(wanted)} values "
            f"of {first.name}. Add these rows, or remove them from {first.name}."
        )


def _require_no_other_texts(first: KeyColumns, file: KeyColumns, name: str) -> None:
    """Raise an error if a system has a text that the first one lacks."""
    wanted = set(first.keys(name))
    for key in file.keys(name):
        if key not in wanted:
            raise CommandError(
                f"{first.name} has no row with the {name} {key!r}, as {file.name} has. Give all systems the same rows."
            )


def _find_shared_ids(files: Sequence[KeyColumns]) -> list[str]:
    """Return the names of ids that at least two files have."""
    # A dictionary has each name once, in the order of the columns.
    names: dict[str, None] = {}
    for file in files:
        names |= dict.fromkeys(filter(is_id, file.columns))
    if not names:
        # The keys of JSON objects have no name and fit any, so messages call them "id".
        names = {"id": None}
    return [name for name in names if sum(file.has(name) for file in files) > 1]


def _fits(files: Sequence[KeyColumns], num_systems: int, name: str) -> bool:
    """Check whether an id names the rows of every system, with the same values in all files that have it."""
    expected = None
    has_unique_values = False
    for number, file in enumerate(files):
        if not file.has(name):
            continue
        keys = file.keys(name)
        values = set(keys)
        is_repeated = len(values) < len(keys)
        if expected is None:
            expected = values
        if None in values or values != expected:
            return False
        if is_repeated and number < num_systems:
            return False
        if not is_repeated:
            has_unique_values = True
    # Ids that are repeated in every file do not name texts.
    return has_unique_values


def _join_by_id(files: Sequence[KeyColumns], name: str) -> Join:
    """Join by an id that fits. A file without the id is paired by order, which all other files must share."""
    # Texts have the order of the first file that has the id and does not repeat it.
    first = next(file for file in files if file.has(name) and len(set(file.keys(name))) == file.num_rows)
    rows = []
    without_id = []
    moved = []
    for file in files:
        file_rows = _one_row_each(file)
        if file.has(name):
            file_rows = _find_rows(first.keys(name), file.keys(name))
            if _is_moved(file_rows):
                moved.append(file)
        else:
            without_id.append(file)
        rows.append(file_rows)
    for file in without_id:
        # A file without the id is assumed to have the order of the files with the id, so these must have the same one.
        if moved:
            raise CommandError(
                f"{file.name} has no column {name!r}, and the order of {moved[0].name} is not that of {first.name}. "
                f"Add the column, or pair rows by their order with --key none."
            )
        _require_equal_numbers(first, file)
    return Join(name, rows, _describe_moved(files, rows, name))


def _require_one_pairing(files: Sequence[KeyColumns], joins: Sequence[Join]) -> None:
    """Raise an error if two ids fit and pair rows differently."""
    chosen = joins[0]
    for other in joins[1:]:
        for file, rows, other_rows in zip(files, chosen.rows, other.rows, strict=True):
            if rows != other_rows:
                raise CommandError(
                    f"{chosen.column!r} and {other.column!r} pair the rows of {files[0].name} and {file.name} "
                    f"differently. {_REMEDY}"
                )


def _require_equal_values(files: Sequence[KeyColumns], name: str) -> None:
    """Raise an error if an id that does not fit differs between the rows of two files."""
    first, *others = [file for file in files if file.has(name)]
    values = first.keys(name)
    for other in others:
        other_values = other.keys(name)
        if list(values) == list(other_values):
            continue
        shared = set(values) & set(other_values)
        num_values = len(set(values) | set(other_values))
        examples = _describe_examples(first, values, shared) + _describe_examples(other, other_values, shared)
        if not examples:
            examples = ["some are repeated, or in another order"]
        raise CommandError(
            f"{first.name} and {other.name} differ in {name!r}: {len(shared)} of {num_values} values are in both "
            f"({', '.join(examples)}). {_REMEDY}"
        )


def _describe_examples(file: KeyColumns, values: Sequence[Hashable], shared: set[Hashable]) -> list[str]:
    """Describe a value that only one file has, if there is any."""
    for row, value in enumerate(values):
        if value not in shared:
            shown = f"{value!r:.40}"
            if value is None:
                shown = "an empty value"
            return [f"{shown} in {file.place(row)} of {file.name} only"]
    return []


def _require_no_other_order(first: KeyColumns, second: KeyColumns) -> None:
    """Raise an error if a column of texts, or an id under another name, has the same values in another order."""
    for name, values in first.columns.items():
        for other_name, other_values in second.columns.items():
            if name == other_name:
                # Numbers, such as lengths and flags, may agree by chance.
                is_compared = not all(map(_is_number, values))
            else:
                is_compared = is_id(name) and is_id(other_name)
            if is_compared and _has_other_order(values, other_values):
                pairs = zip(values, other_values, strict=True)
                row = next(row for row, (value, other) in enumerate(pairs) if value != other)
                example = f"{values[row]!r:.40} in {first.place(row)}"
                other_example = f"{other_values[row]!r:.40} in {second.place(row)}"
                raise CommandError(
                    f"{name!r} of {first.name} and {other_name!r} of {second.name} have the same {len(set(values))} "
                    f"values in another order: {example} and {other_example}. {_REMEDY}"
                )


def _has_other_order(values: Sequence[Hashable], other_values: Sequence[Hashable]) -> bool:
    """Check whether two columns have the same values in different orders."""
    if list(values) == list(other_values):
        return False
    # A column with one value and gaps, such as a flag, agrees with others by chance.
    has_several_values = len(set(values) - {None}) > 1
    return has_several_values and Counter(values) == Counter(other_values)


def _require_unique(file: KeyColumns, name: str) -> None:
    """Raise an error if two rows of a system have one key."""
    first_rows: dict[Hashable, int] = {}
    for row, key in enumerate(file.keys(name)):
        if key in first_rows:
            raise CommandError(
                f"{file.name}: {file.place(first_rows[key])} and {file.place(row)} have the same {name!r}, {key!r}. "
                f"To compare systems, give each text one row."
            )
        first_rows[key] = row


def _find_rows(keys: Sequence[Hashable], file_keys: Sequence[Hashable]) -> Rows:
    """Return the rows of a file with each of the keys."""
    rows: dict[Hashable, list[int]] = {}
    for row, key in enumerate(file_keys):
        rows.setdefault(key, []).append(row)
    return [rows[key] for key in keys]


def _one_row_each(file: KeyColumns) -> Rows:
    return [[row] for row in range(file.num_rows)]


def _is_moved(rows: Rows) -> bool:
    """Check whether the order of a file differs from that of the texts."""
    return rows != sorted(rows)


def _describe_moved(files: Sequence[KeyColumns], rows: Sequence[Rows], name: str) -> str:
    """Name the files whose order is not that of the first one, or return ``""``."""
    moved = []
    for file, file_rows in zip(files, rows, strict=True):
        if _is_moved(file_rows):
            moved.append(file.name)
    if not moved:
        return ""
    return f"rows are joined by {name!r}: the order of {', '.join(moved)} is not that of {files[0].name}"


def _is_number(value: Hashable) -> bool:
    """Check whether a value is missing, a number or a flag."""
    return value is None or _NUMBER.fullmatch(str(value)) is not None
