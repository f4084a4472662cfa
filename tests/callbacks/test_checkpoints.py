"""Checkpoints and learning rates that follow the score."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

from bertscore_tm import BERTScore
from bertscore_tm.callbacks import BERTScoreCallback
from tests.support.callback_runs import COUNT, logged, whole_weights
from tests.support.lightning_modules import Quality, Record, Steady, chooser, trainer


def best_scores(callback):
    return {Path(path).name: score.item() for path, score in callback.best_k_models.items()}


@pytest.mark.parametrize("scorer_first", [True, False])
def test_the_best_epochs_are_kept(pairs, shallow, tmp_path, scorer_first):
    checkpoint = ModelCheckpoint(tmp_path, monitor="val_bertscore_f1", mode="max", save_top_k=2, save_last=True)
    checkpoint.filename = "{epoch}-{val_bertscore_f1:.4f}"
    record, module = Record(), chooser(pairs, [3, 1, 6, 2, 5], kind=Quality, count=COUNT)
    scorer = BERTScoreCallback(BERTScore(shallow))
    callbacks = [scorer, checkpoint] if scorer_first else [checkpoint, scorer]
    run = trainer(tmp_path, [*callbacks, record], max_epochs=5, num_sanity_val_steps=2)
    run.fit(module)
    third, fifth = (f"epoch={e}-val_bertscore_f1={record.scores[e]:.4f}.ckpt" for e in (2, 4))
    assert sorted(record.scores)[-2:] == [record.scores[4], record.scores[2]]
    assert best_scores(checkpoint) == {third: record.scores[2], fifth: record.scores[4]}
    assert {path.name for path in tmp_path.iterdir()} == {third, fifth, "last.ckpt"}
    assert torch.load(tmp_path / "last.ckpt", weights_only=False)["epoch"] == 4
    assert Path(checkpoint.best_model_path).name == third


def test_run_continues_from_the_best_checkpoint(pairs, shallow, tmp_path):
    whole, rest = Record(), Record()
    checkpoint = ModelCheckpoint(tmp_path, monitor="val_bertscore_f1", mode="max")
    scorer = BERTScoreCallback(BERTScore(shallow))
    module = chooser(pairs, kind=Steady, count=COUNT)
    run = trainer(tmp_path, [checkpoint, scorer, whole], max_epochs=6)
    run.fit(module)
    last, scores = whole_weights(module), list(whole.scores)
    best = scores.index(max(scores))
    assert best < 5
    run.validate(module, ckpt_path="best", verbose=False)
    assert logged(run.callback_metrics)[-1] == checkpoint.best_model_score.item() == max(scores)
    run.test(module, ckpt_path="best", verbose=False)
    assert logged(run.callback_metrics, stage="test")[-1] == max(scores)
    resumed = chooser(pairs, kind=Steady, count=COUNT, lr=9.0)
    again = ModelCheckpoint(tmp_path, monitor="val_bertscore_f1", mode="max")
    callbacks = [again, BERTScoreCallback(BERTScore(shallow)), rest]
    trainer(tmp_path, callbacks, max_epochs=6, num_sanity_val_steps=1).fit(
        resumed, ckpt_path=checkpoint.best_model_path
    )
    assert rest.scores == scores[best + 1 :]
    assert torch.equal(whole_weights(resumed), last)
    assert again.best_model_score.item() == max(scores)
    assert again.best_model_path == checkpoint.best_model_path


# Learning rates


class Stepping(Quality):
    """Its learning rate follows the score; ``settings`` are those of the trainer's scheduler."""

    def __init__(self, choices, references, qualities, settings):
        super().__init__(choices, references, qualities)
        self.settings, self.rates = settings, []

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), 1.0)
        settings = {"scheduler": plateau(optimizer), "monitor": "val_bertscore_f1", **self.settings}
        return {"optimizer": optimizer, "lr_scheduler": settings}

    def on_train_epoch_start(self):
        self.rates.append(self.trainer.optimizers[0].param_groups[0]["lr"])


def plateau(optimizer):
    return torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, mode="max", patience=0, threshold=0.0)


@pytest.mark.parametrize(
    ("settings", "scorer_first"), [({}, False), ({"interval": "epoch", "frequency": 2}, True)], ids=str
)
def test_the_learning_rate_follows_the_score(pairs, shallow, tmp_path, settings, scorer_first):
    record, module = Record(), chooser(pairs, [5, 4, 3, 6, 2, 1, 7, 5], settings, kind=Stepping, count=COUNT)
    others = [ModelCheckpoint(tmp_path, monitor="val_bertscore_f1", mode="max"), record]
    scorer = BERTScoreCallback(BERTScore(shallow))
    callbacks = [scorer, *others] if scorer_first else [*others, scorer]
    run = trainer(tmp_path, callbacks, max_epochs=8, num_sanity_val_steps=1)
    run.fit(module)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], 1.0)
    scheduler, expected = plateau(optimizer), []
    for epoch, score in enumerate(record.scores, 1):
        expected.append(optimizer.param_groups[0]["lr"])
        if epoch % settings.get("frequency", 1) == 0:
            scheduler.step(score)
    assert module.rates == expected
    assert len(set(expected)) > 1
    assert run.lr_scheduler_configs[0].scheduler.best == scheduler.best
