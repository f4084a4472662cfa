"""The parts of a long run, a file each in a folder next to the output: ranks share the folder, and later runs resume.

Each rank computes some of the missing parts. When all are there, rank 0 joins them. A run in one process that is short,
or that prints its result, keeps its parts in memory.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import shutil
import sys
from collections.abc import Callable, Generator, Iterable
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from bertscore_tm.cli.distributed import RankGroup
from bertscore_tm.cli.errors import CommandError, print_message
from bertscore_tm.utilities.files import is_special, open_unfinished, write_atomically

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
        largest: int = LARGEST,
        shown: bool = False,
    ) -> list[dict[str, Tensor]] | None:
        """Compute the missing parts, and return all parts in order on rank 0, ``None`` on all other ranks.

        ``work`` computes a part, given the indices of its items, such as pairs, and a function to call with the number
        of items done since the last call. ``name`` is that of an item in the progress and in the names of files.
        """
        from safetensors.torch import load
        from tqdm import tqdm

        size = largest
        if self.folder is not None:
            size = min(size, max(SMALLEST, math.ceil(num_items / _NUM_PARTS)))
        starts = [*range(0, num_items, size)]
        # The first part is short, so that little is lost soon after the start.
        if self.folder is not None and min(size, num_items) > SMALLEST:
            starts.insert(1, SMALLEST)
        parts = [range(start, stop) for start, stop in pairwise([*starts, num_items])]
        missing = self.ranks.run_on_first(
            lambda: [part for part in parts if self.folder is None or not self._path(name, part).exists()]
        )
        num_kept = num_items - sum(map(len, missing))
        if num_kept and self.ranks.rank == 0:
            print_message(f"resuming: {num_kept} of {num_items} {name}s are in {self.folder}")
        own = missing[self.ranks.rank :: self.ranks.size]
        in_memory: dict[range, dict[str, Tensor]] = {}
        enabled = self.ranks.rank == 0 and (shown or sys.stderr.isatty())
        with tqdm(total=num_items, unit=name, disable=not enabled) as bar:
            bar.update(num_kept)

            def compute_own() -> None:
                for part in own:
                    found = work(part, bar.update)
                    if self.folder is None:
                        in_memory[part] = found
                    else:
                        self._keep(name, part, found)

            self.ranks.run_on_all(compute_own)
            bar.update(sum(map(len, missing)) - sum(map(len, own)))
        if self.ranks.rank != 0:
            return None
        return [in_memory[part] if part in in_memory else load(self._path(name, part).read_bytes()) for part in parts]

    def _path(self, name: str, part: range) -> Path:
        assert self.folder is not None
        return self.folder / f"{name}-{part.start}.safetensors"

    def _keep(self, name: str, part: range, found: dict[str, Tensor]) -> None:
        from safetensors.torch import save

        path = self._path(name, part)
        if not path.parent.is_dir():
            remedy = "give --output on a file system that all machines share"
            raise CommandError(f"the folder {self.folder} of the first process does not exist here: {remedy}")
        with write_atomically(path, "wb") as file:
            file.write(save(found))


@contextmanager
def open_shards(
    ranks: RankGroup, arguments: argparse.Namespace, num_items: int, encoder: FrozenEncoder, settings: dict[str, Any]
) -> Generator[Shards, None, None]:
    """Start the parts of a run, or find those that an interrupted run of the same encoder and settings finished.

    Other runs are kept off them. The parts of few items are kept in memory.
    """
    from bertscore_tm.scoring.signature import score_signature
    from bertscore_tm.scoring.token_weights import WeightSource

    settings = {"signature": score_signature(encoder, WeightSource("uniform"))} | settings
    output = None if arguments.output is None or is_special(arguments.output) else partial_path(arguments.output)
    with ExitStack() as stack:
        folder = None
        if ranks.size > 1 or (output is not None and num_items > LARGEST):
            folder = ranks.run_on_first(lambda: _open_folder(output, settings, stack))
            if output is not None:
                arguments.resumes = True
        yield Shards(ranks, folder)


def _open_folder(output: Path | None, settings: dict[str, Any], stack: ExitStack) -> Path:
    if output is None:
        return Path(stack.enter_context(TemporaryDirectory(prefix="bertscore-tm-")))
    if not stack.enter_context(open_unfinished(output, json.dumps(settings))):
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
