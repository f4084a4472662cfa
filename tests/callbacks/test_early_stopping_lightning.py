"""BERTScoreEarlyStopping compared with Lightning's EarlyStopping: equal decisions, messages and checkpoints.

Every check sees a newly logged value, so the two must not differ.
"""

from __future__ import annotations

import pytest
import torch
from lightning.pytorch.callbacks import EarlyStopping
from lightning.pytorch.callbacks.early_stopping import EarlyStoppingReason

from bertscore_tm.callbacks import BERTScoreEarlyStopping
from tests.support.lightning_modules import Logs, loader, trainer

NAN = float("nan")
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
# name: (values, arguments of the callback, hook that logs, arguments of the trainer, reason). The
# criteria are Lightning's own.
SITUATIONS = {
    "plateau": ([5, 4, 4, 4, 4, 1], {}, VALIDATED, {}, "PATIENCE_EXHAUSTED"),
    "training steps": ([5, 4, 3, 4, 3, 4, 3, 5] * 4, {"patience": 2}, STEP, {}, "PATIENCE_EXHAUSTED"),
    "steps, after validation": ([4] * 4 + [5, 5, 6, 6] * 4, {"patience": 1} | AFTER, STEP, {}, "PATIENCE_EXHAUSTED"),
    "no validation": ([5, 6, 7, 8], {"patience": 2}, TRAINED, {"limit_val_batches": 0}, "PATIENCE_EXHAUSTED"),
    "after validation": ([5, 6, 7, 8], {"patience": 2} | AFTER, VALIDATED, {}, "PATIENCE_EXHAUSTED"),
    "after each batch": ([5, 4, 4, 4, 1], {"patience": 2}, VALIDATED, {"val_check_interval": 1}, "PATIENCE_EXHAUSTED"),
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
