#!/usr/bin/env bash
# Lightning's EarlyStopping ends a training that validates by time with an AttributeError of the trainer.
#
# Versions: lightning 2.6.6, torch 2.13.0, Python 3.11.
# Expected: Trainer(val_check_interval=timedelta(...)) validates by the clock, as 2.6 introduced it, and EarlyStopping with
#   its default check_on_train_epoch_end=None works with every way to validate.
# Behaviour: with a time interval the trainer has no attribute val_check_interval, which EarlyStopping reads at the start of
#   fit. check_on_train_epoch_end=False avoids the question, and the same training runs.
# Output seen:
#   default: AttributeError: 'Trainer' object has no attribute 'val_check_interval'
#   check_on_train_epoch_end=False: trained
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
import logging
import warnings
from datetime import timedelta

import lightning.pytorch as pl
from lightning.pytorch.callbacks import EarlyStopping
from lightning.pytorch.demos.boring_classes import BoringModel

warnings.simplefilter("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Model(BoringModel):
    def validation_step(self, batch, batch_idx):
        self.log("score", float(batch_idx))


for name, options in {"default": {}, "check_on_train_epoch_end=False": {"check_on_train_epoch_end": False}}.items():
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = pl.Trainer(
        accelerator="cpu",
        max_steps=4,
        val_check_interval=timedelta(milliseconds=1),
        num_sanity_val_steps=0,
        callbacks=[EarlyStopping("score", **options)],
        **quiet,
    )
    try:
        trainer.fit(Model())
        print(f"{name}: trained")
    except AttributeError as error:
        print(f"{name}: AttributeError: {error}")
PYTHON

venv/bin/python train.py 2> errors.txt > seen.txt || { cat errors.txt; exit 1; }
cat seen.txt
diff - seen.txt <<'SEEN'
default: AttributeError: 'Trainer' object has no attribute 'val_check_interval'
check_on_train_epoch_end=False: trained
SEEN
