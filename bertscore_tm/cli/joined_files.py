"""Read the files of a command, and bring the rows of each text together."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeGuard

from bertscore_tm.cli.errors import CommandError, print_message
from bertscore_tm.cli.files import Table, choose_with, read_table
from bertscore_tm.cli.join import BY_ORDER, Join, KeyColumns, Rows, find_join, is_id, normalize_key
from bertscore_tm.utilities.warnings import warn_user

# The column of the references if none is named: a file has one of these.
REFERENCES = ("reference", "references")


@dataclass(frozen=True)
class RowKeys:
    """The ids of texts, as their file has them, which are written next to results."""

    name: str
    values: Sequence[Any]

    def name_in(self, others: Collection[str]) -> str:
        """Return the name of the ids in an output that has other columns."""
        # Two columns of one name could not be read again.
        if self.name in others:
            return "key"
        return self.name


@dataclass(frozen=True)
class Systems:
    """The systems' texts by name and the references of each text, with facts of each text that were requested.

    Args:
        texts: candidates of each system.
        references: references of each text.
        documents: document of each text.
        sources: source of each text.
        labels: group of each text.
        paired_by: the id by which rows of files were joined; ``None`` if they were paired by their order.
        keys: ids of the texts.
    """

    texts: dict[str, list[str]]
    references: list[list[str]]
    documents: list[str] | None = None
    sources: list[str] | None = None
    labels: list[str] | None = None
    paired_by: str | None = None
    keys: RowKeys | None = None

    @property
    def num_documents(self) -> int | None:
        """Number of documents, ``None`` if texts are not grouped by document."""
        if self.documents is None:
            return None
        return len(set(self.documents))

    def select(self, rows: Sequence[int]) -> Systems:
        """Return the systems with these texts only."""
        keys = self.keys
        if keys is not None:
            keys = replace(keys, values=_select(keys.values, rows))
        return replace(
            self,
            texts={name: _select(texts, rows) for name, texts in self.texts.items()},
            references=_select(self.references, rows),
            documents=_select(self.documents, rows),
            sources=_select(self.sources, rows),
            labels=_select(self.labels, rows),
            keys=keys,
        )


@dataclass(frozen=True)
class FileOptions:
    """Which files a command reads, and how.

    Args:
        candidates: a file for each system.
        references: files of references. ``None`` if the files of the candidates have them.
        sources: file of the sources.
        candidate_column: column of the candidates.
        reference_column: columns of the references. ``None`` for those of ``REFERENCES``.
        source_column: column of the sources. ``None`` for "source".
        document_column: column of the document of each text.
        group_column: column of the group of each text.
        key: column that joins the files, or "none" for the order of their rows.
        format: format of all files. ``None`` for that of their suffixes.
        may_be_parts: whether several files were given in order, which may be parts of one corpus.
    """

    candidates: list[str]
    references: list[str] | None
    sources: str | None
    candidate_column: str
    reference_column: list[str] | None
    source_column: str | None
    document_column: str | None
    group_column: str | None
    key: str | None
    format: str | None
    may_be_parts: bool

    def source_column_or_default(self) -> str:
        """Return the column of the sources."""
        return self.source_column or "source"

    @classmethod
    def of_one_system(cls, arguments: Namespace) -> FileOptions:
        """Return the options of a command that scores one system: files in order are -c, unless given, and -r."""
        # "score c.txt -r r.txt" and "score -c c.txt r.txt" are the same.
        in_order = list(arguments.files)
        candidates = []
        if arguments.candidates is not None:
            candidates = [arguments.candidates]
        elif in_order:
            candidates = [in_order.pop(0)]
        references = arguments.references
        if in_order:
            references = [*in_order, *(references or ())]
        return cls._of(arguments, candidates, references, may_be_parts=len(arguments.files) > 1)

    @classmethod
    def of_several_systems(cls, arguments: Namespace) -> FileOptions:
        """Return the options of a command that compares systems: files in order are those of -c."""
        candidates = [*arguments.files, *(arguments.candidates or ())]
        return cls._of(arguments, candidates, arguments.references, may_be_parts=False)

    @classmethod
    def _of(
        cls, arguments: Namespace, candidates: list[str], references: list[str] | None, *, may_be_parts: bool
    ) -> FileOptions:
        return cls(
            candidates=candidates,
            references=references,
            sources=arguments.sources,
            candidate_column=arguments.candidate_column,
            reference_column=arguments.reference_column,
            source_column=arguments.source_column,
            document_column=arguments.document_column,
            group_column=arguments.group_column,
            key=arguments.key,
            format=arguments.format,
            may_be_parts=may_be_parts,
        )


@dataclass(frozen=True)
class Corpus:
    """Files of the candidates of systems, of references and, if requested, of sources, with their rows of each text."""

    options: FileOptions
    systems: Sequence[Table]
    reference_files: Sequence[Table]
    source_file: Table | None
    join: Join

    @property
    def files(self) -> list[tuple[Table, Rows]]:
        """All files, those of the systems first, with their rows of each text."""
        tables = [*self.systems, *self.reference_files]
        if self.source_file is not None:
            tables.append(self.source_file)
        return list(zip(tables, self.join.rows, strict=True))

    def references(self) -> list[list[str]]:
        """Return the references of each text, at least one, those of all files and columns.

        Without files of references, the first system's has them; next to files of plain lines, its named columns have
        some. Files have blank lines where a candidate has fewer references; these are among them. A null is blank, and
        a text without references gets a blank one.
        """
        references: list[list[str]] = [[] for _ in self.join.rows[0]]
        for table, rows_of_texts in self._files_with_references():
            # A file has one of the default columns, but all named ones.
            alternatives: list[Sequence[str]] = [REFERENCES]
            names = self.options.reference_column
            if names and table.has_columns:
                alternatives = [[name] for name in names]
            for columns in alternatives:
                texts = table.text_lists(*columns, remedy=choose_with("--reference-column"), may_be_missing=True)
                for references_of_text, rows in zip(references, rows_of_texts, strict=True):
                    for row in rows:
                        references_of_text += [text or "" for text in texts[row]]
        for references_of_text in references:
            if not references_of_text:
                references_of_text.append("")
        return references

    def _files_with_references(self) -> list[tuple[Table, Rows]]:
        """Return the files that have references, with their rows of each text."""
        candidates = self.systems[0]
        first = len(self.systems)
        files = self.files[first : first + len(self.reference_files)]
        if not files:
            if not candidates.has_columns:
                remedy = f"Give -r FILE, or --format if {candidates.name} also contains them"
                raise CommandError(f"no references: {candidates.name} has lines of text only. {remedy}")
            return [self.files[0]]
        have_columns = [table.has_columns for table, _ in files]
        is_named = self.options.reference_column is not None and candidates.has_columns
        if is_named and not any(have_columns):
            # Plain lines have no columns, so the named ones are those of the candidates' file.
            return [self.files[0], *files]
        self._warn_of_unread_references()
        return files

    def _warn_of_unread_references(self) -> None:
        """Warn if the first system's file has references next to those of ``-r``."""
        own = self.systems[0]
        for name in self.options.reference_column or REFERENCES:
            # Outputs of other systems may be the references of one.
            if name != self.options.candidate_column and own.has_column(name):
                unread = f"{own.name}: the references in {name!r} are not read, because -r has others"
                warn_user(f"{unread}. To read them, remove -r")
                return

    def read(self, *names: str) -> Systems:
        """Return the texts of the systems, which get these names, in the order of the first."""
        options = self.options
        texts = {}
        for name, table, rows in zip(names, self.systems, self.join.rows, strict=False):
            candidates = table.texts(options.candidate_column, remedy=choose_with("--candidate-column"))
            # A system has one row for each text.
            texts[name] = [candidates[row] for (row,) in rows]
        sources = None
        if self.source_file is not None:
            texts_of_rows = self.source_file.texts(
                options.source_column_or_default(), remedy=choose_with("--source-column")
            )
            sources = _require_one_value(self.source_file, self.join.rows[-1], texts_of_rows, "source")
        return Systems(
            texts=texts,
            references=self.references(),
            documents=self._labels(options.document_column, "document"),
            sources=sources,
            labels=self._labels(options.group_column, "group"),
            paired_by=self.join.column,
            keys=self.row_keys(),
        )

    def row_keys(self) -> RowKeys | None:
        """Return the ids of the texts: those that joined, or of a single file those that name its rows."""
        name = self.join.column
        # A single file is not joined, but its ids can join its scores with other files later.
        is_single = len(self.files) == 1 and self.options.key != BY_ORDER
        if name is None and is_single:
            name = _find_id(self.systems[0], self.options)
        if name is None:
            return None
        for table, rows in self.files:
            values = table.optional_values(name)
            if values is not None:
                # Several rows of a text have the same id.
                return RowKeys(name, [values[first] for first, *_ in rows])
        return None

    def _labels(self, column: str | None, noun: str) -> list[str] | None:
        """Return the value of each text in a column of the first file that has it; ``None`` without the option."""
        if column is None:
            return None
        with_columns = [file for file in self.files if file[0].has_columns]
        if not with_columns:
            names = ", ".join(table.name for table, _ in self.files)
            message = f"argument --{noun}-column: there are no columns in {names}. Give a file such as .tsv or .jsonl"
            raise CommandError(message)
        # If no file has the column, the error names those of the first file.
        chosen = with_columns[0]
        for file in with_columns:
            if file[0].has_column(column):
                chosen = file
                break
        table, rows = chosen
        labels = table.labels(column, remedy=choose_with(f"--{noun}-column"))
        return _require_one_value(table, rows, labels, noun)


def read_corpus(options: FileOptions, *others: str) -> Corpus:
    """Read files of candidates, of references and of sources, and join their rows.

    Files of candidates may contain their references and the columns ``others`` too.
    """
    if options.source_column is not None and options.sources is None:
        message = f"argument --source-column: {options.source_column} needs a file of sources"
        raise CommandError(f"{message}. Give --sources FILE too, which may be the file of -c")
    references = options.reference_column or REFERENCES
    names = [options.candidate_column, *others]
    if options.references is None:
        # A file without a header is read by numbers only if the columns of the references are numbers too.
        names += references
    systems = [_read(path, options, names) for path in options.candidates]
    reference_files = [_read(path, options, references) for path in options.references or ()]
    tables = [*systems, *reference_files]
    if options.may_be_parts:
        _refuse_parts(tables, options.candidate_column, references)
    source_file = None
    if options.sources is not None:
        source_file = _read(options.sources, options, [options.source_column_or_default()])
        tables.append(source_file)
    join = find_join([describe_columns(table, options) for table in tables], len(systems), options.key)
    if join.message:
        print_message(join.message)
    return Corpus(options, systems, reference_files, source_file, join)


def _read(path: str, options: FileOptions, columns: Sequence[str]) -> Table:
    """Read a file of which these columns will be used, and the one that joins it with others."""
    if options.key not in (None, BY_ORDER):
        columns = [*columns, options.key]
    return read_table(path, options.format, columns)


def describe_columns(table: Table, options: FileOptions) -> KeyColumns:
    """Return the columns of a file that may join it with others: all with single values but those of the texts."""
    num_rows = len(table.rows)
    if table.is_object:
        return KeyColumns(table.name, num_rows, object_keys=[normalize_key(row["id"]) for row in table.rows])
    columns: dict[str, list[Hashable]] = {}
    # Texts are no ids: two systems may produce the same texts in another order.
    texts = {options.candidate_column, *(options.reference_column or REFERENCES)}
    if options.sources is not None:
        texts.add(options.source_column_or_default())
    for name in table.column_names():
        values = table.optional_values(name)
        if name not in texts and _has_single_values(values):
            columns[name] = list(map(normalize_key, values))
    key = options.key
    if key not in (None, BY_ORDER) and table.has_columns:
        # The named key may be within an object, so it is not among the names of the columns.
        columns[key] = list(map(normalize_key, table.values(key, remedy=choose_with("--key"))))
    return KeyColumns(table.name, num_rows, columns, place=table.place)


def _has_single_values(values: list[Any] | None) -> TypeGuard[list[Any]]:
    """Check whether a column exists and has no arrays or objects."""
    if values is None:
        return False
    return not any(isinstance(value, list | dict) for value in values)


def _find_id(table: Table, options: FileOptions) -> str | None:
    """Return the first id that names the rows of a file."""
    described = describe_columns(table, options)
    names = list(filter(is_id, described.columns))
    if described.object_keys is not None:
        # The keys of a JSON object have no name of their own.
        names = ["id"]
    for name in names:
        keys = described.keys(name)
        if None not in keys and len(set(keys)) == len(keys):
            return name
    return None


def _refuse_parts(tables: Sequence[Table], candidate_column: str, references: Sequence[str]) -> None:
    """Raise an error if files that were given in order are parts of one, with candidates and references each."""
    if len(tables) < 2:
        return
    for table in tables:
        other_columns = [name for name in references if name != candidate_column]
        has_references = any(map(table.has_column, other_columns))
        if not (table.has_column(candidate_column) and has_references):
            return
    names = ", ".join(table.name for table in tables)
    raise CommandError(
        f"{names} have candidates and references each. Concatenate parts of one corpus into a file, or pass files of "
        f"references with -r."
    )


def _require_one_value(table: Table, rows: Rows, values: Sequence[str], noun: str) -> list[str]:
    """Return the value of each text. Raise an error if its rows have different ones."""
    values_of_texts = []
    for first, *others in rows:
        for row in others:
            if values[row] != values[first]:
                places = f"{values[row]!r:.40}, and that of {table.place(first)} is {values[first]!r:.40}"
                raise table.error(row, f"the {noun} is {places}. Give rows with the same key one {noun}")
        values_of_texts.append(values[first])
    return values_of_texts


def _select(values: Any, rows: Sequence[int]) -> Any:
    """Return the values of some rows; ``None`` stays ``None``."""
    if values is None:
        return None
    return [values[row] for row in rows]
