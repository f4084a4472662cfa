"""Copies and resumed runs of BERTScoreEarlyStopping continue as those of Lightning's EarlyStopping."""

from __future__ import annotations

import copy
import pickle

import pytest
from lightning.pytorch.callbacks import ModelCheckpoint

from bertscore_tm.callbacks import BERTScoreEarlyStopping
from tests.support.early_stopping_runs import KINDS, PLAIN, Script, outcome, run_of, state
from tests.support.lightning_modules import trainer


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
