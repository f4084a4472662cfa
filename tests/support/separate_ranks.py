"""Ranks as processes of their own: one that dies takes no other with it, unlike those of ``torch.multiprocessing``."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from tests.support.ranks import RANK_IMPORTS

# Only so that a hang fails a test instead of stopping the run; what is tested ends by itself long before.
HANGS_AFTER_S = 300


@dataclass(frozen=True)
class Ended:
    """How a rank ended: its exit code (negative: the signal that killed it) and what it had put into its report."""

    exit_code: int
    report: dict[str, Any]


def run_separate_ranks(
    function: Callable[..., None], world_size: int, *args: Any, endless: tuple[int, ...] = ()
) -> list[Ended]:
    """Run ``function(rank, report, *args)`` in one gloo process per rank and return how each of them ended.

    The function must be importable. Its report is what it had put into the dictionary when it returned or raised, and
    empty when the process was killed. The ``endless`` ranks are killed when all others have ended.
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
    # How Lightning knows a process that it has not started itself.
    os.environ.update(LOCAL_RANK=str(rank), NODE_RANK="0")
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/rendezvous",
        rank=rank,
        world_size=world_size,
        timeout=timedelta(seconds=60),
    )
    report: dict[str, Any] = {}
    try:
        function(rank, report, *args)
    finally:
        torch.save(report, Path(folder) / f"{rank}.pt")
        dist.destroy_process_group()
