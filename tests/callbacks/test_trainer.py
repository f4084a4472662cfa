"""Callbacks in the trainer of the package ``pytorch_lightning``."""

import pytest
import pytorch_lightning
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from torch.utils.data import DataLoader

from bertscore_tm import BERTScore
from bertscore_tm.callbacks import (
    BERTScoreCallback,
    BERTScoreEarlyStopping,
    BestOfNDistillation,
    LossWeightSchedule,
    TemperatureAnnealing,
)
from bertscore_tm.losses import DistilledDataset

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
    [BERTScoreCallback, BERTScoreEarlyStopping, BestOfNDistillation, LossWeightSchedule, TemperatureAnnealing],
)
def test_other_lightning_package_is_an_error(minilm, encoder, tmp_path, kind):
    if kind is BestOfNDistillation:
        callback = kind(DistilledDataset([]), [], minilm, dict, tmp_path, max_new_tokens=1, encoder=encoder)
    else:
        callback = kind(BERTScore(encoder)) if kind is BERTScoreCallback else kind()
    trainer = pytorch_lightning.Trainer(
        callbacks=[callback], max_epochs=1, logger=False, enable_checkpointing=False, accelerator="cpu"
    )
    data = DataLoader(torch.zeros(2, 1))
    message = rf"{kind.__name__} needs a lightning\.pytorch\.Trainer, got a pytorch_lightning\.Trainer"
    with pytest.raises(MisconfigurationException, match=message):
        trainer.fit(Module(), data, data)
