"""The metric within a module: no parameters, its own dtype and device, inference mode."""

from __future__ import annotations

import pickle

import pytest
import torch
from torch import nn

from bertscore_tm import BERTScore, FrozenEncoder
from tests.support.metric_batches import FIRST, SECOND, THIRD, assert_equal, mean, per_pair, updated


def test_holds_no_module_and_no_parameter(encoder):
    metric = updated(BERTScore(encoder), FIRST)
    assert list(metric.parameters()) == list(metric.buffers()) == list(metric.children()) == []
    flags = (BERTScore.higher_is_better, BERTScore.is_differentiable, BERTScore.full_state_update)
    assert flags == (True, False, False)


@pytest.mark.parametrize(
    "cast",
    [
        lambda module: module.half(),
        lambda module: module.bfloat16(),
        lambda module: module.to(torch.bfloat16),
        lambda module: module.double(),
        lambda module: module.to("cpu", torch.float16),
    ],
)
def test_does_not_follow_the_dtype_of_its_owner(encoder, cast):
    owner = nn.Module()
    owner.metric, owner.linear = BERTScore(encoder, idf=True), nn.Linear(1, 1)
    updated(owner.metric, FIRST)
    for module in (owner, owner.metric):
        cast(module)
    updated(owner.metric, THIRD)
    assert owner.linear.weight.dtype != torch.float32
    for name, dtype in owner.metric._dtypes.items():
        assert all(part.dtype == dtype for part in getattr(owner.metric, name))
    owner.metric.set_dtype(torch.bfloat16)
    assert_equal(owner.metric.compute(), mean(per_pair(encoder, FIRST, THIRD, idf=True)))
    assert owner.metric.compute()["f1"].dtype == torch.float32


@pytest.mark.parametrize("idf", [False, True])
def test_inference_mode(minilm, idf):
    encoder = FrozenEncoder(minilm, num_layers=1)
    with torch.inference_mode():
        metric = BERTScore(encoder, idf=idf, reduction="none")
        metric.reset()
        metric(*FIRST)
    assert_equal(metric.compute(), per_pair(encoder, FIRST, idf=idf))
    metric.update(*SECOND)
    metric = pickle.loads(pickle.dumps(metric.clone()))
    with torch.inference_mode():
        metric.update(*THIRD)
    assert_equal(metric.compute(), per_pair(encoder, FIRST, SECOND, THIRD, idf=idf))
    assert not any(parameter.is_inference() for parameter in encoder.backbone(torch.device("cpu")).parameters())
