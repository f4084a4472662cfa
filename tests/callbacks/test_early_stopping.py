"""BERTScoreEarlyStopping: stopping rules, counted scores and differences to Lightning's callback."""

from __future__ import annotations

import copy
import inspect
import warnings

import pytest
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from lightning.pytorch.callbacks.early_stopping import EarlyStoppingReason

from bertscore_tm import BERTScore
from bertscore_tm.callbacks import BERTScoreCallback, BERTScoreEarlyStopping
from tests.support.lightning_modules import Logs, Quality, Record, chooser, trainer

# Runs of a few epochs need a small patience.
pytestmark = pytest.mark.filterwarnings("ignore:patience=[12] tends to stop too early")

NAN = float("nan")


def fitted(folder, stopping, values, *others, ckpt_path=None, module=None, **arguments):
    module = module or Logs(values)
    run = trainer(folder, [stopping, *others], **({"max_epochs": len(values)} | arguments))
    run.fit(module, ckpt_path=ckpt_path)
    return module


@pytest.mark.parametrize(
    ("values", "arguments", "epochs", "waited", "on_train_epoch_end"),
    [
        ([0.5, 0.4, 0.3, 0.6, 0.5, 0.5, 0.5, 0.4, 0.5, 0.9], {}, 9, 5, False),
        ([0.5, 0.4, None, None, 0.3, 0.9], {"patience": 2}, 5, 2, True),
        ([0.5, 0.4, None, 0.4, 0.9], {"patience": 2}, 4, 2, False),
        ([None, None, 0.5, None, 0.4], {"patience": 1, "strict": False}, 5, 1, True),
    ],
)
def test_when_it_stops(tmp_path, values, arguments, epochs, waited, on_train_epoch_end):
    stopping = BERTScoreEarlyStopping(check_on_train_epoch_end=on_train_epoch_end, **arguments)
    module = fitted(tmp_path, stopping, values)
    assert (module.epochs, stopping.wait_count) == (epochs, waited)
    assert stopping.stopping_reason is EarlyStoppingReason.PATIENCE_EXHAUSTED
    assert stopping.stopped_epoch == epochs - 1


def test_old_values_burn_patience_in_lightning_and_not_here(tmp_path):
    values = [0.5, None, None, 0.6, None, None, 0.7, None, None, 0.8]
    checkpoint = ModelCheckpoint(tmp_path, monitor="val_bertscore_f1", mode="max")
    lightnings = EarlyStopping("val_bertscore_f1", mode="max", patience=2)
    assert fitted(tmp_path, lightnings, values, checkpoint).epochs == 3
    stopping = BERTScoreEarlyStopping(patience=2)
    assert fitted(tmp_path, stopping, values, checkpoint).epochs == 10
    assert stopping.best_score.item() == pytest.approx(0.8)


@pytest.mark.parametrize(
    ("hook", "lightnings", "ours"),
    [
        ("on_train_epoch_end", (4, 5), (6, 1)),  # the third and fourth epochs log nothing
        ("on_train_end", (6, 1), (6, 0)),
    ],
)
def test_old_values_do_not_count_where_a_subclass_checks_either(tmp_path, hook, lightnings, ours):
    """The check is moved, as in Lightning's guide, and made twice."""

    def check(self, trainer, pl_module):
        self._run_early_stopping_check(trainer)
        self._run_early_stopping_check(trainer)

    for kind, expected in ((EarlyStopping, lightnings), (BERTScoreEarlyStopping, ours)):
        moved = type("Moved", (kind,), {"on_validation_end": lambda self, trainer, pl_module: None, hook: check})
        stopping = moved("val_bertscore_f1", mode="max", patience=4, check_on_train_epoch_end=False)
        module = fitted(tmp_path, stopping, [0.5, 0.6, None, None, None, 0.5])
        assert (module.epochs, stopping.wait_count) == expected


def test_every_argument_has_lightnings_name_and_default():
    def settings(callback):
        return {name: value for name, value in vars(callback).items() if name != "_last_checked"}

    parameters = inspect.signature(EarlyStopping).parameters.items()
    others = {"min_delta": 0.25, "patience": 7, "stopping_threshold": 0.9, "divergence_threshold": 0.1}
    flags = {name: not parameter.default for name, parameter in parameters if isinstance(parameter.default, bool)}
    arguments = {"monitor": "x", "mode": "max", "check_on_train_epoch_end": True, **others, **flags}
    assert settings(BERTScoreEarlyStopping(**arguments)) == settings(EarlyStopping(**arguments))
    defaults = EarlyStopping("val_bertscore_f1", mode="max", patience=5, check_on_train_epoch_end=False)
    assert settings(BERTScoreEarlyStopping()) == settings(defaults)


@pytest.mark.parametrize("patience", [1, 2])
@pytest.mark.parametrize("monitor", ["val_bertscore_f1", "val_bertscore_f1_news"])
def test_a_small_patience_for_bertscore_warns_once(monitor, patience):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        copy.deepcopy(BERTScoreEarlyStopping(monitor, patience=patience))
    (warning,) = caught
    assert (warning.category, warning.filename) == (UserWarning, __file__)
    assert str(warning.message) == (
        f"patience={patience} tends to stop too early: the F1 of generated texts often falls for a few validations "
        f"before it rises. Use patience=5, and keep the best model with "
        f"ModelCheckpoint(monitor={monitor!r}, mode='max')"
    )


@pytest.mark.filterwarnings("error")
def test_a_larger_patience_or_another_key_does_not_warn():
    for arguments in ({}, {"patience": 3}, {"monitor": "val_loss", "mode": "min", "patience": 1}):
        BERTScoreEarlyStopping(**arguments)


@pytest.mark.parametrize(
    ("values", "first", "epochs"),
    [
        ([0.5, 0.4, 0.3, 0.2, 0.9], 2, 4),
        ([NAN, None, 0.5, 0.4, 0.3, 0.2, 0.9], 1, 6),
        # No value yet when the resumed run first validates.
        ([0.5, None, None, 0.4, None, None, 0.3, None, None, 0.2], 2, 10),
    ],
)
def test_a_resumed_run_stops_where_an_unbroken_one_does(tmp_path, values, first, epochs):
    unbroken = BERTScoreEarlyStopping(patience=3, check_finite=False)
    assert fitted(tmp_path, unbroken, values).epochs == epochs
    run = trainer(tmp_path, [BERTScoreEarlyStopping(patience=3, check_finite=False)], max_epochs=first)
    run.fit(Logs(values))
    run.save_checkpoint(tmp_path / "first.ckpt")
    resumed = BERTScoreEarlyStopping(patience=3, check_finite=False)
    assert fitted(tmp_path, resumed, values, ckpt_path=tmp_path / "first.ckpt").epochs == epochs - first
    assert resumed.state_dict() == unbroken.state_dict()


class NoValidation(Logs):
    validation_step = None


@pytest.mark.parametrize("kind", [Logs, NoValidation])
@pytest.mark.parametrize(("check", "strict"), [(False, True), (False, False), (True, True)])
def test_missing_validation_is_an_error(tmp_path, kind, check, strict):
    stopping = BERTScoreEarlyStopping("score", check_on_train_epoch_end=check, strict=strict, patience=1)
    module = kind([0.5, 0.5, 0.5], key="score", hook="training_step")
    run = trainer(tmp_path, [stopping], max_epochs=3, limit_val_batches=0 if kind is Logs else 1.0)
    if check is False and strict:
        said = r"'score' is checked after validation, but this run has no validation.*=True"
        with pytest.raises(MisconfigurationException, match=said):
            run.fit(module)
        assert module.epochs == 0
    else:
        # Where a missing key is allowed, so is a missing check.
        run.fit(module)
        assert module.epochs == (3 if check is False else 2)


def test_runs_without_training_need_no_validation_of_a_training(tmp_path):
    trainer(tmp_path, [BERTScoreEarlyStopping()]).validate(Logs([0.5]), verbose=False)


@pytest.mark.parametrize("order", [1, -1])
def test_with_the_scores_of_the_callback(pairs, encoder, tmp_path, order):
    # The fourth and fifth scores equal the second: fresh values without improvement.
    module, record = chooser(pairs, [1, 4, 2, 4, 4, 7], kind=Quality), Record()
    stopping = BERTScoreEarlyStopping(patience=3)
    checkpoint = ModelCheckpoint(tmp_path, "{epoch}", monitor="val_bertscore_f1", mode="max")
    callbacks = [checkpoint, record, BERTScoreCallback(BERTScore(encoder)), stopping][::order]
    run = trainer(tmp_path, callbacks, max_epochs=6, num_sanity_val_steps=2)
    run.fit(module)
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
