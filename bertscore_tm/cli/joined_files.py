"""Read the files of a command, and bring the rows of each text together."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeGuard, TypeVar

from bertscore_tm.cli.errors import CommandError, print_message
from bertscore_tm.cli.files import Table, choose_with, read_table
from bertscore_tm.cli.join import BY_ORDER, Join, KeyColumns, Rows, find_join, is_id, normalize_key
from bertscore_tm.utilities.warnings import warn_user

T = TypeVar("T")

# Default names of the column of the references. A file may have one of them.
REFERENCES = ("reference", "references")


@dataclass(frozen=True)
class RowKeys:
    """The ids of texts, as their file has them, which are written next to results.

    Args:
        name: the column of the ids.
        values: the id of each text.
    """

    name: str
    values: Sequence[Any]

    def name_in(self, others: Collection[str]) -> str:
        """Return the name of the ids in an output that has other columns."""
        # A file with two columns of one name could not be read again.
        if self.name in others:
            return "key"
        return self.name


@dataclass(frozen=True)
class Systems:
    """The systems' texts by name and the references of each text, with facts of each text that were requested.

    Args:
        texts: candidates of each system.
        references: references of each text.
        documents: document of each text. ``None`` without ``--document-column``.
        sources: source of each text. ``None`` without ``--sources``.
        labels: group of each text. ``None`` without ``--group-column``.
        paired_by: the id by which rows of files were joined. ``None`` if they were paired by their order.
        keys: ids of the texts. ``None`` if the files have none.
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
        """Number of documents. ``None`` if texts are not grouped by document."""
        if self.documents is None:
            return None
        return len(set(self.documents))

    def select(self, rows: Sequence[int]) -> Systems:
        """Return the systems with some of the texts only. The rows are indices of texts, from 0."""
        keys = self.keys
        if keys is not None:
            keys = replace(keys, values=_select(keys.values, rows))
        return replace(
            self,
            texts={name: _select(texts, rows) for name, texts in self.texts.items()},
            references=_select(self.references, rows),
            documents=_select_if_given(self.documents, rows),
            sources=_select_if_given(self.sources, rows),
            labels=_select_if_given(self.labels, rows),
            keys=keys,
        )


@dataclass(frozen=True)
class FileOptions:
    """Which files a command reads, and how.

    Args:
        candidates: a file for each system.
        references: files of references. ``None`` if the files of the candidates have them.
        sources: file of the sources. ``None`` for no sources.
        candidate_column: column of the candidates.
        reference_column: columns of the references. ``None`` for those of ``REFERENCES``.
        source_column: column of the sources. ``None`` for "source".
        document_column: column of the document of each text. ``None`` for no documents.
        group_column: column of the group of each text. ``None`` for no groups.
        key: column that joins the files, or "none" for the order of their rows. ``None`` to look for an id.
        format: format of all files. ``None`` for that of their suffixes.
        may_be_parts: whether the files may be parts of one corpus, each with candidates and references. Then
            :func:`read_corpus` checks them, because it would take all but the first for files of references.
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
        """Return the column of the sources, which is "source" if none is named."""
        return self.source_column or "source"

    @classmethod
    def of_one_system(cls, arguments: Namespace) -> FileOptions:
        """Return the options of a command that scores one system.

        The first positional file has the candidates, unless -c is given. The other positional files have references.
        """
        # "score c.txt r.txt", "score c.txt -r r.txt" and "score -c c.txt r.txt" are the same.
        positional = list(arguments.files)
        candidates = []
        if arguments.candidates is not None:
            candidates = [arguments.candidates]
        elif positional:
            candidates = [positional.pop(0)]
        references = arguments.references
        if positional:
            references = [*positional, *(references or ())]
        # A shell expands "score part-*.jsonl" to several positional files. With one of them, or none, the user has
        # named what the other files are by -c and -r.
        may_be_parts = len(arguments.files) > 1
        return cls._of(arguments, candidates, references, may_be_parts=may_be_parts)

    @classmethod
    def of_several_systems(cls, arguments: Namespace) -> FileOptions:
        """Return the options of a command that compares systems. Positional files are systems, like those of -c."""
        candidates = [*arguments.files, *(arguments.candidates or ())]
        # Each positional file is a system, so they cannot be mistaken for references.
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
class JoinedFile:
    """A file and its rows of each text.

    Args:
        table: the content of the file.
        rows: for each text, the indices of its rows in the table. The file of a system has one row for each text.
    """

    table: Table
    rows: Rows


@dataclass(frozen=True)
class Corpus:
    """Files of the candidates of systems, of references and, if requested, of sources, with their rows of each text."""

    options: FileOptions
    systems: Sequence[JoinedFile]
    reference_files: Sequence[JoinedFile]
    source_file: JoinedFile | None
    join: Join

    @property
    def files(self) -> list[JoinedFile]:
        """All files: those of the systems, those of the references, and the file of the sources if there is one."""
        files = [*self.systems, *self.reference_files]
        if self.source_file is not None:
            files.append(self.source_file)
        return files

    def references(self) -> list[list[str]]:
        """Return the references of each text from all files and columns that have some.

        Each text has at least one reference: a text without any gets a blank one. Blank lines, with which files of
        plain lines fill the places of missing references, are included. A null counts as blank.
        """
        references: list[list[str]] = [[] for _ in self.systems[0].rows]
        for file in self._files_with_references():
            # Each entry lists the names that one column may have. A file has one column with a default name, but a
            # column for each name of --reference-column.
            columns: list[Sequence[str]] = [REFERENCES]
            if self.options.reference_column and file.table.has_columns:
                columns = [[name] for name in self.options.reference_column]
            for names in columns:
                texts = file.table.text_lists(*names, remedy=choose_with("--reference-column"), may_be_missing=True)
                for references_of_text, rows in zip(references, file.rows, strict=True):
                    for row in rows:
                        references_of_text += [text or "" for text in texts[row]]
        for references_of_text in references:
            if not references_of_text:
                references_of_text.append("")
        return references

    def _files_with_references(self) -> list[JoinedFile]:
        """Return the files from which references are read.

        * Without ``-r``: the first system's file, or an error if it has plain lines.
        * With ``-r`` of plain lines, and ``--reference-column``: the first system's file and those of ``-r``.
        * Otherwise: the files of ``-r`` only, with a warning if the first system's file has references too.
        """
        first_system = self.systems[0]
        table = first_system.table
        if not self.reference_files:
            if not table.has_columns:
                remedy = f"Give -r FILE, or --format if {table.name} also contains them"
                raise CommandError(f"no references: {table.name} has lines of text only. {remedy}")
            return [first_system]
        is_column_named = self.options.reference_column is not None
        are_plain_lines = not any(file.table.has_columns for file in self.reference_files)
        if is_column_named and are_plain_lines and table.has_columns:
            # Plain lines have no columns, so the user can only mean columns of the first system's file.
            return [first_system, *self.reference_files]
        self._warn_of_unread_references()
        return list(self.reference_files)

    def _warn_of_unread_references(self) -> None:
        """Warn if the first system's file has references next to those of ``-r``."""
        own = self.systems[0].table
        for name in self.options.reference_column or REFERENCES:
            # The column of the candidates is named twice if outputs of another system, in a file with the same
            # columns, are the references.
            if name != self.options.candidate_column and own.has_column(name):
                unread = f"{own.name}: the references in {name!r} are not read, because -r has others"
                warn_user(f"{unread}. To read them, remove -r")
                return

    def read(self, *names: str) -> Systems:
        """Return the texts of the systems, which get these names. Texts have the order of the first system's file."""
        options = self.options
        texts = {}
        for name, system in zip(names, self.systems, strict=True):
            candidates = system.table.texts(options.candidate_column, remedy=choose_with("--candidate-column"))
            # The rows are [[row], [row], ...], because a system has one row for each text.
            texts[name] = [candidates[row] for (row,) in system.rows]
        sources = None
        if self.source_file is not None:
            column = options.source_column_or_default()
            texts_of_rows = self.source_file.table.texts(column, remedy=choose_with("--source-column"))
            sources = _one_value_per_text(self.source_file, texts_of_rows, "source")
        return Systems(
            texts=texts,
            references=self.references(),
            documents=self._read_labels(options.document_column, "document"),
            sources=sources,
            labels=self._read_labels(options.group_column, "group"),
            paired_by=self.join.column,
            keys=self.row_keys(),
        )

    def row_keys(self) -> RowKeys | None:
        """Return the ids that joined the files, or those that name the rows of a single file.

        ``None`` if rows were paired by their order, or if a single file has no ids.
        """
        name = self.join.column
        # A single file is not joined, but its ids can join its scores with other files later.
        is_single = len(self.files) == 1 and self.options.key != BY_ORDER
        if name is None and is_single:
            name = _find_id(self.systems[0].table, self.options)
        if name is None:
            return None
        for file in self.files:
            values = file.table.optional_values(name)
            if values is not None:
                # All rows of a text have the same id, so the first one is read.
                return RowKeys(name, [values[first] for first, *_ in file.rows])
        return None

    def _read_labels(self, column: str | None, noun: str) -> list[str] | None:
        """Return the document or group of each text, from the first file that has the column.

        ``column`` is the value of ``--document-column`` or ``--group-column``. Without the option, it and the result
        are ``None``.
        """
        if column is None:
            return None
        with_columns = [file for file in self.files if file.table.has_columns]
        if not with_columns:
            names = ", ".join(file.table.name for file in self.files)
            message = f"argument --{noun}-column: there are no columns in {names}. Give a file such as .tsv or .jsonl"
            raise CommandError(message)
        # If no file has the column, Table.labels raises an error that lists the columns of this first file.
        chosen = with_columns[0]
        for file in with_columns:
            if file.table.has_column(column):
                chosen = file
                break
        labels = chosen.table.labels(column, remedy=choose_with(f"--{noun}-column"))
        return _one_value_per_text(chosen, labels, noun)


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
        # A file is read without a header only if all of these names are numbers, those of the references included.
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
    num_systems = len(systems)
    join = find_join([describe_columns(table, options) for table in tables], num_systems, options.key)
    if join.message:
        print_message(join.message)
    # The files have the order of the tables: systems, references, sources.
    files = [JoinedFile(table, rows) for table, rows in zip(tables, join.rows, strict=True)]
    joined_sources = None
    if source_file is not None:
        joined_sources = files.pop()
    return Corpus(
        options,
        systems=files[:num_systems],
        reference_files=files[num_systems:],
        source_file=joined_sources,
        join=join,
    )


def _read(path: str, options: FileOptions, columns: Sequence[str]) -> Table:
    """Read a file. Its header is found by the names of the columns that are used, and of the one that joins files."""
    if options.key not in (None, BY_ORDER):
        columns = [*columns, options.key]
    return read_table(path, options.format, columns)


def describe_columns(table: Table, options: FileOptions) -> KeyColumns:
    """Return the columns of a file that may join it with others.

    These are all columns with single values, except those of the texts, and the column of ``--key``.
    """
    num_rows = len(table.rows)
    if table.is_object:
        return KeyColumns(table.name, num_rows, object_keys=[normalize_key(row["id"]) for row in table.rows])
    columns: dict[str, list[Hashable]] = {}
    # Texts are not ids, because two systems may produce the same texts in another order.
    text_columns = {options.candidate_column, *(options.reference_column or REFERENCES)}
    if options.sources is not None:
        text_columns.add(options.source_column_or_default())
    for name in table.column_names():
        values = table.optional_values(name)
        if name not in text_columns and _has_single_values(values):
            columns[name] = list(map(normalize_key, values))
    key = options.key
    if key not in (None, BY_ORDER) and table.has_columns:
        # The named key may be within an object, so it is not among the names of the columns.
        columns[key] = list(map(normalize_key, table.values(key, remedy=choose_with("--key"))))
    return KeyColumns(table.name, num_rows, columns, place=table.place)


def _has_single_values(values: list[Any] | None) -> TypeGuard[list[Any]]:
    """Check whether a column exists and has no arrays or objects. ``None`` means that the file lacks the column."""
    if values is None:
        return False
    return not any(isinstance(value, list | dict) for value in values)


def _find_id(table: Table, options: FileOptions) -> str | None:
    """Return the name of the first id that has another value in each row. ``None`` if the file has no such id."""
    described = describe_columns(table, options)
    names = list(filter(is_id, described.columns))
    if described.object_keys is not None:
        # The keys of a JSON object have no name, so the output calls them "id".
        names = ["id"]
    for name in names:
        keys = described.keys(name)
        if None not in keys and len(set(keys)) == len(keys):
            return name
    return None


def _refuse_parts(tables: Sequence[Table], candidate_column: str, references: Sequence[str]) -> None:
    """Raise an error if all files have both candidates and references, as the parts of one corpus do."""
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


def _one_value_per_text(file: JoinedFile, values: Sequence[str], noun: str) -> list[str]:
    """Return the value of each text from those of a file's rows. Raise an error if rows of a text have different ones.

    The error names the places of two such rows in the file, and their values.
    """
    values_of_texts = []
    for first, *others in file.rows:
        for row in others:
            if values[row] != values[first]:
                first_place = file.table.place(first)
                found = f"{values[row]!r:.40}, and that of {first_place} is {values[first]!r:.40}"
                raise file.table.error(row, f"the {noun} is {found}. Give rows with the same key one {noun}")
        values_of_texts.append(values[first])
    return values_of_texts


def _select(values: Sequence[T], rows: Sequence[int]) -> list[T]:
    """Return the values of some texts, whose indices are the rows."""
    return [values[row] for row in rows]


def _select_if_given(values: Sequence[T] | None, rows: Sequence[int]) -> list[T] | None:
    """Return the values of some texts, or ``None`` if the texts have no such values."""
    if values is None:
        return None
    return _select(values, rows)
