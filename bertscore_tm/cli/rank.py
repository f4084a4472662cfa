"""Choose the best of several candidates per line, against references or by consensus (minimum Bayes risk).

The candidates are JSON lines with an array of texts under "candidates", made by any program. Without references each
candidate is scored with the other candidates of its line as references. The output has a line per line of the input:
the best candidate, its index, and the scores of all candidates; "bertscore-tm score" and "compare" read it. An
interrupted run resumes when the same command is given again.

Examples::

    bertscore-tm rank samples.jsonl -m roberta-large -o best.jsonl
    bertscore-tm rank samples.jsonl -r refs.txt --component recall -o best.jsonl
    bertscore-tm rank samples.jsonl --reference-column references --references-reduce max -o best.jsonl
    torchrun --nproc-per-node 4 -m bertscore_tm.cli rank samples.jsonl -o best.jsonl
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bertscore_tm.cli import options, report
from bertscore_tm.cli.distributed import RankGroup, choose_device, join_ranks
from bertscore_tm.cli.errors import CommandError
from bertscore_tm.cli.inputs import Table, read_table
from bertscore_tm.cli.scored_corpus import count_weights
from bertscore_tm.cli.shards import input_digest, open_shards, remove_shards
from bertscore_tm.cli.text_arguments import read_references
from bertscore_tm.utilities.user_warnings import warn_user

if TYPE_CHECKING:
    from torch import Tensor

    from bertscore_tm.functional.ranking import Item

__all__ = ["HELP", "NAME", "add_arguments", "run"]

NAME = "rank"
HELP = "choose the best of several candidates, against references or by consensus"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    group = parser.add_argument_group("texts")
    group.add_argument("candidates", metavar="FILE", help="JSON lines with an array of candidates each")
    group.add_argument(
        "-r",
        "--references",
        metavar="FILE",
        nargs="+",
        action="extend",
        help="references of each line's candidates, plain or JSON lines; each further file adds one reference",
    )
    group.add_argument(
        "--candidates-column",
        metavar="NAME",
        default="candidates",
        help="JSON key of the array of candidates (default: %(default)s)",
    )
    group.add_argument(
        "--reference-column",
        metavar="NAME",
        action="append",
        help="JSON key of the references, of FILE if -r is not given; a value may be an array of texts",
    )
    group = parser.add_argument_group("ranking")
    options.add_component_argument(group, "the score to rank by")
    group.add_argument(
        "--references-reduce",
        choices=("mean", "max"),
        default="mean",
        help="reduction over several references (default: %(default)s)",
    )
    options.add_encoder_arguments(parser)
    options.add_idf_arguments(parser, references=False)
    group = parser.add_argument_group("output")
    group.add_argument(
        "-o",
        "--output",
        type=report.file_path,
        metavar="FILE",
        required=True,
        help="write the best candidates to this file, as JSON lines (.jsonl)",
    )
    group.add_argument("--json", action="store_true", help="print the summary as one JSON document")
    parser.set_defaults(format=None)


def run(arguments: argparse.Namespace) -> int:
    """Rank the candidates, write the best ones and print a summary."""
    texts = (arguments.candidates, *(arguments.references or ()))
    report.check_files(arguments.output, *texts, options.idf_file(arguments))
    report.choose_format(arguments.output, (".jsonl",), ".jsonl")
    with join_ranks() as ranks:
        summary = _rank(arguments, ranks)
    if summary is not None:
        report.write_output(summary.format(arguments), None)
    return 0


@dataclass(frozen=True)
class _Summary:
    num_items: int
    num_candidates: int
    mean_best: float | None
    signature: str

    def format(self, arguments: argparse.Namespace) -> str:
        if arguments.json:
            return json.dumps({**vars(self), "output": arguments.output}, allow_nan=False) + "\n"
        items = (
            f"{report.format_count(self.num_items, 'line')}, {report.format_count(self.num_candidates, 'candidate')}"
        )
        score = "no score" if self.mean_best is None else f"{self.mean_best:.4f}"
        return (
            f"{arguments.component} of the best candidates: {score} (mean)\n{items}\nsignature: {self.signature}\n"
            f"written to {arguments.output}\n"
        )


def _rank(arguments: argparse.Namespace, ranks: RankGroup) -> _Summary | None:
    texts, idf_texts = ranks.run_on_first(lambda: (_read(arguments), options.read_idf_texts(arguments)))

    import torch

    from bertscore_tm.functional.ranking import Item, score_items
    from bertscore_tm.scoring.messages import describe_truncation
    from bertscore_tm.scoring.signature import score_signature

    device = ranks.run_on_all(lambda: choose_device(arguments.device))
    encoder = ranks.run_on_all(lambda: options.build_encoder(arguments))
    items = [Item(candidates, references) for candidates, references in texts]
    component, references_reduce = arguments.component, arguments.references_reduce

    settings = {"component": component, "references_reduce": references_reduce}
    with open_shards(
        ranks, arguments, len(items), encoder, settings | {"input": input_digest([*texts, idf_texts])}
    ) as shards:
        weights = count_weights(shards, encoder, idf_texts)

        def work(rows: range, progress: Callable[[int], None]) -> dict[str, Tensor]:
            own = items[rows.start : rows.stop]
            scores, num_truncated = score_items(own, encoder, weights, device, component, references_reduce)
            progress(len(rows))
            return {"scores": torch.cat(list(scores)).cpu(), "num_truncated": torch.tensor(num_truncated, device="cpu")}

        parts = shards.compute("line", len(items), work)
    if parts is None:
        return None
    num_truncated = sum(int(part["num_truncated"]) for part in parts)
    if num_truncated:
        warn_user(describe_truncation(num_truncated, encoder.tokenizer.max_length))
    counts = [len(item.candidates) for item in items]
    scores = torch.split(torch.cat([part["scores"] for part in parts]), counts)
    records = list(map(_make_record, items, scores))
    lines = [json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n" for record in records]
    report.write_output("".join(lines), arguments.output)
    remove_shards(arguments)
    scored = [record["score"] for record in records if record["score"] is not None]
    signature = score_signature(encoder, weights.source)
    return _Summary(len(items), sum(counts), sum(scored) / len(scored) if scored else None, signature)


def _read(arguments: argparse.Namespace) -> list[tuple[list[str], list[str] | None]]:
    """Return candidates and references of each line."""
    table = read_table(arguments.candidates)
    if not table.rows:
        raise CommandError(f"{table.name}: the file contains no candidates")
    if not table.has_columns:
        raise CommandError(f"{table.name}: candidates are arrays of texts: name the file .jsonl, .json or .parquet")
    (values,) = table.columns([arguments.candidates_column])
    candidates = [_check_candidates(table, row, value, arguments) for row, value in enumerate(values)]
    if arguments.references is None and arguments.reference_column is None:
        return [(texts, None) for texts in candidates]
    return list(zip(candidates, read_references(arguments, table, len(candidates)), strict=True))


def _check_candidates(table: Table, row: int, value: Any, arguments: argparse.Namespace) -> list[str]:
    column = arguments.candidates_column
    if not isinstance(value, list) or not value:
        raise table.error(row, f"{column!r} must be an array of at least one text")
    return [table.check_text(row, text, f"{column}[{i}]") for i, text in enumerate(value)]


def _make_record(item: Item, scores: Tensor) -> dict[str, Any]:
    from bertscore_tm.functional.ranking import order_candidates

    best = int(order_candidates(scores)[0])
    rounded = [None if score != score else round(score, 6) for score in scores.tolist()]
    return {"candidate": item.candidates[best], "index": best, "score": rounded[best], "scores": rounded}
