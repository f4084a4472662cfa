"""The ranks of a run under ``torchrun``, which together print what one process prints.

Rank 0 reads the input and prints the result. Ranks exchange their scores and their expected errors, so that all end
together and with the same exit code.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from bertscore_tm.cli import print_error
from bertscore_tm.cli.errors import FAILED, CommandError, as_command_error, expected_errors

if TYPE_CHECKING:
    import torch

T = TypeVar("T")

# For a slower rank. A rank that died is noticed at once, because its connections close.
_TIMEOUT = timedelta(days=7)


@dataclass(frozen=True)
class RankGroup:
    """The ranks of a run, as seen from one of them."""

    rank: int
    size: int

    def run_on_first(self, work: Callable[[], T]) -> T:
        """Run a function on rank 0 only, such as reading a file, and return its result, or raise its error, on all."""
        result, error = _catch_expected(work) if self.rank == 0 else (None, None)
        if self.size > 1:
            shared = [(result, error)]
            _communicate(lambda dist: dist.broadcast_object_list(shared, src=0))
            ((result, error),) = shared
        if error is not None:
            raise error
        return result  # type: ignore[return-value]

    def run_on_all(self, work: Callable[[], T]) -> T:
        """Run a function on every rank, and raise an error of any of them on all."""
        result, error = _catch_expected(work)
        for failed in self._exchange(error):
            if failed is not None:
                raise failed
        return result  # type: ignore[return-value]

    def gather(self, work: Callable[[], T]) -> list[T]:
        """Run a function on every rank, and return the results of all, or raise an error of any of them, on all."""
        return self._exchange(self.run_on_all(work))

    def _exchange(self, value: T) -> list[T]:
        values = [value] * self.size
        if self.size > 1:
            _communicate(lambda dist: dist.all_gather_object(values, value))
        return values


@contextmanager
def join_ranks() -> Generator[RankGroup, None, None]:
    """Join the ranks that ``torchrun`` describes in the environment; without ``torchrun``, be the only rank."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        yield RankGroup(0, 1)
        return
    import torch.distributed as dist

    # Only small results on the CPU are exchanged, so gloo fits all devices.
    dist.init_process_group("gloo", timeout=_TIMEOUT)
    rank = dist.get_rank()
    try:
        yield RankGroup(rank, size)
    except CommandError as error:
        # torchrun stops all ranks when one exits with an error, so rank 0 prints before any rank exits.
        if rank == 0:
            print_error(error)
        with suppress(RuntimeError):
            dist.barrier()
        raise CommandError("", error.exit_code) from error
    finally:
        dist.destroy_process_group()


def choose_device(device: str | None) -> torch.device:
    """Return the device of this rank: by default a GPU if available, a different one for each rank of a machine."""
    import torch

    from bertscore_tm.encoder import default_device

    try:
        chosen = default_device(device)
    except RuntimeError as error:
        raise CommandError(f"argument --device: {device!r} is not a device: {error}") from error
    if chosen.type != "cuda":
        return chosen
    available = torch.cuda.device_count()
    number = chosen.index if chosen.index is not None else int(os.environ.get("LOCAL_RANK", "0"))
    if number >= available:
        raise CommandError(
            f"cuda:{number} does not exist: this machine has {available} GPUs; start one process per GPU (torchrun "
            f"--nproc-per-node) or pass --device"
        )
    return torch.device("cuda", number)


def _catch_expected(work: Callable[[], T]) -> tuple[T | None, CommandError | None]:
    """Return the function's result, or its expected error as one that can be sent to other ranks."""
    try:
        return work(), None
    except expected_errors() as error:
        return None, as_command_error(error)


def _communicate(collective: Callable[[Any], None]) -> None:
    import torch.distributed as dist

    try:
        collective(dist)
    except RuntimeError as error:
        raise CommandError(f"lost the connection to another process: {error}", FAILED) from error
