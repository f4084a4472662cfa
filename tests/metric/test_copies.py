"""Copies, merged metrics and saved states: each continues on its own."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import nn
from torchmetrics import MetricCollection

from bertscore_tm import BERTScore, FrozenEncoder
from tests.support.metric_batches import FIRST, SECOND, THIRD, assert_equal, mean, per_pair, updated


def test_copies_of_a_synchronised_metric(encoder):
    own, both = mean(per_pair(encoder, FIRST)), mean(per_pair(encoder, FIRST, SECOND))
    metric = updated(BERTScore(encoder, sync_on_compute=False, compute_with_cache=False), FIRST)
    other = updated(BERTScore(encoder), SECOND)
    # Ranks gather numbers of pairs, indices and truncated texts with the fingerprint, and then the scores.
    gathered = iter([torch.tensor([0, len(SECOND[0]), 0, 0, *other.fingerprint[:-1]]), other.scores[0].flatten()])
    metric.sync(dist_sync_fn=lambda tensor, group: [tensor, next(gathered)], distributed_available=lambda: True)
    for _, copied in _copies(metric):
        assert_equal(copied.compute(), both)
        assert_equal(copied.compute(), own)
    metric.clone().unsync()
    assert_equal(metric.compute(), both)
    assert_equal(metric.compute(), own)


def _copies(metric):
    yield "clone", metric.clone()
    yield "deepcopy", copy.deepcopy(metric)
    yield "pickle", pickle.loads(pickle.dumps(metric))


@pytest.mark.parametrize("idf", [False, True])
def test_copies_continue_on_their_own(encoder, idf):
    metric = updated(BERTScore(encoder, idf=idf, reduction="none"), FIRST)
    expected = per_pair(encoder, FIRST, THIRD, idf=idf)
    for name, other in _copies(metric):
        assert other.encoder is encoder or name == "pickle"
        assert_equal(updated(other, THIRD).compute(), expected)
        other.reset()
    assert_equal(metric.compute(), per_pair(encoder, FIRST, idf=idf))
    # No weights (91 MB) and no texts travel.
    pickled = pickle.dumps(metric)
    assert len(pickled) < 2_000_000
    assert b"the cat sat on a mat" not in pickled


@pytest.mark.parametrize("idf", [False, True])
def test_merge_state_appends(encoder, idf):
    metric = updated(BERTScore(encoder, idf=idf, reduction="none"), FIRST)
    metric.compute()
    metric.merge_state(updated(BERTScore(encoder, idf=idf, reduction="none"), SECOND))
    metric.merge_state(updated(BERTScore(encoder, idf=idf, reduction="none"), THIRD).metric_state)
    assert metric.update_count == 3
    expected = per_pair(encoder, FIRST, SECOND, THIRD, idf=idf)
    assert_equal(metric.compute(), expected)
    # Reductions may differ.
    average = updated(BERTScore(encoder, idf=idf), FIRST)
    average.merge_state(updated(BERTScore(encoder, idf=idf, reduction="none"), THIRD))
    average.merge_state(updated(BERTScore(encoder, idf=idf), SECOND))
    assert_equal(average.compute(), mean(expected))


def test_merge_state_of_something_else(encoder):
    metric = updated(BERTScore(encoder), FIRST)
    others = [
        BERTScore(encoder, idf=True),
        BERTScore(FrozenEncoder(encoder.name, num_layers=4)),
        BERTScore(FrozenEncoder(encoder.name, num_layers=2, dtype="bfloat16")),
    ]
    for other in (*others, MetricCollection([]), 3, {}):
        with pytest.raises(ValueError, match=r"differ|must be a bertscore_tm.BERTScore or its"):
            metric.merge_state(other)
    assert_equal(metric.compute(), mean(per_pair(encoder, FIRST)))


@pytest.mark.parametrize("idf", [False, True])
def test_state_dict(encoder, idf):
    metric = updated(BERTScore(encoder, idf=idf), FIRST)
    assert metric.state_dict() == {}
    assert nn.ModuleDict({"metric": metric}).state_dict() == {}
    metric.load_state_dict({})
    metric.persistent(True)
    saved = metric.state_dict()
    loaded = BERTScore(encoder, idf=idf)
    loaded.load_state_dict(saved)
    assert_equal(updated(loaded, SECOND).compute(), mean(per_pair(encoder, FIRST, SECOND, idf=idf)))
