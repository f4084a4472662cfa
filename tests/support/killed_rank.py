"""The command whose last rank ends all ranks in its second step.

``torchrun ... -m tests.support.killed_rank ARGUMENTS``: the rank dies as by a power failure. With ``stop`` as the first
argument it stops torchrun, which then stops all ranks.
"""

import os
import signal
import sys
from typing import Any

from bertscore_tm.cli import main, resume

ITEMS_PER_STEP = 200


def run(words: list[str]) -> None:
    """Run the command on this rank."""
    is_stopped = words[0] == "stop"
    if is_stopped:
        words = words[1:]
    calls: list[Any] = []
    compute = resume._compute_step

    def compute_or_die(ranks: Any, *arguments: Any) -> Any:
        calls.append(ranks)
        is_last = ranks.rank == ranks.size - 1
        if is_last and len(calls) == 2:
            if is_stopped:
                os.kill(os.getppid(), signal.SIGTERM)
            else:
                os.kill(os.getpid(), signal.SIGKILL)
        return compute(ranks, *arguments)

    resume.ITEMS_PER_STEP = ITEMS_PER_STEP
    resume._compute_step = compute_or_die
    sys.exit(main(words))


if __name__ == "__main__":
    run(sys.argv[1:])
