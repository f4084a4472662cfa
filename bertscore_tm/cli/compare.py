"""Compare the scores of systems on the same references with a paired permutation test.

Every system is compared with the first one. Intervals are Student's t; p-values are two-sided. With several comparisons
the column "p (Holm)" is adjusted for their number (Holm 1979): the probability of any value below 0.05 without a true
difference is at most 0.05. Intervals are not adjusted. A comparison needs at least 6 texts.

Texts must be independent of each other. If several texts are of one document, name its column with --document-column:
then documents, at least 6, are resampled as a whole.

Wins and losses are the numbers of texts that the first system of a difference scores higher or lower, ties those with
equal scores to 1e-6.

Examples::

    bertscore-tm compare -c baseline.txt -c new.txt -r refs.txt --language en
    bertscore-tm compare -c a.txt b.txt c.txt -r refs1.txt refs2.txt --all-pairs --json
    bertscore-tm compare -c a.txt b.txt -r refs.txt --names "before" "after" --output table.tex
    bertscore-tm compare -c outputs.jsonl --system-column system --document-column article
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import chain, combinations
from typing import TYPE_CHECKING, Any

from bertscore_tm.cli import options, report, text_arguments
from bertscore_tm.cli.distributed import join_ranks
from bertscore_tm.cli.errors import CommandError
from bertscore_tm.cli.inputs import Table, check_lengths, read_table
from bertscore_tm.cli.layouts import format_rows
from bertscore_tm.cli.scored_corpus import ScoredCorpus, score_across_ranks
from bertscore_tm.cli.shards import remove_shards

if TYPE_CHECKING:
    from torch import Tensor

    from bertscore_tm.statistics import Estimate, PairedComparison

__all__ = ["HELP", "NAME", "Comparison", "add_arguments", "run"]

NAME = "compare"
HELP = "compare two or more systems on the same references"

_SUFFIXES = (".txt", ".md", ".tex", ".json")
# Rounding of equal scores.
_TIE = 1e-6


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    group = parser.add_argument_group("texts")
    group.add_argument(
        "-c",
        "--candidates",
        metavar="FILE",
        nargs="+",
        action="extend",
        required=True,
        help="the texts of a system, one per line; give at least two systems, or one file with --system-column; the "
        "others are compared with the first",
    )
    group.add_argument(
        "-r",
        "--references",
        metavar="FILE",
        nargs="+",
        action="extend",
        help="references of the texts, line by line; each further file adds one reference to every line; may be left "
        "out if the file of --system-column contains them",
    )
    group.add_argument(
        "--system-column",
        metavar="NAME",
        help="column or key of the system that wrote the text: one file contains all systems, each with its texts in "
        "the same order",
    )
    group.add_argument("--names", metavar="NAME", nargs="+", help="names of the systems in tables (default: the files)")
    text_arguments.add_column_arguments(parser)
    options.add_encoder_arguments(parser)
    options.add_idf_arguments(parser)
    options.add_rescale_arguments(parser)
    group = parser.add_argument_group("comparison")
    options.add_component_argument(group, "the score to compare")
    group.add_argument("--all-pairs", action="store_true", help="compare all pairs of systems")
    text_arguments.add_document_argument(group)
    options.add_confidence_argument(group)
    report.add_output_arguments(parser, _SUFFIXES)


def run(arguments: argparse.Namespace) -> int:
    """Score the systems' texts and print their scores and differences."""
    report.check_files(
        arguments.output, *arguments.candidates, *(arguments.references or ()), options.idf_file(arguments)
    )
    suffix = report.choose_format(arguments.output, _SUFFIXES, ".json" if arguments.json else ".txt")
    with join_ranks() as ranks:
        systems, references, groups, idf_texts = ranks.run_on_first(lambda: _read(arguments))

        from bertscore_tm.scoring.texts import TextPairs

        # All systems' texts for a reference follow each other, so that a reference is encoded once.
        candidates = list(chain.from_iterable(zip(*systems.values(), strict=True)))
        shared = [reference for reference in references for _ in systems]
        scored = score_across_ranks(ranks, arguments, TextPairs(candidates, shared), idf_texts, references)
    if scored is not None:
        comparison = _compare(scored, list(systems), references, groups, arguments)
        if suffix == ".json":
            content = comparison.format_json(scored.signature)
        else:
            content = comparison.format_summary(scored.signature, suffix)
        report.write_output(content, arguments.output)
        remove_shards(arguments)
    return 0


@dataclass(frozen=True)
class Comparison:
    """Scores of systems and the differences between them.

    Args:
        names: name of each system.
        means: precision, recall and F1 of each system, shape (3, systems).
        intervals: mean and interval of the compared score of each system.
        differences: indices i and j of two systems, and the difference of system i minus system j.
        adjusted: p-value of each difference after Holm's adjustment.
        outcomes: of each difference, the numbers of texts that system i scores higher, equally and lower.
        settings: arguments and counts that the statistics depend on.
    """

    names: list[str]
    means: Tensor
    intervals: list[Estimate]
    differences: list[tuple[int, int, PairedComparison]]
    adjusted: list[float]
    outcomes: list[tuple[int, int, int]]
    settings: dict[str, Any]

    def format_summary(self, signature: str, suffix: str = ".txt") -> str:
        """Format a table of systems and a table of differences.

        Args:
            signature: signature of the scores.
            suffix: suffix of the files with this layout of tables.

        Returns:
            The tables, the settings and the signature.
        """
        label = report.SCORE_LABELS[self.settings["component"]]
        interval = f"{100 * self.settings['confidence']:g}% interval"
        systems = [["system", *report.SCORE_LABELS.values(), f"{interval} of {label}"]]
        for name, means, mean in zip(self.names, self.means.T.tolist(), self.intervals, strict=True):
            systems.append([name, *(f"{x:.4f}" for x in means), f"[{mean.low:.4f}, {mean.high:.4f}]"])
        several = len(self.differences) > 1
        header = [f"difference in {label}", "mean", interval, "p", *(["p (Holm)"] if several else [])]
        differences = [[*header, "wins", "ties", "losses"]]
        for (i, j, test), adjusted, outcomes in zip(self.differences, self.adjusted, self.outcomes, strict=True):
            row = [f"{self.names[i]} - {self.names[j]}", f"{test.difference:+.4f}"]
            row += [f"[{test.low:+.4f}, {test.high:+.4f}]", f"{test.p_value:.4f}"]
            differences.append([*row, *([f"{adjusted:.4f}"] if several else []), *map(str, outcomes)])
        settings = self.settings
        counts = f"{settings['num_texts']} texts, {report.format_count(settings['num_references'], 'reference')}"
        if settings["num_documents"] is not None:
            counts += f", {report.format_count(settings['num_documents'], 'document')}"
        tables = f"{format_rows(systems, suffix)}\n{format_rows(differences, suffix)}"
        lines = [f"{counts}; paired permutation test, Student's t intervals", f"signature: {signature}"]
        if suffix == ".tex":
            lines = [f"% {line}" for line in lines]
        return f"{tables}\n" + "".join(f"{line}\n" for line in lines)

    def format_json(self, signature: str) -> str:
        """Format everything as JSON.

        Args:
            signature: signature of the scores.

        Returns:
            A JSON object with numbers rounded to six decimals.
        """
        systems = [
            {"name": name, **dict(zip(report.SCORES, means, strict=True)), "low": mean.low, "high": mean.high}
            for name, means, mean in zip(self.names, self.means.T.tolist(), self.intervals, strict=True)
        ]
        differences = [
            {"system": self.names[i], "minus": self.names[j], **asdict(test), "p_value_holm": adjusted}
            | dict(zip(("wins", "ties", "losses"), outcomes, strict=True))
            for (i, j, test), adjusted, outcomes in zip(self.differences, self.adjusted, self.outcomes, strict=True)
        ]
        document = {"systems": _round_numbers(systems), "differences": _round_numbers(differences)}
        return json.dumps(document | self.settings | {"signature": signature}, allow_nan=False) + "\n"


def _read(
    arguments: argparse.Namespace,
) -> tuple[dict[str, list[str]], list[list[str]], list[str] | None, list[str] | None]:
    """Return the systems' texts by name, the references, the documents of the texts, and the texts for idf."""
    from bertscore_tm.statistics import MIN_COMPARED, scipy_stats

    scipy_stats()
    tables = [read_table(path, arguments.format) for path in arguments.candidates]
    if arguments.system_column is None:
        systems, references = _read_files(tables, arguments)
        paths = [*arguments.candidates, *arguments.references]
        groups = text_arguments.read_documents(paths, arguments, len(references))
    else:
        systems, references, groups = _read_column(tables, arguments)
    count, unit = (len(references), "texts per system") if groups is None else (len(set(groups)), "documents")
    if count < MIN_COMPARED:
        raise tables[0].error(
            0, f"a comparison needs at least {MIN_COMPARED} {unit} to reach a p-value below 0.05, got {count}"
        )
    if arguments.names is not None:
        if len(arguments.names) != len(systems) or len(set(arguments.names)) != len(systems):
            raise CommandError(f"argument --names: give {len(systems)} different names, one per system")
        systems = dict(zip(arguments.names, systems.values(), strict=True))
    return systems, references, groups, options.read_idf_texts(arguments)


def _read_files(tables: Sequence[Table], arguments: argparse.Namespace) -> tuple[dict[str, list[str]], list[list[str]]]:
    if len(tables) < 2:
        raise CommandError(
            "argument -c/--candidates: give the files of at least two systems, or --system-column for one file"
        )
    if arguments.references is None:
        raise CommandError("no references: give -r FILE")
    systems = [table.texts(arguments.candidate_column) for table in tables]
    check_lengths(tables, [len(system) for system in systems])
    references = text_arguments.read_references(arguments, tables[0], len(systems[0]))
    # A file that is given twice is two systems.
    names = [
        name if arguments.candidates.count(name) == 1 else f"{name} ({number})"
        for number, name in enumerate(arguments.candidates, 1)
    ]
    return dict(zip(names, systems, strict=True)), references


def _read_column(
    tables: Sequence[Table], arguments: argparse.Namespace
) -> tuple[dict[str, list[str]], list[list[str]], list[str] | None]:
    """Divide the rows of one file among the systems in a column, which must have the same references in one order.

    Returns the systems' texts by name, and the references and documents of these texts.
    """
    if len(tables) != 1 or not tables[0].has_columns:
        raise CommandError("--system-column: give one file with columns, such as .tsv or .jsonl, to -c")
    (table,) = tables
    candidates = table.texts(arguments.candidate_column)
    names = table.texts(arguments.system_column)
    check_lengths([table, table], [len(candidates), len(names)])
    references = text_arguments.read_references(arguments, table, len(candidates))
    rows: dict[str, list[int]] = {}
    for row, name in enumerate(names):
        rows.setdefault(name, []).append(row)
    if len(rows) < 2:
        raise CommandError(
            f"{table.name}: the column {arguments.system_column!r} has one system; a comparison needs two"
        )
    (first, first_rows), *others = rows.items()
    header = table.has_header([arguments.system_column])
    for name, own in others:
        for place, (one, other) in enumerate(zip(first_rows, own, strict=False)):
            if references[one] != references[other]:
                raise table.error(
                    other,
                    f"text {place + 1} of {name!r} has other references than text {place + 1} of {first!r}: give each "
                    f"system the same texts in the same order",
                    header=header,
                )
        if len(own) != len(first_rows):
            raise table.error(
                own[-1], f"{name!r} has {len(own)} texts, but {first!r} has {len(first_rows)}", header=header
            )
    systems = {name: [candidates[row] for row in own] for name, own in rows.items()}
    groups = None
    if arguments.document_column is not None:
        labels = text_arguments.document_labels(table, arguments.document_column)
        check_lengths([table, table], [len(candidates), len(labels)])
        groups = [labels[row] for row in first_rows]
    return systems, [references[row] for row in first_rows], groups


def _compare(
    scored: ScoredCorpus,
    names: list[str],
    references: list[list[str]],
    groups: list[str] | None,
    arguments: argparse.Namespace,
) -> Comparison:
    """Compare systems whose texts for each reference follow each other."""
    from bertscore_tm.statistics import Estimate, compare_paired, holm, mean_interval

    index = report.SCORES.index(arguments.component)
    scores = scored.scores[:, 0].reshape(len(report.SCORES), -1, len(names)).transpose(1, 2)
    compared = scores[index].double()
    least, largest = (ends[index, 0].item() for ends in scored.bounds)
    settings: dict[str, Any] = {"confidence": arguments.confidence, "bounds": (least, largest), "groups": groups}
    means = zip(compared.mean(-1), *mean_interval(compared, **settings), strict=True)
    indices = range(len(compared))
    chosen = combinations(indices, 2) if arguments.all_pairs else ((0, i) for i in indices[1:])
    differences = [(i, j, compare_paired(compared[j], compared[i], **settings)) for j, i in chosen]
    return Comparison(
        names=names,
        means=scores.double().mean(-1),
        intervals=[Estimate(*(x.item() for x in mean)) for mean in means],
        differences=differences,
        adjusted=holm([test.p_value for _, _, test in differences]),
        outcomes=[_count_outcomes(compared[i] - compared[j]) for i, j, _ in differences],
        settings={
            "component": arguments.component,
            "confidence": arguments.confidence,
            "num_texts": compared.shape[1],
            "num_documents": None if groups is None else len(set(groups)),
            "num_references": sum(map(len, references)),
        },
    )


def _count_outcomes(differences: Tensor) -> tuple[int, int, int]:
    wins, losses = int((differences > _TIE).sum()), int((differences < -_TIE).sum())
    return wins, len(differences) - wins - losses, losses


def _round_numbers(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{key: round(x, 6) if isinstance(x, float) else x for key, x in row.items()} for row in rows]
