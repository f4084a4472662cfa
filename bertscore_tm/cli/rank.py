"""Choose the best of several candidates per line, against references or by consensus (minimum Bayes risk).

The candidates are JSON lines with an array of texts under "candidates", made by any program. Without references each
candidate is scored with the other candidates of its line as references. The output has a line per line of the input:
the best candidate, its index, and the scores of all candidates; "bertscore-tm score" and "compare" read it. Files are
read and written part by part. An interrupted run resumes when the same command is given again.

Examples::

    bertscore-tm rank samples.jsonl -m roberta-large -o best.jsonl
    bertscore-tm rank samples.jsonl -r refs.txt --component recall -o best.jsonl
    bertscore-tm rank samples.jsonl --reference-column references --references-reduce max -o best.jsonl
    torchrun --nproc-per-node 4 -m bertscore_tm.cli rank samples.jsonl -o best.jsonl
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING

from bertscore_tm.cli import options, report
from bertscore_tm.cli.distributed import RankGroup, choose_device, join_ranks
from bertscore_tm.cli.errors import CommandError
from bertscore_tm.cli.inputs import STDIN, read_parts
from bertscore_tm.cli.tables import Table
from bertscore_tm.cli.text_arguments import read_references
from bertscore_tm.utilities.files import append_lines, write_atomically
from bertscore_tm.utilities.user_warnings import warn_user

if TYPE_CHECKING:
    from torch import Tensor

    from bertscore_tm.functional.ranking import Item

__all__ = ["HELP", "NAME", "add_arguments", "run"]

NAME = "rank"
HELP = "choose the best of several candidates, against references or by consensus"

# Lines of the input that a rank scores before the output grows.
_LINES_PER_RANK = 32


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments.

    Args:
        parser: the command's parser.
    """
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
    group.add_argument(
        "--component",
        choices=("f1", "precision", "recall"),
        default="f1",
        help="score to rank by (default: %(default)s)",
    )
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
        type=report.resumable_path,
        metavar="FILE",
        required=True,
        help="write the best candidates to this file, as JSON lines",
    )
    group.add_argument("--json", action="store_true", help="print the summary as one JSON document")
    parser.set_defaults(resumes=True)


def run(arguments: argparse.Namespace) -> int:
    """Rank the candidates, write the best ones and print a summary.

    Args:
        arguments: the parsed arguments.

    Returns:
        The exit code.

    Raises:
        CommandError: an argument or file is invalid.
    """
    report.check_output_path(arguments.output)
    for path in (arguments.candidates, *(arguments.references or ())):
        if path == STDIN:
            raise CommandError(
                "rank reads its files twice and cannot read standard input (-): put the texts into a file"
            )
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
    num_lines, digest = ranks.run_on_first(lambda: _digest_files([arguments.candidates, *(arguments.references or ())]))
    idf_sents = ranks.run_on_first(lambda: options.read_idf_texts(arguments))

    from bertscore_tm.functional.ranking import score_items
    from bertscore_tm.scoring.messages import describe_truncation, progress_bar
    from bertscore_tm.scoring.signature import score_signature
    from bertscore_tm.scoring.token_weights import token_weights

    device = ranks.run_on_all(lambda: choose_device(arguments.device))
    encoder = ranks.run_on_all(lambda: options.build_encoder(arguments))
    weights = ranks.run_on_all(lambda: token_weights(encoder, False, idf_sents, device=device))
    signature = score_signature(encoder, weights.source)
    settings = {
        "signature": signature,
        "input": digest,
        **{name: getattr(arguments, name) for name in ("component", "references_reduce", "candidates_column")},
        "reference_column": arguments.reference_column,
    }
    unfinished = report.partial_path(arguments.output)
    num_truncated = 0
    with ExitStack() as stack:
        done = ranks.run_on_first(lambda: stack.enter_context(report.start_partial(unfinished, settings)))
        if done and ranks.rank == 0:
            print(f"bertscore-tm: resuming after line {done} from {unfinished}", file=sys.stderr)
        parts = _read_items(arguments, _LINES_PER_RANK * ranks.size, done)
        show = ranks.rank == 0 and sys.stderr.isatty()
        progress = stack.enter_context(progress_bar(num_lines, show, unit="line"))
        progress(done)
        while items := ranks.run_on_first(lambda: next(parts, None)):
            score = partial(
                score_items,
                items[ranks.rank :: ranks.size],
                encoder,
                weights,
                device,
                arguments.component,
                arguments.references_reduce,
            )
            gathered = ranks.gather(ranks.run_on_all(score))
            if gathered is not None:
                _append_lines(unfinished, items, [scores for scores, _ in gathered])
                num_truncated += sum(truncated for _, truncated in gathered)
            progress(len(items))
        if ranks.rank != 0:
            return None
        summary = _finish(unfinished, arguments.output, signature)
    if num_truncated:
        warn_user(describe_truncation(num_truncated, encoder.tokenizer.max_length))
    return summary


def _digest_files(paths: Sequence[str]) -> tuple[int, str]:
    """Return the number of lines of the first file and a digest of the contents of all."""
    digest, num_lines = hashlib.sha256(), 0
    for number, path in enumerate(paths):
        for table in read_parts(path, 1000):
            num_lines += len(table.rows) if number == 0 else 0
            digest.update("\n".join(table.rows).encode())
        digest.update(b"\0")
    if num_lines == 0:
        raise CommandError(f"{paths[0]}: the file contains no candidates")
    return num_lines, digest.hexdigest()


def _read_items(arguments: argparse.Namespace, size: int, done: int) -> Iterator[list[Item]]:
    """Yield the items of each part of the files that are not done yet."""
    from bertscore_tm.functional.ranking import Item

    readers = [_read_to_the_end(path, size) for path in arguments.references or ()]
    for table in read_parts(arguments.candidates, size):
        tables = [next(reader) for reader in readers]
        if table.num_before + len(table.rows) <= done:
            continue
        candidates = _read_candidates(table, arguments.candidates_column)
        references: Sequence[list[str] | None]
        if tables or arguments.reference_column is not None:
            references = read_references(tables or [table], arguments.reference_column, table, len(candidates))
        else:
            references = [None] * len(candidates)
        items = [Item(texts, wanted) for texts, wanted in zip(candidates, references, strict=True)]
        yield items[max(done - table.num_before, 0) :]
    for reader in readers:
        extra = next(reader)
        if extra.rows:
            raise extra.error(0, f"the file goes on, but {arguments.candidates} has {extra.num_before} lines")


def _read_to_the_end(path: str, size: int) -> Iterator[Table]:
    """Yield the parts of a file, and then empty ones."""
    last = Table(path, "txt", [])
    for last in read_parts(path, size):
        yield last
    yield from repeat(Table(path, last.file_format, [], last.num_before + len(last.rows)))


def _read_candidates(table: Table, column: str) -> list[list[str]]:
    if table.file_format != "jsonl":
        raise CommandError(f"{table.name}: candidates are read from JSON lines: name the file .jsonl or .jsonl.gz")
    (rows,) = table.columns([column])
    for row, value in enumerate(rows):
        if not isinstance(value, list) or not value:
            raise table.error(row, f"{column!r} must be an array of at least one text")
    return [
        [table.check_text(row, text, f"{column}[{i}]") for i, text in enumerate(value)]
        for row, value in enumerate(rows)
    ]


def _append_lines(path: Path, items: Sequence[Item], scores: Sequence[Sequence[Tensor]]) -> None:
    """Append a line per item; ``scores`` are those of each rank, which had every n-th item."""
    lines = []
    for number, item in enumerate(items):
        rank, place = number % len(scores), number // len(scores)
        lines.append(_format_line(item, scores[rank][place]))
    append_lines(path, lines)


def _format_line(item: Item, scores: Tensor) -> str:
    from bertscore_tm.functional.ranking import order_candidates

    best = int(order_candidates(scores)[0])
    rounded = [None if score != score else round(score, 6) for score in scores.tolist()]
    record = {"candidate": item.candidates[best], "index": best, "score": rounded[best], "scores": rounded}
    return json.dumps(record, ensure_ascii=False, allow_nan=False)


def _finish(unfinished: Path, output: str, signature: str) -> _Summary:
    """Move the finished lines to the output, and summarize them."""
    num_items = num_candidates = num_scored = 0
    total = 0.0
    with unfinished.open(encoding="utf-8") as source, write_atomically(output) as target:
        next(source)
        for line in source:
            target.write(line)
            record = json.loads(line)
            num_items, num_candidates = num_items + 1, num_candidates + len(record["scores"])
            if record["score"] is not None:
                total, num_scored = total + record["score"], num_scored + 1
    unfinished.unlink()
    return _Summary(num_items, num_candidates, total / num_scored if num_scored else None, signature)
