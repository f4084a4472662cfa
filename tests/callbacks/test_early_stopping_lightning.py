"""BERTScoreEarlyStopping compared with Lightning's EarlyStopping: equal decisions, messages, copies and subclasses.

Every check sees a newly logged value, so the two must not differ.
"""

from __future__ import annotations

import copy
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
PLAIN = {"mode": "min", "patience": 3, "check_on_train_epoch_end": None}


class Script(pl.LightningModule):
    """Logs the next value of each key whenever a hook runs; an epoch has four steps."""

    def __init__(self, values, hook="on_validation_epoch_end", times=0):
        super().__init__()
        self.values, self.hook, self.times = values, hook, times
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
        return loader(4, batch_size=1)

    def val_dataloader(self):
        return loader(1)


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


def run_of(folder, callbacks, values, hook="on_validation_epoch_end", **arguments):
    run = trainer(folder, callbacks, **({"max_epochs": 8} | arguments))
    run.fit(Script(values if isinstance(values, dict) else {"key": values}, hook))
    return run


STEP, TRAINED, VALIDATED = "training_step", "on_train_epoch_end", "on_validation_epoch_end"
AFTER = {"check_on_train_epoch_end": False}
# name: (values, arguments of the callback, hook that logs, arguments of the trainer, reason). Criteria without their
# timing are compared by `test_criteria_without_a_trainer`.
SITUATIONS = {
    "plateau": ([5, 4, 4, 4, 4, 1], {}, VALIDATED, {}, "PATIENCE_EXHAUSTED"),
    "threshold": ([5, 3, 2], {"stopping_threshold": 3.5}, "validation_step", {}, "STOPPING_THRESHOLD"),
    "diverging": ([5, 4, 30, 1], {"divergence_threshold": 20.0}, "validation_step", {}, "DIVERGENCE_THRESHOLD"),
    "nan": ([5, NAN, 4], {}, VALIDATED, {}, "NON_FINITE_METRIC"),
    "training epochs": ([5, 4, 4, 4, 4], {"patience": 2}, TRAINED, {}, "PATIENCE_EXHAUSTED"),
    "training steps": ([5, 4, 3, 4, 3, 4, 3, 5] * 4, {"patience": 2}, STEP, {}, "PATIENCE_EXHAUSTED"),
    "steps, after validation": ([4] * 4 + [5, 5, 6, 6] * 4, {"patience": 1} | AFTER, STEP, {}, "PATIENCE_EXHAUSTED"),
    "no validation": ([5, 6, 7, 8], {"patience": 2}, TRAINED, {"limit_val_batches": 0}, "PATIENCE_EXHAUSTED"),
    "after validation": ([5, 6, 7, 8], {"patience": 2} | AFTER, VALIDATED, {}, "PATIENCE_EXHAUSTED"),
    "after each batch": ([5, 4, 4, 4, 1], {"patience": 2}, VALIDATED, {"val_check_interval": 1}, "PATIENCE_EXHAUSTED"),
    "across epochs": (
        [5, 4, 4, 4, 1],
        {"patience": 2},
        VALIDATED,
        {"val_check_interval": 3, "check_val_every_n_epoch": None},
        "PATIENCE_EXHAUSTED",
    ),
    "every second": ([5, 4, 4, 4], {"patience": 1}, VALIDATED, {"check_val_every_n_epoch": 2}, "PATIENCE_EXHAUSTED"),
    "at least": ([5, 6, 7, 1, 2, 3, 4], {"patience": 2}, VALIDATED, {"min_epochs": 5}, "PATIENCE_EXHAUSTED"),
    "sanity": ([5, 6, 7], {"patience": 2}, "validation_step", {"num_sanity_val_steps": 1}, "PATIENCE_EXHAUSTED"),
    "trial run": ([5, NAN], {}, VALIDATED, {"fast_dev_run": True}, "NOT_STOPPED"),
    "lenient": ({"other": [5]}, {"strict": False}, VALIDATED, {"max_epochs": 2}, "NOT_STOPPED"),
}


@pytest.mark.parametrize("name", SITUATIONS)
def test_run_equals_that_of_lightning(tmp_path, said, name):
    values, arguments, hook, options, reason = SITUATIONS[name]
    found = []
    for kind in KINDS:
        stopping = kind("key", **PLAIN | {"verbose": True} | arguments)
        before = len(said())
        run = run_of(tmp_path, [stopping], values, hook, **options)
        found.append(outcome(stopping, run) | {"said": said()[before:]})
    lightnings, ours = found
    assert ours == lightnings
    assert ours["reason"] is EarlyStoppingReason[reason]
    assert (ours["message"] is None) == (reason == "NOT_STOPPED")


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
            run_of(tmp_path, [kind("key", **PLAIN)], {"other": [1], "another": [2]})
        messages.append(str(error.value))
        with pytest.warns(RuntimeWarning, match="not available.*`other`"):
            run_of(tmp_path, [kind("key", **PLAIN, strict=False, verbose=True)], {"other": [1]}, max_epochs=1)
    lightnings, ours = messages
    assert ours.startswith(lightnings)
    assert "add BERTScoreCallback, which logs 'val_bertscore_f1', or log 'key' in the" in ours


@pytest.mark.parametrize("shape", [(), (1, 1, 1)])
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


@pytest.mark.parametrize(("order", "patience", "on_training"), [(1, 2, True), (-1, 4, False)])
def test_several_at_once(tmp_path, order, patience, on_training):
    """The first callback that stops ends training, and each has its state under its own key."""
    found = []
    for kind in KINDS:
        each = [
            kind("key", mode="min", patience=2, check_on_train_epoch_end=on_training),
            kind("other", mode="min", patience=patience, check_on_train_epoch_end=on_training),
            kind("key", mode="max", patience=7, check_on_train_epoch_end=on_training),
        ]
        run = run_of(tmp_path, each[::order], TWO_KEYS, TRAINED if on_training else "validation_step")
        run.save_checkpoint(tmp_path / "last.ckpt")
        assert run.early_stopping_callbacks == each[::order]
        kept = torch.load(tmp_path / "last.ckpt", weights_only=True)["callbacks"]
        keys = [f"{kind.__name__}{{'monitor': '{one.monitor}', 'mode': '{one.mode}'}}" for one in each]
        assert [kept[key] for key in keys] == [one.state_dict() for one in each]
        others = [kind(one.monitor, mode=one.mode, patience=one.patience) for one in each]
        trainer(tmp_path, others, max_epochs=run.current_epoch).fit(Script(TWO_KEYS), ckpt_path=tmp_path / "last.ckpt")
        assert [state(one) for one in others] == [state(one) for one in each]
        found.append([outcome(one, run) for one in each])
    lightnings, ours = found
    assert ours == lightnings
    assert ours[0]["epochs"] == (3 if patience == 2 else 5)


# Copies and subclasses


@pytest.mark.parametrize("weights_only", [True, False])
def test_a_checkpoint_resumes(tmp_path, weights_only):
    found, values = [], [5, 4, 4.5, 4.5, 4.5, 1]
    for kind in KINDS:
        folder = tmp_path / kind.__name__
        first, rest = kind("key", **PLAIN), kind("key", **PLAIN)
        run_of(tmp_path, [first, ModelCheckpoint(folder, save_last=True)], values, max_epochs=3)
        run = trainer(tmp_path, [rest], max_epochs=8)
        run.fit(Script({"key": values}, times=3), ckpt_path=folder / "last.ckpt", weights_only=weights_only)
        found.append((state(first), outcome(rest, run)))
    lightnings, ours = found
    assert ours == lightnings
    assert ours[1]["stopped_epoch"] == 4


def loaded(stopping, state_dict):
    new = type(stopping)("key", **PLAIN)
    new.load_state_dict(copy.deepcopy(state_dict))
    return new


COPIES = {
    "pickle": lambda one: pickle.loads(pickle.dumps(one)),
    "deepcopy": copy.deepcopy,
    # As versions wrote it that did not say why they stopped.
    "old state": lambda one: loaded(one, {k: v for k, v in one.state_dict().items() if "reason" not in k}),
}


@pytest.mark.parametrize("name", COPIES)
def test_copies_continue_as_in_lightning(tmp_path, name):
    found = []
    for kind in KINDS:
        first = kind("key", **PLAIN)
        assert name == "old state" or vars(COPIES[name](first)) == vars(first)
        run_of(tmp_path, [first], [5, 4, 6, 7], max_epochs=4)
        copied = COPIES[name](first)
        assert state(copied) == state(first)
        run = run_of(tmp_path, [copied], [8, 1])
        assert (first.wait_count, copied.wait_count) == (2, 3)
        found.append(outcome(copied, run))
    lightnings, ours = found
    assert ours == lightnings
    assert (ours["stopped_epoch"], ours["epochs"]) == (0, 1)


class WarmUp:
    def _should_skip_check(self, trainer):
        return trainer.current_epoch < 2 or super()._should_skip_check(trainer)


class Silenced:
    def _validate_condition_metric(self, logs):
        return logs["key"] < 7 and super()._validate_condition_metric(logs)


class OwnRule:
    def _evaluate_stopping_criteria(self, current):
        return (True, f"it is {current:.0f}") if current == 8 else super()._evaluate_stopping_criteria(current)


class AtTheEpochsEnd:
    """As Lightning's guide does it."""

    def on_validation_end(self, trainer, pl_module):
        pass

    def on_train_epoch_end(self, trainer, pl_module):
        self._run_early_stopping_check(trainer)


@pytest.mark.parametrize(
    ("change", "epochs", "waited"), [(WarmUp, 8, 2), (Silenced, 6, 2), (OwnRule, 4, 1), (AtTheEpochsEnd, 4, 2)]
)
def test_subclasses_behave_as_in_lightning(tmp_path, said, change, epochs, waited):
    found = []
    for kind in KINDS:
        stopping = type("Changed", (change, kind), {})("key", **PLAIN | AFTER | {"verbose": True, "patience": 2})
        before = len(said())
        run = run_of(tmp_path, [stopping], [5, 4, 7, 8, 6, 5, 9, 9])
        found.append(outcome(stopping, run) | {"said": said()[before:]})
    lightnings, ours = found
    assert ours == lightnings
    assert (ours["epochs"], ours["state"]["wait_count"]) == (epochs, waited)
