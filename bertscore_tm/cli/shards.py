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
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertscore_tm.cli.distributed import RankGroup
from bertscore_tm.cli.errors import FAILED, CommandError, print_message
from bertscore_tm.utilities.files import is_special

if TYPE_CHECKING:
    from torch import Tensor

Part = dict[str, "Tensor"]
Progress = Callable[[int], None]

# Items of a part: enough for full batches, and few enough that little is lost by an interruption.
SMALLEST, LARGEST = 100, 1000
# Parts of a run that is neither short nor long, to divide among ranks.
_NUM_PARTS = 16


def compute_parts(
    ranks: RankGroup,
    arguments: argparse.Namespace,
    items: Sequence[Any],
    work: Callable[[Sequence[Any], Progress], Part],
    *,
    unit: str,
    settings: dict[str, Any],
) -> Part | None:
    """Compute a run part by part, and return the joined parts on rank 0, ``None`` on all other ranks.

    The parts of a long run are appended to the file that an interrupted run with the same settings left. ``work``
    computes items, and calls a function with the number of items done since its last call; their name is ``unit``.
    """
    import torch
    from tqdm import tqdm

    path, size = None, LARGEST
    if len(items) > LARGEST and arguments.output is not None and not is_special(arguments.output):
        path = partial_path(arguments.output)
    if path is not None or ranks.size > 1:
        size = min(LARGEST, max(SMALLEST, math.ceil(len(items) / _NUM_PARTS)))
    parts = [items[start : start + size] for start in range(0, len(items), size)]
    results = ranks.run_on_first(lambda: [] if path is None else _open_file(path, _describe(settings, items)))
    if path is not None and ranks.rank == 0:
        arguments.unfinished = path
    num_finished = sum(map(len, parts[: len(results)]))
    if num_finished:
        print_message(f"resuming: {num_finished} of {len(items)} {unit}s are in {path}")
    is_shown = ranks.rank == 0 and (sys.stderr.isatty() or getattr(arguments, "verbose", False))
    with tqdm(total=len(items), unit=unit, initial=num_finished, disable=not is_shown) as bar:
        for start in range(len(results), len(parts), ranks.size):
            results += _compute_next(ranks, parts[start : start + ranks.size], work, bar.update, path)
    if ranks.rank != 0:
        return None
    return {name: torch.cat([part[name] for part in results], dim=-1) for name in results[0]}


def _compute_next(
    ranks: RankGroup,
    parts: list[Sequence[Any]],
    work: Callable[[Sequence[Any], Progress], Part],
    progress: Progress,
    path: Path | None,
) -> list[Part]:
    """Compute a part on each rank, and append them to the file."""
    computed = ranks.gather(lambda: work(parts[ranks.rank], progress) if ranks.rank < len(parts) else {})[: len(parts)]
    if path is not None:
        # Integers and float32, which JSON keeps exactly.
        values = [{name: tensor.tolist() for name, tensor in part.items()} for part in computed]
        ranks.run_on_first(lambda: _append(path, "".join(f"{json.dumps(part)}\n" for part in values)))
    # Of the other ranks: this one has counted its items.
    progress(sum(map(len, parts[1:])))
    return computed


def partial_path(output: str) -> Path:
    """Return the file with the parts of an unfinished output."""
    return Path(f"{output}.partial")


def _describe(settings: dict[str, Any], items: Sequence[Any]) -> str:
    """Return a line with the settings and a digest of the items, by which a repeated run is recognized."""
    digest = hashlib.sha256()
    for item in items:
        digest.update(json.dumps(item, default=vars).encode())
    return json.dumps(settings | {"input": digest.hexdigest()})


def _open_file(path: Path, head: str) -> list[Part]:
    """Return the parts in a file, whose first line are the settings of the run; make one if there is none."""
    import torch

    if not path.exists():
        _append(path, f"{head}\n")
        return []
    first, *lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
    if first != head or not lines:
        raise CommandError(
            f"{path} belongs to a run with other files or settings: delete it to start anew, or repeat that command"
        )
    # The last line is empty, or was cut off.
    os.truncate(path, path.stat().st_size - len(lines[-1]))
    parts = map(json.loads, lines[:-1])
    return [{name: torch.tensor(values, device="cpu") for name, values in part.items()} for part in parts]


def _append(path: Path, lines: str) -> None:
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(lines)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise CommandError(f"{path}: {error.strerror or error}; the same command resumes", FAILED) from error
