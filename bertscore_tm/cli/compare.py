"""Compare the scores of systems on the same references with a paired bootstrap (Koehn, EMNLP 2004).

Fewer than 20 texts are compared with the exact randomisation test, fewer than 6 are an error.

Every system is compared with the first one. Intervals are percentile intervals; p-values are two-sided. With several
comparisons the column "p (Holm)" is adjusted for their number (Holm 1979): the probability of any value below 0.05
without a true difference is at most 0.05. Intervals are not adjusted.

Examples::

    bertscore-tm compare -c baseline.txt -c new.txt -r refs.txt --lang en
    bertscore-tm compare -c a.txt b.txt c.txt -r refs1.txt refs2.txt --all-pairs --json
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
from bertscore_tm.cli.inputs import check_standard_input, read_table
from bertscore_tm.cli.scored_corpus import score_across_ranks
from bertscore_tm.cli.tables import check_lengths

if TYPE_CHECKING:
    from torch import Tensor

    from bertscore_tm.statistics import Estimate, PairedBootstrap

__all__ = ["HELP", "NAME", "Comparison", "add_arguments", "run"]

NAME = "compare"
HELP = "compare two or more systems on the same references"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments.

    Args:
        parser: the command's parser.
    """
    group = parser.add_argument_group("texts")
    group.add_argument(
        "-c",
        "--candidates",
        metavar="FILE",
        nargs="+",
        action="extend",
        required=True,
        help="the texts of a system, one per line; give at least two systems; the others are compared with the first",
    )
    group.add_argument(
        "-r",
        "--references",
        metavar="FILE",
        nargs="+",
        action="extend",
        required=True,
        help="references of the texts, line by line; each further file adds one reference to every line",
    )
    text_arguments.add_column_arguments(parser)
    options.add_encoder_arguments(parser)
    options.add_idf_arguments(parser)
    options.add_rescale_arguments(parser)
    group = parser.add_argument_group("comparison")
    group.add_argument(
        "--score", default="f1", choices=report.SCORES, help="the score to compare (default: %(default)s)"
    )
    group.add_argument("--all-pairs", action="store_true", help="compare all pairs of systems")
    group.add_argument(
        "--resamples",
        type=options.integer_of_at_least(1),
        metavar="N",
        default=10_000,
        help="number of bootstrap resamples (default: %(default)s)",
    )
    group.add_argument(
        "--seed", type=options.integer_of_at_least(0), default=0, help="seed of the resampling (default: %(default)s)"
    )
    group.add_argument(
        "--confidence",
        type=options.proportion,
        metavar="X",
        default=0.95,
        help="coverage of the intervals (default: %(default)s)",
    )
    report.add_output_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Score the systems' texts and print their scores and differences.

    Args:
        arguments: the parsed arguments.

    Returns:
        The exit code.

    Raises:
        CommandError: an argument or file is invalid.
    """
    report.check_output_path(arguments.output)
    with join_ranks() as ranks:
        systems, references, idf_sents = ranks.run_on_first(lambda: _read(arguments))

        from bertscore_tm.scoring.texts import TextPairs

        # One corpus, so that texts which systems share are encoded once.
        texts = TextPairs(list(chain.from_iterable(systems)), references * len(systems))
        scored = score_across_ranks(ranks, arguments, texts, references, idf_sents)
    if scored is not None:
        scores = scored.scores[:, 0].reshape(len(report.SCORES), len(systems), -1)
        comparison = _compare(scores, references, arguments)
        format_comparison = comparison.format_json if arguments.json else comparison.format_summary
        report.write_output(format_comparison(scored.signature), arguments.output)
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
        settings: arguments and counts that the statistics depend on.
    """

    names: list[str]
    means: Tensor
    intervals: list[Estimate]
    differences: list[tuple[int, int, PairedBootstrap]]
    adjusted: list[float]
    settings: dict[str, Any]

    def format_summary(self, signature: str) -> str:
        """Format a table of systems and a table of differences.

        Args:
            signature: signature of the scores.

        Returns:
            The tables, the settings and the signature.
        """
        label = report.SCORE_LABELS[self.settings["score"]]
        interval = f"{100 * self.settings['confidence']:g}% interval"
        systems = [["system", *report.SCORE_LABELS.values(), f"{interval} of {label}"]]
        for name, means, mean in zip(self.names, self.means.T.tolist(), self.intervals, strict=True):
            systems.append([name, *(f"{x:.4f}" for x in means), f"[{mean.low:.4f}, {mean.high:.4f}]"])
        several = len(self.differences) > 1
        differences = [[f"difference in {label}", "mean", interval, "p", *(["p (Holm)"] if several else [])]]
        for (i, j, test), adjusted in zip(self.differences, self.adjusted, strict=True):
            row = [f"{self.names[i]} - {self.names[j]}", f"{test.difference:+.4f}"]
            row += [f"[{test.low:+.4f}, {test.high:+.4f}]", f"{test.p_value:.4f}"]
            differences.append(row + ([f"{adjusted:.4f}"] if several else []))
        from bertscore_tm.utilities.small_samples import MIN_RESAMPLED

        settings = self.settings
        counts = f"{settings['num_texts']} texts, {report.format_count(settings['num_references'], 'reference')}"
        method = f"paired bootstrap with {settings['num_resamples']} resamples, seed {settings['seed']}"
        if settings["num_texts"] < MIN_RESAMPLED:
            method = "exact paired randomisation test and Student's intervals, as there are few texts"
        tables = f"{report.align_columns(systems)}\n{report.align_columns(differences)}"
        return f"{tables}\n{counts}; {method}\nsignature: {signature}\n"

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
            for (i, j, test), adjusted in zip(self.differences, self.adjusted, strict=True)
        ]
        document = {"systems": _round_numbers(systems), "differences": _round_numbers(differences)}
        return json.dumps(document | self.settings | {"signature": signature}, allow_nan=False) + "\n"


def _read(arguments: argparse.Namespace) -> tuple[list[list[str]], list[list[str]], list[str] | None]:
    """Return the systems' texts, the references, and the texts for idf."""
    from bertscore_tm.utilities.small_samples import MIN_TESTED

    if len(arguments.candidates) < 2:
        raise CommandError("argument -c/--candidates: give the files of at least two systems")
    check_standard_input([*arguments.candidates, *arguments.references, arguments.idf_file])
    tables = [read_table(path, arguments.format) for path in arguments.candidates]
    systems = [text_arguments.read_candidates(table, arguments.candidate_column) for table in tables]
    check_lengths(tables, [len(system) for system in systems])
    if len(systems[0]) < MIN_TESTED:
        raise tables[0].error(
            0, f"a comparison needs at least {MIN_TESTED} texts per system to reach a p-value below 0.05"
        )
    references = text_arguments.read_references(
        [read_table(path, arguments.format) for path in arguments.references],
        arguments.reference_column,
        tables[0],
        len(systems[0]),
    )
    return systems, references, options.read_idf_texts(arguments)


def _compare(scores: Tensor, references: list[list[str]], arguments: argparse.Namespace) -> Comparison:
    """Compare systems by their scores of shape (3, systems, texts)."""
    from bertscore_tm.statistics import bootstrap_interval, holm, paired_bootstrap

    compared = scores[report.SCORES.index(arguments.score)].double()
    settings = {"confidence": arguments.confidence, "num_resamples": arguments.resamples, "seed": arguments.seed}
    indices = range(len(compared))
    chosen = combinations(indices, 2) if arguments.all_pairs else ((0, i) for i in indices[1:])
    differences = [(i, j, paired_bootstrap(compared[j], compared[i], **settings)) for j, i in chosen]
    return Comparison(
        names=arguments.candidates,
        means=scores.double().mean(-1),
        intervals=[bootstrap_interval(system, **settings) for system in compared],
        differences=differences,
        adjusted=holm([test.p_value for _, _, test in differences]),
        settings={
            "score": arguments.score,
            **settings,
            "num_texts": compared.shape[1],
            "num_references": sum(map(len, references)),
        },
    )


def _round_numbers(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{key: round(x, 6) if isinstance(x, float) else x for key, x in row.items()} for row in rows]
