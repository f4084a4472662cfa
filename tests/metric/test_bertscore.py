"""The metric in one process: the same numbers as the function, however the data comes in."""

import warnings
from typing import Any

import pytest
import torch
from torchmetrics.utilities.exceptions import TorchMetricsUserError

from bertscore_tm import BERTScore, FrozenEncoder
from bertscore_tm.scoring import corpus
from bertscore_tm.scoring.corpus import forget_batch
from tests.support.metrics import FIRST, SECOND, assert_equal, mean, per_pair, updated
from tests.support.models import counted_texts
from tests.support.texts import real_pairs

TEXTS = real_pairs(9, words=9)


# --- indices


@pytest.mark.parametrize(
    ("how", "first", "second"),
    [("update", [0, 1], None), ("forward", None, [0]), ("merge_state", [0, 1], None), ("merge_state", None, [0])],
)
def test_indices_come_always_or_never(encoder, how, first, second):
    metric = BERTScore(encoder)
    metric.update(*FIRST, indices=first)
    before = metric.compute()
    other = BERTScore(encoder)
    other.update(*SECOND, indices=second)
    arguments = (other,) if how == "merge_state" else (*SECOND, second)
    with pytest.raises(ValueError, match="indices"):
        getattr(metric, how)(*arguments)
    assert_equal(metric.compute(), before, 0)


@pytest.mark.parametrize("indices", [[0], [0, 1, 2], [[0, 1]], [0.0, 1.0], [True, False], 3])
def test_malformed_indices(encoder, indices):
    metric = BERTScore(encoder)
    with pytest.raises(ValueError, match="2 integers"):
        metric.update(*FIRST, indices=indices)
    assert metric.metric_state["scores"] == []


# --- what goes wrong


@pytest.mark.parametrize("idf", [False, True])
def test_empty_update_changes_nothing(encoder, idf):
    metric = BERTScore(encoder, idf=idf, reduction="none")
    updated(metric, ([], []), FIRST, ([], []))
    metric.update([], [], indices=[])
    assert_equal(metric.compute(), per_pair(encoder, FIRST, idf=idf))
    assert all(value.shape == (0,) for value in metric([], []).values())


@pytest.mark.parametrize("sync_on_compute", [True, False])
def test_warns_with_counts_once_per_compute(minilm, sync_on_compute):
    metric = BERTScore(FrozenEncoder(minilm, num_layers=2, max_length=8), sync_on_compute=sync_on_compute)
    with warnings.catch_warnings(action="error"):
        metric(["", " \n", "fine"], ["some text", "more text", "fine"])
        metric.update(["word " * 20, "other " * 20], ["word " * 9, "short"])
    with warnings.catch_warnings(record=True, action="always") as caught:
        metric.compute()
    texts = [str(warning.message) for warning in caught]
    assert len(texts) == 2
    assert texts[0] == "2 candidates scored 0 because the text or each of its references is empty"
    assert texts[1].startswith("3 texts are longer than 8 tokens")


@pytest.mark.parametrize(
    ("how", "error", "step"),
    [
        ("forward", KeyboardInterrupt, 1),
        ("update", AttributeError, 1),
        ("update", torch.OutOfMemoryError, 3),
        ("forward", torch.OutOfMemoryError, 3),
    ],
)
def test_a_batch_whose_encoding_fails_can_be_passed_again(encoder, monkeypatch, how, error, step):
    metric = updated(BERTScore(encoder, reduction="none"), FIRST)
    monkeypatch.setattr(corpus, "_ELEMENTS_PER_STEP", 150 * 384)
    encode, left = FrozenEncoder.encode, [step]

    def failing_later(self: FrozenEncoder, *args: Any, **options: Any) -> Any:
        left[0] -= 1
        if not left[0]:
            raise error("failed")
        return encode(self, *args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(FrozenEncoder, "encode", failing_later)
        with pytest.raises(error, match="failed"):
            getattr(metric, how)(*TEXTS)
    assert left == [0]
    getattr(metric, how)(*TEXTS)
    assert_equal(metric.compute(), per_pair(encoder, FIRST, TEXTS))


# --- the latest batch


@pytest.mark.parametrize("end", ["compute", "reset"])
def test_no_batch_is_kept_after_compute_or_reset(encoder, end):
    owner = encoder.cache(torch.device("cpu"))
    metric = updated(BERTScore(encoder), FIRST)
    assert owner in corpus._latest
    getattr(metric, end)()
    assert owner not in corpus._latest


# --- what must not survive


def synced(encoder: FrozenEncoder, **settings: Any) -> BERTScore:
    """A metric that holds the pairs of all ranks."""
    metric = updated(BERTScore(encoder, reduction="none", sync_on_compute=False, **settings), FIRST)
    metric.sync(dist_sync_fn=lambda tensor, group: [tensor], distributed_available=lambda: True)
    return metric


@pytest.mark.parametrize("idf", [False, True])
def test_reset_forgets_the_pairs_of_all_ranks(encoder, idf):
    metric = synced(encoder, idf=idf)
    metric.reset()
    metric.update(*SECOND)
    assert_equal(metric.compute(), per_pair(encoder, SECOND, idf=idf))


@pytest.mark.parametrize("how", ["update", "merge_state"])
def test_a_synced_metric_refuses_pairs_that_unsync_would_drop(encoder, how):
    metric = synced(encoder)
    arguments = SECOND if how == "update" else (updated(BERTScore(encoder), SECOND),)
    with pytest.raises(TorchMetricsUserError, match="call unsync first"):
        getattr(metric, how)(*arguments)
    metric.unsync()
    getattr(metric, how)(*arguments)
    assert_equal(metric.compute(), per_pair(encoder, FIRST, SECOND))


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("earlier", ["none", "own", "synced"])
def test_loaded_pairs_replace_the_result_of_earlier_ones(encoder, earlier):
    saved = updated(BERTScore(encoder), SECOND)
    metric = synced(encoder) if earlier == "synced" else BERTScore(encoder, reduction="none")
    if earlier == "own":
        metric.update(*FIRST)
    if earlier != "none":
        metric.compute()
    for holder in (saved, metric):
        holder.persistent(True)
    metric.load_state_dict(saved.state_dict())
    assert_equal(metric.compute(), per_pair(encoder, SECOND))


# --- forward


def test_forward_encodes_once_and_refuses_a_synced_metric(encoder):
    # What the encoder keeps of other tests would not be encoded again.
    forget_batch(encoder, torch.device("cpu"))
    metric = BERTScore(encoder, dist_sync_on_step=True, cache_bytes=0)
    with counted_texts() as encoded:
        metric(*FIRST)
        metric.compute()
    assert sorted(encoded.values()) == [1] * 4
    metric.sync(dist_sync_fn=lambda tensor, group: [tensor], distributed_available=lambda: True)
    with pytest.raises(TorchMetricsUserError, match="unsync"):
        metric(*FIRST)


@pytest.mark.parametrize("how", ["compute", "forward"])
def test_failed_gathering_keeps_the_pairs(encoder, how):
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
