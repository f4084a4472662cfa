"""The parts of a long run, a JSON line each in a folder next to the output: ranks share it, and later runs resume.

Each rank computes some of the missing parts. When all are there, rank 0 joins them. A run in one process that is short,
or that prints its result, keeps its parts in memory.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import secrets
import shutil
import sys
from collections.abc import Callable, Generator, Iterable
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from bertscore_tm.cli.distributed import RankGroup
from bertscore_tm.cli.errors import CommandError, print_message
from bertscore_tm.utilities.files import is_special, write_atomically

if TYPE_CHECKING:
    from torch import Tensor

    from bertscore_tm.encoder import FrozenEncoder

# Items of a part: enough for full batches, and few enough that little is lost by an interruption.
SMALLEST, LARGEST = 100, 1000
# Parts of a run that is neither short nor long, to divide among ranks.
_NUM_PARTS = 16


@dataclass(frozen=True)
class Shards:
    """The parts of a run: in a folder, or without one in memory."""

    ranks: RankGroup
    folder: Path | None

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

        parts = self._divide(num_items)
        finished = self.ranks.run_on_first(lambda: set(self._read()))
        missing = [part for part in parts if part.start not in finished]
        num_finished = num_items - sum(map(len, missing))
        if num_finished and self.ranks.rank == 0:
            print_message(f"resuming: {num_finished} of {num_items} {name}s are in {self.folder}")
        own = missing[self.ranks.rank :: self.ranks.size]
        in_memory: dict[int, dict[str, Tensor]] = {}
        enabled = self.ranks.rank == 0 and (shown or sys.stderr.isatty())
        with tqdm(total=num_items, unit=name, disable=not enabled) as bar:
            bar.update(num_finished)

            def compute_own() -> None:
                path = None if self.folder is None else self.folder / f"{secrets.token_hex(4)}.jsonl"
                for part in own:
                    tensors = work(part, bar.update)
                    if path is None:
                        in_memory[part.start] = tensors
                    else:
                        _append(path, part, tensors)

            self.ranks.run_on_all(compute_own)
            bar.update(sum(map(len, missing)) - sum(map(len, own)))
        if self.ranks.rank != 0:
            return None
        computed = self._read() | in_memory
        return [computed[part.start] for part in parts]

    def _divide(self, num_items: int) -> list[range]:
        """Return the items of each part; the same for all numbers of ranks that share a folder."""
        size = LARGEST
        if self.folder is not None:
            size = min(size, max(SMALLEST, math.ceil(num_items / _NUM_PARTS)))
        starts = [*range(0, num_items, size)]
        # The first part is short, so that little is lost soon after the start.
        if self.folder is not None and min(size, num_items) > SMALLEST:
            starts.insert(1, SMALLEST)
        return [range(start, stop) for start, stop in pairwise([*starts, num_items])]

    def _read(self) -> dict[int, dict[str, Tensor]]:
        """Return the parts in the folder, by their first item."""
        import torch

        parts = {}
        for path in [] if self.folder is None else self.folder.glob("*.jsonl"):
            for line in path.read_text(encoding="utf-8").splitlines():
                # The last line of a killed run may be cut off.
                with suppress(json.JSONDecodeError):
                    part = json.loads(line)
                    tensors = {name: torch.tensor(numbers, device="cpu") for name, numbers in part["tensors"].items()}
                    parts[part["start"]] = tensors
        return parts


def _append(path: Path, part: range, tensors: dict[str, Tensor]) -> None:
    line = json.dumps({"start": part.start, "tensors": {name: tensor.tolist() for name, tensor in tensors.items()}})
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(f"{line}\n")
    except FileNotFoundError as error:
        remedy = "give --output on a file system that all machines share"
        raise CommandError(f"the folder {path.parent} of the first process does not exist here: {remedy}") from error


@contextmanager
def open_shards(
    ranks: RankGroup, arguments: argparse.Namespace, num_items: int, encoder: FrozenEncoder, settings: dict[str, Any]
) -> Generator[Shards, None, None]:
    """Start the parts of a run, or find those that an interrupted run of the same encoder and settings finished.

    The parts of few items are kept in memory.
    """
    from bertscore_tm.scoring.signature import score_signature
    from bertscore_tm.scoring.token_weights import WeightSource

    settings = {"signature": score_signature(encoder, WeightSource("uniform"))} | settings
    output = None if arguments.output is None or is_special(arguments.output) else partial_path(arguments.output)
    with ExitStack() as stack:
        folder = None
        if ranks.size > 1 or (output is not None and num_items > LARGEST):
            folder = ranks.run_on_first(lambda: _open_folder(output, json.dumps(settings), stack))
            if output is not None:
                arguments.resumes = True
        yield Shards(ranks, folder)


def _open_folder(output: Path | None, settings: str, stack: ExitStack) -> Path:
    if output is None:
        return Path(stack.enter_context(TemporaryDirectory(prefix="bertscore-tm-")))
    output.mkdir(exist_ok=True)
    path = output / "settings.json"
    if not any(output.iterdir()):
        with write_atomically(path) as file:
            file.write(settings)
    elif not path.exists() or path.read_text(encoding="utf-8") != settings:
        raise CommandError(
            f"{output} belongs to a run with other files or settings: delete it to start anew, or repeat that command"
        )
    return output


def remove_shards(arguments: argparse.Namespace) -> None:
    """Remove the parts of a run whose output is written."""
    if "resumes" in arguments:
        shutil.rmtree(partial_path(arguments.output), ignore_errors=True)


def partial_path(output: str) -> Path:
    """Return the folder with the parts of an unfinished output, next to the file or to the target of a link."""
    target = Path(output).resolve() if Path(output).is_symlink() else Path(output)
    return target.with_name(f"{target.name}.partial")


def input_digest(items: Iterable[Any]) -> str:
    """Return a digest of lists of texts, by which an interrupted run of the same texts is recognized."""
    digest = hashlib.sha256()
    for item in items:
        digest.update(json.dumps(item).encode())
    return digest.hexdigest()
