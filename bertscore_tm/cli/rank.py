"""Choose the best of several candidates per line, against references or by consensus (minimum Bayes risk).

The candidates are JSON lines with an array of texts under "candidates", made by any program. Without references each
candidate is scored with the other candidates of its line as references. The output has a line per line of the input:
the best candidate, its index from 0, and the scores of all candidates. "bertscore-tm score" and "compare" read it. An
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
from functools import partial
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
    from bertscore_tm.scoring.settings import ScoreSettings


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
    group.add_argument(
        "--references-reduce",
        choices=("mean", "max"),
        default="mean",
        help="reduction over several references (default: %(default)s)",
    )
    options.add_scoring_arguments(parser, "candidates", of_references=False, rescale=False)
    options.add_output_arguments(parser, (".jsonl",))


def run(arguments: argparse.Namespace, session: Session) -> None:
    """Rank the candidates, write the best ones and print a summary."""
    command = RankOptions.of(arguments)
    choice = command.scoring
    ranks = session.ranks
    lines = ranks.run_on_first(lambda: _read(command.files))

    # Import torch and transformers after the files are read, so that errors in files are reported soon.
    from bertscore_tm.cli.encoder import build_encoders, read_idf
    from bertscore_tm.cli.resume import compute_items
    from bertscore_tm.functional.ranking import ranking_fields
    from bertscore_tm.matching.scores import selection_f1
    from bertscore_tm.scoring.idf import token_weights
    from bertscore_tm.scoring.settings import ScoreSettings

    items = _make_items(lines, choice)
    encoder = build_encoders(ranks, choice.encoder)
    weights = ranks.run_on_first(lambda: token_weights(encoder, read_idf(choice.idf, choice.format)))
    # The harmonic mean would rank a candidate with a negative precision or recall too high.
    settings = ScoreSettings(encoder, weights, f1=selection_f1)
    signature = settings.signature(ranking_fields(items, command.component, command.references_reduce))
    signature |= choice.signature_fields()
    work = partial(_score, command=command, settings=settings)
    scores = compute_items(session, items, work, unit="line", signature=str(signature))
    if scores is None:
        # The other ranks are done, because only the first one has the scores and prints.
        return
    _warn_about_texts(items, scores, settings)
    target = session.output
    records = list(map(_make_record, items, scores))
    named_records = _add_keys(records, lines.keys)
    output.write_output("".join(map(output.to_json, named_records)), target.path)
    summary = {
        "num_items": len(items),
        "num_candidates": sum(len(item.candidates) for item in items),
        "mean_best": _mean_best(records),
        **output.describe_pairing(lines.paired_by),
        "signature": str(signature),
        "output": target.path,
    }
    if target.is_json:
        content = output.to_json(summary)
    else:
        content = _format_summary(summary, command.component)
    output.write_output(content, None)


def _make_items(lines: _Lines, choice: ScoringChoice) -> list[Item]:
    """Return an item per line: its candidates, without thoughts if so requested, and its references.

    Blank references next to others are left out.
    """
    from bertscore_tm.functional.ranking import Item

    items = []
    for candidates, references in lines.texts:
        texts = candidates
        if choice.strip_thoughts:
            texts = list(map(strip_thoughts, candidates))
        items.append(Item(texts, references).omit_blank_references())
    return items


def _score(
    items: Sequence[Item], progress: Progress, *, command: RankOptions, settings: ScoreSettings
) -> list[Numbers]:
    """Return the scores of each item's candidates."""
    from bertscore_tm.functional.ranking import score_items

    scores, _, _ = score_items(
        items,
        settings,
        component=command.component,
        references_reduce=command.references_reduce,
        progress=progress,
    )
    return [item_scores.tolist() for item_scores in scores]


def _warn_about_texts(items: Sequence[Item], scores: Sequence[Numbers], settings: ScoreSettings) -> None:
    """Warn about texts whose scores may mislead, such as truncated, empty or badly decoded ones.

    Only the first rank calls this, so each warning is printed once.
    """
    from bertscore_tm.cli.scoring import count_tokens
    from bertscore_tm.scoring.inputs import warn_of_stringified_lists
    from bertscore_tm.scoring.warnings import warn_of_leftovers, warn_of_truncation, warn_of_zeros

    tokenizer = settings.encoder.tokenizer
    candidates = []
    # A dictionary has each text once, in the order of the lines.
    distinct: dict[str, None] = {}
    for item in items:
        texts = [*item.candidates, *(item.references or ())]
        warn_of_stringified_lists(texts)
        candidates += item.candidates
        distinct |= dict.fromkeys(texts)
    # Pass repeated candidates too, because the warning of leftovers counts candidates.
    warn_of_leftovers(candidates, tokenizer)
    # Pass distinct texts, because the warnings of truncation and unknown tokens count texts, and tokenizing takes time.
    num_truncated, unknown = count_tokens(list(distinct), tokenizer)
    unknown.warn()
    # A score of exactly 0 means that the candidate or the reference is empty, or has only tokens of weight 0.
    num_zero = 0
    for item_scores in scores:
        num_zero += item_scores.count(0)
    warn_of_zeros(num_zero, settings)
    warn_of_truncation(num_truncated, tokenizer.max_length)


@dataclass(frozen=True)
class _Lines:
    """The texts of the input.

    Args:
        texts: (candidates, references) of each line. The references are ``None`` if the other candidates are used.
        paired_by: the id by which files were joined. ``None`` if lines were paired by their order.
        keys: the ids of the lines. ``None`` if the files have none.
    """

    texts: list[tuple[list[str], list[str] | None]]
    paired_by: str | None
    keys: RowKeys | None


def _read(files: FileOptions) -> _Lines:
    """Read the candidates of each line and, if the files have them, its references."""
    if not files.candidates:
        raise CommandError("there are no candidates. Give a FILE of JSON lines with an array of candidates each")
    corpus = read_corpus(files)
    candidates = corpus.systems[0].table.text_lists(files.candidate_column, remedy=choose_with("--candidate-column"))
    # Without references, each candidate is scored with the others of its line.
    references: Sequence[list[str] | None] = [None] * len(candidates)
    if files.references is not None or files.reference_column is not None:
        references = corpus.references()
    return _Lines(list(zip(candidates, references, strict=True)), corpus.join.column, corpus.row_keys())


def _make_record(item: Item, scores: Numbers) -> dict[str, Any]:
    """Return the line of the output for an item."""
    import torch

    from bertscore_tm.functional.ranking import order_candidates

    # The scores were computed in float32, so the tensor has the same numbers.
    score_tensor = torch.tensor(scores, dtype=torch.float32, device="cpu")
    # Order the candidates as the Python function rank_candidates does: the first of equal scores is best, and a missing
    # score, NaN, is last.
    order = order_candidates(score_tensor)
    best = int(order[0])
    rounded: list[float | None] = []
    for score in scores:
        if math.isnan(score):
            # A single candidate without references has no score, and JSON has no NaN.
            rounded.append(None)
        else:
            rounded.append(round(score, 6))
    return {"candidate": item.candidates[best], "index": best, "score": rounded[best], "scores": rounded}


def _add_keys(records: list[dict[str, Any]], keys: RowKeys | None) -> list[dict[str, Any]]:
    """Return records with the ids of their lines as the first column. Without ids, the records are not changed."""
    if keys is None:
        return records
    # All records have the same columns.
    name = keys.name_in(records[0])
    return [{name: key, **record} for key, record in zip(keys.values, records, strict=True)]


def _mean_best(records: Sequence[dict[str, Any]]) -> float | None:
    """Return the mean score of the best candidates. ``None`` if no line has a score."""
    best: list[float] = [record["score"] for record in records if record["score"] is not None]
    if not best:
        return None
    return sum(best) / len(best)


def _format_summary(summary: dict[str, Any], component: str) -> str:
    best = "no score"
    if summary["mean_best"] is not None:
        best = f"{summary['mean_best']:.4f}"
    counts = [
        output.format_count(summary["num_items"], "line"),
        output.format_count(summary["num_candidates"], "candidate"),
        output.format_pairing(summary),
    ]
    return (
        f"{component} of the best candidates: {best} (mean)\n{', '.join(counts)}\nsignature: {summary['signature']}\n"
    )
