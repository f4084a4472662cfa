"""Checkpoints that follow the score."""

from pathlib import Path

import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

from bertscore_tm import BERTScore
from bertscore_tm.callbacks import BERTScoreCallback
from tests.support.lightning_runs import Quality, Record, Steady, chooser, logged, trainer, weights


@pytest.mark.parametrize("scorer_first", [True, False])
def test_the_best_epochs_are_kept(pairs, shallow, tmp_path, scorer_first):
    checkpoint = ModelCheckpoint(tmp_path, monitor="val_bertscore_f1", mode="max", save_top_k=2, save_last=True)
    checkpoint.filename = "{epoch}-{val_bertscore_f1:.4f}"
    record, module = Record(), chooser(pairs, [3, 1, 6, 2, 5], kind=Quality)
    scorer = BERTScoreCallback(BERTScore(shallow))
    callbacks = [scorer, checkpoint] if scorer_first else [checkpoint, scorer]
    run = trainer(tmp_path, [*callbacks, record], max_epochs=5, num_sanity_val_steps=2)
    run.fit(module)
    third, fifth = (f"epoch={e}-val_bertscore_f1={record.scores[e]:.4f}.ckpt" for e in (2, 4))
    assert sorted(record.scores)[-2:] == [record.scores[4], record.scores[2]]
    best_scores = {Path(path).name: score.item() for path, score in checkpoint.best_k_models.items()}
    assert best_scores == {third: record.scores[2], fifth: record.scores[4]}
    assert {path.name for path in tmp_path.iterdir()} == {third, fifth, "last.ckpt"}
    assert torch.load(tmp_path / "last.ckpt", weights_only=False)["epoch"] == 4
    assert Path(checkpoint.best_model_path).name == third


def test_run_continues_from_the_best_checkpoint(pairs, shallow, tmp_path):
    whole, rest = Record(), Record()
    checkpoint = ModelCheckpoint(tmp_path, monitor="val_bertscore_f1", mode="max")
    scorer = BERTScoreCallback(BERTScore(shallow))
    module = chooser(pairs, kind=Steady)
    run = trainer(tmp_path, [checkpoint, scorer, whole], max_epochs=6)
    run.fit(module)
    last, scores = weights(module), list(whole.scores)
    best = scores.index(max(scores))
    assert best < 5
    run.validate(module, ckpt_path="best", verbose=False)
    assert logged(run.callback_metrics)[-1] == checkpoint.best_model_score.item() == max(scores)
    run.test(module, ckpt_path="best", verbose=False)
    assert logged(run.callback_metrics, stage="test")[-1] == max(scores)
    resumed = chooser(pairs, kind=Steady, lr=9.0)
    next_checkpoint = ModelCheckpoint(tmp_path, monitor="val_bertscore_f1", mode="max")
    callbacks = [next_checkpoint, BERTScoreCallback(BERTScore(shallow)), rest]
    run = trainer(tmp_path, callbacks, max_epochs=6, num_sanity_val_steps=1)
    run.fit(resumed, ckpt_path=checkpoint.best_model_path)
    assert rest.scores == scores[best + 1 :]
    assert torch.equal(weights(resumed), last)
    assert next_checkpoint.best_model_score.item() == max(scores)
    assert next_checkpoint.best_model_path == checkpoint.best_model_path
