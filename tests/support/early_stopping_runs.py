"""Runs with Lightning's early stopping and ours, and their outcomes."""

from __future__ import annotations

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import EarlyStopping
from torch import nn

from bertscore_tm.callbacks import BERTScoreEarlyStopping
from tests.support.lightning_modules import loader, trainer

KINDS = (EarlyStopping, BERTScoreEarlyStopping)
# Lightning's defaults that differ from ours.
PLAIN = {"mode": "min", "check_on_train_epoch_end": None}
STEPS = 4


class Script(pl.LightningModule):
    """Logs the next value of each key whenever a hook runs; an epoch has four steps."""

    def __init__(self, values, hook="on_validation_epoch_end"):
        super().__init__()
        self.values, self.hook, self.times = values, hook, 0
        self.layer = nn.Linear(1, 1)

    def play(self, hook):
        if hook != self.hook or self.trainer.sanity_checking:
            return
        for key, values in self.values.items():
            self.log(key, torch.tensor(float(values[min(self.times, len(values) - 1)])))
        self.times += 1

    def training_step(self, batch, batch_idx):
        self.play("training_step")
        return self.layer(batch.float()[:, None]).sum()

    def validation_step(self, batch, batch_idx):
        self.play("validation_step")

    def on_validation_epoch_end(self):
        self.play("on_validation_epoch_end")

    def on_train_epoch_end(self):
        self.play("on_train_epoch_end")

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.01)

    def train_dataloader(self):
        return loader(STEPS, batch_size=1)

    def val_dataloader(self):
        return loader(1)


def state(stopping):
    return {name: value.item() if torch.is_tensor(value) else value for name, value in stopping.state_dict().items()}


def outcome(stopping, run):
    return {
        "epochs": run.current_epoch,
        "steps": run.global_step,
        "should_stop": run.should_stop,
        "checked on training": stopping._check_on_train_epoch_end,
        "stopped_epoch": stopping.stopped_epoch,
        "reason": stopping.stopping_reason,
        "message": stopping.stopping_reason_message,
        "state": state(stopping),
    }


def run_of(folder, stopping, values, hook="on_validation_epoch_end", **arguments):
    run = trainer(folder, stopping if isinstance(stopping, list) else [stopping], **({"max_epochs": 8} | arguments))
    run.fit(Script(values if isinstance(values, dict) else {"key": values}, hook))
    return run
