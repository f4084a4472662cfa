"""The command whose last rank dies in its second step: ``torchrun ... -m tests.support.killed_rank ARGUMENTS``.

With ``stop`` as the first argument, torchrun stops all ranks then.
"""

import os
import signal
import sys
from typing import Any

from bertscore_tm.cli import main, resume

_calls = []


def _compute_or_die(ranks: Any, *arguments: Any) -> Any:
    _calls.append(ranks)
    if len(_calls) == 2 and ranks.rank == ranks.size - 1:
        if is_stopped:
            os.kill(os.getppid(), signal.SIGTERM)
        else:
            os.kill(os.getpid(), signal.SIGKILL)
    return compute(ranks, *arguments)


if __name__ == "__main__":
    is_stopped = sys.argv[1] == "stop"
    if is_stopped:
        sys.argv.pop(1)
    resume.ITEMS_PER_STEP = 200
    compute, resume._compute_step = resume._compute_step, _compute_or_die
    sys.exit(main())
