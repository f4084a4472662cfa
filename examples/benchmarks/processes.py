"""Separate processes for measurements, and the resident memory of a process."""

from __future__ import annotations

import gc
import multiprocessing
import re
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import torch

_MEMORY, _STATUS, _CLEAR = (Path("/proc/self", name) for name in ("smaps_rollup", "status", "clear_refs"))


def run_fresh(function: Callable[..., Any], *args: Any) -> Any:
    """Return the result of a module's function, called in a new process with one torch thread."""
    # A process forked from a server that has only run imports starts faster than a new interpreter.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["bertscore_tm.metric"])
    with ProcessPoolExecutor(1, context) as pool:
        return pool.submit(_one_thread, function, *args).result()


def resident_bytes() -> int:
    """Return the resident memory of this process after a garbage collection.

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


def peak_growth(function: Callable[[], object]) -> int:
    """Return the peak of this process's resident memory during a call minus its value before, in bytes.

    Raises:
        OSError: the system is not Linux.
    """
    before = resident_bytes()
    # Resets the peak.
    _CLEAR.write_text("5")
    function()
    found = re.search(r"^VmHWM:\s+(\d+) kB$", _STATUS.read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1]) * 1024 - before


def _one_thread(function: Callable[..., Any], *args: Any) -> Any:
    torch.set_num_threads(1)
    return function(*args)
