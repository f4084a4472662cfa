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

from bertscore_tm.cli.errors import FAILED, CommandError, as_command_error, expected_errors, is_only_rank, print_message

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
        outcomes: list[Any] = [_try(work) if self.rank == 0 else None]
        if self.size > 1:
            _communicate(lambda dist: dist.broadcast_object_list(outcomes, src=0))
        return _raise_first(outcomes)[0]  # type: ignore[no-any-return]

    def run_on_all(self, work: Callable[[], T]) -> T:
        """Run a function on every rank, and raise an error of any of them on all."""
        outcome = _try(work)
        self._exchange(outcome if isinstance(outcome, CommandError) else None)
        return outcome  # type: ignore[return-value]

    def gather(self, work: Callable[[], T]) -> list[T]:
        """Run a function on every rank, and return the results of all, or raise an error of any of them, on all."""
        return self._exchange(_try(work))

    def _exchange(self, outcome: Any) -> list[Any]:
        outcomes = [outcome] * self.size
        if self.size > 1:
            _communicate(lambda dist: dist.all_gather_object(outcomes, outcome))
        return _raise_first(outcomes)


@contextmanager
def join_ranks() -> Generator[RankGroup, None, None]:
    """Join the ranks that ``torchrun`` describes in the environment; without ``torchrun``, be the only rank."""
    if is_only_rank():
        yield RankGroup(0, 1)
        return
    import torch.distributed as dist

    # Only small results on the CPU are exchanged, so gloo fits all devices.
    dist.init_process_group("gloo", timeout=_TIMEOUT)
    try:
        yield RankGroup(dist.get_rank(), dist.get_world_size())
    except CommandError as error:
        # torchrun stops all ranks when one exits with an error, so rank 0 prints before any rank exits.
        print_message(f"error: {error}")
        error.is_printed = True
        with suppress(RuntimeError):
            dist.barrier()
        raise
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
    if device is not None:
        try:
            torch.empty(0, dtype=torch.uint8, device=chosen)
        except (RuntimeError, AssertionError) as error:
            reason = str(error).splitlines()[0]
            raise CommandError(f"argument --device: {device!r} cannot be used here: {reason}") from error
    if str(chosen) == "cuda":
        return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    return chosen


def _try(work: Callable[[], T]) -> T | CommandError:
    """Return the function's result, or its expected error as one that can be sent to other ranks."""
    try:
        return work()
    except expected_errors() as error:
        return as_command_error(error)


def _raise_first(outcomes: list[Any]) -> list[Any]:
    for outcome in outcomes:
        if isinstance(outcome, CommandError):
            raise outcome
    return outcomes


def _communicate(collective: Callable[[Any], None]) -> None:
    import torch.distributed as dist

    try:
        collective(dist)
    except RuntimeError as error:
        raise CommandError(f"lost the connection to another process: {error}", FAILED) from error
