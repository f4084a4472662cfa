"""Run the shell command in its own process: ``bertscore-tm``, or ``torchrun -m bertscore_tm.cli``."""

import atexit
import gc
import os
import sys

from bertscore_tm.cli import main


def run() -> int:
    """Run :func:`bertscore_tm.cli.main` with less garbage collection than usual."""
    _replace_closed_streams()
    # Garbage collection takes a third of the time of a short run, because torch and transformers create many objects.
    # A higher threshold avoids it during their import, and freezing the objects avoids it at exit.
    gc.set_threshold(100_000)
    atexit.register(gc.freeze)
    return main()


def _replace_closed_streams() -> None:
    """Open the null device in place of streams that the shell closed.

    Otherwise the next files that are opened would get the numbers of these streams. An output file with the number 1 or
    2 would contain the messages that libraries in C write to standard output and standard error.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            # os.open takes the lowest free number, which is this one because lower ones are open.
            os.open(os.devnull, os.O_RDWR)


if __name__ == "__main__":
    sys.exit(run())
