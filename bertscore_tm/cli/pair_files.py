"""Candidates and references of files, part by part in bounded memory where the format allows it."""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bertscore_tm.cli import text_arguments
from bertscore_tm.cli.errors import CommandError
from bertscore_tm.cli.inputs import STDIN, STREAMED_FORMATS, format_of, read_parts

if TYPE_CHECKING:
    from bertscore_tm.scoring.texts import TextPairs

__all__ = ["PairFiles", "open_pairs"]

_LINES_PER_CHECK = 10_000


@dataclass(frozen=True)
class PairFiles:
    """Pairs that can be read repeatedly.

    Args:
        arguments: the parsed arguments that name the files.
        texts: all pairs, where they cannot be read in parts.
        num_pairs: number of pairs.
        num_references: number of references of all pairs.
        digest: digest of all texts.
    """

    arguments: argparse.Namespace
    texts: TextPairs | None
    num_pairs: int
    num_references: int
    digest: str

    def read(self, size: int, first: int = 0) -> Iterator[TextPairs]:
        """Read the pairs part by part.

        Args:
            size: pairs per part.
            first: number of pairs to skip.

        Yields:
            At most ``size`` pairs.

        Raises:
            CommandError: a file has changed since :func:`open_pairs`, and does not fit any more.
        """
        from bertscore_tm.scoring.texts import TextPairs

        if self.texts is None:
            yield from self._stream_again(size, first)
            return
        for start in range(first, len(self.texts), size):
            rows = slice(start, start + size)
            yield TextPairs(self.texts.candidates[rows], self.texts.references[rows])

    def _stream_again(self, size: int, first: int) -> Iterator[TextPairs]:
        count = first
        with suppress(_UnequalLengthsError):
            for texts in _stream(self.arguments, size, first):
                count += len(texts)
                yield texts
        if count != self.num_pairs:
            raise CommandError("the files changed while they were read: give the command again")


class _UnequalLengthsError(Exception):
    """The files have different numbers of lines."""


def open_pairs(arguments: argparse.Namespace) -> PairFiles:
    """Check the candidates and references of a command before they are scored.

    Plain lines and JSON lines of regular files are read here and again later, so that they are never in memory as a
    whole.

    Args:
        arguments: the parsed arguments of :func:`bertscore_tm.cli.text_arguments.add_pair_arguments`.

    Returns:
        The pairs, at least one.

    Raises:
        CommandError: arguments contradict each other, or a file is malformed.
    """
    texts = None
    summary = (0, 0, "")
    if _can_stream(arguments):
        with suppress(_UnequalLengthsError):
            summary = _summarize(_stream(arguments, _LINES_PER_CHECK))
    if summary[0] == 0:
        # Of files that end early or are empty, this raises the error.
        texts = text_arguments.read_pairs(arguments)
        summary = _summarize([texts])
    return PairFiles(arguments, texts, *summary)


def _can_stream(arguments: argparse.Namespace) -> bool:
    if arguments.candidates is None or arguments.candidate_text is not None or arguments.reference_text is not None:
        return False
    paths = [arguments.candidates, *(arguments.references or ())]
    # A pipe, such as standard input or <(command) in a shell, can be read only once.
    if any(path == STDIN or not Path(path).is_file() for path in paths):
        return False
    formats = [format_of(path, arguments.format)[0] for path in paths]
    return set(formats) <= set(STREAMED_FORMATS) and (arguments.references is not None or formats[0] != "txt")


def _stream(arguments: argparse.Namespace, size: int, first: int = 0) -> Iterator[TextPairs]:
    from bertscore_tm.scoring.texts import TextPairs

    readers = [read_parts(path, size, arguments.format) for path in arguments.references or ()]
    for table in read_parts(arguments.candidates, size, arguments.format):
        tables = [next(reader, None) for reader in readers]
        if any(other is None or len(other.rows) != len(table.rows) for other in tables):
            raise _UnequalLengthsError
        if table.num_before + len(table.rows) <= first:
            continue
        candidates = text_arguments.read_candidates(table, arguments.candidate_column)
        sources = [other for other in tables if other is not None] or [table]
        references = text_arguments.read_references(sources, arguments.reference_column, table, len(candidates))
        skipped = max(first - table.num_before, 0)
        yield TextPairs(candidates[skipped:], references[skipped:])
    if any(next(reader, None) is not None for reader in readers):
        raise _UnequalLengthsError


def _summarize(parts: Iterator[TextPairs] | list[TextPairs]) -> tuple[int, int, str]:
    """Return the numbers of pairs and references, and a digest."""
    num_pairs = num_references = 0
    digest = hashlib.sha256()
    for texts in parts:
        num_pairs += len(texts)
        num_references += sum(map(len, texts.references))
        for pair in zip(texts.candidates, texts.references, strict=True):
            digest.update(json.dumps(pair).encode())
    return num_pairs, num_references, digest.hexdigest()
