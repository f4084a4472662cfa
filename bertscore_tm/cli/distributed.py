"""The ranks of a run under ``torchrun``, which together print what one process prints.

Rank 0 reads the input and prints the result. Ranks exchange their scores and their expected errors, so that all end
together and with the same exit code. Each host prints the first error of its ranks.
"""

import os
import re
import signal
import socket
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from importlib import metadata
from threading import Thread
from typing import Any, TypeVar

from bertscore_tm.cli.errors import FAILED, CommandError, as_command_error, expected_errors, is_only_rank, print_error

T = TypeVar("T")

# Ranks start together, and join before they load a model.
_JOIN_LIMIT = timedelta(minutes=5)
# For a part on a slower rank. A rank that died is noticed at once, as its connections close; a lost network is not.
_WORK_LIMIT = timedelta(hours=1)
_PACKAGES = ("bertscore-tm", "torch", "transformers", "tokenizers")
_REMEDY = "start the command on all hosts again; it continues with the .partial file of its output, if there is one"


@dataclass(frozen=True)
class RankGroup:
    """The ranks of a run, as seen from one of them."""

    rank: int
    size: int
    group: Any = None

    def run_on_first(self, work: Callable[[], T]) -> T:
        """Run a function on rank 0 only, such as reading a file, and return its result, or raise its error, on all."""
        outcomes: list[Any] = [_try(work) if self.rank == 0 else None]
        if self.size > 1:
            _communicate(lambda dist: dist.broadcast_object_list(outcomes, 0, self.group))
        return _raise_first(outcomes)[0]  # type: ignore[no-any-return]

    def run_on_all(self, work: Callable[[], T]) -> T:
        """Run a function on every rank, and raise an error of any of them on all."""
        results: list[T] = []
        self.gather(lambda: results.append(work()))
        return results[0]

    def gather(self, work: Callable[[], T]) -> list[T]:
        """Run a function on every rank, and return the results of all, or raise an error of any of them, on all."""
        outcome = _try(work)
        outcomes: list[Any] = [outcome] * self.size
        if self.size > 1:
            _communicate(lambda dist: dist.all_gather_object(outcomes, outcome, self.group))
        return _raise_first(outcomes)

    def require_equal(self, describe: Callable[[], dict[str, object]]) -> None:
        """Raise an error on all ranks that names the hosts where settings differ from those of most ranks."""
        hosts = self.gather(lambda: (socket.gethostname(), describe()))
        names = [name for name in hosts[0][1] if len({settings[name] for _, settings in hosts}) > 1]
        values = [", ".join(f"{name} {settings[name]}" for name in names) for _, settings in hosts]
        usual = Counter(values).most_common(1)[0][0]
        others = [f"{host} has {value}" for (host, _), value in zip(hosts, values, strict=True) if value != usual]
        if others:
            remedy = "give all hosts the same model, options and versions"
            raise CommandError(f"{'; '.join(dict.fromkeys(others))}; the other ranks have {usual}: {remedy}")


@contextmanager
def join_ranks() -> Generator[RankGroup, None, None]:
    """Join the ranks that ``torchrun`` describes in the environment; without ``torchrun``, be the only rank."""
    if is_only_rank():
        yield RankGroup(0, 1)
        return
    if "TORCHELASTIC_ERROR_FILE" in os.environ and hasattr(signal, "pthread_sigmask"):
        # Before torch starts threads, which would get the signal otherwise.
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
        Thread(target=_report_stop, daemon=True).start()
    import torch.distributed as dist

    try:
        # Only small results on the CPU are exchanged, so gloo fits all devices.
        dist.init_process_group("gloo", timeout=_JOIN_LIMIT)
        group = dist.new_group(timeout=_WORK_LIMIT)
    except RuntimeError as error:
        remedy = "set GLOO_SOCKET_IFNAME on each host to the network interface that leads to the others, such as eth0"
        raise _failed(f"{socket.gethostname()} could not join the other hosts", error, remedy) from error
    try:
        ranks = RankGroup(dist.get_rank(), dist.get_world_size(), group)
        ranks.require_equal(lambda: {name: metadata.version(name).partition("+")[0] for name in _PACKAGES})
        yield ranks
    finally:
        dist.destroy_process_group()


def _report_stop() -> None:
    """Print an error if torchrun stops this rank: in a thread, because one that waits for others calls no handler."""
    signal.sigwait([signal.SIGTERM])
    print_error(CommandError(f"stopped, as torchrun does when another process of a host has ended: {_REMEDY}"))
    os._exit(128 + signal.SIGTERM)


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
        raise _failed("lost the connection to another process", error, _REMEDY) from error


def _failed(what: str, error: RuntimeError, remedy: str) -> CommandError:
    """Return an error with the first sentence of one of gloo, without the place in its code."""
    cause = re.sub(r"\[[^]]+:\d+\] ", "", str(error)).partition(". ")[0]
    return CommandError(f"{what}: {cause}: {remedy}", FAILED)
