"""Compare systems on the same references: is one better, or were the texts kind to it?

Every system is compared with the first by a paired bootstrap (Koehn, EMNLP 2004). Intervals are percentile intervals;
p-values are two-sided. With several comparisons the column "p (Holm)" is adjusted for having made them all (Holm 1979):
calling real what it puts below 0.05 is wrong about any of the differences with a probability of at most 0.05. Intervals
are those of single comparisons.

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

from bertscore_tm.cli import numbers, options, pairs, ranks, report, scoring
from bertscore_tm.cli.errors import CommandError
from bertscore_tm.cli.inputs import check_lengths, check_standard_input, read_table
from bertscore_tm.cli.tables import aligned

if TYPE_CHECKING:
    from torch import Tensor

    from bertscore_tm.statistics import Estimate, PairedBootstrap

__all__ = ["HELP", "NAME", "Comparison", "add_arguments", "run"]

NAME = "compare"
HELP = "compare two or more systems on the same references"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments.

    Args:
        parser: its parser.
    """
    group = parser.add_argument_group("texts")
    group.add_argument(
        "-c",
        "--candidates",
        metavar="FILE",
        nargs="+",
        action="extend",
        required=True,
        help="the texts of a system, one per line; give two systems or more, the first is the one to compare with",
    )
    group.add_argument(
        "-r",
        "--references",
        metavar="FILE",
        nargs="+",
        action="extend",
        required=True,
        help="their references, line by line; each further file adds one reference to every line",
    )
    pairs.add_column_arguments(parser)
    options.add_encoder_arguments(parser)
    options.add_idf_arguments(parser)
    options.add_rescale_arguments(parser)
    group = parser.add_argument_group("comparison")
    group.add_argument(
        "--score", default="f1", choices=report.SCORES, help="what systems are compared by (default: %(default)s)"
    )
    group.add_argument("--all-pairs", action="store_true", help="compare every two systems, not only with the first")
    group.add_argument(
        "--resamples",
        type=numbers.at_least(1),
        metavar="N",
        default=10_000,
        help="number of bootstrap resamples (default: %(default)s)",
    )
    group.add_argument("--seed", type=numbers.at_least(0), default=0, help="of the resampling (default: %(default)s)")
    group.add_argument(
        "--confidence",
        type=numbers.share,
        metavar="X",
        default=0.95,
        help="coverage of the intervals (default: %(default)s)",
    )
    report.add_output_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Score the systems' files and print how they compare.

    Args:
        arguments: the parsed arguments.

    Returns:
        The exit code.

    Raises:
        CommandError: something is wrong with the arguments or files.
    """
    report.check_output(arguments.output)
    with ranks.join() as team:
        systems, references, idf_sents = team.from_first(lambda: _read(arguments))

        from bertscore_tm.texts import TextPairs

        # In one corpus, where the texts that systems share are encoded once.
        texts = TextPairs(list(chain.from_iterable(systems)), references * len(systems))
        scored = scoring.score_texts(team, arguments, texts, references, idf_sents)
    if scored is not None:
        scores = scored.scores[:, 0].reshape(len(report.SCORES), len(systems), -1)
        compared = _compare(scores, references, arguments)
        text = compared.document(scored.signature) if arguments.json else compared.summary(scored.signature)
        report.write_output(text, arguments.output)
    return 0


@dataclass(frozen=True)
class Comparison:
    """Systems and the differences between them.

    Args:
        names: the systems.
        means: precision, recall and F1 of each system, shape (3, systems).
        intervals: the compared score of each system.
        differences: numbers of the two systems, the first minus the second, and the difference.
        adjusted: p-value of each difference after Holm's adjustment.
        settings: what the statistics were computed with.
    """

    names: list[str]
    means: Tensor
    intervals: list[Estimate]
    differences: list[tuple[int, int, PairedBootstrap]]
    adjusted: list[float]
    settings: dict[str, Any]

    def summary(self, signature: str) -> str:
        """Return two tables for people.

        Args:
            signature: that of the scores.

        Returns:
            Some lines.
        """
        kind = {"precision": "P", "recall": "R", "f1": "F1"}[self.settings["score"]]
        interval = f"{100 * self.settings['confidence']:g}% interval"
        rows = [["system", "P", "R", "F1", f"{interval} of {kind}"]]
        for name, means, found in zip(self.names, self.means.T.tolist(), self.intervals, strict=True):
            rows.append([name, *(f"{x:.4f}" for x in means), f"[{found.low:.4f}, {found.high:.4f}]"])
        several = len(self.differences) > 1
        below = [[f"difference in {kind}", "mean", interval, "p", *(["p (Holm)"] if several else [])]]
        for (i, j, gain), adjusted in zip(self.differences, self.adjusted, strict=True):
            row = [f"{self.names[i]} - {self.names[j]}", f"{gain.difference:+.4f}"]
            row += [f"[{gain.low:+.4f}, {gain.high:+.4f}]", f"{gain.p_value:.4f}"]
            below.append(row + ([f"{adjusted:.4f}"] if several else []))
        settings = self.settings
        counts = f"{settings['num_texts']} texts, {report.counted(settings['num_references'], 'reference')}"
        method = f"paired bootstrap with {settings['num_resamples']} resamples, seed {settings['seed']}"
        return f"{aligned(rows)}\n{aligned(below)}\n{counts}; {method}\nsignature: {signature}\n"

    def document(self, signature: str) -> str:
        """Return everything as JSON.

        Args:
            signature: that of the scores.

        Returns:
            A JSON object, numbers rounded to six decimals.
        """
        systems = [
            {"name": name, **dict(zip(report.SCORES, means, strict=True)), "low": found.low, "high": found.high}
            for name, means, found in zip(self.names, self.means.T.tolist(), self.intervals, strict=True)
        ]
        differences = [
            {"system": self.names[i], "minus": self.names[j], **asdict(gain), "p_value_holm": adjusted}
            for (i, j, gain), adjusted in zip(self.differences, self.adjusted, strict=True)
        ]
        found = {"systems": _rounded(systems), "differences": _rounded(differences)}
        return json.dumps(found | self.settings | {"signature": signature}, allow_nan=False) + "\n"


def _read(arguments: argparse.Namespace) -> tuple[list[list[str]], list[list[str]], list[str] | None]:
    """The systems' texts, their references, and the texts for idf."""
    if len(arguments.candidates) < 2:
        raise CommandError("argument -c/--candidates: a comparison needs the files of at least two systems")
    check_standard_input([*arguments.candidates, *arguments.references, arguments.idf_file])
    tables = [read_table(path, arguments.format) for path in arguments.candidates]
    systems = [pairs.read_candidates(table, arguments.candidate_column) for table in tables]
    check_lengths(tables, [len(system) for system in systems])
    if len(systems[0]) < 2:
        raise CommandError(f"{tables[0].name}:1: a comparison needs at least two texts of each system")
    references = pairs.read_references(
        [read_table(path, arguments.format) for path in arguments.references],
        arguments.reference_column,
        tables[0],
        len(systems[0]),
    )
    return systems, references, options.read_idf_texts(arguments)


def _compare(scores: Tensor, references: list[list[str]], arguments: argparse.Namespace) -> Comparison:
    """Compare systems by their scores, shape (3, systems, texts)."""
    from bertscore_tm.statistics import bootstrap_interval, holm, paired_bootstrap

    compared = scores[report.SCORES.index(arguments.score)].double()
    settings = {"confidence": arguments.confidence, "num_resamples": arguments.resamples, "seed": arguments.seed}
    several = range(len(compared))
    chosen = combinations(several, 2) if arguments.all_pairs else ((0, i) for i in several[1:])
    differences = [(i, j, paired_bootstrap(compared[j], compared[i], **settings)) for j, i in chosen]
    return Comparison(
        names=arguments.candidates,
        means=scores.double().mean(-1),
        intervals=[bootstrap_interval(system, **settings) for system in compared],
        differences=differences,
        adjusted=holm([found.p_value for _, _, found in differences]),
        settings={
            "score": arguments.score,
            **settings,
            "num_texts": compared.shape[1],
            "num_references": sum(map(len, references)),
        },
    )


def _rounded(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{key: round(x, 6) if isinstance(x, float) else x for key, x in row.items()} for row in rows]
