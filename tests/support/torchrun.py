"""Programs and functions under torchrun, on one node or on several nodes of this machine."""

import socket
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.support.forked_programs import run_forked
from tests.support.markdown_blocks import ROOT
from tests.support.shell import Printed

_VARIABLES = {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}


def run_torchrun(folder: Path, *program: str, num_ranks: int = 2, num_nodes: int = 1) -> list[Printed]:
    """Run a program with new interpreters as ranks, and return what each node printed.

    Args:
        folder: working directory of the ranks.
        *program: torchrun's arguments after its options: the program, and the program's arguments.
        num_ranks: number of ranks of each node.
        num_nodes: number of nodes.
    """
    return _run_nodes(_run_torchrun, folder, num_ranks, num_nodes, program)


def run_torchrun_command(words: Sequence[str], folder: Path) -> Printed:
    """Run a command that starts with ``torchrun``, with new interpreters as ranks, and return what it printed."""
    assert words[0] == "torchrun"
    return run_forked(_run_torchrun, [], words[1:], folder=folder, **_VARIABLES)


def run_agent(
    folder: Path, function: Callable[..., Any], *args: Any, num_ranks: int, num_nodes: int = 1
) -> list[Printed]:
    """Run a function on ranks that torchrun's agent forks, and return what each node printed.

    They take a tenth of the time of :func:`run_torchrun`, whose ranks import torch.
    """
    return _run_nodes(_run_agent, folder, num_ranks, num_nodes, function, args)


def _run_nodes(run_node: Callable[..., Any], folder: Path, num_ranks: int, num_nodes: int, *args: Any) -> list[Printed]:
    """Run a function of torchrun's options once for each node, at the same time."""
    common = [
        f"--nnodes={num_nodes}",
        f"--nproc-per-node={num_ranks}",
        "--master-addr=127.0.0.1",
        f"--master-port={_free_port()}",
    ]

    def run(node: int) -> Printed:
        return run_forked(run_node, [*common, f"--node-rank={node}"], *args, folder=folder, **_VARIABLES)

    with ThreadPoolExecutor(num_nodes) as pool:
        return list(pool.map(run, range(num_nodes)))


def _run_torchrun(options: Sequence[str], program: Sequence[str]) -> None:
    """Run torchrun in this process."""
    from torch.distributed.run import main

    main([*options, *program])


def _run_agent(options: Sequence[str], function: Callable[..., Any], args: Sequence[Any]) -> None:
    """Run a function under torchrun's agent in this process."""
    from torch.distributed.launcher.api import elastic_launch
    from torch.distributed.run import config_from_args, parse_args

    config, _, _ = config_from_args(parse_args([*options, "no-program"]))
    config.start_method = "fork"
    elastic_launch(config, function)(*args)


def _free_port() -> int:
    """Return the number of a port that is free."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port
