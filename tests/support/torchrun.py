"""Programs under torchrun, on one node or on several nodes of this machine."""

import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.support.markdown_blocks import ROOT
from tests.support.shell import Printed


def run_torchrun(folder: Path, *program: str, num_ranks: int = 2, num_nodes: int = 1) -> list[Printed]:
    """Run a program, and return what each node printed."""
    port = _free_port()
    nodes = [_start_node(folder, program, num_ranks, num_nodes, node, port) for node in range(num_nodes)]
    printed = [node.communicate() for node in nodes]
    return [Printed(node.returncode, *texts) for node, texts in zip(nodes, printed, strict=True)]


def _start_node(
    folder: Path, program: Sequence[str], num_ranks: int, num_nodes: int, node: int, port: int
) -> subprocess.Popen[str]:
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
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port
