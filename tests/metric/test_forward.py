"""``forward``: the scores of a batch, also of subclasses and after a failure."""

from __future__ import annotations

import pytest
import torch
from torchmetrics.utilities.exceptions import TorchMetricsUserError

from bertscore_tm import BERTScore, FrozenEncoder
from bertscore_tm.functional import bert_score
from bertscore_tm.scoring.corpus import forget_batch
from tests.support.metric_batches import FIRST, SECOND, assert_equal, mean, per_pair


def test_forward_encodes_once_and_refuses_a_synced_metric(encoder, monkeypatch):
    calls = []
    encode = FrozenEncoder.encode
    monkeypatch.setattr(FrozenEncoder, "encode", lambda *args, **kwargs: calls.append(1) or encode(*args, **kwargs))
    # What the encoder keeps of other tests would not be encoded again.
    forget_batch(encoder, torch.device("cpu"))
    metric = BERTScore(encoder, dist_sync_on_step=True, cache_bytes=0)
    metric(*FIRST)
    metric.compute()
    assert len(calls) == 1
    metric.sync(dist_sync_fn=lambda tensor, group: [tensor], distributed_available=lambda: True)
    with pytest.raises(TorchMetricsUserError, match="unsync"):
        metric(*FIRST)


class Prefixed(BERTScore):
    """Updates without the first word of each text, in two parts."""

    def update(self, preds, target, indices=None) -> None:
        short = [[text.partition(" ")[2] for text in side] for side in (preds, target)]
        super().update(*(side[:1] for side in short))
        super().update(*(side[1:] for side in short))


def test_forward_calls_the_update_of_a_subclass(encoder):
    metric = Prefixed(encoder, reduction="none")
    short = [[text.partition(" ")[2] for text in side] for side in FIRST]
    assert_equal(metric(*FIRST), bert_score(*short, encoder))
    assert_equal(metric.compute(), bert_score(*short, encoder))
    assert metric.update_count == 1


@pytest.mark.parametrize("how", ["compute", "forward"])
def test_failed_gathering_keeps_the_pairs_and_explains_how_to_score_them(encoder, how):
    def fail(tensor, group):
        raise RuntimeError("connection closed by peer")

    metric = BERTScore(encoder, dist_sync_fn=fail, distributed_available_fn=lambda: True, dist_sync_on_step=True)
    metric.update(*FIRST)
    with pytest.raises(RuntimeError, match="closed by peer") as caught:
        metric.compute() if how == "compute" else metric(*SECOND)
    assert "merge_state this metric into a BERTScore with sync_on_compute=False" in caught.value.__notes__[0]
    alone = BERTScore(encoder, sync_on_compute=False)
    alone.merge_state(metric)
    assert_equal(alone.compute(), mean(per_pair(encoder, FIRST)))


class Halved(BERTScore):
    """Computes half of each score."""

    def compute(self):
        return {name: value / 2 for name, value in super().compute().items()}


@pytest.mark.parametrize("on_step", [False, True])
def test_forward_calls_the_compute_of_a_subclass(encoder, on_step):
    metric = Halved(encoder, reduction="none", dist_sync_on_step=on_step)
    whole = bert_score(*FIRST, encoder)
    assert_equal(metric(*FIRST), {name: value / 2 for name, value in whole.items()})
    metric.update(*SECOND)
    assert_equal(metric.compute(), {name: value / 2 for name, value in per_pair(encoder, FIRST, SECOND).items()})
