"""Reductions of the losses."""

import pytest
import torch

from bertscore_tm.losses import SoftBERTScoreLoss
from tests.support.soft_predictions import (
    COMPONENTS,
    labels_of,
    noise,
)


def test_reductions(encoder):
    labels = labels_of(encoder)
    z = noise(encoder, *labels.shape)
    rows, rows_components = SoftBERTScoreLoss(encoder, reduction="none")(z, labels, return_components=True)

    assert rows.shape == (3,)
    names = {*COMPONENTS, *(f"teacher_forced_{name}" for name in COMPONENTS)}
    for reduction in ("mean", "sum"):
        z.requires_grad_()
        value, components = SoftBERTScoreLoss(encoder, reduction=reduction)(z, labels, return_components=True)
        assert torch.equal(value, SoftBERTScoreLoss(encoder, reduction=reduction)(z, labels))
        assert value.requires_grad
        assert value.item() == pytest.approx(getattr(rows, reduction)().item(), rel=1e-6)
        assert components.keys() == rows_components.keys() == names
        for name, component in components.items():
            assert not component.requires_grad
            assert component.shape == ()
            assert component.item() == pytest.approx(getattr(rows_components[name], reduction)().item(), rel=1e-6)
