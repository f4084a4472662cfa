"""Gloo ranks for tests in which a rank dies: each one runs to its own end, and its exit code is reported."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch

from tests.support.ranks import RANK_IMPORTS, gloo_group

# Turns a hang into a failure; far above what the tests take on a busy machine.
HANGS_AFTER_S = 300


@dataclass(frozen=True)
class Ended:
    """How a rank ended: its exit code (the negative signal number where a signal killed it) and its report."""

    exit_code: int
    report: dict[str, Any]


def run_separate_ranks(
    function: Callable[..., None], world_size: int, *args: Any, endless: tuple[int, ...] = ()
) -> list[Ended]:
    """Run ``function(rank, report, *args)`` in one gloo process per rank and return how each of them ended.

    Args:
        function: importable; puts its findings into the dictionary ``report``, which arrives when it returns or raises,
            and arrives empty when the process was killed.
        world_size: number of ranks.
        *args: further arguments.
        endless: ranks that are killed when all others have ended.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(RANK_IMPORTS)
    with tempfile.TemporaryDirectory() as folder:
        ranks = [
            context.Process(target=_rank_main, args=(rank, world_size, folder, function, args))
            for rank in range(world_size)
        ]
        for process in ranks:
            process.start()
        try:
            for rank, process in enumerate(ranks):
                if rank not in endless:
                    process.join(HANGS_AFTER_S)
            hung = [rank for rank, process in enumerate(ranks) if process.is_alive() and rank not in endless]
            assert not hung, f"ranks {hung} still run after {HANGS_AFTER_S} s"
        finally:
            _kill(ranks)
        return [_ended(process, Path(folder) / f"{rank}.pt") for rank, process in enumerate(ranks)]


def _ended(process: BaseProcess, path: Path) -> Ended:
    assert process.exitcode is not None
    return Ended(process.exitcode, torch.load(path, weights_only=False) if path.exists() else {})


def _kill(ranks: list[BaseProcess]) -> None:
    for process in ranks:
        if process.is_alive():
            process.kill()
        process.join()


def _rank_main(rank: int, world_size: int, folder: str, function: Callable[..., None], args: tuple[Any, ...]) -> None:
    # How Lightning recognises a process that it has not started itself.
    os.environ.update(LOCAL_RANK=str(rank), NODE_RANK="0")
    report: dict[str, Any] = {}
    with gloo_group(rank, world_size, f"file://{folder}/rendezvous", 60):
        try:
            function(rank, report, *args)
        finally:
            torch.save(report, Path(folder) / f"{rank}.pt")
