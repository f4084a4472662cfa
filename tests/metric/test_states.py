"""Copies and merged metrics, and the bytes of their states."""

import copy
import pickle
import re
import shutil

import pytest
import torch
from torchmetrics import MetricCollection

from bertscore_tm import BERTScore, FrozenEncoder
from tests.support.metrics import FIRST, SECOND, THIRD, assert_equal, mean, per_pair, updated
from tests.support.models import tiny_model


def test_copies_of_a_synchronised_metric(encoder):
    alone, both = mean(per_pair(encoder, FIRST)), mean(per_pair(encoder, FIRST, SECOND))
    metric = updated(BERTScore(encoder, sync_on_compute=False, compute_with_cache=False), FIRST)
    other = updated(BERTScore(encoder), SECOND)
    # Ranks gather numbers of pairs, indices and truncated texts with the fingerprint, and then the scores.
    gathered = iter(
        [torch.tensor([0, len(SECOND[0]), 0, 0, *other.metric_state["fingerprint"]]), other.scores[0].flatten()]
    )
    metric.sync(dist_sync_fn=lambda tensor, group: [tensor, next(gathered)], distributed_available=lambda: True)
    for copied in (metric.clone(), copy.deepcopy(metric), pickle.loads(pickle.dumps(metric))):
        assert_equal(copied.compute(), both)
        assert_equal(copied.compute(), alone)
    metric.clone().unsync()
    assert_equal(metric.compute(), both)
    assert_equal(metric.compute(), alone)


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
    for other in (*(updated(source, SECOND) for source in others), MetricCollection([]), 3, {}):
        with pytest.raises(ValueError, match=r"differ|must be a bertscore_tm.BERTScore or its"):
            metric.merge_state(other)
    assert_equal(metric.compute(), mean(per_pair(encoder, FIRST, idf=sents)))
    metric.merge_state(updated(BERTScore(encoder, idf=tuple(reversed(sents))), SECOND))
    assert_equal(metric.compute(), mean(per_pair(encoder, FIRST, SECOND, idf=sents)))


class Stripped(BERTScore):
    """A metric whose update edits the texts."""

    def update(self, preds, target, indices=None):
        super().update([text.strip(".") for text in preds], target, indices)


DIFFERENT = {
    "layer (4 instead of 2)": lambda model: BERTScore(FrozenEncoder(model, num_layers=4)),
    "dtype (bfloat16 instead of float32)": lambda model: BERTScore(
        FrozenEncoder(model, num_layers=2, dtype="bfloat16")
    ),
    "limit (8 instead of 512), long (window/3 instead of truncate)": lambda model: BERTScore(
        FrozenEncoder(model, num_layers=2, max_length=8, long_text="window")
    ),
    "special (excluded instead of default)": lambda model: BERTScore(
        FrozenEncoder(model, num_layers=2, exclude_special_tokens=True)
    ),
    "idf (references instead of no)": lambda model: BERTScore(FrozenEncoder(model, num_layers=2), idf=True),
    "f1 (selection_f1 instead of default)": lambda model: BERTScore(FrozenEncoder(model, num_layers=2)).for_selection(),
    "class (tests.metric.test_states.Stripped instead of bertscore_tm.metric.bertscore.BERTScore)": lambda model: (
        Stripped(FrozenEncoder(model, num_layers=2))
    ),
}


@pytest.mark.parametrize("difference", DIFFERENT)
def test_merge_state_names_exactly_the_settings_that_differ(minilm, difference):
    metric, other = BERTScore(FrozenEncoder(minilm, num_layers=2)), DIFFERENT[difference](minilm)
    for incoming in (other, other.metric_state, pickle.loads(pickle.dumps(other))):
        with pytest.raises(ValueError, match=re.escape(f"a metric that differs in {difference}. Create both")):
            metric.merge_state(incoming)
    own = metric.metric_state | {"fingerprint": other.metric_state["fingerprint"]}
    with pytest.raises(ValueError, match=re.escape(f"a metric that differs in {difference}. Create both")):
        metric.merge_state(own)


def test_merge_state_compares_the_contents_of_models(tmp_path):
    model, tokenizer = copy.deepcopy(tiny_model("bert"))
    folders = [tmp_path / run / "checkpoint-500" for run in ("run1", "run2")]
    encoders = []
    for folder in folders:
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        encoders += [FrozenEncoder(folder, num_layers=2), FrozenEncoder(model, tokenizer, num_layers=2)]
        with torch.no_grad():
            model.encoder.layer[0].output.dense.bias.add_(1)
    first, ready, second, trained = (updated(BERTScore(encoder), SECOND) for encoder in encoders)
    for metric, other in ((first, second), (ready, trained), (first, ready)):
        for incoming in (other, other.metric_state, pickle.loads(pickle.dumps(other))):
            with pytest.raises(
                ValueError, match=r"the state belongs to a metric that differs in model \(\S+ instead of"
            ):
                metric.merge_state(incoming)
    # Equal contents, wherever they are.
    moved = BERTScore(FrozenEncoder(shutil.copytree(folders[0], tmp_path / "copy"), num_layers=2))
    for metric in (moved, BERTScore(FrozenEncoder(folders[0], num_layers=2))):
        metric.merge_state(first)
        metric.merge_state(first.metric_state)
        assert_equal(metric.compute(), first.compute(), 1e-6)
    again = pickle.loads(pickle.dumps(ready))
    again.merge_state(ready)
    assert_equal(again.compute(), ready.compute(), 1e-6)


def test_contents_are_not_read_within_a_process(minilm, monkeypatch):
    monkeypatch.setattr(FrozenEncoder, "identity", property(lambda _: pytest.fail("the contents were read")))
    metric, other = (BERTScore(FrozenEncoder(minilm, num_layers=2)) for _ in range(2))
    for batch in (FIRST, SECOND):
        metric(*batch)
        other.update(*batch)
    pickle.loads(pickle.dumps(metric)).merge_state(other)
    assert_equal(metric.clone().compute(), other.compute())


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


@pytest.mark.parametrize(("options", "indices"), [({}, False), ({"reduction": "none"}, True), ({"idf": True}, True)])
def test_bytes_of_the_states(minilm, options, indices):
    """Three numbers per pair; with idf, an id and a similarity per token; never texts or vectors."""
    encoder = FrozenEncoder(minilm, num_layers=0)
    preds = ["a cat sat on the mat", "it rains"] * 500
    target = ["the cat is on the mat", "it will rain tomorrow"] * 500
    metric = BERTScore(encoder, **options)
    for _ in range(3):
        metric.update(preds, target, indices=list(range(1000)) if indices else None)
    parts = [part for state in metric.metric_state.values() for part in (state if isinstance(state, list) else [state])]
    num_bytes = sum(part.untyped_storage().nbytes() for part in parts)
    tokens = sum(map(len, encoder.tokenizer([*preds, *target]).rows()))
    per_update = 8 * tokens + 12 * 1000 if "idf" in options else 12 * 1000
    constant = 8 + metric.metric_state["fingerprint"].numel()
    assert num_bytes == 3 * (per_update + (8 * 1000 if indices else 0)) + constant
    assert constant < 500
