"""Checkpoints that follow the score."""

import warnings
from pathlib import Path

import pytest
import torch
from lightning.pytorch.callbacks import EMAWeightAveraging, ModelCheckpoint

from bertscore_tm import BERTScore
from bertscore_tm.callbacks import BERTScoreCallback, BERTScoreEarlyStopping
from tests.support.lightning_runs import Quality, Record, Steady, chooser, loader, logged, trainer, weights

MONITOR = {"monitor": "val_bertscore_f1", "mode": "max"}


@pytest.mark.parametrize("scorer_first", [True, False])
def test_the_best_epochs_are_kept(pairs, shallow, tmp_path, scorer_first):
    checkpoint = ModelCheckpoint(tmp_path, **MONITOR, save_top_k=2, save_last=True)
    checkpoint.filename = "{epoch}-{val_bertscore_f1:.4f}"
    record = Record()
    module = chooser(pairs, [3, 1, 6, 2, 5], kind=Quality)
    scorer = BERTScoreCallback(BERTScore(shallow))
    callbacks = [scorer, checkpoint] if scorer_first else [checkpoint, scorer]

    run = trainer(tmp_path, [*callbacks, record], max_epochs=5, num_sanity_val_steps=2)
    run.fit(module)

    third = f"epoch=2-val_bertscore_f1={record.scores[2]:.4f}.ckpt"
    fifth = f"epoch=4-val_bertscore_f1={record.scores[4]:.4f}.ckpt"
    assert sorted(record.scores)[-2:] == [record.scores[4], record.scores[2]]
    best_scores = {Path(path).name: score.item() for path, score in checkpoint.best_k_models.items()}
    assert best_scores == {third: record.scores[2], fifth: record.scores[4]}
    assert {path.name for path in tmp_path.iterdir()} == {third, fifth, "last.ckpt"}
    assert torch.load(tmp_path / "last.ckpt", weights_only=False)["epoch"] == 4
    assert Path(checkpoint.best_model_path).name == third


def fit_steadily(folder, pairs, encoder, record, ckpt_path=None, **options):
    """Train for six epochs, and return the module, the trainer and the checkpoint of the best one."""
    checkpoint = ModelCheckpoint(folder, **MONITOR)
    callbacks = [checkpoint, BERTScoreCallback(BERTScore(encoder)), record]
    # A resumed training takes the learning rate of its checkpoint.
    module = chooser(pairs, kind=Steady, lr=0.05 if ckpt_path is None else 9.0)
    run = trainer(folder, callbacks, max_epochs=6, **options)
    run.fit(module, ckpt_path=ckpt_path)
    return module, run, checkpoint


# Lightning's ModelCheckpoint says so of each folder that has files.
@pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists and is not empty")
def test_run_continues_from_the_best_checkpoint(pairs, shallow, tmp_path):
    whole, rest = Record(), Record()

    module, run, checkpoint = fit_steadily(tmp_path, pairs, shallow, whole)
    last = weights(module)
    scores = list(whole.scores)
    run.validate(module, ckpt_path="best", verbose=False)
    validated = logged(run.callback_metrics)[-1]
    run.test(module, ckpt_path="best", verbose=False)
    tested = logged(run.callback_metrics, stage="test")[-1]
    best_path = checkpoint.best_model_path
    resumed, _, next_checkpoint = fit_steadily(tmp_path, pairs, shallow, rest, best_path, num_sanity_val_steps=1)

    best = scores.index(max(scores))
    assert best < 5
    assert validated == tested == checkpoint.best_model_score.item() == max(scores)
    assert rest.scores == scores[best + 1 :]
    assert torch.equal(weights(resumed), last)
    assert next_checkpoint.best_model_score.item() == max(scores)
    assert next_checkpoint.best_model_path == checkpoint.best_model_path


@pytest.mark.parametrize(("start", "num_warnings"), [({"update_starting_at_step": 10}, 1), ({}, 0)])
def test_scores_before_weights_are_averaged_are_a_warning(pairs, shallow, tmp_path, start, num_warnings):
    """Without the option that the warning names, averaged weights improve and training does not stop early."""
    module = chooser((pairs[1], pairs[1]), lr=0.02)
    initial = weights(module)
    best = ModelCheckpoint(tmp_path, **MONITOR)
    callbacks = [
        BERTScoreCallback(BERTScore(shallow)),
        BERTScoreEarlyStopping(),
        EMAWeightAveraging(decay=0.9, **start),
    ]
    run = trainer(tmp_path, [*callbacks, best], max_epochs=30, num_sanity_val_steps=1)

    with warnings.catch_warnings(record=True, action="always") as caught:
        run.fit(module, loader(9, batch_size=9), loader(9))

    messages = [str(warning.message) for warning in caught]
    said = [message for message in messages if "not averaged any weights yet" in message]
    assert len(said) == num_warnings
    assert all(text.endswith("from the first step, without update_starting_at_step=") for text in said)
    saved = chooser((pairs[1], pairs[1]))
    saved.load_state_dict(torch.load(best.best_model_path, weights_only=True)["state_dict"])
    if num_warnings:
        assert run.global_step == 6
        assert torch.equal(weights(saved), initial)
    else:
        assert run.global_step > 10
        assert not torch.equal(weights(saved), initial)
        assert best.best_model_score.item() == pytest.approx(1, abs=1e-3)
