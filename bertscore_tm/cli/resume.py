"""The items of a run, which ranks divide, and the file from which an interrupted run resumes."""

import hashlib
import json
import math
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import IO, Any, Self

from bertscore_tm.cli.errors import FAILED, CommandError, is_closed, print_message
from bertscore_tm.cli.output import Output
from bertscore_tm.cli.ranks import RankGroup
from bertscore_tm.utilities.files import is_special
from bertscore_tm.utilities.progress import progress_bar

# The numbers of an item, such as its scores.
Numbers = list[float]
Progress = Callable[[int], None]

# Number of items that a rank computes in a step: enough for full batches. An interruption loses at most one step.
ITEMS_PER_STEP = 1000


class PartialFile:
    """The finished items of an output: JSON lines next to it, from which an interrupted run resumes.

    The first line has the signature of the run and a digest of its input. Each further line has the numbers of an item.
    A run that prints its result, or that is done in a single step, has no file.

    As a context manager, this class deletes the file after a run without an error, and keeps it after an error.

    Args:
        output: the output file. ``None`` for standard output.
    """

    def __init__(self, output: str | None) -> None:
        self.path: Path | None = None
        if output is not None and not is_special(output):
            self.path = Path(f"{output}.partial")
        self._file: IO[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if self._file is None or self.path is None:
            return
        if error is None:
            # Delete the partial file, because the output is complete.
            self.path.unlink()
        self.close()
        if isinstance(error, KeyboardInterrupt):
            raise KeyboardInterrupt("The same command resumes") from error

    def resume(self, signature: str, items: Sequence[Any]) -> list[Numbers]:
        """Open the file and return the numbers of the items that a run with the same settings has finished."""
        # A run of a single step would have nothing to resume from.
        if self.path is None or len(items) <= ITEMS_PER_STEP:
            return []
        self._file = self.path.open("a+b")
        _lock(self._file)
        # Compare the texts by their digest, because they may have changed in files of the same names.
        digest = hashlib.sha256()
        for item in items:
            digest.update(json.dumps(item, default=vars).encode())
        head = json.dumps({"signature": signature, "input": digest.hexdigest()})
        self._file.seek(0)
        content = self._file.read()
        if not content:
            self._write(f"{head}\n")
            return []
        first, *lines = content.split(b"\n")
        if first != head.encode() or not lines:
            remedy = f"Repeat that command, or start anew after rm {shlex.quote(str(self.path))}"
            raise CommandError(f"{self.path} belongs to a run with other files or settings. {remedy}")
        # What follows the last line break is empty, or an item that was cut off. Remove it.
        self._file.truncate(len(content) - len(lines[-1]))
        records = [json.loads(line) for line in lines[:-1]]
        if [record["item"] for record in records] != list(range(len(records))):
            remedy = f"Start anew after rm {shlex.quote(str(self.path))}"
            raise CommandError(f"{self.path} has lines of several runs. {remedy}")
        return [record["numbers"] for record in records]

    def append(self, start: int, numbers: Sequence[Numbers]) -> None:
        """Write the numbers of finished items. ``start`` is the index of the first one."""
        if self._file is None:
            return
        lines = []
        for item, values in enumerate(numbers, start):
            record = json.dumps({"item": item, "numbers": values})
            lines.append(f"{record}\n")
        # Write all lines of a step at once, so that an interruption leaves at most one incomplete line.
        self._write("".join(lines))

    def close(self) -> None:
        """Close the file, and release its lock."""
        if self._file is not None:
            self._file.close()

    def _write(self, lines: str) -> None:
        assert self._file is not None
        try:
            self._file.write(lines.encode())
            self._file.flush()
            # Write to the disk, so that a power failure loses at most the current step.
            os.fsync(self._file.fileno())
        except OSError as error:
            reason = error.strerror or error
            remedy = "Free space on this disk, and run the same command to resume"
            raise CommandError(f"{self.path}: {reason}. {remedy}", FAILED) from error


def _lock(file: IO[bytes]) -> None:
    """Lock a file until it is closed, on systems that have locks. Raise an error if another run has locked the file."""
    with suppress(ImportError, OSError):
        from fcntl import LOCK_EX, LOCK_NB, flock

        try:
            flock(file, LOCK_EX | LOCK_NB)
        except BlockingIOError as error:
            raise CommandError(f"{file.name} is being written by another run. Wait for it, or stop it") from error


@dataclass(frozen=True)
class Session:
    """The ranks of a run, the file of its finished items, and where its output goes."""

    ranks: RankGroup
    unfinished: PartialFile
    output: Output


def compute_items(
    session: Session,
    items: Sequence[Any],
    work: Callable[[Sequence[Any], Progress], list[Numbers]],
    *,
    unit: str,
    signature: str,
    verbose: bool = False,
) -> list[Numbers] | None:
    """Compute the numbers of each item, and return them on rank 0. The other ranks return ``None``.

    Finished items are written to the partial file. A progress bar is shown on a terminal.

    Args:
        session: the ranks, the partial file and the output.
        items: the items to compute.
        work: computes the numbers of some items. It calls its second argument with the number of items that it has done
            since the last call.
        unit: the noun for an item in messages.
        signature: the signature of the settings.
        verbose: also show the progress bar if standard error is not a terminal.
    """
    ranks = session.ranks
    unfinished = session.unfinished
    numbers: list[Numbers] = []

    def resume() -> int:
        numbers.extend(unfinished.resume(signature, items))
        return len(numbers)

    num_finished = ranks.run_on_first(resume)
    if num_finished:
        print_message(f"resuming: {num_finished} of {len(items)} {unit}s are in {unfinished.path}")
    is_shown = ranks.rank == 0 and _can_show_progress(verbose=verbose)
    items_per_step = ranks.size * ITEMS_PER_STEP
    with progress_bar(len(items), unit, is_shown=is_shown, initial=num_finished) as advance:
        for start in range(num_finished, len(items), items_per_step):
            step = items[start : start + items_per_step]
            computed = _compute_step(ranks, step, work, advance)
            numbers += computed
            ranks.run_on_first(partial(unfinished.append, start, computed))
    if ranks.rank > 0:
        return None
    return numbers


def _can_show_progress(*, verbose: bool) -> bool:
    """Return whether standard error is a terminal, or is open and the user requests a progress bar."""
    if is_closed(sys.stderr):
        return False
    # A log file would get a line for each update, so the user has to request a progress bar there.
    return verbose or sys.stderr.isatty()


def _compute_step(
    ranks: RankGroup,
    items: Sequence[Any],
    work: Callable[[Sequence[Any], Progress], list[Numbers]],
    progress: Progress,
) -> list[Numbers]:
    """Compute items, of which each rank takes an equal share."""
    share = math.ceil(len(items) / ranks.size)
    own = items[ranks.rank * share : (ranks.rank + 1) * share]

    def work_on_share() -> list[Numbers]:
        # The shares of the last ranks are empty if there are fewer items than ranks.
        if not own:
            return []
        return work(own, progress)

    shares = ranks.gather(work_on_share)
    # work has counted the items of this rank only, so add those of the other ranks.
    progress(len(items) - len(own))
    return list(chain.from_iterable(shares))
