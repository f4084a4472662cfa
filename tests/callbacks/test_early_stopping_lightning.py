"""BERTScoreEarlyStopping compared with Lightning's EarlyStopping: equal decisions and log messages.

Every check sees a newly logged value, so the two must not differ.
"""

from __future__ import annotations

import copy
import logging
import math
import pickle

import lightning.pytorch as pl
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from lightning.pytorch.callbacks.early_stopping import EarlyStoppingReason
from torch import nn

from bertscore_tm.callbacks import BERTScoreEarlyStopping
from tests.support.lightning_modules import loader, trainer

NAN, INF = float("nan"), float("inf")
KINDS = (EarlyStopping, BERTScoreEarlyStopping)
# Lightning's defaults that differ from ours.
PLAIN = {"mode": "min", "check_on_train_epoch_end": None}
STEPS = 4


class Script(pl.LightningModule):
    """Logs the next value of each key whenever a hook runs; an epoch has four steps."""

    def __init__(self, values, hook="on_validation_epoch_end"):
        super().__init__()
        self.values, self.hook, self.times = values, hook, 0
        self.layer = nn.Linear(1, 1)

    def play(self, hook):
        if hook != self.hook or self.trainer.sanity_checking:
            return
        for key, values in self.values.items():
            self.log(key, torch.tensor(float(values[min(self.times, len(values) - 1)])))
        self.times += 1

    def training_step(self, batch, batch_idx):
        self.play("training_step")
        return self.layer(batch.float()[:, None]).sum()

    def validation_step(self, batch, batch_idx):
        self.play("validation_step")

    def on_validation_epoch_end(self):
        self.play("on_validation_epoch_end")

    def on_train_epoch_end(self):
        self.play("on_train_epoch_end")

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.01)

    def train_dataloader(self):
        return loader(STEPS, batch_size=1)

    def val_dataloader(self):
        return loader(1)


@pytest.fixture
def said(caplog):
    """Function that returns the log messages of the callback so far."""
    logger = logging.getLogger("lightning.pytorch")
    before, logger.propagate = logger.propagate, True
    name = "lightning.pytorch.callbacks.early_stopping"
    with caplog.at_level(logging.INFO, name):
        yield lambda: [record.getMessage() for record in caplog.records if record.name == name]
    logger.propagate = before


def state(stopping):
    return {name: value.item() if torch.is_tensor(value) else value for name, value in stopping.state_dict().items()}


def outcome(stopping, run):
    return {
        "epochs": run.current_epoch,
        "steps": run.global_step,
        "should_stop": run.should_stop,
        "checked on training": stopping._check_on_train_epoch_end,
        "stopped_epoch": stopping.stopped_epoch,
        "reason": stopping.stopping_reason,
        "message": stopping.stopping_reason_message,
        "state": state(stopping),
    }


def run_of(folder, stopping, values, hook="on_validation_epoch_end", **arguments):
    run = trainer(folder, stopping if isinstance(stopping, list) else [stopping], **({"max_epochs": 8} | arguments))
    run.fit(Script(values if isinstance(values, dict) else {"key": values}, hook))
    return run


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


class Spy:
    """Records the calls of the private methods and their results."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.calls = []

    def note(self, name, given, result):
        self.calls.append((name, given, result))
        return result

    def _should_skip_check(self, trainer):
        given = (trainer.state.fn, trainer.sanity_checking)
        return self.note("skip", given, super()._should_skip_check(trainer))

    def _validate_condition_metric(self, logs):
        return self.note("validate", sorted(logs), super()._validate_condition_metric(logs))

    def _run_early_stopping_check(self, trainer):
        return self.note("run", trainer.current_epoch, super()._run_early_stopping_check(trainer))

    def _evaluate_stopping_criteria(self, current):
        return self.note("evaluate", current.item(), super()._evaluate_stopping_criteria(current))

    def _improvement_message(self, current):
        return self.note("message", current.item(), super()._improvement_message(current))

    def _log_info(self, trainer, message, log_rank_zero_only):
        return self.note("log", (message, log_rank_zero_only), super()._log_info(trainer, message, log_rank_zero_only))


@pytest.mark.parametrize("options", [{}, {"val_check_interval": 0.5}, {"fast_dev_run": 1}], ids=str)
def test_private_methods_are_called_as_in_lightning(tmp_path, options):
    calls = []
    for kind in KINDS:
        stopping = type("Spying", (Spy, kind), {})("key", **PLAIN, verbose=True, patience=2)
        run_of(tmp_path, stopping, [5, 4, 6, 6], num_sanity_val_steps=1, **options)
        calls.append(stopping.calls)
    lightnings, ours = calls
    assert ours == lightnings
    seen = {name for name, *_ in ours}
    assert seen == ({"skip", "run"} if options.get("fast_dev_run") else {*seen, "evaluate", "message", "log"})


class WarmUp:
    def _should_skip_check(self, trainer):
        return trainer.current_epoch < 2 or super()._should_skip_check(trainer)


class Silenced:
    def _validate_condition_metric(self, logs):
        return logs["key"] < 7 and super()._validate_condition_metric(logs)


class OwnRule:
    def _evaluate_stopping_criteria(self, current):
        return (True, f"it is {current:.0f}") if current == 6 else super()._evaluate_stopping_criteria(current)


class OwnMessage:
    def _improvement_message(self, current):
        return f"hurray, {current:.0f}"


class AtTheEnd:
    """As Lightning's guide does it."""

    def on_validation_end(self, trainer, pl_module):
        pass

    def on_train_end(self, trainer, pl_module):
        self._run_early_stopping_check(trainer)


class AtTheEpochsEnd(AtTheEnd):
    def on_train_epoch_end(self, trainer, pl_module):
        self._run_early_stopping_check(trainer)

    def on_train_end(self, trainer, pl_module):
        pass


@pytest.mark.parametrize(
    ("change", "epochs", "waited"),
    [(WarmUp, 8, 2), (Silenced, 6, 2), (OwnRule, 5, 1), (OwnMessage, 4, 2), (AtTheEnd, 8, 0), (AtTheEpochsEnd, 4, 2)],
)
def test_subclasses_behave_as_in_lightning(tmp_path, said, change, epochs, waited):
    found = []
    for kind in KINDS:
        arguments = PLAIN | {"check_on_train_epoch_end": False, "verbose": True, "patience": 2}
        stopping = type("Changed", (change, kind), {})("key", **arguments)
        before = len(said())
        run = run_of(tmp_path, stopping, [5, 4, 7, 8, 6, 5, 9, 9] if change is not OwnRule else [5, 4, 3, 7, 6])
        found.append(outcome(stopping, run) | {"said": said()[before:]})
    lightnings, ours = found
    assert ours == lightnings
    assert (ours["epochs"], ours["state"]["wait_count"]) == (epochs, waited)


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


@pytest.mark.parametrize("weights_only", [True, False])
def test_a_checkpoint_resumes(tmp_path, weights_only):
    found = []
    for kind in KINDS:
        folder = tmp_path / kind.__name__
        values = [5, 4, 4.5, 4.5, 4.5, 1]
        first = kind("key", **PLAIN)
        run_of(tmp_path, [first, ModelCheckpoint(folder, save_last=True)], values, max_epochs=3)
        rest, module = kind("key", **PLAIN), Script({"key": values})
        module.times = 3
        run = trainer(tmp_path, [rest], max_epochs=8)
        run.fit(module, ckpt_path=folder / "last.ckpt", weights_only=weights_only)
        found.append((state(first), outcome(rest, run)))
    lightnings, ours = found
    assert ours == lightnings
    assert ours[1]["stopped_epoch"] == 4


COPIES = {
    "pickle": lambda one: pickle.loads(pickle.dumps(one)),
    "cloudpickle": lambda one: pickle.loads(pytest.importorskip("cloudpickle").dumps(one)),
    "deepcopy": copy.deepcopy,
    "copy": copy.copy,
    "state": lambda one: loaded(one, one.state_dict()),
    # As versions wrote it that did not say why they stopped.
    "old state": lambda one: loaded(one, {k: v for k, v in one.state_dict().items() if "reason" not in k}),
}


def loaded(stopping, state_dict):
    new = type(stopping)("key", **PLAIN)
    new.load_state_dict(copy.deepcopy(state_dict))
    return new


@pytest.mark.parametrize("name", COPIES)
def test_copies_continue_as_in_lightning(tmp_path, name):
    found = []
    for kind in KINDS:
        new = COPIES[name](kind("key", **PLAIN))
        assert state(new) == state(kind("key", **PLAIN))
        first = kind("key", **PLAIN)
        run_of(tmp_path, first, [5, 4, 6, 7], max_epochs=4)
        copied = COPIES[name](first)
        assert state(copied) == state(first)
        run = run_of(tmp_path, copied, [8, 1])
        assert (first.wait_count, copied.wait_count) == (2, 3)
        found.append(outcome(copied, run))
    lightnings, ours = found
    assert ours == lightnings
    assert ours["stopped_epoch"] == 0
    assert ours["epochs"] == 1


@pytest.mark.parametrize("name", ["pickle", "cloudpickle", "deepcopy"])
def test_attributes_survive_pickling(name):
    stopping = BERTScoreEarlyStopping("key")
    assert vars(COPIES[name](stopping)) == vars(stopping)


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
