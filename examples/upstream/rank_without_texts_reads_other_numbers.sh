#!/usr/bin/env bash
# torchmetrics' EditDistance(reduction="none") returns other numbers on a rank that had no texts.
#
# Versions: torchmetrics 1.9.0, torch 2.13.0, Python 3.11.
# Expected: compute() returns the same on all ranks: the distances of all texts, as with one process.
# Behaviour: a rank without texts takes part with an empty state of float32, the other with distances in int32. What is
#   gathered are bytes: two distances of 39 are 5.4651e-44 on the rank without texts, and right on the other.
# Output seen:
#   texts on the ranks: 1 and 2
#   rank 0: [39, 39, 39]
#   rank 1: [39, 39, 39]
#   texts on the ranks: 0 and 2
#   rank 0: [5.4651e-44, 5.4651e-44]
#   rank 1: [39, 39]
# Exits with 0 if it behaves so, with another status if it does not.
# Its row, with what this package does: ../docs/library_behaviour.md
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet torch==2.13.0
venv/bin/pip install --quiet torchmetrics==1.9.0

cat > distance.py <<'PYTHON'
import os
from multiprocessing import Array

import torch.distributed as dist
import torch.multiprocessing as mp
from torchmetrics.text import EditDistance


def run(rank, counts):
    name = f"{counts[0]}-{counts[1]}"
    dist.init_process_group("gloo", init_method=f"file://{os.getcwd()}/{name}", rank=rank, world_size=2)
    metric = EditDistance(reduction="none")
    if counts[rank]:
        metric.update(["a" * 39] * counts[rank], [""] * counts[rank])
    with open(f"{name}-{rank}.txt", "w") as file:
        print(f"rank {rank}: [{', '.join(f'{value:.5g}' for value in metric.compute().tolist())}]", file=file)
    dist.destroy_process_group()


if __name__ == "__main__":
    for counts in ((1, 2), (0, 2)):
        mp.spawn(run, (counts,), 2)
        print(f"texts on the ranks: {counts[0]} and {counts[1]}")
        for rank in range(2):
            print(open(f"{counts[0]}-{counts[1]}-{rank}.txt").read(), end="")
PYTHON

OMP_NUM_THREADS=1 timeout 300 venv/bin/python distance.py 2> log.txt > seen.txt || { cat log.txt; exit 2; }
cat seen.txt
diff seen.txt - <<'OUTPUT'
texts on the ranks: 1 and 2
rank 0: [39, 39, 39]
rank 1: [39, 39, 39]
texts on the ranks: 0 and 2
rank 0: [5.4651e-44, 5.4651e-44]
rank 1: [39, 39]
OUTPUT
