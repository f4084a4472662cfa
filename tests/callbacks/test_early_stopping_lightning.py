"""BERTScoreEarlyStopping compared with Lightning's EarlyStopping: equal decisions, messages and checkpoints.

Every check sees a newly logged value, so the two must not differ.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from lightning.pytorch.callbacks import EarlyStopping
from lightning.pytorch.callbacks.early_stopping import EarlyStoppingReason

from bertscore_tm.callbacks import BERTScoreEarlyStopping
from tests.support.lightning_modules import Logs, loader, trainer

NAN, INF = float("nan"), float("inf")
KINDS = (EarlyStopping, BERTScoreEarlyStopping)
# Lightning's defaults that differ from ours.
PLAIN = {"mode": "min", "patience": 3, "check_on_train_epoch_end": None}


class Script(Logs):
    """Logs the next value of each key whenever the hook runs; an epoch has four steps."""

    times = 0

    def log_value(self, hook):
        if hook != self.hook or self.trainer.sanity_checking:
            return
        for key, values in self.values.items():
            self.log(key, torch.tensor(float(values[min(self.times, len(values) - 1)])))
        self.times += 1

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
    run.fit(Script(values if isinstance(values, dict) else {"key": values}, hook=hook))
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
    assert ours == lightnings


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
