#!/usr/bin/env bash
# Lightning's ModelCheckpoint pairs the weights of a step with the score that an earlier step had.
#
# Versions: lightning 2.6.6, torch 2.13.0, Python 3.11.
# Expected: with monitor and every_n_train_steps, a file is named after, and ranked by, a score of its own weights; where
#   there is none at that step, it is left out or an error.
# Behaviour: the last logged value is taken, however old it is. A run validates after steps 4, 8 and 12, and logs the step
#   as its score. The files of steps 6, 9 and 12 have the scores 4, 8 and 8: that of step 12 is saved before its
#   validation. The best file, by the score 8 that the weights of step 8 had, holds those of step 9.
# Output seen:
#   saved: step=4-score=4 step=6-score=4 step=9-score=8 step=12-score=8
#   best: step=9-score=8
# Exits with 0 if it behaves so, with another status if it does not.
# Its row, with what this package does: ../docs/library_behaviour.md
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet torch==2.13.0
venv/bin/pip install --quiet lightning==2.6.6

cat > train.py <<'PYTHON'
from pathlib import Path

import lightning.pytorch as pl
import torch
from torch.utils.data import DataLoader


class Module(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)

    def training_step(self, batch, batch_idx):
        return self.layer(batch).sum()

    def validation_step(self, batch, batch_idx):
        self.log("score", torch.tensor(float(self.global_step)))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)


checkpoint = pl.callbacks.ModelCheckpoint(
    "saved", filename="{step}-{score:.0f}", monitor="score", mode="max", every_n_train_steps=3, save_top_k=-1
)
trainer = pl.Trainer(
    accelerator="cpu",
    callbacks=[checkpoint],
    max_steps=12,
    val_check_interval=4,
    check_val_every_n_epoch=None,
    num_sanity_val_steps=0,
    logger=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(Module(), DataLoader(torch.ones(40, 1)), DataLoader(torch.ones(1, 1)))
files = sorted(Path("saved").iterdir(), key=lambda file: torch.load(file, weights_only=False)["global_step"])
print("saved:", *(file.stem for file in files))
print("best:", Path(checkpoint.best_model_path).stem)
PYTHON

venv/bin/python train.py 2> log.txt > seen.txt || { cat log.txt; exit 2; }
cat seen.txt
diff seen.txt - <<'OUTPUT'
saved: step=4-score=4 step=6-score=4 step=9-score=8 step=12-score=8
best: step=9-score=8
OUTPUT
