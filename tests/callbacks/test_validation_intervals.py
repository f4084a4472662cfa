"""Every validation is scored, whenever it runs and however much of it."""

from __future__ import annotations

import time
from datetime import timedelta

import pytest
from lightning.pytorch.callbacks import ModelCheckpoint

from bertscore_tm import BERTScore
from bertscore_tm.callbacks import BERTScoreCallback
from tests.support.callback_runs import COUNT, History, means, texts_of, write_wildly
from tests.support.lightning_modules import Chooser, chooser, loader, trainer

# The steps after which validation runs, and how many examples it has.
INTERVALS = {
    "across epochs": ({"val_check_interval": 2, "check_val_every_n_epoch": None, "max_epochs": 3}, [2, 4, 6, 8], 7),
    "seconds": (
        {"val_check_interval": timedelta(seconds=2), "check_val_every_n_epoch": None, "max_epochs": 3},
        [2, 4, 6, 8],
        7,
    ),
    "fast_dev_run": ({"fast_dev_run": 2}, [2], 6),
}


class Slow(Chooser):
    """Each training step advances the patched clock by a second."""

    now = 0.0

    def training_step(self, batch, batch_idx):
        Slow.now += 1.0
        return super().training_step(batch, batch_idx)


@pytest.mark.parametrize(("interval", "limit"), [*((name, None) for name in INTERVALS), ("across epochs", 1)])
def test_every_validation_is_scored(pairs, shallow, tmp_path, monkeypatch, interval, limit):
    arguments, steps, examples = INTERVALS[interval]
    monkeypatch.setattr(Slow, "now", 0.0)
    monkeypatch.setattr(time, "monotonic", lambda: Slow.now)
    module, history = chooser(pairs, kind=Slow, count=COUNT), History()
    checkpoint = ModelCheckpoint(tmp_path, monitor="val_bertscore_f1", mode="max")
    callbacks = [BERTScoreCallback(BERTScore(shallow), max_batches=limit), history, checkpoint]
    trainer(tmp_path, callbacks, **arguments).fit(module)
    assert interval == "fast_dev_run" or checkpoint.best_model_score.item() == max(history.scores)
    assert [step for step, _, _ in history.seen] == steps
    for _, scores, seen in history.seen:
        assert texts_of(seen)[1] == pairs[1][:examples]
        assert scores == pytest.approx(means(*texts_of(seen[:limit]), shallow), abs=1e-6)


def test_prediction_is_not_scored(pairs, shallow, tmp_path):
    module = chooser(pairs, count=COUNT)
    module.predict_step = lambda batch, batch_idx: module.choose(batch)
    callback = BERTScoreCallback(BERTScore(shallow), write_wildly)
    run = trainer(tmp_path, [callback])
    predicted = run.predict(module, loader(7))
    assert [target for _, targets in predicted for target in targets] == pairs[1][:7]
    assert not run.callback_metrics
