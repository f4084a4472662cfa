"""Two hosts that torchrun starts the command on: network namespaces with a link, or two nodes of this machine."""

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.markdown_blocks import ROOT
from tests.support.shell import Printed

LINK = "link0"


@dataclass(frozen=True)
class Host:
    """The address of a host, and the words before a command that runs on it."""

    address: str
    prefix: tuple[str, ...] = ()


HERE = [Host("127.0.0.1")] * 2


@contextmanager
def two_hosts(folder: Path, *own_addresses: str) -> Generator[list[Host], None, None]:
    """Make the hosts host0 and host1, and remove them at the end; skip the test where that is not allowed.

    ``own_addresses`` are those that the hosts' own names have on them.
    """
    missing = [tool for tool in ("ip", "unshare", "hostname", "mount") if shutil.which(tool) is None]
    if missing:
        pytest.skip(f"network namespaces need the commands {', '.join(missing)}")
    names = [f"bertscore-tm-{os.getpid()}-{number}" for number in range(2)]
    added = _ip("netns", "add", names[0])
    if added.returncode:
        pytest.skip(f"network namespaces are not allowed: {added.stderr.strip()}")
    try:
        addresses = ["10.77.0.1", "10.77.0.2"]
        _ip("netns", "add", names[1], check=True)
        link = ("link", "add", LINK, "netns", names[0], "type", "veth", "peer", "name", LINK, "netns", names[1])
        _ip(*link, check=True)
        hosts = []
        for number, (name, address) in enumerate(zip(names, addresses, strict=True)):
            _ip("-n", name, "address", "add", f"{address}/24", "dev", LINK, check=True)
            for device in ("lo", LINK):
                _ip("-n", name, "link", "set", device, "up", check=True)
            known = [*addresses]
            known[number] = (own_addresses or addresses)[number]
            file = folder / f"hosts{number}"
            file.write_text("127.0.0.1 localhost\n" + "".join(f"{at} host{i}\n" for i, at in enumerate(known)))
            start = f'hostname host{number} && mount --bind {file} /etc/hosts && exec "$@"'
            prefix = ("ip", "netns", "exec", name, "unshare", "--uts", "sh", "-c", start, "sh")
            hosts.append(Host(address, prefix))
        yield hosts
    finally:
        for name in names:
            _ip("netns", "delete", name)


def _ip(*words: str, check: bool = False) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["ip", *words], capture_output=True, text=True, check=check)


def run_on_hosts(
    hosts: Sequence[Host], folders: Sequence[Path], program: Sequence[str], *words: str, num_ranks: int = 1
) -> list[Printed]:
    """Run a program under torchrun, in a folder on each host, and return what each host printed."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    started = []
    for rank, (host, folder) in enumerate(zip(hosts, folders, strict=True)):
        options = {"nnodes": 2, "node-rank": rank, "nproc-per-node": num_ranks, "master-port": port}
        options["master-addr"] = hosts[0].address
        torchrun = ["-m", "torch.distributed.run", *(f"--{name}={value}" for name, value in options.items())]
        command = [*host.prefix, sys.executable, *torchrun, *program, *words]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        started.append(subprocess.Popen(command, cwd=folder, env=environment, text=True, **pipes))
    printed = [node.communicate() for node in started]
    return [Printed(node.returncode, *texts) for node, texts in zip(started, printed, strict=True)]
