"""The command with a fault after its first parts: ``torchrun ... -m tests.support.faulty_command FAULT ARGUMENTS``."""

import os
import signal
import subprocess
import sys
from datetime import timedelta
from typing import Any

from bertscore_tm.cli import distributed, main, shards
from tests.support.hosts import LINK

_calls = []


def _compute_or_fail(ranks: Any, *arguments: Any) -> Any:
    _calls.append(ranks)
    if len(_calls) == 2 and ranks.rank == ranks.size - 1:
        if fault == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if fault == "cut":
            subprocess.run(["ip", "link", "set", LINK, "down"], check=True)
    return compute(ranks, *arguments)


if __name__ == "__main__":
    fault = sys.argv.pop(1)
    # Otherwise the tests would wait for minutes and hours.
    if fault == "join":
        distributed._JOIN_LIMIT = timedelta(seconds=5)
    if fault == "cut":
        distributed._WORK_LIMIT = timedelta(seconds=10)
    compute, shards._compute_next = shards._compute_next, _compute_or_fail
    sys.exit(main())
