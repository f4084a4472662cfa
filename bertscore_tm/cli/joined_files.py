"""Join the rows of several files of texts: by a column of keys that all have, else by their order."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest
from typing import NamedTuple

from bertscore_tm.cli.errors import CommandError, print_message
from bertscore_tm.cli.inputs import Table, read_table
from bertscore_tm.utilities.user_warnings import warn_user

# The column of the references if none is named: a file has one of these.
REFERENCES = ("reference", "references")
# The rows of each text in a file: several where it has several references of the text.
Rows = list[list[int]]


class Systems(NamedTuple):
    """The systems' texts by name, the references of each text, and its document, source and group if requested."""

    texts: dict[str, list[str]]
    references: list[list[str]]
    groups: list[str] | None = None
    sources: list[str] | None = None
    labels: list[str] | None = None

    def select(self, rows: Sequence[int]) -> Systems:
        """Return the systems with these texts only."""
        texts = {name: [own[i] for i in rows] for name, own in self.texts.items()}
        return Systems(texts, [self.references[i] for i in rows], *(own and [own[i] for i in rows] for own in self[2:]))


@dataclass(frozen=True)
class Corpus:
    """Files of the candidates of systems, of references and, if requested, of sources, with their rows of each text."""

    arguments: Namespace
    systems: list[Table]
    reference_files: list[Table]
    rows: list[Rows]
    source_file: tuple[Table, Rows] | None = None

    def references(self) -> list[list[str]]:
        """Return the references of each text, at least one, those of all files and columns.

        Without files of references, the first system's has them; next to files of plain lines, its named columns have
        some. Files have blank lines where a candidate has fewer references; these are among them.
        """
        own, names = self.systems[0], self.arguments.reference_column
        files = list(zip(self.reference_files, self.rows[len(self.systems) :], strict=True))
        is_named = names is not None and own.has_columns and not any(table.has_columns for table, _ in files)
        if not files and not own.has_columns:
            raise CommandError(f"no references: give -r FILE, or --format if {own.name} also contains them")
        if not files or is_named:
            files.insert(0, (own, self.rows[0]))
        elif unread := [name for name in names or REFERENCES if own.has_column(name)]:
            warn_user(f"{own.name}: the references in {unread[0]!r} are not read, since -r has others")
        lists: list[list[str]] = [[] for _ in own.rows]
        for table, rows in files:
            for group in [(name,) for name in names] if names and table.has_columns else [REFERENCES]:
                texts = table.text_lists(*group, with_null=True)
                for references, chosen in zip(lists, rows, strict=True):
                    references += [text for row in chosen for text in texts[row]]
        for i, references in enumerate(lists):
            if all(text is None for text in references):
                raise files[0][0].error(files[0][1][i][0], "no reference, only null")
            # A null is an empty cell.
            lists[i] = [text or "" for text in references]
        return lists

    def read(self, *names: str) -> Systems:
        """Return the texts of the systems, which get these names, in the order of the first."""
        texts = {}
        for name, table, rows in zip(names, self.systems, self.rows, strict=False):
            candidates = table.texts(self.arguments.candidate_column)
            texts[name] = [candidates[row] for (row,) in rows]
        references, sources = self.references(), None
        if self.source_file is not None:
            table, rows = self.source_file
            values = table.texts(self.arguments.source_column or "source")
            for first, *others in rows:
                if different := [row for row in others if values[row] != values[first]]:
                    raise table.error(different[0], "another row with the same key has another source")
            sources = [values[row] for row, *_ in rows]
        documents = self._labels(self.arguments.document_column, "--document-column")
        labels = self._labels(self.arguments.group_column, "--group-column")
        return Systems(texts, references, documents, sources, labels)

    def _labels(self, column: str | None, option: str) -> list[str] | None:
        """Return the value of each text in a column of the first file that has it; ``None`` without the option."""
        if column is None:
            return None
        files = zip([*self.systems, *self.reference_files], self.rows, strict=True)
        with_columns = [file for file in (*files, self.source_file) if file is not None and file[0].has_columns]
        if not with_columns:
            raise CommandError(f"argument {option}: give a file with columns, such as .tsv or .jsonl")
        table, rows = max(with_columns, key=lambda file: file[0].has_column(column))
        labels = table.labels(column)
        return [labels[row] for row, *_ in rows]


def read_corpus(arguments: Namespace, paths: Sequence[str], *others: str | None) -> Corpus:
    """Read files of candidates, which may contain their references and ``others`` too, of references and of sources."""
    if arguments.source_column is not None and arguments.sources is None:
        raise CommandError("argument --source-column: give --sources FILE too; it may be the file of -c")

    def read(path: str, *columns: str | None) -> Table:
        return read_table(path, arguments.format, [name for name in (*columns, arguments.key) if name is not None])

    references = arguments.reference_column or REFERENCES
    names = [arguments.candidate_column, *others, *(references if arguments.references is None else ())]
    systems = [read(path, *names) for path in paths]
    files = [read(path, *references) for path in arguments.references or ()]
    rows, source_file = join_rows(systems, files, arguments), None
    if arguments.sources is not None:
        table = read(arguments.sources, arguments.source_column or "source")
        # Joined on their own, so that sources without keys do not change how references are joined.
        source_file = (table, join_rows(systems[:1], [table], arguments)[1])
    return Corpus(arguments, systems, files, rows, source_file)


def join_rows(systems: Sequence[Table], files: Sequence[Table], arguments: Namespace) -> list[Rows]:
    """Return, for each system and file of references, the rows of each text of the first system.

    Rows are joined by the column of keys, by default one that all files have with the same values, none of them twice
    in a system. Without such a column they are joined by their order.
    """
    tables = [*systems, *files]
    first, joins = tables[0], {}
    for name, keys in _find_keys(systems, files, arguments).items():
        indices: list[dict[str, list[int]]] = [{} for _ in tables]
        for number, (table, table_keys, index) in enumerate(zip(tables, keys, indices, strict=True)):
            for row, key in enumerate(table_keys):
                # Of a single system, several texts may have the same references.
                if key in index and number < len(systems) > 1:
                    raise table.error(row, f"another row has the same {name!r}, {key!r}")
                index.setdefault(key, []).append(row)
            _require_keys(table, index, indices[0], first, name)
            _require_keys(first, indices[0], index, table, name)
        own = [[row] for row in range(len(keys[0]))]
        joins[name] = [own, *([index[key] for key in keys[0]] for index in indices[1:])]
    if not joins:
        for table in tables:
            if len(table.rows) != len(first.rows):
                counts = f"got {len(first.rows)} and {len(table.rows)}"
                raise CommandError(f"{first.name} and {table.name} must have equal numbers of texts, {counts}")
        return [[[row] for row in range(len(first.rows))] for _ in tables]
    (name, rows), *alternatives = joins.items()
    for other, other_rows in alternatives:
        if other_rows != rows:
            raise CommandError(f"{first.name}: {name!r} and {other!r} join different rows: choose with --key")
    if moved := [table.name for table, lists in zip(tables, rows, strict=True) if lists != sorted(lists)]:
        print_message(f"rows are joined by {name!r}: their order in {', '.join(moved)} is not that of {first.name}")
    return rows


def _find_keys(systems: Sequence[Table], files: Sequence[Table], arguments: Namespace) -> dict[str, list[list[str]]]:
    """Return columns by which files can be joined, and the keys of the rows of each file."""
    tables = [*systems, *files]
    if arguments.key is not None:
        return {arguments.key: [table.row_keys(arguments.key) for table in tables]}
    with_keys = [table for table in tables if table.has_columns or table.keys is not None]
    if len(tables) == 1 or len(with_keys) < len(tables):
        if unused := [table.name for table in with_keys if table.keys is not None and len(tables) > 1]:
            warn_user(f"{unused[0]} has keys, but another file has none: rows are joined by their order")
        return {}
    found: dict[bool, dict[str, list[list[str]]]] = {True: {}, False: {}}
    named = next((table.rows[0] for table in tables if table.has_columns), ["id"])
    texts = {arguments.candidate_column, *(arguments.reference_column or REFERENCES)}
    for name in [name for name in named if name not in texts]:
        try:
            keys = [table.row_keys(name) for table in tables]
        except CommandError:  # not a column of all files, or not one of keys
            continue
        sets = [set(table_keys) for table_keys in keys]
        shared = set.intersection(*sets)
        is_joined = all(table_keys == shared for table_keys in sets)
        # Keys most of which are in both files, but in other rows, are not joined by their order.
        pairs = chain.from_iterable(zip_longest(keys[0], other) for other in keys)
        is_moved = any(a != b and (None in (a, b) or not shared.isdisjoint((a, b))) for a, b in pairs)
        is_unique = all(len(sets[i]) == len(keys[i]) for i in range(len(systems)))
        if is_unique and (is_joined or (is_moved and 2 * len(shared) > len(sets[0]))):
            found[is_joined][name] = keys
    return found[True] or found[False]


def _require_keys(table: Table, index: Collection[str], keys: Collection[str], other: Table, name: str) -> None:
    """Check that a file has all keys of another one."""
    if missing := [key for key in keys if key not in index]:
        counts = f"{len(missing)} of {len(keys)} are missing"
        raise CommandError(f"{table.name}: no row has {missing[0]!r} as {name!r}, as {other.name} has: {counts}")
