"""A learning rate that follows the score."""

from __future__ import annotations

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn

from bertscore_tm import BERTScore
from bertscore_tm.callbacks import BERTScoreCallback
from tests.support.callback_runs import COUNT
from tests.support.lightning_modules import Quality, Record, chooser, trainer

pytestmark = pytest.mark.usefixtures("one_thread")


def plateau(optimizer, patience):
    return torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, mode="max", patience=patience, threshold=0.0)


class Stepping(Quality):
    """Its learning rate follows the score; ``settings`` are those of the trainer's scheduler."""

    def __init__(self, choices, references, qualities, patience=1, **settings):
        super().__init__(choices, references, qualities)
        self.patience, self.settings = patience, settings

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), 1.0)
        settings = {"scheduler": plateau(optimizer, self.patience), "monitor": "val_bertscore_f1", **self.settings}
        return {"optimizer": optimizer, "lr_scheduler": settings}


class Rates(pl.Callback):
    """Keeps the learning rate of every epoch."""

    def __init__(self):
        self.rates = []

    def on_train_epoch_start(self, trainer, pl_module):
        self.rates.append(trainer.optimizers[0].param_groups[0]["lr"])


def rates_of(scores, patience=1, frequency=1):
    """What torch's scheduler makes of the scores by itself."""
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], 1.0)
    scheduler, found = plateau(optimizer, patience), []
    for epoch, score in enumerate(scores, 1):
        found.append(optimizer.param_groups[0]["lr"])
        if epoch % frequency == 0:
            scheduler.step(score)
    return found, counted(scheduler)


def counted(scheduler):
    return scheduler.best, scheduler.num_bad_epochs


FALLING = [5, 4, 3, 6, 2, 1, 7, 5]


@pytest.mark.parametrize(
    ("settings", "scorer_first"),
    [({}, True), ({}, False), ({"interval": "epoch", "frequency": 2, "patience": 0}, False), ({"strict": False}, True)],
    ids=str,
)
def test_the_learning_rate_follows_the_score(pairs, shallow, tmp_path, settings, scorer_first):
    record, rates = Record(), Rates()
    module = chooser(pairs, FALLING, kind=Stepping, count=COUNT, **settings)
    scorer = BERTScoreCallback(BERTScore(shallow))
    callbacks = [scorer, rates, record] if scorer_first else [rates, record, scorer]
    checkpoint = ModelCheckpoint(tmp_path, monitor="val_bertscore_f1", mode="max")
    run = trainer(tmp_path, [checkpoint, *callbacks], max_epochs=8, num_sanity_val_steps=1)
    run.fit(module)
    expected, state = rates_of(record.scores, settings.get("patience", 1), settings.get("frequency", 1))
    assert rates.rates == expected
    assert len(set(expected)) > 1
    assert counted(run.lr_scheduler_configs[0].scheduler) == state
