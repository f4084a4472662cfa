"""Callbacks in the trainer of the package ``pytorch_lightning``."""

import pytest
import pytorch_lightning
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from torch.utils.data import DataLoader

from bertscore_tm import BERTScore
from bertscore_tm.callbacks import (
    AttributeSchedule,
    BERTScoreCallback,
    BERTScoreEarlyStopping,
)

pytestmark = pytest.mark.usefixtures("one_thread")


class Module(pytorch_lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)

    def training_step(self, batch, batch_idx):
        return self.layer(batch).sum()

    validation_step = training_step

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)


@pytest.mark.parametrize(
    "kind",
    [BERTScoreCallback, BERTScoreEarlyStopping, AttributeSchedule],
)
def test_other_lightning_package_is_an_error(encoder, kind):
    arguments = {BERTScoreCallback: [BERTScore(encoder)], AttributeSchedule: ["bertscore_weight", 0.0, 1.0]}
    callback = kind(*arguments.get(kind, ()))
    trainer = pytorch_lightning.Trainer(
        callbacks=[callback], max_epochs=1, logger=False, enable_checkpointing=False, accelerator="cpu"
    )
    data = DataLoader(torch.zeros(2, 1))
    message = rf"{kind.__name__} needs a lightning\.pytorch\.Trainer, got a pytorch_lightning\.Trainer"
    with pytest.raises(MisconfigurationException, match=message):
        trainer.fit(Module(), data, data)
