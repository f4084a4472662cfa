"""The command whose last rank ends all ranks.

``torchrun ... -m tests.support.killed_rank EVENT ARGUMENTS``: the arguments are those of the command, and the event is

* ``killed``: the rank dies in its second step, as by a power failure;
* ``stopped``: in its second step it stops torchrun, which then stops all ranks;
* ``stopped-early``: it stops torchrun before the first step, when no rank has imported transformers yet.
"""

import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from bertscore_tm.cli import main, resume
from bertscore_tm.cli.ranks import RankGroup

ITEMS_PER_STEP = 40


def run(event: str, words: list[str]) -> None:
    """Run the command on this rank."""
    resume.ITEMS_PER_STEP = ITEMS_PER_STEP
    if event == "stopped-early":
        RankGroup.run_on_first = _before_call(1, _stop_torchrun, RankGroup.run_on_first)
    elif event == "stopped":
        resume._compute_step = _before_call(2, _stop_torchrun, resume._compute_step)
    else:
        resume._compute_step = _before_call(2, _kill_rank, resume._compute_step)
    sys.exit(main(words))


def _before_call(number: int, act: Callable[[], None], function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function, before whose call of this number the last rank does something."""
    calls: list[RankGroup] = []

    def act_and_call(ranks: RankGroup, *arguments: Any) -> Any:
        calls.append(ranks)
        is_last = ranks.rank == ranks.size - 1
        if is_last and len(calls) == number:
            act()
        return function(ranks, *arguments)

    return act_and_call


def _stop_torchrun() -> None:
    """Stop torchrun, the parent of the ranks, as a scheduler does."""
    os.kill(os.getppid(), signal.SIGTERM)


def _kill_rank() -> None:
    """Let this rank die as by a power failure."""
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    run(sys.argv[1], sys.argv[2:])
