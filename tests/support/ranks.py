"""Gloo ranks: processes for one job each, forked from a server that has imported what they need."""

import gc
import multiprocessing
import os
import pickle
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing import forkserver
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

# Imported once per session; these imports take longer than most jobs.
RANK_IMPORTS = [
    "bertscore_tm.callbacks",
    "bertscore_tm.cli.scoring",
    "pytest",
    "tests.support.lightning_runs",
    "tests.support.loaded_model",
    "tests.support.models",
    "tests.support.oracle",
    "tests.support.risk",
    "torch.distributed.fsdp",
    "transformers.models.bart.modeling_bart",
    "transformers.models.bert.modeling_bert",
    "transformers.models.gpt2.modeling_gpt2",
    "transformers.models.llama.modeling_llama",
    "transformers.models.t5.modeling_t5",
    "transformers.trainer_seq2seq",
]
# Turns a hang into a failure; far above what a job takes on a busy machine.
HANGS_AFTER_S = 900
ERROR_GRACE_S = 2


class RankError(RuntimeError):
    """A rank raised an exception, died or did not end; the message holds its traceback."""


@dataclass(frozen=True)
class Ended:
    """How a rank ended: its exit code (the negative signal number where a signal killed it), result and traceback."""

    exit_code: int | None
    result: Any
    error: str


def run_ranks(function: Callable[..., Any], world_size: int, *args: Any, timeout_s: int = 60) -> list[Any]:
    """Run ``function(rank, *args)`` in one gloo process per rank and return the results in rank order.

    Args:
        function: importable (defined at the top of a module); its arguments and its result must be picklable.
        world_size: number of ranks in the default process group.
        *args: further arguments.
        timeout_s: limit of each collective in seconds.

    Raises:
        RankError: a rank raised an exception or died. The others are killed soon after.
    """
    ranks = end_ranks(function, world_size, *args, timeout_s=timeout_s, grace_s=ERROR_GRACE_S)
    # One rank's error makes others fail, or be killed: all that is known is reported.
    errors = [f"rank {rank} failed: {ended.error}" for rank, ended in enumerate(ranks) if ended.error]
    if errors:
        raise RankError("\n".join(errors))
    return [ended.result for ended in ranks]


def start_rank_server() -> None:
    """Start the server from which ranks are forked, unless it runs.

    The first to start it chooses its imports: processes of the examples need fewer, but then each rank makes them.
    """
    forkserver.set_forkserver_preload(RANK_IMPORTS)
    forkserver.ensure_running()


class CaseError(str):
    """Type and message of the exception that a case raised on a rank."""


def on_ranks(cases: Callable[..., Any], *args: Any, world_size: int = 2) -> list[dict[Any, Any]]:
    """Run what ``cases(rank, *args)`` yields, names and functions, and return the results of each rank by name.

    The result of a case that raises an exception is a :class:`CaseError`.
    """
    return run_ranks(_run_cases, world_size, cases, *args)


def _run_cases(rank: int, cases: Callable[..., Any], *args: Any) -> dict[Any, Any]:
    """Run the cases of one rank, and return each result or error by its name."""
    report = {}
    for name, case in cases(rank, *args):
        try:
            report[name] = case()
        except Exception as error:  # noqa: BLE001 - what it is, is the result
            report[name] = CaseError(f"{type(error).__name__}: {error}")
    return report


def results(reports: list[dict[Any, Any]], name: Any) -> list[Any]:
    """Return the results of a case that no rank may fail."""
    values = [report[name] for report in reports]
    errors = [value for value in values if isinstance(value, CaseError)]
    assert errors == []
    return values


def end_ranks(
    function: Callable[..., Any],
    world_size: int,
    *args: Any,
    timeout_s: int = 60,
    grace_s: float | None = None,
) -> list[Ended]:
    """Run the ranks until all have ended, or until ``grace_s`` after the first that failed."""
    start_rank_server()
    context = multiprocessing.get_context("forkserver")
    # Plain pickling: multiprocessing's own sends tensors as file descriptors, of which there are not enough.
    job = pickle.dumps((function, args))
    with tempfile.TemporaryDirectory() as folder:
        ranks = [
            context.Process(target=_rank_main, args=(rank, world_size, folder, job, timeout_s))
            for rank in range(world_size)
        ]
        for process in ranks:
            process.start()
        try:
            limit = time.monotonic() + HANGS_AFTER_S
            pending = ranks
            while pending and wait([process.sentinel for process in pending], max(limit - time.monotonic(), 0)):
                if grace_s is not None and any(process.exitcode for process in ranks):
                    limit = min(limit, time.monotonic() + grace_s)
                pending = [process for process in pending if process.is_alive()]
        finally:
            for process in ranks:
                if process.is_alive():
                    process.kill()
                process.join()
        assert not pending or grace_s is not None, f"ranks still ran after {HANGS_AFTER_S} s"
        files = [Path(folder) / f"{rank}.pickle" for rank in range(world_size)]
        outcomes = [pickle.loads(path.read_bytes()) if path.exists() else (None, "the process died") for path in files]
        return [Ended(process.exitcode, *outcome) for process, outcome in zip(ranks, outcomes, strict=True)]


def _rank_main(rank: int, world_size: int, folder: str, job: bytes, timeout_s: int) -> None:
    """Join the process group, run the pickled job, and write its result or error to a file."""
    # A garbage collection would copy all imported objects into this process, because it writes to each of them.
    gc.freeze()
    # How Lightning recognises a process that it has not started itself.
    os.environ.update(LOCAL_RANK=str(rank), NODE_RANK="0")
    torch.set_num_threads(1)
    meeting, timeout = f"file://{folder}/rendezvous", timedelta(seconds=timeout_s)
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=world_size, timeout=timeout)
    # A rank whose function issues no collective would leave, and close its connections, while another still connects.
    dist.barrier()
    result, error = None, ""
    try:
        function, args = pickle.loads(job)
        result = function(rank, *args)
    except BaseException:
        error = traceback.format_exc()
        raise
    finally:
        (Path(folder) / f"{rank}.pickle").write_bytes(pickle.dumps((result, error)))
        dist.destroy_process_group()
