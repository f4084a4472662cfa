"""BERTScoreEarlyStopping: stopping rules, counted scores, and differences to Lightning's callback."""

import copy
import inspect
import warnings

import pytest
import torch
from lightning.pytorch.callbacks import EarlyStopping
from lightning.pytorch.callbacks.early_stopping import EarlyStoppingReason

from bertscore_tm.callbacks import BERTScoreEarlyStopping
from tests.support.lightning_runs import Logs, loader, trainer

# Runs of a few epochs need a small patience.
pytestmark = pytest.mark.filterwarnings("ignore:patience=[12] tends to stop too early")

NAN = float("nan")


def count_epochs(folder, stopping, values, ckpt_path=None):
    module = Logs(values)
    trainer(folder, [stopping], max_epochs=len(values)).fit(module, ckpt_path=ckpt_path)
    return module.epochs


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

    assert count_epochs(tmp_path, stopping, values) == epochs

    assert stopping.wait_count == waited
    assert stopping.stopping_reason is EarlyStoppingReason.PATIENCE_EXHAUSTED
    assert stopping.stopped_epoch == epochs - 1


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


@pytest.mark.parametrize(
    ("monitor", "patience", "count"),
    [("val_bertscore_f1", 2, 1), ("val_bertscore_f1_news", 1, 1), ("val_bertscore_f1", 3, 0), ("val_loss", 1, 0)],
)
def test_a_small_patience_for_bertscore_warns_once(monitor, patience, count):
    with warnings.catch_warnings(record=True, action="always") as caught:
        copy.deepcopy(BERTScoreEarlyStopping(monitor, patience=patience))

    assert [(warning.category, warning.filename) for warning in caught] == [(UserWarning, __file__)] * count
    for warning in caught:
        assert str(warning.message).startswith(f"patience={patience} tends to stop too early")
        assert str(warning.message).endswith(f"ModelCheckpoint(monitor={monitor!r}, mode='max')")


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
    assert count_epochs(tmp_path, unbroken, values) == epochs
    # The patience of the resumed run counts.
    run = trainer(tmp_path, [BERTScoreEarlyStopping(patience=9, check_finite=False)], max_epochs=first)
    run.fit(Logs(values))
    run.save_checkpoint(tmp_path / "first.ckpt")
    resumed = BERTScoreEarlyStopping(patience=3, check_finite=False)

    assert count_epochs(tmp_path, resumed, values, tmp_path / "first.ckpt") == epochs - first
    assert resumed.state_dict() == unbroken.state_dict()


# Equal to Lightning's callback where every check sees a new value.


class Script(Logs):
    """Logs the next value whenever the hook runs."""

    times = 0

    def log_value(self, hook):
        if hook == self.hook and not self.trainer.sanity_checking:
            self.log(self.key, torch.tensor(float(self.values[min(self.times, len(self.values) - 1)])))
            self.times += 1


STEP, TRAINED, VALIDATED = "training_step", "on_train_epoch_end", "on_validation_epoch_end"
AFTER = {"check_on_train_epoch_end": False}
# name: (values, arguments of the callback, hook that logs, arguments of the trainer, whether it stops)
SITUATIONS = {
    "training steps": ([5, 4, 3, 4, 3, 4, 3, 5] * 4, {"patience": 2}, STEP, {}, True),
    "steps, after validation": ([4] * 4 + [5, 5, 6, 6] * 4, {"patience": 1} | AFTER, STEP, {}, True),
    "no validation": ([5, 6, 7, 8], {"patience": 2}, TRAINED, {"limit_val_batches": 0}, True),
    "after each batch": ([5, 4, 4, 4, 1], {"patience": 2}, VALIDATED, {"val_check_interval": 1}, True),
    "sanity": ([5, 6, 7], {"patience": 2}, "validation_step", {"num_sanity_val_steps": 1}, True),
    "trial run": ([5, NAN], {}, VALIDATED, {"fast_dev_run": True}, False),
    "lenient": ([5], {"monitor": "other", "strict": False}, VALIDATED, {"max_epochs": 2}, False),
}


@pytest.mark.parametrize("name", SITUATIONS)
def test_run_equals_that_of_lightning(tmp_path, name):
    values, arguments, hook, options, stops = SITUATIONS[name]
    # Lightning's defaults that differ from ours.
    settings = {"monitor": "key", "mode": "min", "patience": 3, "check_on_train_epoch_end": None} | arguments
    outcomes = []

    for kind in (EarlyStopping, BERTScoreEarlyStopping):
        stopping = kind(**settings)
        run = trainer(tmp_path, [stopping], **({"max_epochs": 8} | options))
        run.fit(Script(values, "key", hook), loader(4, batch_size=1), loader(1))
        outcomes.append((run.global_step, stopping._check_on_train_epoch_end, stopping.state_dict()))
        assert (stopping.stopping_reason is EarlyStoppingReason.PATIENCE_EXHAUSTED) == stops

    assert outcomes[0] == outcomes[1]
