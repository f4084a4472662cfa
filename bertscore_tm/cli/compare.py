"""Compare the scores of systems on the same references with a paired test.

Every system is compared with the first one, or with all others. Intervals are Student's t; p-values are two-sided. Of
more than two systems the column "p (Holm)" is adjusted for all pairs, listed or not (Holm 1979): the probability of any
value below 0.05 without a true difference is at most 0.05. Intervals are not adjusted. With fewer than 6 texts there is
no p-value, and with permutations that are drawn none below 0.0002, which is then an upper bound.

Texts must be independent of each other. If several texts are of one document, name its column with --document-column:
then documents are resampled as a whole.

Wins and losses are the numbers of texts that the first system of a difference scores higher or lower, ties those with
equal scores to 1e-6.

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
from bertscore_tm.cli.files import choose_with
from bertscore_tm.cli.join import KeyColumns, find_join, is_id
from bertscore_tm.cli.joined_files import FileOptions, Systems, describe_columns, read_corpus
from bertscore_tm.cli.ranks import RankGroup

if TYPE_CHECKING:
    from bertscore_tm.cli.scoring import ScoredSystems


@dataclass(frozen=True)
class Comparison:
    """The score that is compared, the coverage of its intervals, and whether all pairs of systems are listed."""

    component: str
    confidence: float
    all_pairs: bool


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    group = parser.add_argument_group("texts")
    group.add_argument("files", metavar="FILE", nargs="*", help="the files of -c")
    help = "the texts of a system, one per line; the others are compared with the first"
    group.add_argument("-c", "--candidates", metavar="FILE", nargs="+", action="extend", help=help)
    options.add_reference_argument(group)
    help = "column or key of the system, if one file contains all, each with its texts in the same order"
    group.add_argument("--system-column", metavar="NAME", help=help)
    group.add_argument("--names", metavar="NAME", nargs="+", help="names of the systems in tables (default: the files)")
    options.add_source_arguments(group)
    options.add_scoring_arguments(parser)
    group = parser.add_argument_group("comparison")
    options.add_component_argument(group, "the score to compare")
    group.add_argument("--all-pairs", action="store_true", help="compare all pairs of systems")
    options.add_label_arguments(group)
    options.add_confidence_argument(group)
    options.add_report_argument(options.add_output_arguments(parser, (".txt", ".md", ".tex", ".json")))


def run(arguments: argparse.Namespace, ranks: RankGroup) -> None:
    """Score the systems' texts and print their scores and differences."""
    arguments.candidates = [*arguments.files, *(arguments.candidates or ())]
    systems = ranks.run_on_first(lambda: _read(arguments))

    from bertscore_tm.cli.encoder import ScoringChoice, take_hash
    from bertscore_tm.cli.scoring import score_systems

    take_hash(arguments)
    scored = score_systems(ranks, ScoringChoice.of(arguments), systems, arguments.unfinished)
    if scored is not None:
        comparison = Comparison(arguments.component, arguments.confidence, arguments.all_pairs)
        document = _compare(scored, comparison)
        if not document["differences"]:
            raise CommandError("a comparison needs at least two texts, got one")
        if parts := scored.parts():
            document["groups"] = [{"group": label, **_compare_group(part, comparison)} for label, part in parts.items()]
        document |= output.describe_pairing(scored.systems.paired_by)
        document["signature"] = str(scored.signature)
        content = (
            output.to_json(document) if arguments.suffix == ".json" else _format_summary(document, arguments.suffix)
        )
        write_page = partial(output.write_report, scored, arguments.report, arguments.title)
        output.write_results([(content, arguments.output)], write_page)


def _format_summary(document: dict[str, Any], suffix: str) -> str:
    """Format a table of systems and a table of differences, the settings and the signature."""
    tables = [_system_rows(document), _difference_rows(document)]
    if "groups" in document:
        # Without p-values, which are not adjusted for the number of groups.
        for make_rows, width in ((_system_rows, 5), (_difference_rows, 3)):
            rows = [["group", "texts", *make_rows(document)[0][:width]]]
            for group in document["groups"]:
                rows += [[group["group"], str(group["num_texts"]), *row[:width]] for row in make_rows(group)[1:]]
            tables.append(rows)
    unit, test = "text" if document["num_documents"] is None else "document", document["differences"][0]["test"]
    counts = output.format_counts(document, dict.fromkeys(("text", "reference", unit)))
    methods = "Student's t intervals"
    if test is not None:
        test_name = "t" if test == "t" else "permutation"
        methods = f"paired {test_name} test, {methods}"
    lines = [f"{counts}, {output.format_pairing(document)}; {methods}"]
    if test == "t":
        lines.append("t test, since the documents are of unequal size")
    if test is None:
        lines.append(f"no p-values: they need at least 6 {unit}s")
    elif (count := len(document["systems"])) > 2:
        lines.append(f"p (Holm): adjusted for all {count * (count - 1) // 2} pairs of {count} systems")
    lines += [f"signature: {document['signature']}", *filter(None, [document["verdict"]])]
    if suffix == ".tex":
        lines = [f"% {line}" for line in lines]
    return "\n".join([*(output.format_rows(table, suffix) for table in tables), *lines]) + "\n"


def _system_rows(document: dict[str, Any]) -> list[list[str]]:
    label = output.SCORE_LABELS[document["component"]]
    rows = [["system", *output.SCORE_LABELS.values(), f"{100 * document['confidence']:g}% interval of {label}"]]
    for system in document["systems"]:
        means = [f"{system[name]:.4f}" for name in output.SCORE_NAMES]
        rows.append([system["name"], *means, output.format_interval(system["low"], system["high"])])
    return rows


def _difference_rows(document: dict[str, Any]) -> list[list[str]]:
    from bertscore_tm.statistics import format_p_value

    label, interval = output.SCORE_LABELS[document["component"]], f"{100 * document['confidence']:g}% interval"
    is_adjusted = len(document["systems"]) > 2
    header = [f"difference in {label}", "mean", interval, "p", *(["p (Holm)"] if is_adjusted else [])]
    rows = [[*header, "wins", "ties", "losses"]]
    for test in document["differences"]:
        p_values = [test["p_value"], *([test["p_value_holm"]] if is_adjusted else [])]
        row = [f"{test['system']} - {test['minus']}", f"{test['difference']:+.4f}"]
        row += [output.format_interval(test["low"], test["high"], "+")]
        row += [format_p_value(p, test["is_p_value_at_most"]) for p in p_values]
        rows.append([*row, *(str(test[outcome]) for outcome in ("wins", "ties", "losses"))])
    return rows


def _read(arguments: argparse.Namespace) -> Systems:
    from bertscore_tm.statistics import scipy_stats

    scipy_stats()
    if arguments.system_column is not None:
        systems = _read_column(arguments)
    elif len(set(arguments.candidates)) < max(len(arguments.candidates), 2):
        raise CommandError("give different files of at least two systems, or one with --system-column")
    elif arguments.references is None:
        raise CommandError("no references: give -r FILE")
    else:
        systems = read_corpus(FileOptions.of(arguments), arguments.candidates).read(*arguments.candidates)
    if arguments.names is None:
        return systems
    if not len(arguments.names) == len(set(arguments.names)) == len(systems.texts):
        raise CommandError(f"argument --names: give {len(systems.texts)} different names, one per system")
    return replace(systems, texts=dict(zip(arguments.names, systems.texts.values(), strict=True)))


def _read_column(arguments: argparse.Namespace) -> Systems:
    """Divide the rows of one file among the systems in a column, which must have the same references."""
    is_one = len(arguments.candidates) == 1
    file_options = FileOptions.of(arguments)
    corpus = read_corpus(file_options, arguments.candidates, arguments.system_column) if is_one else None
    if corpus is None or not corpus.systems[0].has_columns:
        raise CommandError("--system-column: give one file with columns, such as .tsv or .jsonl, to -c")
    (table,) = corpus.systems
    names, systems = table.texts(arguments.system_column, remedy=choose_with("--system-column")), corpus.read("all")
    rows = {name: [row for row, other in enumerate(names) if other == name] for name in dict.fromkeys(names)}
    if len(rows) < 2:
        raise CommandError(f"{table.name}: {arguments.system_column!r} has one system; a comparison needs two")
    parts = [table.select(f"{table.name} ({name})", own_rows) for name, own_rows in rows.items()]
    columns = _leave_out_row_numbers([describe_columns(part, file_options) for part in parts])
    join = find_join(columns, num_systems=len(parts), key=arguments.key)
    if join.message:
        print_message(join.message)
    rows_of_texts = {}
    for name, places in zip(rows, join.rows, strict=True):
        rows_of_texts[name] = [rows[name][place] for (place,) in places]
    selected = {name: systems.select(own_rows) for name, own_rows in rows_of_texts.items()}
    first = next(iter(rows))
    for name, own in selected.items():
        for text, references in enumerate(own.references):
            if references != selected[first].references[text]:
                row = rows_of_texts[name][text]
                raise table.error(row, f"{name!r} must have the references of {first!r}, in the same order")
    texts = {name: own.texts["all"] for name, own in selected.items()}
    return replace(selected[first], texts=texts, paired_by=join.column)


def _leave_out_row_numbers(parts: Sequence[KeyColumns]) -> list[KeyColumns]:
    """Leave out ids of which no two parts of a file share a value: they number the rows of the file."""
    shared = set()
    for first, second in combinations(parts, 2):
        for name in first.columns:
            if second.has(name) and not set(first.keys(name)).isdisjoint(second.keys(name)):
                shared.add(name)
    kept = []
    for part in parts:
        columns = {name: keys for name, keys in part.columns.items() if name in shared or not is_id(name)}
        kept.append(replace(part, columns=columns))
    return kept


def _compare_group(part: ScoredSystems, comparison: Comparison) -> dict[str, Any]:
    """Return the JSON document of a group, without a verdict: p-values are not adjusted for the number of groups."""
    document = _compare(part, comparison)
    del document["verdict"]
    return document


def _compare(scored: ScoredSystems, comparison: Comparison) -> dict[str, Any]:
    """Return the JSON document."""
    from bertscore_tm.statistics import compare_all_pairs, describe_best, mean_interval

    index, systems = output.SCORE_NAMES.index(comparison.component), scored.systems
    names, means = list(systems.texts), scored.scores[:, 0].double().mean(1).T.tolist()
    compared = scored.scores[index, 0].T.double()  # (systems, texts)
    bounds = [end[index].item() for end in scored.settings.bounds]
    settings: dict[str, Any] = {"confidence": comparison.confidence, "bounds": bounds, "groups": systems.documents}
    low, high = (ends.tolist() for ends in mean_interval(compared, **settings))
    rows = [
        {"name": name, "low": low[i], "high": high[i], **dict(zip(output.SCORE_NAMES, means[i], strict=True))}
        for i, name in enumerate(names)
    ]
    best_by = "Best" if comparison.component == "f1" else f"Best by {output.SCORE_LABELS[comparison.component]}"
    # A group of one text has means only.
    tested = range(len(names)) if compared.shape[-1] > 1 else ()
    comparisons = compare_all_pairs(compared, tested, **settings)
    differences = []
    for (j, i), (test, p) in comparisons.items():
        if j == 0 or comparison.all_pairs:
            p_values = {"p_value_holm": p, "is_p_value_at_most": test.is_p_value_at_most}
            differences.append({"system": names[i], "minus": names[j], **asdict(test), **p_values})
    return {
        "systems": rows,
        "differences": differences,
        "verdict": describe_best(names, [scores[index] for scores in means], comparisons, best_by),
        "component": comparison.component,
        "confidence": comparison.confidence,
        "num_texts": compared.shape[-1],
        "num_documents": None if systems.documents is None else len(set(systems.documents)),
        "num_references": scored.num_references,
    }
