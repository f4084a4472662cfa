"""BERTScoreEarlyStopping compared with Lightning's EarlyStopping: equal decisions and log messages.

Every check sees a newly logged value, so the two must not differ.
"""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from lightning.pytorch.callbacks.early_stopping import EarlyStoppingReason

from tests.support.early_stopping_runs import KINDS, PLAIN, Script, outcome, run_of, state
from tests.support.lightning_modules import trainer

NAN, INF = float("nan"), float("inf")


SITUATIONS = {
    # name: (values, arguments of the callback, hook that logs, arguments of the trainer, reason)
    "steady": ([9, 8, 7, 6, 5, 4, 3, 2], {}, "on_validation_epoch_end", {}, "NOT_STOPPED"),
    "plateau": ([5, 4, 4, 4, 4, 1], {}, "on_validation_epoch_end", {}, "PATIENCE_EXHAUSTED"),
    "no patience": ([5, 4, 6, 1], {"patience": 0}, "on_validation_epoch_end", {}, "PATIENCE_EXHAUSTED"),
    "one": ([5, 6, 4, 4, 1], {"patience": 1}, "on_validation_epoch_end", {}, "PATIENCE_EXHAUSTED"),
    "ups and downs": ([5, 6, 6, 4, 5, 5, 5, 1], {}, "on_validation_epoch_end", {}, "PATIENCE_EXHAUSTED"),
    "upwards": ([5, 6, 6, 6, 6, 9], {"mode": "max"}, "on_validation_epoch_end", {}, "PATIENCE_EXHAUSTED"),
    "small steps down": (
        [5.0, 4.8, 4.6, 4.4, 4.2, 4.0],
        {"min_delta": 0.5, "patience": 2},
        "on_validation_epoch_end",
        {},
        "PATIENCE_EXHAUSTED",
    ),
    "small steps up": (
        [4.0, 4.2, 4.4, 4.6, 4.8],
        {"min_delta": 0.5, "patience": 2, "mode": "max"},
        "on_validation_epoch_end",
        {},
        "PATIENCE_EXHAUSTED",
    ),
    "larger steps up": (
        [4.0, 4.7, 5.4, 6.1],
        {"min_delta": 0.5, "patience": 1, "mode": "max"},
        "on_validation_epoch_end",
        {"max_epochs": 4},
        "NOT_STOPPED",
    ),
    "threshold down": ([5, 3, 2], {"stopping_threshold": 3.5}, "validation_step", {}, "STOPPING_THRESHOLD"),
    "threshold up": (
        [5, 7, 9],
        {"stopping_threshold": 6.5, "mode": "max"},
        "validation_step",
        {},
        "STOPPING_THRESHOLD",
    ),
    "diverging up": ([5, 4, 30, 1], {"divergence_threshold": 20.0}, "validation_step", {}, "DIVERGENCE_THRESHOLD"),
    "diverging down": (
        [5, 6, 1, 9],
        {"divergence_threshold": 2.0, "mode": "max"},
        "validation_step",
        {},
        "DIVERGENCE_THRESHOLD",
    ),
    "nan": ([5, NAN, 4], {}, "on_validation_epoch_end", {}, "NON_FINITE_METRIC"),
    "infinite": ([5, 4, -INF], {}, "on_validation_epoch_end", {}, "NON_FINITE_METRIC"),
    "nan first": ([NAN, 4], {}, "on_validation_epoch_end", {}, "NON_FINITE_METRIC"),
    "nan is only no improvement": (
        [5, NAN, NAN, 4, NAN, NAN, NAN, 1],
        {"check_finite": False},
        "on_validation_epoch_end",
        {},
        "PATIENCE_EXHAUSTED",
    ),
    "infinity cannot be beaten": (
        [5, -INF, 4, 3],
        {"check_finite": False, "patience": 2},
        "on_validation_epoch_end",
        {},
        "PATIENCE_EXHAUSTED",
    ),
    "training epochs": ([5, 4, 4, 4, 4], {"patience": 2}, "on_train_epoch_end", {}, "PATIENCE_EXHAUSTED"),
    "training steps": ([5, 4, 3, 4, 3, 4, 3, 5] * 4, {"patience": 2}, "training_step", {}, "PATIENCE_EXHAUSTED"),
    "training steps, after validation": (
        [4] * 4 + [5, 5, 6, 6] * 4,
        {"patience": 1, "check_on_train_epoch_end": False},
        "training_step",
        {},
        "PATIENCE_EXHAUSTED",
    ),
    "without validation": (
        [5, 6, 7, 8],
        {"patience": 2},
        "on_train_epoch_end",
        {"limit_val_batches": 0},
        "PATIENCE_EXHAUSTED",
    ),
    "after validation": (
        [5, 6, 7, 8],
        {"patience": 2, "check_on_train_epoch_end": False},
        "on_validation_epoch_end",
        {},
        "PATIENCE_EXHAUSTED",
    ),
    "twice an epoch": (
        [5, 6, 7, 8],
        {"patience": 2},
        "on_validation_epoch_end",
        {"val_check_interval": 0.5},
        "PATIENCE_EXHAUSTED",
    ),
    "after each batch": (
        [5, 4, 4, 4, 4, 4, 1],
        {"patience": 4},
        "on_validation_epoch_end",
        {"val_check_interval": 1},
        "PATIENCE_EXHAUSTED",
    ),
    "across epochs": (
        [5, 4, 4, 4, 1],
        {"patience": 2},
        "on_validation_epoch_end",
        {"val_check_interval": 3, "check_val_every_n_epoch": None},
        "PATIENCE_EXHAUSTED",
    ),
    "every second epoch": (
        [5, 4, 4, 4],
        {"patience": 1},
        "on_validation_epoch_end",
        {"check_val_every_n_epoch": 2},
        "PATIENCE_EXHAUSTED",
    ),
    "at least five epochs": (
        [5, 6, 7, 1, 2, 3, 4],
        {"patience": 2},
        "on_validation_epoch_end",
        {"min_epochs": 5},
        "PATIENCE_EXHAUSTED",
    ),
    "at least fifteen steps": (
        [5, 6, 7, 8, 9],
        {"patience": 1},
        "on_validation_epoch_end",
        {"min_steps": 15},
        "PATIENCE_EXHAUSTED",
    ),
    "sanity check": ([5, 6, 7], {"patience": 2}, "validation_step", {"num_sanity_val_steps": 1}, "PATIENCE_EXHAUSTED"),
    "trial run": ([5, NAN], {}, "on_validation_epoch_end", {"fast_dev_run": True}, "NOT_STOPPED"),
    "lenient": ({"other": [5]}, {"strict": False}, "on_validation_epoch_end", {"max_epochs": 2}, "NOT_STOPPED"),
}


@pytest.mark.parametrize("name", SITUATIONS)
def test_run_equals_that_of_lightning(tmp_path, said, name):
    values, arguments, hook, options, reason = SITUATIONS[name]
    found = []
    for kind in KINDS:
        stopping = kind("key", **PLAIN | {"verbose": True} | arguments)
        before = len(said())
        run = run_of(tmp_path, stopping, values, hook, **options)
        found.append(outcome(stopping, run) | {"said": said()[before:]})
    lightnings, ours = found
    assert ours == lightnings
    assert ours["reason"] is EarlyStoppingReason[reason]
    assert (ours["message"] is None) == (reason == "NOT_STOPPED")


def test_every_reason_is_compared():
    assert {reason for *_, reason in SITUATIONS.values()} == {reason.name for reason in EarlyStoppingReason}


finite = st.floats(-4, 4, width=16)


@given(
    values=st.lists(finite | st.sampled_from([NAN, INF, -INF]), max_size=12),
    mode=st.sampled_from(["min", "max"]),
    patience=st.integers(0, 4),
    min_delta=st.sampled_from([0.0, 0.5, -0.5]),
    check_finite=st.booleans(),
    stopping_threshold=st.none() | finite,
    divergence_threshold=st.none() | finite,
)
def test_criteria_without_a_trainer(values, **arguments):
    """As a subclass may call them, with a value and without a trainer."""
    callbacks = [kind("key", **arguments) for kind in KINDS]
    for value in values:
        lightnings, ours = (callback._evaluate_stopping_criteria(torch.tensor(value)) for callback in callbacks)
        assert ours == lightnings
        lightnings, ours = (state(callback) for callback in callbacks)
        assert ours == lightnings


def test_a_key_that_is_missing(tmp_path):
    messages = []
    for kind in KINDS:
        with pytest.raises(RuntimeError) as error:
            run_of(tmp_path, kind("key", **PLAIN), {"other": [1], "another": [2]})
        messages.append(str(error.value))
    lightnings, ours = messages
    assert ours.startswith(lightnings)
    assert "add BERTScoreCallback" in ours
    for kind in KINDS:
        with pytest.warns(RuntimeWarning, match="not available.*`other`"):
            run_of(tmp_path, kind("key", **PLAIN, strict=False, verbose=True), {"other": [1]}, max_epochs=1)


@pytest.mark.parametrize("shape", [(), (1,), (1, 1, 1)])
def test_manual_check(tmp_path, shape):
    """With values that no module has logged, of any shape with one element."""
    found = []
    for kind in KINDS:
        stopping, run = kind("key", mode="max", patience=2), trainer(tmp_path)
        for value in (0.5, 0.6, 0.6, 0.6, 0.9):
            run.callback_metrics["key"] = torch.full(shape, value)
            stopping._run_early_stopping_check(run)
            if run.should_stop:
                break
        assert stopping.best_score.shape == ()
        found.append((state(stopping), run.callback_metrics["key"].item()))
    lightnings, ours = found
    assert ours == lightnings
    assert ours[0]["wait_count"] == 2


TWO_KEYS = {"key": [5, 4, 3, 4, 4, 4], "other": [1, 1, 1, 1, 1, 1, 1, 1]}


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize("patience", [2, 4])
@pytest.mark.parametrize("on_training", [True, False])
def test_several_at_once(tmp_path, order, patience, on_training):
    """The first callback that stops ends training, and each has its state under its own key."""
    found = []
    for kind in KINDS:
        each = [
            kind("key", mode="min", patience=2, check_on_train_epoch_end=on_training),
            kind("other", mode="min", patience=patience, check_on_train_epoch_end=on_training),
            kind("key", mode="max", patience=7, check_on_train_epoch_end=on_training),
        ]
        run = run_of(tmp_path, each[::order], TWO_KEYS, "on_train_epoch_end" if on_training else "validation_step")
        run.save_checkpoint(tmp_path / "last.ckpt")
        assert run.early_stopping_callbacks == each[::order]
        kept = torch.load(tmp_path / "last.ckpt", weights_only=True)["callbacks"]
        keys = [f"{kind.__name__}{{'monitor': '{one.monitor}', 'mode': '{one.mode}'}}" for one in each]
        assert [one.state_key for one in each] == keys
        assert [kept[key] for key in keys] == [one.state_dict() for one in each]
        others = [kind(one.monitor, mode=one.mode, patience=one.patience) for one in each]
        trainer(tmp_path, others, max_epochs=run.current_epoch).fit(Script(TWO_KEYS), ckpt_path=tmp_path / "last.ckpt")
        assert [state(one) for one in others] == [state(one) for one in each]
        found.append([outcome(one, run) for one in each])
    lightnings, ours = found
    assert ours == lightnings
    assert ours[0]["epochs"] == (3 if patience == 2 else 5)


@pytest.mark.parametrize(
    ("options", "on_training"),
    [
        ({}, True),
        ({"val_check_interval": 0.5}, False),
        ({"val_check_interval": 2}, False),
        ({"check_val_every_n_epoch": 2}, False),
        ({"limit_val_batches": 0}, True),
    ],
    ids=str,
)
def test_automatic_choice_equals_that_of_lightning(tmp_path, options, on_training):
    for kind in KINDS:
        stopping = kind("key", **PLAIN)
        run_of(tmp_path, stopping, [5, 4], "training_step", max_epochs=2, **options)
        assert stopping._check_on_train_epoch_end is on_training
        assert math.isfinite(stopping.best_score)
