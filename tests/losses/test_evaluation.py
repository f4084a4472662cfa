"""Evaluation mode of a module: every submodule gets its own mode back."""

import pytest
from torch import nn

from bertscore_tm.losses.evaluation import evaluation_mode


def make_model() -> nn.Sequential:
    """A model in training, of which one part is in evaluation mode."""
    model = nn.Sequential(nn.Dropout(), nn.Sequential(nn.Dropout()))
    model.train()
    model[0].eval()
    return model


def modes(model: nn.Module) -> list[bool]:
    return [part.training for part in model.modules()]


def test_every_submodule_gets_its_own_mode_back():
    model = make_model()
    before = modes(model)

    with evaluation_mode(model):
        assert not any(modes(model))

    assert modes(model) == before == [True, False, True, True]


def test_modes_are_restored_after_an_exception():
    model = make_model()
    before = modes(model)

    with pytest.raises(RuntimeError, match="out of memory"), evaluation_mode(model):
        raise RuntimeError("out of memory")

    assert modes(model) == before
