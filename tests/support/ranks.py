"""Gloo ranks: processes that stay alive for a whole test session and run one job after another."""

from __future__ import annotations

import atexit
import gc
import multiprocessing
import os
import pickle
import random
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from multiprocessing import forkserver
from multiprocessing.connection import Connection, Pipe, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from lightning_utilities.core.rank_zero import rank_zero_only as lightning_rank_zero_only
from torchmetrics.utilities.prints import rank_zero_only as torchmetrics_rank_zero_only

# Imported once per session by the server from which all ranks are forked: these imports take longer than most jobs.
RANK_IMPORTS = [
    "bertscore_tm.callbacks",
    "pytest",
    "tests.support.lightning_modules",
    "tests.support.models",
    "torch.distributed.fsdp",
    "transformers.models.bert.modeling_bert",
]
# A job that neither returns nor raises by then fails. Far above what a job takes on a busy machine.
JOB_LIMIT_S = 900
ERROR_GRACE_S = 2


class RankError(RuntimeError):
    """A rank raised an exception, died or did not answer; the message holds its traceback."""


def run_ranks(
    function: Callable[..., Any], world_size: int, *args: Any, timeout_s: int = 60, fresh: bool = False
) -> list[Any]:
    """Run ``function(rank, *args)`` in one gloo process per rank and return the results in rank order.

    The ranks stay alive for later calls, with the caches and the imports of the jobs before.

    Args:
        function: importable (defined at the top of a module); its arguments and its result must be picklable.
        world_size: number of ranks in the default process group.
        *args: further arguments.
        timeout_s: limit of each collective in seconds.
        fresh: use new processes and end them after the job, for functions that patch modules or classes.

    Raises:
        RankError: a rank raised an exception or died. The ranks are killed; the next call starts new ones.
    """
    if not fresh:
        return _session_pool.run(function, world_size, args, timeout_s)
    pool = RankPool()
    try:
        return pool.run(function, world_size, args, timeout_s)
    finally:
        pool.close()


class RankPool:
    """Processes that run jobs as the ranks of a gloo group; started when a job first needs them."""

    def __init__(self) -> None:
        self._ranks: list[tuple[BaseProcess, Connection]] = []

    def run(self, function: Callable[..., Any], world_size: int, args: tuple[Any, ...], timeout_s: int) -> list[Any]:
        """Run a job on the first ``world_size`` ranks; see ``run_ranks``."""
        if not all(process.is_alive() for process, _ in self._ranks):
            self.close()
        while len(self._ranks) < world_size:
            self._start_rank()
        with tempfile.TemporaryDirectory() as folder:
            # Plain pickling: multiprocessing's own sends tensors as file descriptors, of which there are not enough.
            job = pickle.dumps((function, args, world_size, f"file://{folder}/rendezvous", timeout_s))
            try:
                return self._results(job, world_size)
            except BaseException:
                self.close()
                raise

    def close(self) -> None:
        """End all ranks."""
        ranks, self._ranks = self._ranks, []
        for process, connection in ranks:
            connection.close()
            process.kill()
        for process, _ in ranks:
            process.join()

    def _start_rank(self) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(RANK_IMPORTS)
        ours, theirs = Pipe()
        process = context.Process(target=_run_jobs, args=(len(self._ranks), theirs))
        process.start()
        theirs.close()
        self._ranks.append((process, ours))

    def _results(self, job: bytes, world_size: int) -> list[Any]:
        pending = {connection: rank for rank, (_, connection) in enumerate(self._ranks[:world_size])}
        results: dict[int, Any] = {}
        errors: dict[int, str] = {}
        limit = time.monotonic() + JOB_LIMIT_S
        for connection in pending:
            connection.send_bytes(job)
        while pending:
            # One rank's error makes others fail, which may be heard of first: all of them are reported.
            ready = wait(list(pending), ERROR_GRACE_S if errors else limit - time.monotonic())
            if not ready:
                break
            for connection in ready:
                assert isinstance(connection, Connection)
                rank = pending.pop(connection)
                try:
                    returned, value = pickle.loads(connection.recv_bytes())
                except (EOFError, ConnectionError):
                    returned, value = False, "the process died"
                (results if returned else errors)[rank] = value
        if errors:
            raise RankError("\n".join(f"rank {rank} failed: {text}" for rank, text in sorted(errors.items())))
        if pending:
            raise RankError(f"ranks {sorted(pending.values())} still run after {JOB_LIMIT_S} s")
        return [results[rank] for rank in range(world_size)]


_session_pool = RankPool()


def start_rank_server() -> None:
    """Start the server from which ranks are forked, unless it runs.

    The first to start it chooses its imports: processes of the examples need fewer, but then each rank makes them.
    """
    forkserver.set_forkserver_preload(RANK_IMPORTS)
    forkserver.ensure_running()


def close_session_pool() -> None:
    """End the ranks of the session."""
    _session_pool.close()


# Ranks are not daemons, as their data loaders may have workers; left alive they would be waited for at exit.
atexit.register(close_session_pool)


@contextmanager
def gloo_group(rank: int, world_size: int, init_method: str, timeout_s: int) -> Iterator[None]:
    """Join the default process group, with one torch thread, and leave it at the end."""
    torch.set_num_threads(1)
    timeout = timedelta(seconds=timeout_s)
    dist.init_process_group("gloo", init_method=init_method, rank=rank, world_size=world_size, timeout=timeout)
    # A rank whose function issues no collective would leave, and close its connections, while another still connects.
    dist.barrier()
    try:
        yield
    finally:
        dist.destroy_process_group()


def _run_jobs(rank: int, connection: Connection) -> None:
    os.environ["HF_HUB_OFFLINE"] = "1"
    gc.freeze()  # imported modules live to the end; collecting without them is fast
    while True:
        try:
            job = connection.recv_bytes()
        except EOFError:
            return
        with _restored_state():
            reply = _run_job(rank, job)
        connection.send_bytes(reply)
        del job, reply
        gc.collect()


def _run_job(rank: int, job: bytes) -> bytes:
    try:
        function, args, world_size, init_method, timeout_s = pickle.loads(job)
        with gloo_group(rank, world_size, init_method, timeout_s):
            return pickle.dumps((True, function(rank, *args)))
    except BaseException:  # noqa: BLE001 - raised again by the caller
        return pickle.dumps((False, traceback.format_exc()))


@contextmanager
def _restored_state() -> Iterator[None]:
    """Undo what a job changes in the process: environment, random states, modes of torch, and filters of warnings."""
    environment, folder = dict(os.environ), Path.cwd()
    dtype, deterministic = torch.get_default_dtype(), torch.are_deterministic_algorithms_enabled()
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()
    ranks_zero = [
        (function, getattr(function, "rank", None))
        for function in (lightning_rank_zero_only, torchmetrics_rank_zero_only)
    ]
    with ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        stack.enter_context(torch.enable_grad())
        try:
            yield
        finally:
            os.environ.clear()
            os.environ.update(environment)
            os.chdir(folder)
            torch.set_default_dtype(dtype)
            torch.use_deterministic_algorithms(deterministic)
            torch.set_rng_state(states[0])
            random.setstate(states[1])
            np.random.set_state(states[2])
            for function, rank in ranks_zero:
                function.rank = rank
