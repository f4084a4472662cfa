"""Run the shell command in its own process: ``bertscore-tm``, or ``torchrun -m bertscore_tm.cli``."""

import atexit
import gc
import os
import sys

from bertscore_tm.cli import main


def run() -> int:
    """Run :func:`bertscore_tm.cli.main`, and leave the objects that last as long as the process to its end."""
    _replace_closed_streams()
    # Looking for garbage among the objects of torch and transformers is a third of the time of a short run: during
    # their import, and once more at exit.
    gc.set_threshold(100_000)
    atexit.register(gc.freeze)
    return main()


def _replace_closed_streams() -> None:
    """Open the null device in place of streams that the shell closed, or files would get their numbers.

    Libraries in C write messages to numbers 1 and 2, so that these would be in the output file.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            # The lowest free number is taken, which is this one.
            os.open(os.devnull, os.O_RDWR)


if __name__ == "__main__":
    sys.exit(run())
