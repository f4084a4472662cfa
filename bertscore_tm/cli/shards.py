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
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertscore_tm.cli.distributed import RankGroup
from bertscore_tm.cli.errors import FAILED, CommandError, print_message
from bertscore_tm.utilities.files import is_special

if TYPE_CHECKING:
    from torch import Tensor

Part = dict[str, "Tensor"]
# Computes the items with these indices, and calls a function with the number of items done since its last call.
Work = Callable[[range, Callable[[int], None]], Part]

# Items of a part: enough for full batches, and few enough that little is lost by an interruption.
SMALLEST, LARGEST = 100, 1000
# Parts of a run that is neither short nor long, to divide among ranks.
_NUM_PARTS = 16


def compute_parts(
    ranks: RankGroup, arguments: argparse.Namespace, num_items: int, work: Work, *, unit: str, settings: dict[str, Any]
) -> list[Part] | None:
    """Compute a run part by part, and return all parts in order on rank 0, ``None`` on all other ranks.

    The parts of a long run are appended to the file that an interrupted run with the same settings left. ``unit`` is
    the name of an item in the progress.
    """
    from tqdm import tqdm

    path = None
    if num_items > LARGEST and arguments.output is not None and not is_special(arguments.output):
        path = partial_path(arguments.output)
    size = LARGEST
    if path is not None or ranks.size > 1:
        size = min(LARGEST, max(SMALLEST, math.ceil(num_items / _NUM_PARTS)))
    all_parts = [range(start, min(start + size, num_items)) for start in range(0, num_items, size)]
    results = ranks.run_on_first(lambda: [] if path is None else _open_file(path, json.dumps(settings)))
    if path is not None and ranks.rank == 0:
        arguments.unfinished = path
    num_finished = sum(map(len, all_parts[: len(results)]))
    if num_finished:
        print_message(f"resuming: {num_finished} of {num_items} {unit}s are in {path}")
    is_shown = ranks.rank == 0 and (sys.stderr.isatty() or getattr(arguments, "verbose", False))
    with tqdm(total=num_items, unit=unit, initial=num_finished, disable=not is_shown) as bar:
        for start in range(len(results), len(all_parts), ranks.size):
            results += _compute_next(ranks, all_parts[start : start + ranks.size], work, bar.update, path)
    return results if ranks.rank == 0 else None


def _compute_next(
    ranks: RankGroup, parts: list[range], work: Work, progress: Callable[[int], None], path: Path | None
) -> list[Part]:
    """Compute a part on each rank, and append them to the file."""
    computed = ranks.gather(lambda: work(parts[ranks.rank], progress) if ranks.rank < len(parts) else {})[: len(parts)]
    if path is not None:
        ranks.run_on_first(lambda: _append(path, "".join(map(_encode_part, computed))))
    # Of the other ranks: this one has counted its items.
    progress(sum(map(len, parts[1:])))
    return computed


def partial_path(output: str) -> Path:
    """Return the file with the parts of an unfinished output."""
    return Path(f"{output}.partial")


def input_digest(items: Iterable[Any]) -> str:
    """Return a digest of lists of texts, by which an interrupted run of the same texts is recognized."""
    digest = hashlib.sha256()
    for item in items:
        digest.update(json.dumps(item).encode())
    return digest.hexdigest()


def _open_file(path: Path, head: str) -> list[Part]:
    """Return the parts in a file, whose first line are the settings of the run; make one if there is none."""
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
    return list(map(_decode_part, lines[:-1]))


def _append(path: Path, lines: str) -> None:
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(lines)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise CommandError(f"{path}: {error.strerror or error}; the same command resumes", FAILED) from error


def _encode_part(part: Part) -> str:
    """Return a line with the values of a part, which are integers or float32, exactly."""
    return json.dumps({name: tensor.tolist() for name, tensor in part.items()}) + "\n"


def _decode_part(line: str) -> Part:
    import torch

    return {name: torch.tensor(values, device="cpu") for name, values in json.loads(line).items()}
