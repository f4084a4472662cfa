#!/usr/bin/env bash
# Two processes of torchrun on a machine without accelerators train two separate models with transformers' Trainer.
#
# Versions: transformers 5.24.0, accelerate 1.15.0, torch 2.13.0, Python 3.11.
# Expected: both processes share the training, as on two GPUs: world_size 2, one main process, equal weights.
# Behaviour: the process group has two ranks, but TrainingArguments reports world_size 1. Each process takes every step
#   on all rows and believes that it is the main one, so both would write checkpoints. With use_cpu=True the training is
#   shared. Each process prints one warning that names torch.distributed.launch, which is what started it.
# Output seen:
#   default: rank 0 of 2, world_size 1, main process True, 4 steps per epoch
#   default: rank 1 of 2, world_size 1, main process True, 4 steps per epoch
#   use_cpu: rank 0 of 2, world_size 2, main process True, 2 steps per epoch
#   use_cpu: rank 1 of 2, world_size 2, main process False, 2 steps per epoch
# Exits with 0 if it behaves so, with another status if it does not.
# Its row, with what this package does: ../docs/library_behaviour.md
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet torch==2.13.0
venv/bin/pip install --quiet transformers==5.24.0 accelerate==1.15.0

cat > train.py <<'PYTHON'
import os
import sys

from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

name, rank, size = sys.argv[1], os.environ["RANK"], os.environ["WORLD_SIZE"]
sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8}
model = BertForSequenceClassification(BertConfig(vocab_size=10, **sizes))
options = {"use_cpu": True} if name == "use_cpu" else {}
arguments = TrainingArguments(
    "output",
    num_train_epochs=1,
    per_device_train_batch_size=2,
    save_strategy="no",
    report_to=[],
    disable_tqdm=True,
    **options,
)
trainer = Trainer(model, arguments, train_dataset=[{"input_ids": [i, 2, 3], "labels": i % 2} for i in range(8)])
trainer.train()
main = trainer.is_world_process_zero()
steps = trainer.state.global_step
with open(f"{name}-{rank}.txt", "w") as file:
    print(f"{name}: rank {rank} of {size}, world_size {arguments.world_size}, main process {main}, {steps} steps per epoch", file=file)
PYTHON

export CUDA_VISIBLE_DEVICES="" OMP_NUM_THREADS=1
for name in default use_cpu; do
    venv/bin/torchrun --standalone --nproc-per-node 2 train.py "$name" > log.txt 2>&1 || { cat log.txt; exit 2; }
done
cat default-0.txt default-1.txt use_cpu-0.txt use_cpu-1.txt | tee seen.txt
diff seen.txt - <<'OUTPUT'
default: rank 0 of 2, world_size 1, main process True, 4 steps per epoch
default: rank 1 of 2, world_size 1, main process True, 4 steps per epoch
use_cpu: rank 0 of 2, world_size 2, main process True, 2 steps per epoch
use_cpu: rank 1 of 2, world_size 2, main process False, 2 steps per epoch
OUTPUT
