"""The parts of a long run: JSON lines next to the output, which an interrupted run continues.

Each rank computes a part at a time, and rank 0 appends them to the file. A run that is short or prints its result keeps
its parts in memory.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertscore_tm.cli.distributed import RankGroup
from bertscore_tm.cli.errors import FAILED, CommandError, print_message
from bertscore_tm.utilities.files import is_special

if TYPE_CHECKING:
    from torch import Tensor

    from bertscore_tm.encoder import FrozenEncoder

# Items of a part: enough for full batches, and few enough that little is lost by an interruption.
SMALLEST, LARGEST = 100, 1000
# Parts of a run that is neither short nor long, to divide among ranks.
_NUM_PARTS = 16


@dataclass(frozen=True)
class Shards:
    """The parts of a run, by their first item: on rank 0 those of the file to which further ones are appended."""

    ranks: RankGroup
    path: Path | None
    parts: dict[int, dict[str, Tensor]] = field(default_factory=dict)

    def compute(
        self,
        name: str,
        num_items: int,
        work: Callable[[range, Callable[[int], None]], dict[str, Tensor]],
        shown: bool = False,
    ) -> list[dict[str, Tensor]] | None:
        """Compute the missing parts, and return all parts in order on rank 0, ``None`` on all other ranks.

        ``work`` computes a part, given the indices of its items, such as pairs, and a function to call with the number
        of items done since the last call. ``name`` is that of an item in the progress.
        """
        from tqdm import tqdm

        size = LARGEST
        if self.path is not None or self.ranks.size > 1:
            size = min(LARGEST, max(SMALLEST, math.ceil(num_items / _NUM_PARTS)))
        all_parts = [range(start, min(start + size, num_items)) for start in range(0, num_items, size)]
        missing = self.ranks.run_on_first(lambda: [part for part in all_parts if part.start not in self.parts])
        num_finished = num_items - sum(map(len, missing))
        if num_finished and self.ranks.rank == 0:
            print_message(f"resuming: {num_finished} of {num_items} {name}s are in {self.path}")
        is_shown = self.ranks.rank == 0 and (shown or sys.stderr.isatty())
        with tqdm(total=num_items, unit=name, initial=num_finished, disable=not is_shown) as bar:
            for start in range(0, len(missing), self.ranks.size):
                self._compute_next(missing[start : start + self.ranks.size], work, bar.update)
        return [self.parts[part.start] for part in all_parts] if self.ranks.rank == 0 else None

    def _compute_next(
        self,
        parts: list[range],
        work: Callable[[range, Callable[[int], None]], dict[str, Tensor]],
        progress: Callable[[int], None],
    ) -> None:
        """Compute a part on each rank, and keep all on rank 0."""
        rank = self.ranks.rank
        results = self.ranks.gather(lambda: work(parts[rank], progress) if rank < len(parts) else {})
        computed = {part.start: result for part, result in zip(parts, results, strict=False)}
        self.parts.update(computed)
        if self.path is not None:
            path, lines = self.path, "".join(map(_encode_part, computed, computed.values()))
            self.ranks.run_on_first(lambda: _append(path, lines))
        # Of the other ranks: this one has counted its items.
        progress(sum(map(len, parts[1:])))


def open_shards(
    ranks: RankGroup, arguments: argparse.Namespace, num_items: int, encoder: FrozenEncoder, settings: dict[str, Any]
) -> Shards:
    """Start the parts of a run, or find those that an interrupted run of the same encoder and settings finished."""
    from bertscore_tm.scoring.signature import score_signature
    from bertscore_tm.scoring.token_weights import WeightSource

    if arguments.output is None or is_special(arguments.output) or num_items <= LARGEST:
        return Shards(ranks, None)
    path = partial_path(arguments.output)
    head = json.dumps({"signature": score_signature(encoder, WeightSource("uniform"))} | settings)
    parts: dict[int, dict[str, Tensor]] = {}
    ranks.run_on_first(lambda: parts.update(_open_file(path, head)))
    arguments.resumes = True
    return Shards(ranks, path, parts)


def _open_file(path: Path, head: str) -> dict[int, dict[str, Tensor]]:
    """Return the parts in a file, whose first line are the settings of the run; make one if there is none."""
    content = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
    first, *lines = content.split("\n")
    if not lines and head.startswith(first):
        path.write_text("", encoding="utf-8")
        _append(path, f"{head}\n")
        return {}
    if first != head:
        raise CommandError(
            f"{path} belongs to a run with other files or settings: delete it to start anew, or repeat that command"
        )
    # The last line is empty, or was cut off.
    os.truncate(path, len(content) - len(lines[-1]))
    return dict(map(_decode_part, lines[:-1]))


def _append(path: Path, lines: str) -> None:
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(lines)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise CommandError(f"{path}: {error.strerror or error}; the same command resumes", FAILED) from error


def _encode_part(start: int, part: dict[str, Tensor]) -> str:
    """Return a line with the values of a part, which are integers or float32, exactly."""
    return json.dumps({"start": start} | {name: tensor.tolist() for name, tensor in part.items()}) + "\n"


def _decode_part(line: str) -> tuple[int, dict[str, Tensor]]:
    import torch

    part = json.loads(line)
    return part.pop("start"), {name: torch.tensor(values, device="cpu") for name, values in part.items()}


def remove_shards(arguments: argparse.Namespace) -> None:
    """Remove the parts of a run whose output is written."""
    if "resumes" in arguments:
        partial_path(arguments.output).unlink(missing_ok=True)


def partial_path(output: str) -> Path:
    """Return the file with the parts of an unfinished output, next to the file or to the target of a link."""
    target = Path(output).resolve() if Path(output).is_symlink() else Path(output)
    return target.with_name(f"{target.name}.partial")


def input_digest(items: Iterable[Any]) -> str:
    """Return a digest of lists of texts, by which an interrupted run of the same texts is recognized."""
    digest = hashlib.sha256()
    for item in items:
        digest.update(json.dumps(item).encode())
    return digest.hexdigest()
