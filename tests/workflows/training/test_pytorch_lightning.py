"""Callbacks in the trainer of ``pytorch_lightning``; the other tests use that of ``lightning``."""

import pytest
import pytorch_lightning
import torch
from torch.utils.data import DataLoader

from bertscore_tm import BERTScore
from bertscore_tm.callbacks import BERTScoreCallback, BERTScoreEarlyStopping, BERTScoreReport, SampleLogger


class Worse(pytorch_lightning.LightningModule):
    """Gets worse in each epoch."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)

    def training_step(self, batch, batch_idx):
        return self.layer(torch.ones(1, 1)).sum()

    def validation_step(self, batch, batch_idx):
        preds = [text[: len(text) - 9 * self.current_epoch] for text in batch[1]]
        return {"preds": preds, "target": list(batch[1])}

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)


def test_callbacks_work_in_the_other_package(encoder, pairs, tmp_path):
    preds, target = (side[:4] for side in pairs)
    best = pytorch_lightning.callbacks.ModelCheckpoint(tmp_path, monitor="val_bertscore_f1", mode="max")
    callbacks = [
        BERTScoreCallback(BERTScore(encoder)),
        BERTScoreEarlyStopping(patience=3),
        SampleLogger(num_examples=1, every_n_validations=3),
        BERTScoreReport(tmp_path / "report.html"),
        best,
    ]
    logger = pytorch_lightning.loggers.CSVLogger(tmp_path)
    options = {"accelerator": "cpu", "log_every_n_steps": 1, "enable_progress_bar": False}
    trainer = pytorch_lightning.Trainer(callbacks=callbacks, max_epochs=5, logger=logger, **options)
    module = Worse()
    data = DataLoader(list(zip(preds, target, strict=True)), batch_size=2)

    trainer.fit(module, DataLoader(torch.zeros(2, 1)), data)

    assert trainer.current_epoch == 4
    assert best.best_model_score.item() == pytest.approx(1.0, abs=1e-6)

    # The third validation of the training has a table, and so has a validation after it.
    trainer.validate(module, data, verbose=False)

    names = sorted(path.name for path in tmp_path.rglob("*_samples*"))
    assert names == ["val_samples_step_5.csv", "validate_samples_step_8.csv"]
    assert (tmp_path / "report.html").exists()
