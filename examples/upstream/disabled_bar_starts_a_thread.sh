#!/usr/bin/env bash
# tqdm(disable=True) starts the monitor thread of tqdm, as a bar that is shown does.
#
# Versions: tqdm 4.70.1, Python 3.11.
# Expected: a bar that is switched off leaves the process as it was.
# Behaviour: the thread tqdm_monitor is started and stays after the bar is closed.
# Output seen:
#   before: MainThread; after a disabled bar: MainThread, tqdm_monitor
# Exits with 0 if it behaves so, with another status if it does not.
# Its row, with what this package does: ../docs/library_behaviour.md
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"

cat > bar.py <<'PYTHON'
import threading

from tqdm import tqdm


def names():
    return ", ".join(sorted(thread.name for thread in threading.enumerate()))


before = names()
tqdm(total=1, disable=True).close()
print(f"before: {before}; after a disabled bar: {names()}")
PYTHON

python3 -m venv venv
venv/bin/pip install --quiet tqdm==4.70.1
venv/bin/python bar.py > seen.txt
cat seen.txt
diff seen.txt - <<'OUTPUT'
before: MainThread; after a disabled bar: MainThread, tqdm_monitor
OUTPUT
