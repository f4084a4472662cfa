"""BERTScoreEarlyStopping: when it stops, what it counts, and how it differs from Lightning's own."""

from __future__ import annotations

import inspect
import logging
import pickle

import pytest
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from lightning.pytorch.callbacks.early_stopping import EarlyStoppingReason

from bertscore_tm import BERTScore
from bertscore_tm.callbacks import BERTScoreCallback, BERTScoreEarlyStopping
from tests.lightning_modules import Logs, Quality, Record, chooser, trainer

NAN = float("nan")


def fitted(folder, stopping, values, *others, ckpt_path=None, module=None, **arguments):
    module = module or Logs(values)
    run = trainer(folder, [stopping, *others], **({"max_epochs": len(values)} | arguments))
    run.fit(module, ckpt_path=ckpt_path)
    return module


@pytest.mark.parametrize(
    ("values", "arguments", "epochs", "waited", "reason"),
    [
        ([0.1, 0.2, 0.3, 0.4], {"patience": 1}, 4, 0, "NOT_STOPPED"),
        ([0.5, 0.4, 0.6, 0.6], {"patience": 1}, 2, 1, "PATIENCE_EXHAUSTED"),
        ([0.5, 0.4, 0.3, 0.6, 0.5, 0.5, 0.5, 0.9], {}, 7, 3, "PATIENCE_EXHAUSTED"),
        ([0.5, 0.5, 0.5, 0.5, 0.9], {"patience": 2}, 3, 2, "PATIENCE_EXHAUSTED"),
        ([0.5, 0.55, 0.58, 0.9], {"patience": 2, "min_delta": 0.1}, 3, 2, "PATIENCE_EXHAUSTED"),
        ([0.5, 0.65, 0.7, 0.9], {"patience": 2, "min_delta": 0.1}, 4, 0, "NOT_STOPPED"),
        ([0.5, 0.4, 0.3, 0.35, 0.9], {"patience": 1, "mode": "min"}, 4, 1, "PATIENCE_EXHAUSTED"),
        ([0.5, 0.8, 0.9], {"stopping_threshold": 0.7}, 2, 0, "STOPPING_THRESHOLD"),
        ([0.5, 0.2, 0.9], {"divergence_threshold": 0.3}, 2, 0, "DIVERGENCE_THRESHOLD"),
        ([0.5, NAN, 0.9], {}, 2, 0, "NON_FINITE_METRIC"),
        ([0.5, NAN, 0.4, 0.9], {"check_finite": False, "patience": 3}, 4, 0, "NOT_STOPPED"),
        ([0.5, 0.4, None, None, 0.3, 0.9], {"patience": 2}, 5, 2, "PATIENCE_EXHAUSTED"),
        ([0.5, 0.4, None, 0.4, 0.9], {"patience": 2}, 4, 2, "PATIENCE_EXHAUSTED"),
        ([None, None, 0.5, None, 0.4], {"patience": 1, "strict": False}, 5, 1, "PATIENCE_EXHAUSTED"),
    ],
)
@pytest.mark.parametrize("on_train_epoch_end", [False, True])
def test_when_it_stops(tmp_path, values, arguments, epochs, waited, reason, on_train_epoch_end):
    stopping = BERTScoreEarlyStopping(check_on_train_epoch_end=on_train_epoch_end, **arguments)
    module = fitted(tmp_path, stopping, values)
    assert (module.epochs, stopping.wait_count) == (epochs, waited)
    assert stopping.stopping_reason is EarlyStoppingReason[reason]
    assert stopping.stopped_epoch == (0 if reason == "NOT_STOPPED" else epochs - 1)


@pytest.mark.parametrize("checkpoint", [False, True])
def test_old_values_burn_patience_in_lightning_and_not_here(tmp_path, checkpoint):
    values = [0.5, None, None, 0.6, None, None, 0.7, None, None, 0.8]
    others = [ModelCheckpoint(tmp_path, monitor="val_bertscore_f1", mode="max")] if checkpoint else []
    lightnings = EarlyStopping("val_bertscore_f1", mode="max", patience=2)
    assert fitted(tmp_path, lightnings, values, *others).epochs == 3
    stopping = BERTScoreEarlyStopping(patience=2)
    assert fitted(tmp_path, stopping, values, *others).epochs == 10
    assert stopping.best_score.item() == pytest.approx(0.8)


def test_every_argument_has_lightnings_name_and_default():
    given = {
        "monitor": "x",
        "min_delta": 0.25,
        "patience": 7,
        "verbose": True,
        "mode": "max",
        "strict": False,
        "check_finite": False,
        "stopping_threshold": 0.9,
        "divergence_threshold": 0.1,
        "check_on_train_epoch_end": True,
        "log_rank_zero_only": True,
    }
    assert set(given) == set(inspect.signature(EarlyStopping).parameters)
    assert settings(BERTScoreEarlyStopping(**given)) == settings(EarlyStopping(**given))
    defaults = EarlyStopping("val_bertscore_f1", mode="max", check_on_train_epoch_end=False)
    assert settings(BERTScoreEarlyStopping()) == settings(defaults)
    with pytest.raises(MisconfigurationException, match="`mode` can be min, max, got best"):
        BERTScoreEarlyStopping(mode="best")


def settings(callback):
    own = ("_last_checked", "significance", "_pairs", "_best_pairs")
    return {name: value for name, value in vars(callback).items() if name not in own}


def test_verbose_says_what_happens(tmp_path, caplog):
    with caplog.at_level(logging.INFO, "lightning.pytorch.callbacks.early_stopping"):
        logging.getLogger("lightning.pytorch").propagate = True
        fitted(tmp_path, BERTScoreEarlyStopping(patience=1, verbose=True), [0.5, None, 0.6, 0.4])
    said = [
        record.getMessage() for record in caplog.records if "Metric" in record.getMessage() or "did not" in record.msg
    ]
    assert len(said) == 3
    assert "val_bertscore_f1 improved by 0.100" in said[1]
    assert "did not improve in the last 1 records" in said[2]


@pytest.mark.parametrize("strict", [True, False])
def test_a_key_that_nobody_logs(tmp_path, strict):
    module, stopping = Logs([0.5, 0.6], key="val_bertscore_recall"), BERTScoreEarlyStopping(strict=strict)
    if not strict:
        assert fitted(tmp_path, stopping, [0, 0], module=module).epochs == 2
        return
    with pytest.raises(RuntimeError, match=r"`val_bertscore_f1` which is not available.*`val_bertscore_recall`"):
        fitted(tmp_path, stopping, [0, 0], module=module)
    assert module.epochs == 0


@pytest.mark.parametrize("on_train_epoch_end", [False, True])
def test_a_key_logged_in_training_steps(tmp_path, on_train_epoch_end):
    module = Logs([0.5, 0.6, 0.6, 0.9], key="train_score", hook="training_step")
    stopping = BERTScoreEarlyStopping("train_score", patience=1, check_on_train_epoch_end=on_train_epoch_end)
    assert fitted(tmp_path, stopping, module.values, module=module).epochs == 3


def test_state_goes_through_dictionaries_and_pickles(tmp_path):
    stopping = BERTScoreEarlyStopping(patience=3)
    fitted(tmp_path, stopping, [0.5, 0.4, 0.3])
    lightnings = EarlyStopping("val_bertscore_f1", mode="max", patience=3)
    fitted(tmp_path, lightnings, [0.5, 0.4, 0.3])
    assert stopping.state_dict() == lightnings.state_dict()
    assert stopping.state_key == "BERTScoreEarlyStopping{'monitor': 'val_bertscore_f1', 'mode': 'max'}"
    restored = BERTScoreEarlyStopping(patience=3)
    restored.load_state_dict(stopping.state_dict())
    for copy in (restored, pickle.loads(pickle.dumps(stopping))):
        assert copy.state_dict() == stopping.state_dict()
        assert fitted(tmp_path, copy, [0.5, 0.9]).epochs == 1  # the third without improvement
        assert copy.wait_count == 3


@pytest.mark.parametrize(
    ("values", "first", "epochs"),
    [
        ([0.5, 0.4, 0.3, 0.2, 0.9], 2, 4),
        # No value yet when the resumed run first validates.
        ([0.5, None, None, 0.4, None, None, 0.3, None, None, 0.2], 2, 10),
    ],
)
def test_a_resumed_run_stops_where_an_unbroken_one_does(tmp_path, values, first, epochs):
    unbroken = BERTScoreEarlyStopping(patience=3)
    assert fitted(tmp_path, unbroken, values).epochs == epochs
    run = trainer(tmp_path, [BERTScoreEarlyStopping(patience=3)], max_epochs=first)
    run.fit(Logs(values))
    run.save_checkpoint(tmp_path / "first.ckpt")
    resumed = BERTScoreEarlyStopping(patience=3)
    assert fitted(tmp_path, resumed, values, ckpt_path=tmp_path / "first.ckpt").epochs == epochs - first
    assert resumed.state_dict() == unbroken.state_dict()


@pytest.mark.parametrize("order", [1, -1])
def test_with_the_scores_of_the_callback(pairs, encoder, tmp_path, order):
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    # The fourth and fifth scores equal the second: fresh values without improvement.
    module, record = chooser(pairs, [1, 4, 2, 4, 4, 7], kind=Quality), Record()
    stopping = BERTScoreEarlyStopping(patience=3)
    checkpoint = ModelCheckpoint(tmp_path, "{epoch}", monitor="val_bertscore_f1", mode="max")
    callbacks = [checkpoint, record, BERTScoreCallback(BERTScore(encoder)), stopping][::order]
    run = trainer(tmp_path, callbacks, max_epochs=6, num_sanity_val_steps=2)
    run.fit(module)
    torch.set_num_threads(threads)
    assert len(record.scores) == 5
    assert record.scores[1] == record.scores[3] == record.scores[4] == stopping.best_score.item()
    assert (stopping.stopped_epoch, stopping.wait_count) == (4, 3)
    assert checkpoint.best_model_path.endswith("epoch=1.ckpt")


def test_a_second_validation_run_does_not_count(tmp_path):
    stopping, module = BERTScoreEarlyStopping(patience=1), Logs([0.5, 0.6])
    run = trainer(tmp_path, [stopping])
    run.fit(module)
    run.validate(module, verbose=False)
    assert stopping.wait_count == 0
