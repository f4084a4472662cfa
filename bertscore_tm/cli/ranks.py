"""The ranks of a run under ``torchrun`` on one host, which together print what one process prints.

Rank 0 reads the input and prints the result. Ranks exchange their scores and their expected errors, so that all end
together and with the same exit code. The first error of any rank is printed.
"""

import os
import signal
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from importlib import metadata
from typing import Any, TypeVar

from bertscore_tm.cli.errors import FAILED, CommandError, as_command_error, expected_errors, is_only_rank, print_error

T = TypeVar("T")

# The timeout is long, because a rank may take longer than others to load the model or to compute its items. A rank that
# ends is noticed at once, because its connections close.
_TIMEOUT = timedelta(hours=1)
_PACKAGES = ("bertscore-tm", "torch", "transformers", "tokenizers")
_PAGE = "https://github.com/bertscore-tm/bertscore-tm/blob/main/examples/docs/many_machines.md"
_REMEDY = "Run the same command again, which resumes if its output has a .partial file"


@dataclass(frozen=True)
class RankGroup:
    """The ranks of a run, as seen from one of them."""

    rank: int
    size: int

    def run_on_first(self, work: Callable[[], T]) -> T:
        """Run a function on rank 0 only, such as reading a file. All ranks return its result or raise its error."""
        outcomes: list[Any] = [None]
        if self.rank == 0:
            outcomes = [_try(work)]
        if self.size > 1:
            _communicate(lambda dist: dist.broadcast_object_list(outcomes, 0))
        return _raise_first(outcomes)[0]  # type: ignore[no-any-return]

    def run_on_all(self, work: Callable[[], T]) -> T:
        """Run a function on every rank, which returns its own result. If it fails on one rank, all raise the error."""
        results: list[T] = []
        self.gather(lambda: results.append(work()))
        return results[0]

    def gather(self, work: Callable[[], T]) -> list[T]:
        """Run a function on every rank. All ranks return the results of all ranks, or raise the first error."""
        outcome = _try(work)
        outcomes: list[Any] = [outcome] * self.size
        if self.size > 1:
            _communicate(lambda dist: dist.all_gather_object(outcomes, outcome))
        return _raise_first(outcomes)

    def require_equal(self, describe: Callable[[], dict[str, object]]) -> None:
        """Raise an error on all ranks if the settings of one rank differ from those of rank 0."""
        first, *others = self.gather(describe)
        for rank, settings in enumerate(others, start=1):
            found = []
            expected = []
            for name in first:
                if settings[name] != first[name]:
                    found.append(f"{name} {settings[name]}")
                    expected.append(f"{name} {first[name]}")
            if found:
                differences = f"rank {rank} has {', '.join(found)}, but rank 0 has {', '.join(expected)}"
                raise CommandError(f"{differences}. Give all ranks the same model, devices and versions")


@contextmanager
def join_ranks() -> Generator[RankGroup, None, None]:
    """Join the ranks that ``torchrun`` describes in the environment; without ``torchrun``, be the only rank."""
    if is_only_rank():
        yield RankGroup(0, 1)
        return
    _require_one_host()
    import torch.distributed as dist

    try:
        # Only small results on the CPU are exchanged, so gloo fits all devices.
        dist.init_process_group("gloo", timeout=_TIMEOUT)
    except RuntimeError as error:
        # torchrun sets the addresses of the processes in the environment. Another launcher may not set them.
        message = f"could not connect to the other processes: {error}. Start them with torchrun"
        raise CommandError(message, FAILED) from error
    if "TORCHELASTIC_ERROR_FILE" in os.environ:
        # torchrun ends a rank by SIGTERM, whose default handler prints nothing.
        signal.signal(signal.SIGTERM, _end_rank)
    try:
        ranks = RankGroup(dist.get_rank(), dist.get_world_size())
        ranks.require_equal(lambda: {name: metadata.version(name).partition("+")[0] for name in _PACKAGES})
        yield ranks
    finally:
        dist.destroy_process_group()


def _require_one_host() -> None:
    """Raise an error if the launcher's environment says that the ranks run on several hosts."""
    num_ranks = os.environ["WORLD_SIZE"]
    num_hosts = os.environ.get("GROUP_WORLD_SIZE", "1")
    num_ranks_here = os.environ.get("LOCAL_WORLD_SIZE", num_ranks)
    if int(num_hosts) > 1 or int(num_ranks_here) < int(num_ranks):
        raise CommandError(f"the command runs on one host, but its processes run on several. See {_PAGE}")


def _end_rank(*_: Any) -> None:
    """Handle the signal by which torchrun stops a rank when another one has ended, or when it is stopped itself."""
    print_error(CommandError(f"stopped by torchrun, which ends all processes together. {_REMEDY}"))
    # Destructors of the process group would wait for ranks that have ended.
    os._exit(128 + signal.SIGTERM)


def _try(work: Callable[[], T]) -> T | CommandError:
    """Return the function's result, or its expected error as one that can be sent to other ranks."""
    try:
        return work()
    except expected_errors() as error:
        return as_command_error(error)


def _raise_first(outcomes: list[Any]) -> list[Any]:
    """Return the results of the ranks, or raise the first error among them."""
    for outcome in outcomes:
        if isinstance(outcome, CommandError):
            raise outcome
    return outcomes


def _communicate(collective: Callable[[Any], None]) -> None:
    """Call a collective of torch.distributed, which is passed to the function. Report a lost connection as an error."""
    import torch.distributed as dist

    try:
        collective(dist)
    except RuntimeError as error:
        raise CommandError(f"lost the connection to another process. {_REMEDY}", FAILED) from error
