"""Rank the layers of a model by their correlation with human judgements, in one pass over the judged texts.

Judgements are numbers in the column or key "human", or in those of --human-column, where larger is better; or
preferences (--darr): rows with a reference, the better text and the worse text. Layers are ranked by the mean over the
kinds of judgement. "p" is that of Williams' test against the next layer of the ranking, on the same texts: intervals of
two layers may overlap although one of them is reliably better. Kendall's coefficient and preferences have no such test.

Examples::

    bertscore-tm tune-layers -c judged.jsonl -m my/model
    bertscore-tm tune-layers -c judged.tsv --human-column fluency --human-column adequacy --coefficient kendall
    bertscore-tm tune-layers -c judged.jsonl --system-column system --component recall --idf
    bertscore-tm tune-layers --darr preferences.jsonl --language en --json --output layers.json
"""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from bertscore_tm.cli import options, report, text_arguments
from bertscore_tm.cli.distributed import join_ranks
from bertscore_tm.cli.errors import CommandError
from bertscore_tm.cli.inputs import Table, check_lengths, read_table
from bertscore_tm.cli.scored_corpus import score_across_ranks
from bertscore_tm.cli.shards import remove_shards
from bertscore_tm.utilities.columns import align_columns

if TYPE_CHECKING:
    from torch import Tensor

    from bertscore_tm.layer_tuning import LayerAgreement
    from bertscore_tm.scoring.texts import TextPairs

__all__ = ["HELP", "NAME", "JudgedTexts", "add_arguments", "run"]

NAME = "tune-layers"
HELP = "rank a model's layers by their correlation with human judgements"

_SUFFIXES = (".txt", ".json")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    group = parser.add_argument_group("texts and judgements")
    source = group.add_mutually_exclusive_group(required=True)
    source.add_argument(
        "-c",
        "--candidates",
        metavar="FILE",
        help="texts with human judgements and, without -r, references: a file with columns, such as .tsv or .jsonl",
    )
    source.add_argument(
        "--darr",
        metavar="FILE",
        help="preferences: a .tsv or .jsonl file with the columns reference, better and worse",
    )
    group.add_argument(
        "-r",
        "--references",
        metavar="FILE",
        nargs="+",
        action="extend",
        help="references of the candidates, line by line, if the candidates' file does not contain them",
    )
    group.add_argument(
        "--human-column",
        metavar="NAME",
        action="append",
        help="column or key of a judgement: a number, or in JSON lines an object of several; repeat for several "
        "columns (default: human)",
    )
    group.add_argument(
        "--system-column",
        metavar="NAME",
        help="column or key of the system that wrote the candidate: correlate the means of systems instead of texts",
    )
    text_arguments.add_column_arguments(parser)
    options.add_encoder_arguments(parser, all_layers=True)
    options.add_idf_arguments(parser)
    group = parser.add_argument_group("ranking")
    options.add_component_argument(group, "the score to rank layers by")
    group.add_argument(
        "--coefficient",
        choices=("pearson", "spearman", "kendall"),
        default="pearson",
        help="correlation coefficient (default: %(default)s)",
    )
    options.add_confidence_argument(group)
    report.add_output_arguments(parser, _SUFFIXES)


def run(arguments: argparse.Namespace) -> int:
    """Score with all layers and print the layers, best first."""
    references = arguments.references or ()
    files = (arguments.candidates, arguments.darr, *references, options.idf_file(arguments))
    report.check_files(arguments.output, *files)
    suffix = report.choose_format(arguments.output, _SUFFIXES, ".json" if arguments.json else ".txt")
    with join_ranks() as ranks:
        judged, idf_texts = ranks.run_on_first(lambda: (_read(arguments), options.read_idf_texts(arguments)))
        references = judged.texts.references[:: 1 if judged.human else 2]
        scored = score_across_ranks(ranks, arguments, judged.texts, idf_texts, references, all_layers=True)
    if scored is not None:
        rankings = {
            name: judged.rank_layers(scores, arguments)
            for name, scores in zip(report.SCORES, scored.scores, strict=True)
        }
        format_rankings = _format_json if suffix == ".json" else _format_summary
        report.write_output(format_rankings(rankings, judged, arguments, scored.signature), arguments.output)
        remove_shards(arguments)
    return 0


@dataclass(frozen=True)
class Ranking:
    """Layers, best first.

    Args:
        layers: the layers.
        p_values: of each layer against the next one, by kind of judgement; empty for the last one and where there is no
            test.
    """

    layers: list[LayerAgreement]
    p_values: list[dict[str, float]]


@dataclass(frozen=True)
class JudgedTexts:
    """Texts and their human judgements.

    Args:
        texts: candidates and references; for preferences each better text is followed by the worse one.
        human: judgements of each kind; empty for preferences.
        systems: the system that wrote each candidate, to correlate systems instead of texts.
    """

    texts: TextPairs
    human: dict[str, list[float]]
    systems: list[str] | None = None

    def __len__(self) -> int:
        """Return the number of judged texts, or of preferences."""
        return len(self.texts) if self.human else len(self.texts) // 2

    def describe(self) -> str:
        """Return the number of judged texts, systems or preferences.

        Returns:
            Such as "20 texts of 6 systems".
        """
        if not self.human:
            return report.format_count(len(self), "preference")
        systems = "" if self.systems is None else f" of {report.format_count(len(set(self.systems)), 'system')}"
        return report.format_count(len(self), "text") + systems

    def judgements(self) -> dict[str, Tensor]:
        """Return the judgements to correlate with.

        Returns:
            For each kind one value per text, or per system if the systems are given.
        """
        import torch

        from bertscore_tm.layer_tuning import system_means

        values = {
            name: torch.tensor(judgements, dtype=torch.float64, device="cpu") for name, judgements in self.human.items()
        }
        if self.systems is None:
            return values
        return {name: system_means(judgements, self.systems) for name, judgements in values.items()}

    def rank_layers(self, scores: Tensor, arguments: argparse.Namespace) -> Ranking:
        """Rank layers by the agreement of their scores with the judgements.

        Args:
            scores: scores of all layers, shape (layers, candidates).
            arguments: the parsed arguments.

        Returns:
            The layers, best first, each tested against the next.
        """
        from bertscore_tm.layer_tuning import (
            compare_neighbours,
            rank_layers,
            rank_layers_by_preference,
            system_means,
        )

        if not self.human:
            better, worse = scores[:, ::2], scores[:, 1::2]
            layers = rank_layers_by_preference(better, worse, confidence=arguments.confidence)
            return Ranking(layers, [{}] * len(layers))
        if self.systems is not None:
            scores = system_means(scores, self.systems)
        human, how = self.judgements(), arguments.coefficient
        layers = rank_layers(scores, human, how, confidence=arguments.confidence)
        if how == "kendall":
            return Ranking(layers, [{}] * len(layers))
        return Ranking(layers, [*compare_neighbours(layers, scores, human, how), {}])


def _read(arguments: argparse.Namespace) -> JudgedTexts:
    from bertscore_tm.statistics import correlation, scipy_stats

    scipy_stats()
    if arguments.darr is not None:
        return _read_preferences(arguments)
    judged = _read_judged(arguments)
    for name, values in judged.judgements().items():
        # Report invalid judgements before the long computation of the scores.
        try:
            correlation(values, values, arguments.coefficient)
        except ValueError as error:
            raise CommandError(f"judgements {name!r}: {error}") from error
    return judged


def _read_preferences(arguments: argparse.Namespace) -> JudgedTexts:
    from bertscore_tm.scoring.texts import TextPairs

    excluded = {
        "-r": arguments.references,
        "--human-column": arguments.human_column,
        "--system-column": arguments.system_column,
    }
    given = [option for option, value in excluded.items() if value is not None]
    if given:
        raise CommandError(f"--darr files contain the references and judgements: remove {', '.join(given)}")
    table = read_table(arguments.darr, arguments.format)
    if not table.has_columns:
        raise CommandError(f"{table.name}: --darr needs a file with columns: give --format, such as tsv or jsonl")
    better, worse = table.texts("better"), table.texts("worse")
    if len(better) < 2:
        raise table.error(0, f"the file must contain at least two preferences, got {len(better)}")
    references = text_arguments.read_references(arguments, table, len(better))
    # Next to each other, so that their reference is encoded once.
    texts = [text for both in zip(better, worse, strict=True) for text in both]
    return JudgedTexts(TextPairs(texts, [reference for reference in references for _ in range(2)]), {})


def _read_judged(arguments: argparse.Namespace) -> JudgedTexts:
    from bertscore_tm.scoring.texts import TextPairs

    table = read_table(arguments.candidates, arguments.format)
    candidates = table.texts(arguments.candidate_column)
    if not table.has_columns:
        raise CommandError(f"{table.name}: judgements need a file with columns: give --format, such as tsv or jsonl")
    references = text_arguments.read_references(arguments, table, len(candidates))
    columns = arguments.human_column or ["human"]
    values = table.columns(columns)
    check_lengths([table, table], [len(candidates), len(values[0])])
    human = {}
    for column, cells in zip(columns, values, strict=True):
        human.update(_parse_judgements(table, column, cells, header=table.has_header(columns)))
    systems = None
    if arguments.system_column is not None:
        systems = table.texts(arguments.system_column)
        check_lengths([table, table], [len(candidates), len(systems)])
    return JudgedTexts(TextPairs(candidates, references), human, systems)


def _parse_judgements(table: Table, column: str, cells: list[Any], *, header: bool) -> dict[str, list[float]]:
    """Return the judgements of a column by name: one kind, or one for each key of its objects."""
    names = list(cells[0]) if isinstance(cells[0], dict) else []
    judgements: dict[str, list[float]] = {f"{column}.{name}": [] for name in names} or {column: []}
    for row, cell in enumerate(cells):
        if names and (not isinstance(cell, dict) or list(cell) != names):
            raise table.error(
                row, f"{column!r} must be an object with the keys {', '.join(names)}, as in the first row"
            )
        for values, value in zip(judgements.values(), cell.values() if names else [cell], strict=True):
            number = _parse_number(value)
            if number is None:
                raise table.error(row, f"{column!r} must be a finite number, got {value!r}", header=header)
            values.append(number)
    return judgements


def _parse_number(value: Any) -> float | None:
    """Return a number or numeric string as a finite float, else ``None``."""
    if isinstance(value, bool) or not isinstance(value, int | float | str) or (isinstance(value, str) and "_" in value):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _format_summary(
    rankings: dict[str, Ranking], judged: JudgedTexts, arguments: argparse.Namespace, signature: str
) -> str:
    ranking = rankings[arguments.component]
    kinds = list(ranking.layers[0].agreement)
    tested = any(ranking.p_values)
    rows = [["layer", *(["mean"] if len(kinds) > 1 else [])]]
    for kind in kinds:
        rows[0] += [kind, *(["p"] if tested else [])]
    for layer, p_values in zip(ranking.layers, ranking.p_values, strict=True):
        row = [str(layer.layer), *([f"{layer.mean:.4f}"] if len(kinds) > 1 else [])]
        for kind, x in layer.agreement.items():
            row.append(f"{x.value:.4f} [{x.low:.4f}, {x.high:.4f}]")
            if tested:
                row.append(f"{p_values[kind]:.4f}" if kind in p_values else "")
        rows.append(row)
    coefficient = (
        "share of concordant minus share of discordant pairs" if arguments.darr else arguments.coefficient.title()
    )
    settings = f"{coefficient}, {100 * arguments.confidence:g}% intervals"
    if tested:
        settings += ", p of Williams' test against the next layer"
    description = f"{report.SCORE_LABELS[arguments.component]} and {judged.describe()}: {settings}"
    return f"{align_columns(rows)}{description}\nsignature: {signature}\n"


def _format_json(
    rankings: dict[str, Ranking], judged: JudgedTexts, arguments: argparse.Namespace, signature: str
) -> str:
    document = {
        "rankings": {
            score: [
                {
                    "layer": layer.layer,
                    "mean": round(layer.mean, 6),
                    "agreement": {
                        name: {key: round(x, 6) for key, x in asdict(value).items()}
                        for name, value in layer.agreement.items()
                    },
                    "p_next": {name: round(p, 6) for name, p in p_values.items()},
                }
                for layer, p_values in zip(ranking.layers, ranking.p_values, strict=True)
            ]
            for score, ranking in rankings.items()
        },
        "coefficient": "darr" if arguments.darr else arguments.coefficient,
        "confidence": arguments.confidence,
        "num_judged": len(judged),
        "num_systems": None if judged.systems is None else len(set(judged.systems)),
        "signature": signature,
    }
    return json.dumps(document, allow_nan=False) + "\n"
