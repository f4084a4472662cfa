#!/usr/bin/env bash
# Lightning's isolate_rng does not restore the random state if its block raises an exception.
#
# Versions: lightning 2.6.6, torch 2.13.0, Python 3.11.
# Expected: after the block, however it ends, random numbers go on as if it had not run, as with torch.random.fork_rng.
# Behaviour: after an exception the state is that of the moment at which it was raised. Whoever catches it, such as a loop
#   that leaves out a batch on which generation ran out of memory, trains on with other dropout masks and another order of
#   the data than a run without the block.
# Output seen:
#   block ended: restored
#   isolate_rng, exception: not restored
#   torch.random.fork_rng, exception: restored
# Exits with 0 if it behaves so, with another status if it does not.
# Its row, with what this package does: ../docs/library_behaviour.md
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet torch==2.13.0
venv/bin/pip install --quiet lightning==2.6.6

cat > draw.py <<'PYTHON'
from contextlib import suppress

import torch
from lightning.pytorch.utilities.seed import isolate_rng


def describe(context, *, fails):
    before = torch.get_rng_state()
    with suppress(torch.OutOfMemoryError), context:
        torch.rand(1)
        if fails:
            raise torch.OutOfMemoryError("as of a batch that is too large")
    return "restored" if torch.equal(torch.get_rng_state(), before) else "not restored"


print("block ended:", describe(isolate_rng(), fails=False))
print("isolate_rng, exception:", describe(isolate_rng(), fails=True))
print("torch.random.fork_rng, exception:", describe(torch.random.fork_rng(devices=[]), fails=True))
PYTHON

venv/bin/python draw.py 2> log.txt > seen.txt || { cat log.txt; exit 2; }
cat seen.txt
diff seen.txt - <<'OUTPUT'
block ended: restored
isolate_rng, exception: not restored
torch.random.fork_rng, exception: restored
OUTPUT
