"""What a scored corpus looks like: lines for people, a TSV table per pair, JSON; on standard output or in a file."""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertscore_tm.cli.errors import FAILED, CommandError
from bertscore_tm.cli.tables import aligned
from bertscore_tm.files import write_atomically

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Report", "add_output_arguments", "check_output", "counted", "write_output"]

SCORES = ("precision", "recall", "f1")


def add_output_arguments(parser: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    """Declare what is printed, and where to.

    Args:
        parser: the command's parser.

    Returns:
        The group of arguments, for further ones.
    """
    group = parser.add_argument_group("output")
    group.add_argument("--json", action="store_true", help="print one JSON document")
    group.add_argument(
        "-o", "--output", metavar="FILE", help="write there, once and whole, instead of to standard output"
    )
    return group


@dataclass(frozen=True)
class Report:
    """Scores of a corpus and what they were computed with.

    Args:
        scores: precision, recall and F1, shape (3, layers, candidates).
        best_reference: number of each candidate's best reference by F1, shape (layers, candidates).
        layers: number of each layer.
        num_references: references of all candidates together.
        signature: everything that changes a number, in one line.
        all_layers: whether there is one score per layer rather than one.
    """

    scores: Tensor
    best_reference: Tensor
    layers: list[int]
    num_references: int
    signature: str
    all_layers: bool

    @property
    def num_candidates(self) -> int:
        """How many candidates there are."""
        return self.scores.shape[-1]

    def summary(self) -> str:
        """Return the means over all candidates, for people.

        Returns:
            Some lines.
        """
        means = self.scores.double().mean(-1).T.tolist()
        if self.all_layers:
            rows = [[str(n), *(f"{x:.4f}" for x in row)] for n, row in zip(self.layers, means, strict=True)]
            text = aligned([["layer", "P", "R", "F1"], *rows])
        else:
            text = "  ".join(f"{name} {x:.4f}" for name, x in zip(("P", "R", "F1"), means[0], strict=True)) + "\n"
        counts = f"{counted(self.num_candidates, 'candidate')}, {counted(self.num_references, 'reference')}"
        return f"{text}{counts}\nsignature: {self.signature}\n"

    def table(self) -> str:
        """Return the scores of each candidate, tab-separated, below the summary in comment lines.

        Returns:
            A header and one line per candidate and layer.
        """
        several = self.num_references > self.num_candidates
        lines = ["# " + line for line in self.summary().splitlines()]
        lines.append("\t".join(("segment", "layer", *SCORES, *(("best_reference",) if several else ()))))
        rows = self.scores.permute(2, 1, 0).tolist()
        best = self.best_reference.T.tolist()
        for segment in range(self.num_candidates):
            for place, layer in enumerate(self.layers):
                cells = [str(segment), str(layer), *(f"{x:.6f}" for x in rows[segment][place])]
                lines.append("\t".join(cells + ([str(best[segment][place])] if several else [])))
        return "\n".join(lines) + "\n"

    def document(self, per_segment: bool) -> str:
        """Return everything as JSON.

        Args:
            per_segment: whether to give the scores of each candidate too.

        Returns:
            A JSON object, scores rounded to six decimals.
        """
        found: dict[str, Any] = dict(zip(SCORES, self._listed(self.scores.double().mean(-1)), strict=True))
        if self.all_layers:
            found["layers"] = self.layers
        found |= {
            "num_candidates": self.num_candidates,
            "num_references": self.num_references,
            "signature": self.signature,
        }
        if per_segment:
            found["segments"] = dict(zip(SCORES, self._listed(self.scores.double()), strict=True))
            best = self.best_reference.tolist()
            found["segments"]["best_reference"] = best if self.all_layers else best[0]
        return json.dumps(found, allow_nan=False) + "\n"

    def _listed(self, values: Tensor) -> list[Any]:
        """One entry per score: by layer, where there are several."""
        return (values if self.all_layers else values[:, 0]).mul(1e6).round().div(1e6).tolist()


def counted(number: int, noun: str) -> str:
    """Return a number with its noun.

    Args:
        number: how many.
        noun: of what, in the singular.

    Returns:
        Both.

    Example:
        >>> counted(1, "candidate"), counted(2, "candidate")
        ('1 candidate', '2 candidates')
    """
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def check_output(path: str | None) -> None:
    """Make sure, before anything is computed, that a file can be written.

    Args:
        path: the file, or ``None`` for standard output.

    Raises:
        CommandError: its folder does not exist or forbids it, or it is a folder itself.
    """
    if path is None:
        return
    target = Path(path)
    folder = target.resolve().parent
    if target.is_dir():
        raise CommandError(f"argument --output: {path} is a folder")
    if not folder.is_dir():
        raise CommandError(f"argument --output: the folder {folder} does not exist")
    if not os.access(target if _is_special(target) else folder, os.W_OK):
        raise CommandError(f"argument --output: {path} cannot be written, {folder} forbids it")


def write_output(content: str | bytes, path: str | None) -> None:
    """Write a result, a file only once it is complete.

    A text that the file cannot take goes to standard output, so that it is not lost.

    Args:
        content: the result.
        path: the file, or ``None`` for standard output.

    Raises:
        CommandError: the file or standard output cannot be written.
    """
    data = content.encode("utf-8") if isinstance(content, str) else content
    if path is None:
        try:
            sys.stdout.write(data.decode("utf-8"))
            # Here rather than at exit, where nobody could say what is wrong.
            sys.stdout.flush()
        except BrokenPipeError:
            raise
        except OSError as error:
            raise CommandError(f"standard output: {error.strerror or error}", FAILED) from error
        return
    try:
        if _is_special(Path(path)):
            Path(path).write_bytes(data)
        else:
            with write_atomically(path, "wb") as file:
                file.write(data)
    except OSError as error:
        if isinstance(content, str):
            write_output(content, None)
        # With strerror the error comes from the special file; write_atomically names the path itself.
        raise CommandError(f"{path}: {error.strerror}" if error.strerror else str(error), FAILED) from error


def _is_special(path: Path) -> bool:
    """Tell devices and pipes, which cannot be replaced by a finished file."""
    return path.exists() and not path.is_file()
