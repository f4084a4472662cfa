"""Format scores as text, as a TSV table or as JSON, and write them to standard output or a file."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertscore_tm.cli.errors import FAILED, CommandError
from bertscore_tm.cli.inputs import STDIN
from bertscore_tm.utilities.files import is_special, write_atomically
from bertscore_tm.utilities.untrusted_text import for_terminal

if TYPE_CHECKING:
    from torch import Tensor

__all__ = [
    "SCORES",
    "SCORE_LABELS",
    "ScoreReport",
    "add_output_arguments",
    "check_files",
    "choose_format",
    "file_path",
    "format_count",
    "output_path",
    "write_output",
]

_ROWS_PER_BLOCK = 10_000

SCORES = ("precision", "recall", "f1")
SCORE_LABELS = {"precision": "P", "recall": "R", "f1": "F1"}


def add_output_arguments(parser: argparse.ArgumentParser, suffixes: Sequence[str]) -> argparse._ArgumentGroup:
    """Declare the arguments for format and destination of the output.

    Args:
        parser: the command's parser.
        suffixes: suffixes of the files that the command writes.

    Returns:
        The group of arguments, to add further ones.
    """
    group = parser.add_argument_group("output")
    group.add_argument("--json", action="store_true", help="print one JSON document, as to a .json file")
    group.add_argument(
        "-o",
        "--output",
        type=output_path,
        metavar="FILE",
        help="write the complete output to this file instead of standard output (-), in the format of its suffix: "
        + ", ".join(suffixes),
    )
    return group


def output_path(argument: str) -> str | None:
    """Parse an output that may be standard output.

    Args:
        argument: the file, or ``-``.

    Returns:
        The file, or ``None`` for standard output.

    Example:
        >>> output_path("scores.tsv"), output_path("-")
        ('scores.tsv', None)
    """
    return None if argument == "-" else argument


def file_path(argument: str) -> str:
    """Parse an output that must be a file.

    Args:
        argument: the file.

    Returns:
        The file.

    Raises:
        argparse.ArgumentTypeError: it is standard output, where the command prints its summary.

    Example:
        >>> file_path("best.jsonl")
        'best.jsonl'
    """
    if argument == "-":
        raise argparse.ArgumentTypeError("the summary is printed on standard output: give a file, not -")
    return argument


@dataclass(frozen=True)
class ScoreReport:
    """Scores of a corpus in the formats that the command prints.

    Args:
        scores: precision, recall and F1, shape (3, candidates).
        best_reference: index of each candidate's best reference by F1, shape (candidates,).
        layer: number of the layer.
        num_references: number of references of all candidates.
        signature: all settings that change a score, in one line.
        confidence: coverage of the intervals of the means, ``None`` without intervals.
        bounds: least and largest possible scores, shape (3,) each.
        documents: the document of each candidate, ``None`` if candidates are independent.
    """

    scores: Tensor
    best_reference: Tensor
    layer: int
    num_references: int
    signature: str
    confidence: float | None
    bounds: tuple[Tensor, Tensor]
    documents: list[str] | None = None

    @property
    def num_candidates(self) -> int:
        """Number of candidates."""
        return self.scores.shape[-1]

    @property
    def num_independent(self) -> int:
        """Number of documents, or of candidates that are independent."""
        return self.num_candidates if self.documents is None else len(set(self.documents))

    def intervals(self) -> list[tuple[float, float]] | None:
        """Return the ends of the intervals of precision, recall and F1, ``None`` if there are none."""
        if self.confidence is None or self.num_independent < 2:
            return None
        from bertscore_tm.statistics import mean_interval

        low, high = mean_interval(self.scores, self.confidence, bounds=self.bounds, groups=self.documents)
        return list(zip(low.tolist(), high.tolist(), strict=True))

    def format_summary(self) -> str:
        """Return the mean scores as text.

        Returns:
            Lines with the means, the counts and the signature.
        """
        cells = [f"{label} {x:.4f}" for label, x in zip(SCORE_LABELS.values(), self._means(), strict=True)]
        intervals = self.intervals()
        if intervals is not None:
            cells = [f"{cell} [{low:.4f}, {high:.4f}]" for cell, (low, high) in zip(cells, intervals, strict=True)]
        lines = ["  ".join(cells)]
        if self.confidence is not None:
            independent = format_count(self.num_independent, "candidate" if self.documents is None else "document")
            described = f"{100 * self.confidence:g}% intervals of the means"
            if intervals is None:
                lines.append(f"no {described}: {independent}")
            else:
                lines.append(described if self.documents is None else f"{described} from {independent}")
        counts = f"{format_count(self.num_candidates, 'candidate')}, {format_count(self.num_references, 'reference')}"
        return "\n".join([*lines, counts, f"signature: {self.signature}"]) + "\n"

    def format_table(self, separator: str = "\t") -> str:
        """Return the scores of each candidate as tab-separated or comma-separated values.

        Args:
            separator: tab or comma.

        Returns:
            With tabs the summary in comment lines, which CSV does not have; a header, and one line per candidate.
        """
        several = self.num_references > self.num_candidates
        lines = ["# " + line for line in self.format_summary().splitlines()] if separator == "\t" else []
        lines.append(separator.join(("segment", "layer", *SCORES, *(("best_reference",) if several else ()))))
        # Lists of the rows of a large corpus would take ten times the memory of the text.
        text = StringIO()
        text.writelines(line + "\n" for line in lines)
        for start in range(0, self.num_candidates, _ROWS_PER_BLOCK):
            rows = self.scores[:, start : start + _ROWS_PER_BLOCK].T.tolist()
            best = self.best_reference[start : start + _ROWS_PER_BLOCK].tolist()
            for segment, (row, index) in enumerate(zip(rows, best, strict=True), start):
                cells = [str(segment), str(self.layer), *(f"{x:.6f}" for x in row)]
                text.write(separator.join(cells + ([str(index)] if several else [])) + "\n")
        return text.getvalue()

    def format_json(self, per_segment: bool) -> str:
        """Return all scores as JSON.

        Args:
            per_segment: include the scores of each candidate.

        Returns:
            A JSON object with scores rounded to six decimals.
        """
        document: dict[str, Any] = {name: round(x, 6) for name, x in zip(SCORES, self._means(), strict=True)}
        if self.confidence is not None:
            intervals = self.intervals()
            for i, name in enumerate(SCORES):
                ends = (None, None) if intervals is None else (round(x, 6) for x in intervals[i])
                document |= dict(zip((f"{name}_low", f"{name}_high"), ends, strict=True))
            document["confidence"] = self.confidence
            document["num_documents"] = None if self.documents is None else self.num_independent
        document |= {
            "num_candidates": self.num_candidates,
            "num_references": self.num_references,
            "signature": self.signature,
        }
        if per_segment:
            rounded = self.scores.double().mul(1e6).round().div(1e6).tolist()
            document["segments"] = dict(zip(SCORES, rounded, strict=True))
            document["segments"]["best_reference"] = self.best_reference.tolist()
        return json.dumps(document, allow_nan=False) + "\n"

    def _means(self) -> list[float]:
        means: list[float] = self.scores.double().mean(-1).tolist()
        return means


def format_count(number: int, noun: str) -> str:
    """Return a number with its noun in the singular or plural.

    Args:
        number: the number.
        noun: the noun in the singular.

    Returns:
        Number and noun.

    Example:
        >>> format_count(1, "candidate"), format_count(2, "candidate")
        ('1 candidate', '2 candidates')
    """
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def check_files(path: str | None, *inputs: str | None) -> None:
    """Check, before the scores are computed, that a file can be written, and is none of those that are read.

    Args:
        path: the file, or ``None`` for standard output.
        *inputs: files that are read; ``None`` where one is not given.

    Raises:
        CommandError: the path is a folder or an input, its folder does not exist, or the permissions do not allow
            writing; or two inputs are standard input, ``-``.
    """
    if inputs.count(STDIN) > 1:
        raise CommandError("standard input (-) can be read only once: put the other texts into a file")
    if path is None:
        return
    target = Path(path)
    folder = target.resolve().parent
    if target.is_dir():
        raise CommandError(f"argument --output: {path} is a folder")
    if not folder.is_dir():
        raise CommandError(f"argument --output: the folder {folder} does not exist")
    if not os.access(target if is_special(target) else folder, os.W_OK):
        raise CommandError(f"argument --output: no permission to write {path}")
    if not is_special(target) and any(one is not None and Path(one).resolve() == target.resolve() for one in inputs):
        raise CommandError(f"argument --output: {path} is read, and would be replaced: give another file")


def choose_format(path: str | None, suffixes: Sequence[str], default: str) -> str:
    """Choose the format of the output by the suffix of its file.

    Args:
        path: the file, or ``None`` for standard output.
        suffixes: the allowed suffixes.
        default: suffix that stands for the format on standard output, on devices and in pipes; ``".json"`` only with
            ``--json``.

    Returns:
        One of the suffixes.

    Raises:
        CommandError: the file has another suffix, or ``--json`` contradicts it.

    Example:
        >>> choose_format("Scores.JSON", (".txt", ".json"), ".txt")
        '.json'
    """
    if path is None or is_special(path):
        return default
    suffix = Path(path).suffix.lower()
    if suffix not in suffixes:
        *others, last = suffixes
        allowed = f"{', '.join(others)} or {last}" if others else last
        raise CommandError(f"argument --output: {path} must end with {allowed}, which selects the format")
    if default == ".json" != suffix:
        raise CommandError(f"--json and --output {path} exclude each other: name the file .json, or remove --json")
    return suffix


def write_output(content: str | bytes, path: str | None) -> None:
    """Write a result to standard output or atomically to a file.

    If the file cannot be written, print a text to standard output, so that it is not lost.

    Args:
        content: text, or bytes of a picture.
        path: the file, or ``None`` for standard output, where control characters are escaped.

    Raises:
        CommandError: the file or standard output cannot be written.
    """
    if path is None:
        assert isinstance(content, str)
        try:
            sys.stdout.write(for_terminal(content, keep="\n\t"))
            # At exit Python could not report the error in one line.
            sys.stdout.flush()
        except BrokenPipeError:
            raise
        except OSError as error:
            raise CommandError(f"standard output: {error.strerror or error}", FAILED) from error
        return
    try:
        with write_atomically(path, "wb") as file:
            file.write(content.encode("utf-8") if isinstance(content, str) else content)
    except OSError as error:
        if isinstance(content, str):
            write_output(content, None)
        raise CommandError(str(error), FAILED) from error
