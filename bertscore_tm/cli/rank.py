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
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from bertscore_tm.cli import options, report
from bertscore_tm.cli.distributed import RankGroup, choose_device, join_ranks
from bertscore_tm.cli.errors import CommandError, print_message
from bertscore_tm.cli.inputs import STDIN, format_of, read_parts
from bertscore_tm.cli.tables import Table
from bertscore_tm.cli.text_arguments import read_references
from bertscore_tm.utilities.files import append_lines, is_special, write_atomically
from bertscore_tm.utilities.user_warnings import warn_user

if TYPE_CHECKING:
    from torch import Tensor

    from bertscore_tm.functional.ranking import Item

__all__ = ["HELP", "NAME", "add_arguments", "run"]

NAME = "rank"
HELP = "choose the best of several candidates, against references or by consensus"

# Lines of the input that a rank scores before the output grows.
_LINES_PER_RANK = 32
_LINES_PER_CHECK = 1000


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
        help="write the best candidates to this file, as JSON lines (.jsonl)",
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
    texts = (arguments.candidates, *(arguments.references or ()))
    report.check_output_path(arguments.output, *texts, arguments.idf_file)
    report.choose_format(arguments.output, (".jsonl",), ".jsonl")
    for path in texts:
        if path == STDIN or Path(path).is_fifo():
            name = "standard input (-)" if path == STDIN else f"the pipe {path}"
            raise CommandError(f"rank reads its files twice and cannot read {name}: put the texts into a file")
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
    num_lines, digest = ranks.run_on_first(lambda: _check_files(arguments))
    idf_sents = ranks.run_on_first(lambda: options.read_idf_texts(arguments))

    from bertscore_tm.functional.ranking import Item, score_items
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
    num_truncated = 0
    with ExitStack() as stack:
        if is_special(arguments.output):
            # Nothing can be kept next to a device or a pipe.
            unfinished = Path(stack.enter_context(TemporaryDirectory()), "lines")
            del arguments.resumes
        else:
            unfinished = report.partial_path(arguments.output)
        done = ranks.run_on_first(lambda: stack.enter_context(report.start_partial(unfinished, settings)))
        if done and ranks.rank == 0:
            print_message(f"resuming after line {done} from {unfinished}")
        parts = _read_texts(arguments, _LINES_PER_RANK * ranks.size, done)
        show = ranks.rank == 0 and sys.stderr.isatty()
        progress = stack.enter_context(progress_bar(num_lines, show, unit="line"))
        progress(done)
        while texts := ranks.run_on_first(lambda: next(parts, None)):
            items = [Item(candidates, references) for candidates, references in texts]
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


def _check_files(arguments: argparse.Namespace) -> tuple[int, str]:
    """Check all lines before the first is scored; return their number and a digest of the texts."""
    ends = [_read_end(path) for path in (arguments.candidates, *(arguments.references or ()))]
    lengths = [end.num_before + len(end.rows) for end in ends]
    num_lines = lengths[0]
    if num_lines == 0:
        raise CommandError(f"{arguments.candidates}: the file contains no candidates")
    longest = ends[lengths.index(max(lengths))]
    for end, length in zip(ends, lengths, strict=True):
        if length != max(lengths):
            blank = ", as its blank last line is an empty text" if longest.ends_blank else ""
            message = f"the file ends here, but {longest.name} has {max(lengths)} texts{blank}"
            raise end.error(len(end.rows) - 1, message)
    digest = hashlib.sha256()
    for texts in _read_texts(arguments, _LINES_PER_CHECK):
        digest.update("".join(json.dumps(each) + "\n" for each in texts).encode())
    return num_lines, digest.hexdigest()


def _read_end(path: str) -> Table:
    """Return the last lines of a file."""
    last = deque(read_parts(path, _LINES_PER_CHECK), maxlen=1)
    return last.pop() if last else Table(path, format_of(path)[0], [])


def _read_texts(
    arguments: argparse.Namespace, size: int, done: int = 0
) -> Iterator[list[tuple[list[str], list[str] | None]]]:
    """Yield candidates and references of the lines that are not done yet, part by part."""
    readers = [read_parts(path, size) for path in arguments.references or ()]
    for table in read_parts(arguments.candidates, size):
        tables = [next(reader, None) for reader in readers]
        sources = [other for other in tables if other is not None and len(other.rows) == len(table.rows)]
        if len(sources) != len(readers):
            raise CommandError("the files changed while they were read: give the command again")
        if table.num_before + len(table.rows) <= done:
            continue
        candidates = _read_candidates(table, arguments.candidates_column)
        references: Sequence[list[str] | None] = [None] * len(candidates)
        if sources or arguments.reference_column is not None:
            references = read_references(sources or [table], arguments.reference_column, table, len(candidates))
        yield list(zip(candidates, references, strict=True))[max(done - table.num_before, 0) :]


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
