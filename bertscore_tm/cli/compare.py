"""Compare the scores of systems on the same references with a paired test.

Every system is compared with the first one, or with all others. Intervals are Student's t, and p-values are two-sided.
With more than two systems, the column "p (Holm)" is adjusted for all pairs, listed or not (Holm 1979): the probability
of any value below 0.05 without a true difference is at most 0.05. Intervals are not adjusted. With fewer than 6 texts
there is no p-value. Permutations that are drawn give no p-value below 0.0002, which is then an upper bound.

Texts must be independent of each other. If several texts are of one document, name its column with --document-column.
Then documents are resampled as a whole.

Wins and losses are the numbers of texts that the first system of a difference scores higher or lower. Ties are the
texts with equal scores to 1e-6.

Examples::

    bertscore-tm compare baseline.txt new.txt -r refs.txt --language en
    bertscore-tm compare a.txt b.txt c.txt -r refs1.txt refs2.txt --all-pairs
    bertscore-tm compare a.txt b.txt -r refs.txt --names old new -o table.tex
    bertscore-tm compare a.txt b.txt -r refs.txt --report comparison.html
    bertscore-tm compare all.jsonl --system-column system --document-column doc
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import combinations
from typing import TYPE_CHECKING, Any

from bertscore_tm.cli import options, output
from bertscore_tm.cli.errors import CommandError, print_message
from bertscore_tm.cli.files import Table, choose_with
from bertscore_tm.cli.join import KeyColumns, find_join, is_id
from bertscore_tm.cli.joined_files import FileOptions, Systems, describe_columns, read_corpus
from bertscore_tm.cli.options import ScoringChoice
from bertscore_tm.utilities.files import expand_home

if TYPE_CHECKING:
    from torch import Tensor

    from bertscore_tm.cli.resume import Session
    from bertscore_tm.cli.scoring import ScoredSystems


@dataclass(frozen=True)
class Comparison:
    """The score that is compared, the coverage of its intervals, and whether all pairs of systems are listed."""

    component: str
    confidence: float
    all_pairs: bool


@dataclass(frozen=True)
class CompareOptions:
    """The systems that the command compares, what changes their scores, and how they are compared.

    Args:
        files: the files of the texts.
        system_column: column of the systems in a file with all of them. ``None`` if each system has a file.
        names: names of the systems. ``None`` for the names of the files, or those in the column.
        scoring: what changes the scores.
        comparison: how the scores are compared.
    """

    files: FileOptions
    system_column: str | None
    names: list[str] | None
    scoring: ScoringChoice
    comparison: Comparison

    @classmethod
    def of(cls, arguments: argparse.Namespace) -> CompareOptions:
        """Return the options that the arguments give."""
        return cls(
            files=FileOptions.of_several_systems(arguments),
            system_column=arguments.system_column,
            names=arguments.names,
            scoring=ScoringChoice.of(arguments),
            comparison=Comparison(arguments.component, arguments.confidence, arguments.all_pairs),
        )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    group = parser.add_argument_group("texts")
    group.add_argument("files", metavar="FILE", nargs="*", type=expand_home, help="the files of -c")
    group.add_argument(
        "-c",
        "--candidates",
        metavar="FILE",
        nargs="+",
        action="extend",
        type=expand_home,
        help="the texts of a system, one per line; the first system is compared with the others",
    )
    options.add_reference_argument(group)
    group.add_argument(
        "--system-column",
        metavar="NAME",
        help="column or key of the system, if one file contains all, each with its texts in the same order",
    )
    group.add_argument("--names", metavar="NAME", nargs="+", help="names of the systems in tables (default: the files)")
    options.add_source_arguments(group)
    options.add_scoring_arguments(parser)
    group = parser.add_argument_group("comparison")
    options.add_component_argument(group, "the score to compare")
    group.add_argument("--all-pairs", action="store_true", help="compare all pairs of systems")
    options.add_label_arguments(group)
    options.add_confidence_argument(group)
    options.add_report_argument(options.add_output_arguments(parser, (".txt", ".md", ".tex", ".json")))


def run(arguments: argparse.Namespace, session: Session) -> None:
    """Score the systems' texts and print their scores and differences."""
    command = CompareOptions.of(arguments)
    systems = session.ranks.run_on_first(lambda: _read(command))

    # Import torch and transformers after the files are read, so that errors in files are reported soon.
    from bertscore_tm.cli.scoring import score_systems

    scored = score_systems(session, command.scoring, systems)
    if scored is None:
        # The other ranks are done, because only the first one has the scores and prints.
        return
    document = _compare(scored, command.comparison)
    if not document["differences"]:
        raise CommandError("a comparison needs at least two texts, got one. Give files with more texts")
    groups = []
    for label, part in scored.parts().items():
        group = _compare(part, command.comparison)
        # A verdict would suggest p-values that are adjusted for the number of groups.
        del group["verdict"]
        groups.append({"group": label, **group})
    if groups:
        document["groups"] = groups
    document |= output.describe_pairing(scored.systems.paired_by)
    document["signature"] = str(scored.signature)
    suffix = session.output.suffix
    if suffix == ".json":
        content = output.to_json(document)
    else:
        content = _format_summary(document, suffix)
    write_page = partial(output.write_report, scored, session.output)
    output.write_results([(content, session.output.path)], write_page)


def _format_summary(document: dict[str, Any], suffix: str) -> str:
    """Format a table of systems and a table of differences, the settings and the signature."""
    system_rows = _system_rows(document)
    difference_rows = _difference_rows(document)
    tables = [system_rows, difference_rows]
    if "groups" in document:
        system_rows_of_groups = [["group", "texts", *system_rows[0]]]
        # Keep three columns: difference, mean and interval. The others have p-values, which are not adjusted for the
        # number of groups.
        difference_rows_of_groups = [["group", "texts", *difference_rows[0][:3]]]
        for group in document["groups"]:
            label = group["group"]
            num_texts = str(group["num_texts"])
            for row in _system_rows(group)[1:]:
                system_rows_of_groups.append([label, num_texts, *row])
            for row in _difference_rows(group)[1:]:
                difference_rows_of_groups.append([label, num_texts, *row[:3]])
        tables += [system_rows_of_groups, difference_rows_of_groups]
    lines = _describe_methods(document)
    if suffix == ".tex":
        # Write the lines below the tables as comments of LaTeX.
        lines = [f"% {line}" for line in lines]
    formatted = [output.format_rows(table, suffix) for table in tables]
    return "\n".join([*formatted, *lines]) + "\n"


def _describe_methods(document: dict[str, Any]) -> list[str]:
    """Return lines with the numbers of texts, the test, the signature and the verdict."""
    # Documents are resampled as a whole, so their number decides whether there is a test.
    unit = "text"
    if document["num_documents"] is not None:
        unit = "document"
    nouns = dict.fromkeys(["text", "reference", unit])
    facts = f"{output.format_counts(document, nouns)}, {output.format_pairing(document)}"
    test = document["test"]
    num_systems = len(document["systems"])
    if test is None:
        lines = [f"{facts}; Student's t intervals", f"no p-values: they need at least 6 {unit}s"]
    elif test == "t":
        lines = [f"{facts}; paired t test, Student's t intervals", "t test, because the documents have unequal sizes"]
    else:
        lines = [f"{facts}; paired permutation test, Student's t intervals"]
    if test is not None and num_systems > 2:
        num_pairs = num_systems * (num_systems - 1) // 2
        lines.append(f"p (Holm): adjusted for all {num_pairs} pairs of {num_systems} systems")
    lines.append(f"signature: {document['signature']}")
    if document["verdict"]:
        lines.append(document["verdict"])
    return lines


def _system_rows(document: dict[str, Any]) -> list[list[str]]:
    """Return the table of the systems, its header first."""
    label = output.SCORE_LABELS[document["component"]]
    interval = f"{100 * document['confidence']:g}% interval of {label}"
    rows = [["system", *output.SCORE_LABELS.values(), interval]]
    for system in document["systems"]:
        means = [f"{system[name]:.4f}" for name in output.SCORE_NAMES]
        rows.append([system["name"], *means, output.format_interval(system["low"], system["high"])])
    return rows


def _difference_rows(document: dict[str, Any]) -> list[list[str]]:
    """Return the table of the differences, its header first."""
    from bertscore_tm.statistics import format_p_value

    label = output.SCORE_LABELS[document["component"]]
    interval = f"{100 * document['confidence']:g}% interval"
    p_values = {"p_value": "p"}
    # A single difference needs no adjustment.
    if len(document["systems"]) > 2:
        p_values["p_value_holm"] = "p (Holm)"
    outcomes = ("wins", "ties", "losses")
    rows = [[f"difference in {label}", "mean", interval, *p_values.values(), *outcomes]]
    for difference in document["differences"]:
        row = [
            f"{difference['system']} - {difference['minus']}",
            f"{difference['difference']:+.4f}",
            output.format_interval(difference["low"], difference["high"], "+"),
        ]
        row += [format_p_value(difference[name], difference["is_p_value_at_most"]) for name in p_values]
        row += [str(difference[outcome]) for outcome in outcomes]
        rows.append(row)
    return rows


def _read(command: CompareOptions) -> Systems:
    """Read the systems, and give them the names of ``--names``."""
    from bertscore_tm.statistics import scipy_stats

    # Report that scipy is missing before the texts are scored.
    scipy_stats()
    systems = _read_systems(command)
    if command.names is None:
        return systems
    num_systems = len(systems.texts)
    if len(command.names) != num_systems or len(set(command.names)) != num_systems:
        given = " ".join(command.names)
        raise CommandError(f"argument --names: got {given!r}. Give {num_systems} different names, one per system")
    return replace(systems, texts=dict(zip(command.names, systems.texts.values(), strict=True)))


def _read_systems(command: CompareOptions) -> Systems:
    """Read the systems from their files, or from the column of a single file."""
    paths = command.files.candidates
    if command.system_column is not None:
        return _read_column(command.files, command.system_column)
    num_files = len(set(paths))
    if num_files < 2 or num_files < len(paths):
        given = " ".join(paths) or "none"
        remedy = "Give different files of at least two systems, or one with --system-column NAME"
        raise CommandError(f"the files of systems are {given}. {remedy}")
    if command.files.references is None:
        raise CommandError("there are no references. Give -r FILE")
    return read_corpus(command.files).read(*paths)


def _read_column(files: FileOptions, system_column: str) -> Systems:
    """Divide the rows of one file among the systems in a column. The systems must have the same references."""
    table, systems = _read_one_file(files, system_column)
    # A dictionary keeps the systems in the order of their first rows.
    rows_of_systems: dict[str, list[int]] = {}
    for row, name in enumerate(table.texts(system_column, remedy=choose_with("--system-column"))):
        rows_of_systems.setdefault(name, []).append(row)
    if len(rows_of_systems) < 2:
        only = ", ".join(map(repr, rows_of_systems))
        raise CommandError(f"{table.name}: {system_column!r} has one system, {only}. Give a file with at least two")
    # Join the rows of the systems as those of files, so that their order may differ.
    parts = [table.select(f"{table.name} ({name})", rows) for name, rows in rows_of_systems.items()]
    columns = _leave_out_row_numbers([describe_columns(part, files) for part in parts])
    join = find_join(columns, num_systems=len(parts), key=files.key)
    if join.message:
        print_message(join.message)
    first = next(iter(rows_of_systems))
    selected: dict[str, Systems] = {}
    texts = {}
    # join.rows has an entry per part, in the order of the systems.
    for (name, rows), rows_of_texts in zip(rows_of_systems.items(), join.rows, strict=True):
        # The entry is [[row], [row], ...], because a system has one row for each text. Its indices are those of rows in
        # the part, and joined_rows are those in the file.
        joined_rows = [rows[row] for (row,) in rows_of_texts]
        selected[name] = systems.select(joined_rows)
        texts[name] = selected[name].texts["all"]
        for text, references in enumerate(selected[name].references):
            # A paired test needs the same texts, so the references of a text must agree.
            if references != selected[first].references[text]:
                message = f"the references of {name!r} are not those of {first!r}. Give both the same, in one order"
                raise table.error(joined_rows[text], message)
    return replace(selected[first], texts=texts, paired_by=join.column)


def _read_one_file(files: FileOptions, system_column: str) -> tuple[Table, Systems]:
    """Return the file with all systems, and its texts as those of one system, "all"."""
    remedy = "Give one file with columns, such as .tsv or .jsonl, to -c"
    if len(files.candidates) != 1:
        raise CommandError(f"argument --system-column: got {len(files.candidates)} files. {remedy}")
    corpus = read_corpus(files, system_column)
    table = corpus.systems[0].table
    if not table.has_columns:
        raise CommandError(f"argument --system-column: {table.name} has no columns. {remedy}")
    return table, corpus.read("all")


def _leave_out_row_numbers(parts: Sequence[KeyColumns]) -> list[KeyColumns]:
    """Return the parts of a file without ids that number its rows: no two parts share a value of such an id."""
    shared = set()
    for first, second in combinations(parts, 2):
        for name in first.columns:
            if second.has(name) and not set(first.keys(name)).isdisjoint(second.keys(name)):
                shared.add(name)
    kept = []
    for part in parts:
        columns = {}
        for name, keys in part.columns.items():
            if name in shared or not is_id(name):
                columns[name] = keys
        kept.append(replace(part, columns=columns))
    return kept


def _compare(scored: ScoredSystems, comparison: Comparison) -> dict[str, Any]:
    """Return the JSON document."""
    from bertscore_tm.statistics import compare_all_pairs, describe_best, mean_interval

    systems = scored.systems
    names = list(systems.texts)
    # Compute means in float64, because those of many scores in float32 would differ in the last printed digit.
    scores = scored.scores[:, 0].double()  # (3, texts, systems)
    means = scores.mean(1)  # (3, systems)
    index = output.SCORE_NAMES.index(comparison.component)
    compared = scores[index].T  # (systems, texts)
    bounds = [end[index].item() for end in scored.settings.bounds]
    settings: dict[str, Any] = {"confidence": comparison.confidence, "bounds": bounds, "groups": systems.documents}
    interval = mean_interval(compared, **settings)
    # Test all pairs of systems, even if they are not listed, because the adjusted p-values depend on all of them.
    tested = range(len(names))
    if compared.shape[-1] == 1:
        # Test no systems, because a group of one text has means only.
        tested = range(0)
    # {(first, second): (paired, p_value_holm)}, with the indices of two systems as the key
    comparisons = compare_all_pairs(compared, tested, **settings)
    differences = []
    # All pairs of systems have the same test, because they have the same texts. It is None if none was compared.
    test = None
    for (first, second), (paired, p_value_holm) in comparisons.items():
        numbers = asdict(paired)
        test = numbers.pop("test")
        if first == 0 or comparison.all_pairs:
            difference = {"system": names[second], "minus": names[first], **numbers}
            difference["p_value_holm"] = p_value_holm
            difference["is_p_value_at_most"] = paired.is_p_value_at_most
            differences.append(difference)
    best_by = "Best"
    if comparison.component != "f1":
        best_by = f"Best by {output.SCORE_LABELS[comparison.component]}"
    return {
        "systems": _describe_systems(names, means, interval),
        "differences": differences,
        "test": test,
        "verdict": describe_best(names, means[index].tolist(), comparisons, best_by),
        "component": comparison.component,
        "confidence": comparison.confidence,
        "num_texts": compared.shape[-1],
        "num_documents": systems.num_documents,
        "num_references": scored.num_references,
    }


def _describe_systems(names: Sequence[str], means: Tensor, interval: tuple[Tensor, Tensor]) -> list[dict[str, Any]]:
    """Return the name, the means and the interval of the compared score of each system, by their keys in JSON.

    Args:
        names: the names of the systems.
        means: mean precision, recall and F1, shape (3, systems).
        interval: lower and upper ends, each of shape (systems,).
    """
    low, high = interval
    systems = []
    for number, name in enumerate(names):
        ends = {"low": low[number].item(), "high": high[number].item()}
        means_of_system = dict(zip(output.SCORE_NAMES, means[:, number].tolist(), strict=True))
        systems.append({"name": name, **ends, **means_of_system})
    return systems
