"""Separate processes for measurements, and the resident memory of a process on Linux."""

from __future__ import annotations

import gc
import multiprocessing
import re
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import torch


def run_fresh(function: Callable[..., Any], *args: Any, threads: int = 1) -> Any:
    """Return the result of a module's function, called in a new process with some torch threads."""
    # A process forked from a server that has only run imports starts faster than a new interpreter.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["bertscore_tm.metric"])
    with ProcessPoolExecutor(1, context, torch.set_num_threads, (threads,)) as pool:
        return pool.submit(function, *args).result()


def resident_bytes() -> int:
    """Return the resident memory of this process after a garbage collection."""
    gc.collect()
    # Unlike the counters in /proc/self/status, which lag behind by up to 64 pages per thread, this walks all pages.
    return _read_bytes("smaps_rollup", "Rss")


def peak_growth(function: Callable[[], object]) -> int:
    """Return the peak of this process's resident memory during a call minus its value before, in bytes."""
    before = resident_bytes()
    # Resets the peak.
    Path("/proc/self/clear_refs").write_text("5")
    function()
    return _read_bytes("status", "VmHWM") - before


def _read_bytes(file: str, name: str) -> int:
    line = re.search(rf"^{name}:\s+(\d+) kB$", Path("/proc/self", file).read_text(), re.MULTILINE)
    assert line is not None
    return int(line[1]) * 1024
