"""Subclasses of BERTScoreEarlyStopping behave as those of Lightning's EarlyStopping."""

from __future__ import annotations

import pytest

from tests.support.early_stopping_runs import KINDS, PLAIN, outcome, run_of


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
