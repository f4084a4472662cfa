"""Find the layer of a model that agrees best with people, in one pass over texts that people have judged.

Judgements are numbers beside the candidates (the column or key "human", or those named by --human-column), where a
larger one is better; or preferences (--darr): rows with a reference, the better and the worse text. Layers are ranked
by the mean over the kinds of judgement.

Examples::

    bertscore-tm tune-layers -c judged.jsonl -m my/model
    bertscore-tm tune-layers -c judged.tsv --human-column fluency --human-column adequacy --coefficient kendall
    bertscore-tm tune-layers -c judged.jsonl --system-column system --score recall --idf
    bertscore-tm tune-layers --darr preferences.jsonl --lang en --json --output layers.json
"""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from bertscore_tm.cli import numbers, options, pairs, ranks, report, scoring
from bertscore_tm.cli.errors import CommandError
from bertscore_tm.cli.inputs import Table, check_lengths, check_standard_input, read_table
from bertscore_tm.cli.tables import aligned

if TYPE_CHECKING:
    from torch import Tensor

    from bertscore_tm.layer_tuning import LayerAgreement
    from bertscore_tm.texts import TextPairs

__all__ = ["HELP", "NAME", "Judged", "add_arguments", "run"]

NAME = "tune-layers"
HELP = "rank a model's layers by their correlation with human judgements"

_SCORE_NAMES = {"precision": "P", "recall": "R", "f1": "F1"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments.

    Args:
        parser: its parser.
    """
    group = parser.add_argument_group("texts and judgements")
    source = group.add_mutually_exclusive_group(required=True)
    source.add_argument(
        "-c",
        "--candidates",
        metavar="FILE",
        help="texts that people have judged; .tsv and .jsonl files may hold references and judgements too",
    )
    source.add_argument(
        "--darr",
        metavar="FILE",
        help="preferences instead: a .tsv or .jsonl file with the columns reference, better and worse",
    )
    group.add_argument(
        "-r",
        "--references",
        metavar="FILE",
        nargs="+",
        action="extend",
        help="the candidates' references, line by line, where their own file does not hold them",
    )
    group.add_argument(
        "--human", metavar="FILE", help="the judgements, line by line, where the candidates' file does not hold them"
    )
    group.add_argument(
        "--human-column",
        metavar="NAME",
        action="append",
        help="column or key of a judgement: a number, or in JSON lines an object of several; may be repeated (default: "
        "human)",
    )
    group.add_argument(
        "--system-column",
        metavar="NAME",
        help="column or key of the system that wrote the candidate, beside the judgement: correlate the means of "
        "systems rather than texts",
    )
    pairs.add_column_arguments(parser)
    options.add_encoder_arguments(parser, all_layers=True)
    options.add_idf_arguments(parser)
    group = parser.add_argument_group("ranking")
    group.add_argument(
        "--score", default="f1", choices=report.SCORES, help="what layers are ranked by (default: %(default)s)"
    )
    group.add_argument(
        "--coefficient",
        choices=("pearson", "spearman", "kendall"),
        default="pearson",
        help="of correlation (default: %(default)s)",
    )
    group.add_argument(
        "--confidence",
        type=numbers.share,
        metavar="X",
        default=0.95,
        help="coverage of the intervals (default: %(default)s)",
    )
    report.add_output_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Score all layers and print them, best first.

    Args:
        arguments: the parsed arguments.

    Returns:
        The exit code.

    Raises:
        CommandError: something is wrong with the arguments or files.
    """
    report.check_output(arguments.output)
    with ranks.join() as team:
        judged, idf_sents = team.from_first(lambda: (_read(arguments), options.read_idf_texts(arguments)))
        references = judged.texts.references[: len(judged)]
        scored = scoring.score_texts(
            team, arguments, judged.texts, references, idf_sents, all_layers=True, rescale=False
        )
    if scored is not None:
        ranked = {
            name: judged.rank(scores, arguments) for name, scores in zip(report.SCORES, scored.scores, strict=True)
        }
        show = _document if arguments.json else _summary
        report.write_output(show(ranked, judged, arguments, scored.signature), arguments.output)
    return 0


@dataclass(frozen=True)
class Judged:
    """Texts and what people say of them.

    Args:
        texts: candidates and references; for preferences first all the better texts, then all the worse ones.
        human: judgements of each kind; none for preferences.
        systems: who wrote each candidate, for correlations of systems.
    """

    texts: TextPairs
    human: dict[str, list[float]]
    systems: list[str] | None = None

    def __len__(self) -> int:
        """Return the number of judged texts, or of preferences."""
        return len(self.texts) if self.human else len(self.texts) // 2

    @property
    def counted(self) -> str:
        """What the judgements are of, and how many there are."""
        if not self.human:
            return report.counted(len(self), "preference")
        systems = "" if self.systems is None else f" of {report.counted(len(set(self.systems)), 'system')}"
        return report.counted(len(self), "text") + systems

    def means(self) -> dict[str, Tensor]:
        """Return the judgements of each kind, of systems where these are known."""
        import torch

        from bertscore_tm.layer_tuning import system_means

        values = {name: torch.tensor(judgements, dtype=torch.float64) for name, judgements in self.human.items()}
        if self.systems is None:
            return values
        return {name: system_means(judgements, self.systems) for name, judgements in values.items()}

    def rank(self, scores: Tensor, arguments: argparse.Namespace) -> list[LayerAgreement]:
        """Rank layers by their scores.

        Args:
            scores: shape (layers, candidates).
            arguments: the parsed arguments.

        Returns:
            The layers, best first.
        """
        from bertscore_tm.layer_tuning import rank_layers, rank_layers_by_preference, system_means

        if not self.human:
            better, worse = scores.chunk(2, dim=-1)
            return rank_layers_by_preference(better, worse, confidence=arguments.confidence)
        if self.systems is not None:
            scores = system_means(scores, self.systems)
        return rank_layers(scores, self.means(), arguments.coefficient, confidence=arguments.confidence)


def _read(arguments: argparse.Namespace) -> Judged:
    from bertscore_tm.statistics import correlation, scipy_stats

    scipy_stats()
    references = arguments.references or ()
    check_standard_input([arguments.candidates, arguments.darr, arguments.human, *references, arguments.idf_file])
    if arguments.darr is not None:
        return _read_preferences(arguments)
    judged = _read_judged(arguments)
    for name, values in judged.means().items():
        # Whatever is wrong with them alone should not wait for the scores.
        try:
            correlation(values, values, arguments.coefficient)
        except ValueError as error:
            raise CommandError(f"judgements {name!r}: {error}") from error
    return judged


def _read_preferences(arguments: argparse.Namespace) -> Judged:
    from bertscore_tm.texts import TextPairs

    misplaced = {
        "-r": arguments.references,
        "--human": arguments.human,
        "--human-column": arguments.human_column,
        "--system-column": arguments.system_column,
    }
    given = [option for option, value in misplaced.items() if value is not None]
    if given:
        raise CommandError(f"--darr files hold references and judgements themselves: leave {', '.join(given)} out")
    table = read_table(arguments.darr, arguments.format)
    if table.file_format == "txt":
        raise CommandError(f"{table.name}: preferences need columns: pass --format tsv or jsonl")
    better, worse = table.texts("better"), table.texts("worse")
    if len(better) < 2:
        raise CommandError(f"{table.name}:1: at least two preferences are needed, there are {len(better)}")
    references = pairs.read_references([table], arguments.reference_column, table, len(better))
    return Judged(TextPairs(better + worse, references * 2), {})


def _read_judged(arguments: argparse.Namespace) -> Judged:
    from bertscore_tm.texts import TextPairs

    table = read_table(arguments.candidates, arguments.format)
    candidates = pairs.read_candidates(table, arguments.candidate_column)
    if table.file_format == "txt":
        for option, value in (("-r", arguments.references), ("--human", arguments.human)):
            if value is None:
                raise CommandError(
                    f"give {option} FILE, or --format tsv or jsonl if {table.name} holds more than the candidates"
                )
    tables = [table]
    if arguments.references is not None:
        tables = [read_table(path, arguments.format) for path in arguments.references]
    references = pairs.read_references(tables, arguments.reference_column, table, len(candidates))
    judgements = table if arguments.human is None else read_table(arguments.human, arguments.format)
    columns = arguments.human_column or ["human"]
    values = judgements.columns(columns)
    check_lengths([table, judgements], [len(candidates), len(values[0])])
    human = {}
    for column, cells in zip(columns, values, strict=True):
        human.update(_numbers(judgements, column, cells, header=not all(name.isdecimal() for name in columns)))
    systems = None if arguments.system_column is None else judgements.texts(arguments.system_column)
    return Judged(TextPairs(candidates, references), human, systems)


def _numbers(table: Table, column: str, cells: list[Any], *, header: bool) -> dict[str, list[float]]:
    """The judgements of a column by name: one kind, or one for each key of its objects."""
    header = header and table.file_format == "tsv"
    names = list(cells[0]) if isinstance(cells[0], dict) else []
    found: dict[str, list[float]] = {f"{column}.{name}": [] for name in names} or {column: []}
    for row, cell in enumerate(cells):
        if names and (not isinstance(cell, dict) or list(cell) != names):
            raise table.error(row, f"{column!r} must be an object with the keys {', '.join(names)}, as in line 1")
        for values, value in zip(found.values(), cell.values() if names else [cell], strict=True):
            number = _number(value)
            if number is None:
                raise table.error(row, f"{column!r} must be a number, got {value!r}", header=header)
            values.append(number)
    return found


def _number(value: Any) -> float | None:
    """A finite number, written as such or as text."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _summary(
    ranked: dict[str, list[LayerAgreement]], judged: Judged, arguments: argparse.Namespace, signature: str
) -> str:
    layers = ranked[arguments.score]
    kinds = list(layers[0].agreement)
    rows = [["layer", *(["mean"] if len(kinds) > 1 else []), *kinds]]
    for found in layers:
        cells = [f"{x.value:.4f} [{x.low:.4f}, {x.high:.4f}]" for x in found.agreement.values()]
        rows.append([str(found.layer), *([f"{found.mean:.4f}"] if len(kinds) > 1 else []), *cells])
    method = "share of concordant minus share of discordant pairs" if arguments.darr else arguments.coefficient.title()
    what = f"{_SCORE_NAMES[arguments.score]} and {judged.counted}: {method}, {100 * arguments.confidence:g}% intervals"
    return f"{aligned(rows)}{what}\nsignature: {signature}\n"


def _document(
    ranked: dict[str, list[LayerAgreement]], judged: Judged, arguments: argparse.Namespace, signature: str
) -> str:
    found = {
        "rankings": {
            score: [
                {
                    "layer": layer.layer,
                    "mean": round(layer.mean, 6),
                    "agreement": {
                        name: {key: round(x, 6) for key, x in asdict(value).items()}
                        for name, value in layer.agreement.items()
                    },
                }
                for layer in layers
            ]
            for score, layers in ranked.items()
        },
        "coefficient": "darr" if arguments.darr else arguments.coefficient,
        "confidence": arguments.confidence,
        "num_judged": len(judged),
        "num_systems": None if judged.systems is None else len(set(judged.systems)),
        "signature": signature,
    }
    return json.dumps(found, allow_nan=False) + "\n"
