"""Run the shell command as ``python -m bertscore_tm.cli`` or ``torchrun -m bertscore_tm.cli``."""

import sys

from bertscore_tm.cli import main

if __name__ == "__main__":
    sys.exit(main())
