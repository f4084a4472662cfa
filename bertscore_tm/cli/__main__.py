"""``python -m bertscore_tm.cli``, which is also how ``torchrun -m bertscore_tm.cli`` starts the command."""

from __future__ import annotations

import sys

from bertscore_tm.cli import main

if __name__ == "__main__":
    sys.exit(main())
