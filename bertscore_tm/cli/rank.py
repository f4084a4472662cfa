"""Choose the best of several candidates per line, against references or by consensus (minimum Bayes risk).

The candidates are JSON lines with an array of texts under "candidates", made by any program. Without references each
candidate is scored with the other candidates of its line as references. The output has a line per line of the input:
the best candidate, its index from 0, and the scores of all candidates; "bertscore-tm score" and "compare" read it. An
interrupted run resumes when the same command is given again.

Examples::

    bertscore-tm rank samples.jsonl -m roberta-large -o best.jsonl
    bertscore-tm rank samples.jsonl refs.txt --component recall -o best.jsonl
    bertscore-tm rank samples.jsonl --reference-column references -o best.jsonl
    torchrun --nproc-per-node 4 -m bertscore_tm.cli rank in.jsonl -o best.jsonl
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from bertscore_tm.cli import options, report
from bertscore_tm.cli.distributed import RankGroup, join_ranks
from bertscore_tm.cli.errors import CommandError
from bertscore_tm.cli.inputs import read_candidates, read_references
from bertscore_tm.cli.shards import input_digest, open_shards, remove_shards
from bertscore_tm.utilities.user_warnings import warn_user

if TYPE_CHECKING:
    from torch import Tensor

    from bertscore_tm.functional.ranking import Item

_SUFFIXES = (".jsonl",)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    options.add_file_arguments(parser, "JSON lines with an array of candidates each")
    group = parser.add_argument_group("ranking")
    options.add_component_argument(group, "the score to rank by")
    help = "reduction over several references (default: %(default)s)"
    group.add_argument("--references-reduce", choices=("mean", "max"), default="mean", help=help)
    options.add_scoring_arguments(parser, "candidates", of_references=False, rescale=False)
    report.add_output_arguments(parser, _SUFFIXES)


def run(arguments: argparse.Namespace) -> None:
    """Rank the candidates, write the best ones and print a summary."""
    report.choose_format(arguments, _SUFFIXES, *options.take_files(arguments))
    with join_ranks() as ranks:
        summary = _rank(arguments, ranks)
    if summary is None:
        return
    best = "no score" if summary["mean_best"] is None else f"{summary['mean_best']:.4f}"
    text = (
        f"{arguments.component} of the best candidates: {best} (mean)\n"
        f"{report.format_count(summary['num_items'], 'line')}, "
        f"{report.format_count(summary['num_candidates'], 'candidate')}\n"
        f"signature: {summary['signature']}\nwritten to {arguments.output}\n"
    )
    report.write_output(report.to_json(summary) if arguments.json else text, None)


def _rank(arguments: argparse.Namespace, ranks: RankGroup) -> dict[str, Any] | None:
    """Return the summary on rank 0, ``None`` on all other ranks."""
    texts, idf_texts = ranks.run_on_first(lambda: (_read(arguments), options.read_idf_texts(arguments)))

    import torch

    from bertscore_tm.functional.ranking import Item, score_items
    from bertscore_tm.scoring.messages import describe_truncation, warn_of_leftovers
    from bertscore_tm.scoring.signature import score_signature
    from bertscore_tm.scoring.token_weights import token_weights

    encoder = ranks.run_on_all(lambda: options.build_encoder(arguments))
    items = [Item(candidates, references) for candidates, references in texts]
    component, references_reduce = arguments.component, arguments.references_reduce
    settings = {"component": component, "references_reduce": references_reduce}
    settings["input"] = input_digest([*texts, idf_texts])
    shards = open_shards(ranks, arguments, len(items), encoder, settings)
    weights = ranks.run_on_first(lambda: token_weights(encoder, idf_texts or False))

    def work(rows: range, progress: Callable[[int], None]) -> dict[str, Tensor]:
        part = items[rows.start : rows.stop]
        scores, num_truncated = score_items(
            part, encoder, weights, encoder.device, component=component, references_reduce=references_reduce
        )
        progress(len(rows))
        return {"scores": torch.cat(list(scores)).cpu(), "num_truncated": torch.tensor(num_truncated, device="cpu")}

    parts = shards.compute("line", len(items), work)
    if parts is None:
        return None
    num_truncated = sum(int(part["num_truncated"]) for part in parts)
    warn_of_leftovers([text for item in items for text in item.candidates], encoder.tokenizer)
    if num_truncated:
        warn_user(describe_truncation(num_truncated, encoder.tokenizer.max_length))
    counts = [len(item.candidates) for item in items]
    records = list(map(_make_record, items, torch.split(torch.cat([part["scores"] for part in parts]), counts)))
    report.write_output("".join(map(report.to_json, records)), arguments.output, is_announced=False)
    remove_shards(arguments)
    scored = [record["score"] for record in records if record["score"] is not None]
    return {
        "num_items": len(items),
        "num_candidates": sum(counts),
        "mean_best": sum(scored) / len(scored) if scored else None,
        "signature": score_signature(encoder, weights.source),
        "output": arguments.output,
    }


def _read(arguments: argparse.Namespace) -> list[tuple[list[str], list[str] | None]]:
    """Return candidates and references of each line."""
    if arguments.candidates is None:
        raise CommandError("no candidates: give a FILE of JSON lines with an array of candidates each")
    table = read_candidates(arguments.candidates, arguments)
    if not table.rows:
        raise CommandError(f"{table.name}: the file contains no candidates")
    column = arguments.candidate_column
    candidates = [table.check_texts(row, value, column) for row, value in enumerate(table.values(column))]
    if arguments.references is None and arguments.reference_column is None:
        return [(texts, None) for texts in candidates]
    return list(zip(candidates, read_references(arguments, table), strict=True))


def _make_record(item: Item, scores: Tensor) -> dict[str, Any]:
    from bertscore_tm.functional.ranking import order_candidates

    best = int(order_candidates(scores)[0])
    rounded = [None if math.isnan(score) else round(score, 6) for score in scores.tolist()]
    return {"candidate": item.candidates[best], "index": best, "score": rounded[best], "scores": rounded}
