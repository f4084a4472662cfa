"""Separate processes for measurements, and the resident memory of a process."""

from __future__ import annotations

import gc
import multiprocessing
import re
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

__all__ = ["resident_bytes", "run_fresh", "run_ranks"]

_MEMORY = Path("/proc/self/smaps_rollup")
# For collectives: longer than one rank may be ahead of another.
_TIMEOUT = timedelta(minutes=10)


def run_fresh(function: Callable[..., Any], *args: Any) -> Any:
    """Call a function in a new process with one torch thread.

    Args:
        function: function at the top level of a module.
        *args: arguments of the function.

    Returns:
        The result of the function; its exceptions are raised in this process.
    """
    return _run([(_one_thread, function, *args)])[0]


def run_ranks(function: Callable[..., Any], world_size: int, *args: Any) -> list[Any]:
    """Call a function in new processes, the ranks of a gloo group, with one torch thread each.

    Args:
        function: function at the top level of a module, called as ``function(rank, *args)``.
        world_size: number of processes.
        *args: further arguments.

    Returns:
        The result of each rank.
    """
    with tempfile.TemporaryDirectory() as folder:
        return _run([(_in_group, rank, world_size, folder, function, *args) for rank in range(world_size)])


def resident_bytes() -> int:
    """Return the resident memory of this process after a garbage collection.

    Returns:
        The resident set size in bytes.

    Raises:
        OSError: the system is not Linux.
    """
    if not _MEMORY.exists():
        raise OSError(f"resident memory is read from {_MEMORY}, which exists on Linux only")
    gc.collect()
    # Unlike the counters in /proc/self/status, which lag behind by up to 64 pages per thread, this walks all pages.
    found = re.search(r"^Rss: +(\d+) kB$", _MEMORY.read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1]) * 1024


def _run(calls: Sequence[tuple[Any, ...]]) -> list[Any]:
    # Processes forked from a server that has only run imports start faster than new interpreters.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["bertscore_tm.metric"])
    with ProcessPoolExecutor(len(calls), context) as pool:
        return [future.result() for future in [pool.submit(*call) for call in calls]]


def _one_thread(function: Callable[..., Any], *args: Any) -> Any:
    torch.set_num_threads(1)
    return function(*args)


def _in_group(rank: int, world_size: int, folder: str, function: Callable[..., Any], *args: Any) -> Any:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=world_size, timeout=_TIMEOUT
    )
    try:
        return function(rank, *args)
    finally:
        dist.destroy_process_group()
