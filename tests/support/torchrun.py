"""Programs under torchrun, on one node or on several nodes of this machine, and functions under its agent."""

import multiprocessing
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.support.markdown_blocks import ROOT
from tests.support.ranks import HANGS_AFTER_S, start_rank_server
from tests.support.shell import Printed


def run_torchrun(folder: Path, *program: str, num_ranks: int = 2, num_nodes: int = 1) -> list[Printed]:
    """Run a program, and return what each node printed."""
    port = _free_port()
    nodes = [_start_node(folder, program, num_ranks, num_nodes, node, port) for node in range(num_nodes)]
    printed = [node.communicate() for node in nodes]
    return [Printed(node.returncode, *texts) for node, texts in zip(nodes, printed, strict=True)]


def run_agent(folder: Path, function: Callable[..., Any], *args: Any, num_ranks: int) -> Printed:
    """Run a function on ranks that torchrun's agent starts, and return what they printed.

    The agent and its ranks are forked from the session's server, because in torchrun each of them imports torch.
    """
    start_rank_server()
    context = multiprocessing.get_context("forkserver")
    agent = context.Process(target=_run_agent, args=(folder, function, args, num_ranks))
    agent.start()
    agent.join(HANGS_AFTER_S)
    assert agent.exitcode is not None, f"the ranks still ran after {HANGS_AFTER_S} s"
    out, err = ((folder / name).read_text(encoding="utf-8") for name in _STREAMS)
    for name in _STREAMS:
        (folder / name).unlink()
    return Printed(agent.exitcode, out, err)


# Standard output and standard error of the agent and its ranks.
_STREAMS = {"stdout.log": 1, "stderr.log": 2}


def _run_agent(folder: Path, function: Callable[..., Any], args: Sequence[Any], num_ranks: int) -> None:
    """Run a function under torchrun's agent in this process, with streams that are files."""
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    os.chdir(folder)
    for name, number in _STREAMS.items():
        file = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(file, number)
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=num_ranks,
        run_id="tests",
        rdzv_backend="c10d",
        rdzv_endpoint="127.0.0.1:0",
        max_restarts=0,
        monitor_interval=0.1,
        start_method="fork",
    )
    elastic_launch(config, function)(*args)


def _start_node(
    folder: Path, program: Sequence[str], num_ranks: int, num_nodes: int, node: int, port: int
) -> subprocess.Popen[str]:
    """Start torchrun for one node."""
    options = {"nnodes": num_nodes, "node-rank": node, "nproc-per-node": num_ranks, "master-port": port}
    words = [f"--{name}={value}" for name, value in options.items()]
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        [sys.executable, "-m", "torch.distributed.run", "--master-addr=127.0.0.1", *words, *program],
        cwd=folder,
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def _free_port() -> int:
    """Return the number of a port that is free."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port
