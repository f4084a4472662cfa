"""Copies and merged metrics, and a metric within a module: its dtype, and inference mode."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
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
    for copied in (metric.clone(), copy.deepcopy(metric), pickle.loads(pickle.dumps(metric))):
        assert_equal(copied.compute(), both)
        assert_equal(copied.compute(), own)
    metric.clone().unsync()
    assert_equal(metric.compute(), both)
    assert_equal(metric.compute(), own)


def test_no_weights_and_no_texts_travel(encoder):
    metric = updated(BERTScore(encoder, idf=True), FIRST)
    assert metric.clone().encoder is copy.deepcopy(metric).encoder is encoder
    pickled = pickle.dumps(metric)
    assert len(pickled) < 2_000_000  # weights are 91 MB
    assert b"the cat sat on a mat" not in pickled


@pytest.mark.parametrize("idf", [False, True])
def test_merge_state_appends(encoder, idf):
    metric = updated(BERTScore(encoder, idf=idf, reduction="none"), FIRST)
    metric.compute()
    # Reductions may differ.
    metric.merge_state(updated(BERTScore(encoder, idf=idf), SECOND))
    metric.merge_state(updated(BERTScore(encoder, idf=idf, reduction="none"), THIRD).metric_state)
    assert metric.update_count == 3
    assert_equal(metric.compute(), per_pair(encoder, FIRST, SECOND, THIRD, idf=idf))


def test_merge_state_of_something_else(encoder):
    sents = [*FIRST[1], *SECOND[1]]
    metric = updated(BERTScore(encoder, idf=sents), FIRST)
    others = [
        BERTScore(encoder),
        BERTScore(encoder, idf=True),
        BERTScore(encoder, idf=sents[:-1]),
        BERTScore(encoder, idf=dict.fromkeys(range(30522), 1.0)),
        BERTScore(FrozenEncoder(encoder.name, num_layers=4), idf=sents),
        BERTScore(FrozenEncoder(encoder.name, num_layers=2, dtype="bfloat16"), idf=sents),
    ]
    for other in (*(updated(one, SECOND) for one in others), MetricCollection([]), 3, {}):
        with pytest.raises(ValueError, match=r"differ|must be a bertscore_tm.BERTScore or its"):
            metric.merge_state(other)
    assert_equal(metric.compute(), mean(per_pair(encoder, FIRST, idf=sents)))
    metric.merge_state(updated(BERTScore(encoder, idf=tuple(reversed(sents))), SECOND))
    assert_equal(metric.compute(), mean(per_pair(encoder, FIRST, SECOND, idf=sents)))


def test_holds_no_module_and_no_parameter(encoder):
    metric = updated(BERTScore(encoder), FIRST)
    assert list(metric.parameters()) == list(metric.buffers()) == list(metric.children()) == []
    flags = (BERTScore.higher_is_better, BERTScore.is_differentiable, BERTScore.full_state_update)
    assert flags == (True, False, False)


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
