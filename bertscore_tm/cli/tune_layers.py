"""Rank the layers of a model by their correlation with human judgements, in one pass over the judged texts.

Judgements are numbers in the column or key "human", or in those of --human-column, where larger is better; or
preferences (--darr): rows with a reference, the better text and the worse text. Layers are ranked by the mean over the
kinds of judgement. The document of --json holds the best layer as "row", which other commands read with "--listed-as
FILE.json".

Examples::

    bertscore-tm tune-layers judged.jsonl -m my/model
    bertscore-tm tune-layers judged.tsv --human-column fluency -l 6
    bertscore-tm tune-layers judged.jsonl --system-column system --idf
    bertscore-tm tune-layers --darr preferences.jsonl -o layers.json
"""

from __future__ import annotations

import argparse
import math
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from bertscore_tm.cli import options, output
from bertscore_tm.cli.distributed import RankGroup
from bertscore_tm.cli.errors import CommandError
from bertscore_tm.cli.inputs import Table
from bertscore_tm.cli.joined_files import Systems, read_corpus

if TYPE_CHECKING:
    from torch import Tensor

    from bertscore_tm.cli.scored_corpus import ScoredSystems


class JudgedTexts(NamedTuple):
    """Texts, and judgements of them or of their systems by kind; without any, the better and the worse texts."""

    texts: Systems
    human: dict[str, Tensor]
    systems: list[str] | None = None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add = options.add_file_arguments(parser, "texts with human judgements").add_argument
    help = "preferences: a .tsv or .jsonl file with the columns reference, better and worse"
    add("--darr", metavar="FILE", help=help)
    help = "column or key of a judgement, a number; repeat for several columns (default: human)"
    add("--human-column", metavar="NAME", action="append", help=help)
    help = "column or key of the system that wrote the candidate: correlate the means of systems instead of texts"
    add("--system-column", metavar="NAME", help=help)
    options.add_scoring_arguments(parser, all_layers=True, rescale=False)
    group = parser.add_argument_group("ranking")
    options.add_component_argument(group, "the score to rank layers by")
    choices, help = ("pearson", "spearman", "kendall"), "correlation coefficient (default: %(default)s)"
    group.add_argument("--coefficient", choices=choices, default="pearson", help=help)
    options.add_confidence_argument(group)
    options.add_output_arguments(parser, (".txt", ".json"))


def run(arguments: argparse.Namespace, ranks: RankGroup) -> None:
    """Score with all layers and print the layers, best first."""
    options.take_files(arguments)
    judged = ranks.run_on_first(lambda: _read(arguments))

    from bertscore_tm.cli.scored_corpus import score_systems

    scored = score_systems(ranks, arguments, judged.texts, all_layers=True)
    if scored is not None:
        document = _summarize(scored, judged, arguments)
        content = output.to_json(document) if arguments.suffix == ".json" else _format_summary(document, arguments)
        output.write_output(content, arguments.output)


def _read(arguments: argparse.Namespace) -> JudgedTexts:
    from bertscore_tm.layer_tuning import system_means
    from bertscore_tm.statistics import scipy_stats

    scipy_stats()
    if (arguments.candidates is None) == (arguments.darr is None):
        raise CommandError("give a FILE of judged texts (-c), or a file of preferences (--darr)")
    if arguments.darr is not None:
        return _read_preferences(arguments)
    kinds = arguments.human_column or ["human"]
    corpus = read_corpus(arguments, [arguments.candidates], *kinds, arguments.system_column)
    texts = corpus.read("candidates")
    (table,) = corpus.systems
    human, systems, unit = {kind: _parse_numbers(table, kind) for kind in kinds}, None, "text"
    if arguments.system_column is not None:
        systems, unit = table.texts(arguments.system_column), "system"
        human = {kind: system_means(values, systems) for kind, values in human.items()}
    for kind, values in human.items():
        if len(values) < 5:
            raise CommandError(f"{table.name}: a correlation needs at least 5 {unit}s, got {len(values)}")
        if values.min() == values.max():
            raise CommandError(f"{table.name}: {kind!r} is {values[0]} for every {unit}: judgements must differ")
    return JudgedTexts(texts, human, systems)


def _read_preferences(arguments: argparse.Namespace) -> JudgedTexts:
    corpus = read_corpus(arguments, [arguments.darr], "better", "worse")
    (table,) = corpus.systems
    if not table.has_columns:
        raise CommandError(f"{table.name}: --darr needs a file with columns, such as .tsv or .jsonl")
    if len(table.rows) < 2:
        raise CommandError(f"{table.name}: a ranking needs at least 2 preferences, got {len(table.rows)}")
    references = corpus.references()
    return JudgedTexts(Systems({name: table.texts(name) for name in ("better", "worse")}, references), {})


def _parse_numbers(table: Table, column: str) -> Tensor:
    """Return the numbers or numeric strings of a column as finite floats."""
    import torch

    numbers = []
    for row, value in enumerate(table.values(column)):
        number = math.nan
        with suppress(TypeError, ValueError):
            number = float(value)
        if not math.isfinite(number):
            raise table.error(row, f"{column!r} must be a finite number, got {value!r}")
        numbers.append(number)
    return torch.tensor(numbers, dtype=torch.float64, device="cpu")


def _summarize(scored: ScoredSystems, judged: JudgedTexts, arguments: argparse.Namespace) -> dict[str, Any]:
    from bertscore_tm.layer_tuning import rank_layers, rank_layers_by_preference, system_means

    rankings = {}
    for name, scores in zip(output.SCORE_NAMES, scored.scores, strict=True):
        if arguments.darr is not None:
            layers = rank_layers_by_preference(scores[..., 0], scores[..., 1], confidence=arguments.confidence)
        else:
            values = scores[..., 0] if judged.systems is None else system_means(scores[..., 0], judged.systems)
            layers = rank_layers(values, judged.human, arguments.coefficient, confidence=arguments.confidence)
        rankings[name] = [{"mean": layer.mean, **asdict(layer)} for layer in layers]
    best = rankings[arguments.component][0]
    model = Path(scored.encoder.name)
    return {
        "row": {
            "model": model.name if model.is_dir() else scored.encoder.name,
            "num_layers": best["layer"],
            "component": arguments.component,
            "data": Path(arguments.darr or arguments.candidates).name,
            "darr" if arguments.darr else arguments.coefficient: best["mean"],
        },
        "rankings": rankings,
        "coefficient": "darr" if arguments.darr else arguments.coefficient,
        "confidence": arguments.confidence,
        "num_judged": len(judged.texts.references),
        "num_systems": None if judged.systems is None else len(set(judged.systems)),
        "signature": scored.signature,
    }


def _format_summary(document: dict[str, Any], arguments: argparse.Namespace) -> str:
    ranking = document["rankings"][arguments.component]
    rows = [["layer", "mean", *ranking[0]["agreement"]]]
    for layer in ranking:
        cells = [f"{x['value']:.4f} {output.format_interval(x['low'], x['high'])}" for x in layer["agreement"].values()]
        # A layer whose scores are all equal has no coefficient.
        rows.append([str(layer["layer"]), *(cell.replace("nan", "-") for cell in (f"{layer['mean']:.4f}", *cells))])
    noun, measure = "text", arguments.coefficient.title()
    if arguments.darr:
        noun, measure = "preference", "share of concordant minus share of discordant pairs"
    judged = output.format_count(document["num_judged"], noun)
    if document["num_systems"] is not None:
        judged += f" of {output.format_count(document['num_systems'], 'system')}"
    settings = f"{judged}: {measure}, {100 * arguments.confidence:g}% intervals"
    label = output.SCORE_LABELS[arguments.component]
    return f"{output.format_rows(rows)}{label} and {settings}\nsignature: {document['signature']}\n"
