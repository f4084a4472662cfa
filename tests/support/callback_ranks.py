"""Cases that run on ranks, and their reports."""

from __future__ import annotations

import os
import socket

from tests.support.ranks import run_ranks


def on_ranks(function, *args, world_size=2):
    """The reports of all ranks; the error of a case is its report."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    return run_ranks(run_cases, world_size, function, port, *args)


def run_cases(rank, function, port, *args):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    report = {}
    for name, case in function(rank, *args):
        try:
            report[name] = case()
        except Exception as error:  # noqa: BLE001 - what it is, is the result
            report[name] = f"{type(error).__name__}: {error}"
    return report


def results(reports, name):
    values = [report[name] for report in reports]
    assert not [error for error in values if isinstance(error, str)]
    return values
