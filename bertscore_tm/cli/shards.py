"""The parts of a long run: JSON lines next to the output, which an interrupted run continues.

Each rank computes a part at a time, and rank 0 appends them to the file. A run that is short or prints its result keeps
its parts in memory.
"""

import argparse
import hashlib
import json
import math
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor
from tqdm import tqdm

from bertscore_tm.cli.distributed import RankGroup
from bertscore_tm.cli.errors import FAILED, CommandError, print_message
from bertscore_tm.utilities.files import is_special

Part = dict[str, Tensor]
Progress = Callable[[int], None]
# Number of a part, its first item and the one after its last.
Range = tuple[int, int, int]

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
    signature: str,
) -> Part | None:
    """Compute a run part by part, and return the joined parts on rank 0, ``None`` on all other ranks.

    The parts of a long run are appended to the file that an interrupted run with the same settings left. ``work``
    computes items, and calls a function with the number of items done since its last call; their name is ``unit``.
    """
    path, size = None, LARGEST
    if len(items) > LARGEST and arguments.output is not None and not is_special(arguments.output):
        path = partial_path(arguments.output)
    if path is not None or ranks.size > 1:
        size = min(LARGEST, max(SMALLEST, math.ceil(len(items) / _NUM_PARTS)))
    starts = range(0, len(items), size)
    ranges = [(number, start, min(start + size, len(items))) for number, start in enumerate(starts)]

    def resume() -> list[Part]:
        if path is None:
            return []
        arguments.unfinished = _open_file(path)
        return _read_parts(arguments.unfinished, {"signature": signature, "size": size}, items, ranges)

    results = ranks.run_on_first(resume)
    num_finished = ranges[len(results) - 1][2] if results else 0
    if num_finished:
        print_message(f"resuming: {num_finished} of {len(items)} {unit}s are in {path}")
    is_shown = ranks.rank == 0 and (sys.stderr.isatty() or getattr(arguments, "verbose", False))
    with tqdm(total=len(items), unit=unit, initial=num_finished, disable=not is_shown) as bar:
        for number in range(len(results), len(ranges), ranks.size):
            chosen = ranges[number : number + ranks.size]
            computed = _compute_next(ranks, [items[start:stop] for _, start, stop in chosen], work, bar.update)
            results += computed
            ranks.run_on_first(partial(_append_parts, arguments, computed, chosen))
    if ranks.rank != 0:
        return None
    return {name: torch.cat([part[name] for part in results], dim=-1) for name in results[0]}


def _compute_next(
    ranks: RankGroup,
    parts: list[Sequence[Any]],
    work: Callable[[Sequence[Any], Progress], Part],
    progress: Progress,
) -> list[Part]:
    """Compute a part on each rank."""
    computed = ranks.gather(lambda: work(parts[ranks.rank], progress) if ranks.rank < len(parts) else {})[: len(parts)]
    # Of the other ranks: this one has counted its items.
    progress(sum(map(len, parts[1:])))
    return computed


def partial_path(output: str) -> Path:
    """Return the file with the parts of an unfinished output."""
    return Path(f"{output}.partial")


def _open_file(path: Path) -> IO[bytes]:
    """Open the file with the parts, which one run at a time may do; it is closed when the run has ended."""
    file = path.open("a+b")
    # On systems without locks, parts of several runs still have their numbers.
    with suppress(ImportError, OSError):
        from fcntl import LOCK_EX, LOCK_NB, flock

        try:
            flock(file, LOCK_EX | LOCK_NB)
        except BlockingIOError as error:
            file.close()
            raise CommandError(f"{path} is being written by another run: wait for it, or stop it") from error
    return file


def _read_parts(file: IO[bytes], settings: dict[str, Any], items: Sequence[Any], ranges: Sequence[Range]) -> list[Part]:
    """Return the first parts, which are in a file whose first line has the settings of the run and a digest of items.

    The line is written if the file is empty.
    """
    digest = hashlib.sha256()
    for item in items:
        digest.update(json.dumps(item, default=vars).encode())
    head = json.dumps(settings | {"input": digest.hexdigest()})
    file.seek(0)
    first, *lines = file.read().split(b"\n")
    if not first:
        _append(file, f"{head}\n")
        return []
    if first != head.encode() or not lines:
        remedy = "delete it to start anew, or repeat that command"
        raise CommandError(f"{file.name} belongs to a run with other files or settings: {remedy}")
    # The last line is empty, or was cut off.
    file.truncate(file.tell() - len(lines[-1]))
    parts = [json.loads(line) for line in lines[:-1]]
    by_range = {tuple(part.pop("range")): part for part in parts}
    finished = [by_range[key] for key in takewhile(by_range.__contains__, ranges)]
    return [{name: torch.tensor(values, device="cpu") for name, values in part.items()} for part in finished]


def _append_parts(arguments: argparse.Namespace, parts: Sequence[Part], ranges: Sequence[Range]) -> None:
    if "unfinished" not in arguments:
        return
    # Integers and float32, which JSON keeps exactly.
    values = [{name: tensor.tolist() for name, tensor in part.items()} for part in parts]
    records = [{"range": chosen, **part} for chosen, part in zip(ranges, values, strict=True)]
    _append(arguments.unfinished, "".join(f"{json.dumps(record)}\n" for record in records))


def _append(file: IO[bytes], lines: str) -> None:
    try:
        file.write(lines.encode())
        file.flush()
        os.fsync(file.fileno())
    except OSError as error:
        raise CommandError(f"{file.name}: {error.strerror or error}; the same command resumes", FAILED) from error
