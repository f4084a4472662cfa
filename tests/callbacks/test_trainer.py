"""Callbacks in the trainer of ``pytorch_lightning``; the other tests use that of ``lightning``."""

import pytest
import pytorch_lightning
import torch
from torch.utils.data import DataLoader

from bertscore_tm import BERTScore, bert_score
from bertscore_tm.callbacks import (
    BERTScoreCallback,
    BERTScoreEarlyStopping,
    BERTScoreReport,
    SampleLogger,
)


def run_in(package, encoder, folder, preds, target):
    """Train a module that gets worse in each epoch, with all callbacks, in the trainer of a package."""

    class Module(package.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)

        def training_step(self, batch, batch_idx):
            return self.layer(torch.ones(1, 1)).sum()

        def validation_step(self, batch, batch_idx):
            cut = 5 - self.current_epoch
            return {"preds": [" ".join(text.split()[:cut]) for text in batch[0]], "target": list(batch[1])}

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 0.1)

    best = package.callbacks.ModelCheckpoint(folder, monitor="val_bertscore_f1", mode="max")
    module = Module()
    trainer = package.Trainer(
        callbacks=[
            BERTScoreCallback(BERTScore(encoder)),
            BERTScoreEarlyStopping(patience=3),
            SampleLogger(num_examples=1, every_n_validations=3),
            BERTScoreReport(folder / "report.html"),
            best,
        ],
        max_epochs=5,
        logger=package.loggers.CSVLogger(folder),
        enable_progress_bar=False,
        enable_model_summary=False,
        accelerator="cpu",
        log_every_n_steps=1,
    )
    trainer.fit(module, DataLoader(torch.zeros(2, 1)), DataLoader(list(zip(preds, target, strict=True)), batch_size=2))
    samples = sorted(path.name for path in folder.rglob("*") if "sample" in path.name)
    return trainer.current_epoch, best.best_model_score.item(), samples


def test_callbacks_work_in_the_other_package(encoder, short_pairs, tmp_path):
    preds, target = (side[:4] for side in short_pairs)
    epochs, best, samples = run_in(pytorch_lightning, encoder, tmp_path, preds, target)
    expected = bert_score([" ".join(text.split()[:5]) for text in preds], target, encoder)["f1"].mean()
    assert epochs == 4
    assert best == pytest.approx(expected.item(), abs=1e-6)
    assert samples
    assert (tmp_path / "report.html").exists()
