"""Runs on several processes."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

# What ranks import takes longer than most of them run, so that it is imported once for all.
RANK_IMPORTS = [
    "bertscore_tm.callbacks",
    "tests.support.lightning_modules",
    "tests.support.models",
    "torch.distributed.fsdp",
    "transformers.models.bert.modeling_bert",
]


def run_ranks(function: Callable[..., Any], world_size: int, *args: Any, timeout_s: int = 60) -> list[Any]:
    """Run ``function(rank, *args)`` in one gloo process per rank and return what the ranks returned.

    The function must be importable (defined at the top of a module). An exception in any rank fails the call.
    """
    with tempfile.TemporaryDirectory() as folder:
        multiprocessing.set_forkserver_preload(RANK_IMPORTS)
        ranks = (world_size, folder, timeout_s, function, args)
        mp.start_processes(_rank_main, args=ranks, nprocs=world_size, start_method="forkserver")
        return [torch.load(Path(folder) / f"{rank}.pt", weights_only=False) for rank in range(world_size)]


def _rank_main(
    rank: int, world_size: int, folder: str, timeout_s: int, function: Callable[..., Any], args: tuple[Any, ...]
) -> None:
    os.environ["HF_HUB_OFFLINE"] = "1"
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/rendezvous",
        rank=rank,
        world_size=world_size,
        timeout=timedelta(seconds=timeout_s),
    )
    try:
        torch.save(function(rank, *args), Path(folder) / f"{rank}.pt")
    finally:
        dist.destroy_process_group()
