"""Run the shell command in its own process: ``bertscore-tm``, or ``torchrun -m bertscore_tm.cli``."""

import atexit
import gc
import sys

from bertscore_tm.cli import main


def run() -> int:
    """Run :func:`bertscore_tm.cli.main`, and leave the objects that last as long as the process to its end."""
    # Looking for garbage among the objects of torch and transformers is a third of the time of a short run: during
    # their import, and once more at exit.
    gc.set_threshold(100_000)
    atexit.register(gc.freeze)
    return main()


if __name__ == "__main__":
    sys.exit(run())
