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
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bertscore_tm.cli import options, output
from bertscore_tm.cli.errors import CommandError
from bertscore_tm.cli.files import choose_with
from bertscore_tm.cli.joined_files import FileOptions, RowKeys, read_corpus
from bertscore_tm.cli.options import ScoringChoice
from bertscore_tm.utilities.chats import strip_thoughts
from bertscore_tm.utilities.checks import Component

if TYPE_CHECKING:
    from bertscore_tm.cli.resume import Numbers, Progress, Session
    from bertscore_tm.functional.ranking import Item, ReferencesReduce


@dataclass(frozen=True)
class RankOptions:
    """What the command ranks, and by which score."""

    files: FileOptions
    scoring: ScoringChoice
    component: Component
    references_reduce: ReferencesReduce

    @classmethod
    def of(cls, arguments: argparse.Namespace) -> RankOptions:
        """Return the options that the arguments give."""
        return cls(
            files=FileOptions.of_one_system(arguments),
            scoring=ScoringChoice.of(arguments),
            component=arguments.component,
            references_reduce=arguments.references_reduce,
        )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    options.add_file_arguments(parser, "JSON lines with an array of candidates each")
    group = parser.add_argument_group("ranking")
    options.add_component_argument(group, "the score to rank by")
    help = "reduction over several references (default: %(default)s)"
    group.add_argument("--references-reduce", choices=("mean", "max"), default="mean", help=help)
    options.add_scoring_arguments(parser, "candidates", of_references=False, rescale=False)
    options.add_output_arguments(parser, (".jsonl",))


def run(arguments: argparse.Namespace, session: Session) -> None:
    """Rank the candidates, write the best ones and print a summary."""
    command = RankOptions.of(arguments)
    choice = command.scoring
    ranks = session.ranks
    lines = ranks.run_on_first(lambda: _read(command.files))

    from bertscore_tm.cli.encoder import build_encoders, read_idf
    from bertscore_tm.cli.resume import compute_items
    from bertscore_tm.cli.scoring import count_tokens
    from bertscore_tm.functional.ranking import Item, ranking_fields, score_items
    from bertscore_tm.matching.scores import selection_f1
    from bertscore_tm.scoring.idf import token_weights
    from bertscore_tm.scoring.inputs import warn_of_written_lists
    from bertscore_tm.scoring.settings import ScoreSettings
    from bertscore_tm.scoring.warnings import warn_of_leftovers, warn_of_truncation, warn_of_zeros

    items = []
    for candidates, references in lines.texts:
        if choice.strip_thoughts:
            candidates = [strip_thoughts(candidate) for candidate in candidates]
        items.append(Item(candidates, references).omit_blank_references())
    encoder = build_encoders(ranks, choice.encoder)
    weights = ranks.run_on_first(lambda: token_weights(encoder, read_idf(choice.idf, choice.format)))
    settings = ScoreSettings(encoder, weights, f1=selection_f1)
    signature = settings.signature(ranking_fields(items, command.component, command.references_reduce))
    signature |= {"thoughts": "stripped" if choice.strip_thoughts else None}

    def work(part: Sequence[Item], progress: Progress) -> list[Numbers]:
        scores, _, _ = score_items(
            part,
            settings,
            component=command.component,
            references_reduce=command.references_reduce,
            progress=progress,
        )
        return [item_scores.tolist() for item_scores in scores]

    scores = compute_items(session, items, work, unit="line", signature=str(signature))
    if scores is None:
        return
    warn_of_leftovers([text for item in items for text in item.candidates], encoder.tokenizer)
    for item in items:
        warn_of_written_lists([*item.candidates, *(item.references or ())])
    distinct = dict.fromkeys(text for item in items for text in (*item.candidates, *(item.references or ())))
    num_truncated, unknown = count_tokens(list(distinct), encoder.tokenizer)
    unknown.warn()
    warn_of_zeros(sum(item_scores.count(0) for item_scores in scores), settings)
    warn_of_truncation(num_truncated, encoder.tokenizer.max_length)
    records = list(map(_make_record, items, scores))
    if lines.keys is not None:
        name = lines.keys.name_in(records[0])
        records = [{name: key, **record} for key, record in zip(lines.keys.values, records, strict=True)]
    output.write_output("".join(map(output.to_json, records)), session.output.path)
    best = [record["score"] for record in records if record["score"] is not None]
    summary = {
        "num_items": len(items),
        "num_candidates": sum(len(item.candidates) for item in items),
        "mean_best": sum(best) / len(best) if best else None,
        **output.describe_pairing(lines.paired_by),
        "signature": str(signature),
        "output": session.output.path,
    }
    if session.output.is_json:
        content = output.to_json(summary)
    else:
        content = _format_summary(summary, command.component)
    output.write_output(content, None)


@dataclass(frozen=True)
class _Lines:
    """Candidates and references of each line, the id by which files were joined, and the ids of the lines."""

    texts: list[tuple[list[str], list[str] | None]]
    paired_by: str | None
    keys: RowKeys | None


def _read(files: FileOptions) -> _Lines:
    if not files.candidates:
        raise CommandError("no candidates: give a FILE of JSON lines with an array of candidates each")
    corpus = read_corpus(files)
    candidates = corpus.systems[0].text_lists(files.candidate_column, remedy=choose_with("--candidate-column"))
    references: Sequence[list[str] | None] = [None] * len(candidates)
    if files.references is not None or files.reference_column is not None:
        references = corpus.references()
    return _Lines(list(zip(candidates, references, strict=True)), corpus.join.column, corpus.row_keys())


def _format_summary(summary: dict[str, Any], component: str) -> str:
    best = "no score" if summary["mean_best"] is None else f"{summary['mean_best']:.4f}"
    return (
        f"{component} of the best candidates: {best} (mean)\n"
        f"{output.format_count(summary['num_items'], 'line')}, "
        f"{output.format_count(summary['num_candidates'], 'candidate')}, {output.format_pairing(summary)}\n"
        f"signature: {summary['signature']}\n"
    )


def _make_record(item: Item, scores: Numbers) -> dict[str, Any]:
    import torch

    from bertscore_tm.functional.ranking import order_candidates

    best = int(order_candidates(torch.tensor(scores, dtype=torch.float32, device="cpu"))[0])
    rounded = [None if math.isnan(score) else round(score, 6) for score in scores]
    return {"candidate": item.candidates[best], "index": best, "score": rounded[best], "scores": rounded}
