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
    alone = mean(per_pair(encoder, FIRST))
    both = mean(per_pair(encoder, FIRST, SECOND))
    metric = updated(BERTScore(encoder, sync_on_compute=False, compute_with_cache=False), FIRST)
    other = updated(BERTScore(encoder), SECOND)
    # Ranks gather numbers of pairs, indices and truncated texts with the fingerprint, and then the scores.
    header = torch.tensor([0, len(SECOND[0]), 0, 0, *other.metric_state["fingerprint"]])
    gathered = iter([header, other.scores[0].flatten()])
    metric.sync(dist_sync_fn=lambda tensor, group: [tensor, next(gathered)], distributed_available=lambda: True)

    for copied in (metric.clone(), copy.deepcopy(metric), pickle.loads(pickle.dumps(metric))):
        assert_equal(copied.compute(), both)
        assert_equal(copied.compute(), alone)
    metric.clone().unsync()

    assert_equal(metric.compute(), both)
    assert_equal(metric.compute(), alone)


def test_no_weights_and_no_texts_travel(encoder):
    metric = updated(BERTScore(encoder, idf=True), FIRST)

    pickled = pickle.dumps(metric)

    assert metric.clone().encoder is encoder
    assert copy.deepcopy(metric).encoder is encoder
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


DOCUMENTS = [*FIRST[1], *SECOND[1]]
OTHERS = {
    "no idf": lambda encoder: BERTScore(encoder),
    "idf of the references": lambda encoder: BERTScore(encoder, idf=True),
    "idf of other texts": lambda encoder: BERTScore(encoder, idf=DOCUMENTS[:-1]),
    "a mapping": lambda encoder: BERTScore(encoder, idf=dict.fromkeys(range(30522), 1.0)),
    "another layer": lambda encoder: BERTScore(FrozenEncoder(encoder.name, num_layers=4), idf=DOCUMENTS),
    "another dtype": lambda encoder: BERTScore(
        FrozenEncoder(encoder.name, num_layers=2, dtype="bfloat16"), idf=DOCUMENTS
    ),
}
# On some processors only.
slow_bfloat16 = pytest.mark.filterwarnings("ignore:this processor has no bfloat16 instructions:UserWarning")


@slow_bfloat16
@pytest.mark.parametrize("other", OTHERS)
def test_merge_state_refuses_pairs_of_other_settings(encoder, other):
    metric = updated(BERTScore(encoder, idf=DOCUMENTS), FIRST)
    incoming = updated(OTHERS[other](encoder), SECOND)

    with pytest.raises(ValueError, match="differ"):
        metric.merge_state(incoming)

    assert_equal(metric.compute(), mean(per_pair(encoder, FIRST, idf=DOCUMENTS)))


@pytest.mark.parametrize("other", [MetricCollection([]), 3, {}], ids=repr)
def test_merge_state_refuses_what_is_no_metric(encoder, other):
    metric = updated(BERTScore(encoder), FIRST)

    with pytest.raises(ValueError, match=r"must be a bertscore_tm.BERTScore or its"):
        metric.merge_state(other)

    assert_equal(metric.compute(), mean(per_pair(encoder, FIRST)))


def test_merge_state_takes_weights_of_texts_in_any_order(encoder):
    metric = updated(BERTScore(encoder, idf=DOCUMENTS), FIRST)
    other = updated(BERTScore(encoder, idf=tuple(reversed(DOCUMENTS))), SECOND)

    metric.merge_state(other)

    assert_equal(metric.compute(), mean(per_pair(encoder, FIRST, SECOND, idf=DOCUMENTS)))


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


def kinds_of_state(metric):
    """Return what another metric can merge: the metric, its pickle, and its state."""
    return metric, pickle.loads(pickle.dumps(metric)), metric.metric_state


@slow_bfloat16
@pytest.mark.parametrize("difference", DIFFERENT)
def test_merge_state_names_exactly_the_settings_that_differ(minilm, difference):
    metric = BERTScore(FrozenEncoder(minilm, num_layers=2))
    other = DIFFERENT[difference](minilm)
    with_other_fingerprint = metric.metric_state | {"fingerprint": other.metric_state["fingerprint"]}
    message = re.escape(f"a metric that differs in {difference}. Create both")

    for incoming in (*kinds_of_state(other), with_other_fingerprint):
        with pytest.raises(ValueError, match=message):
            metric.merge_state(incoming)


@pytest.fixture
def trained(tmp_path):
    """Metrics with pairs, by model: folders and ready models of equal names, before and after a training."""
    model, tokenizer = copy.deepcopy(tiny_model("bert"))
    metrics = {}
    for run in ("before", "after"):
        folder = tmp_path / run / "checkpoint-500"
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        metrics[f"folder {run}"] = updated(BERTScore(FrozenEncoder(folder, num_layers=2)), SECOND)
        metrics[f"ready {run}"] = updated(BERTScore(FrozenEncoder(model, tokenizer, num_layers=2)), SECOND)
        with torch.no_grad():
            model.encoder.layer[0].output.dense.bias.add_(1)
    return metrics


@pytest.mark.parametrize(
    ("name", "other"),
    [("folder before", "folder after"), ("ready before", "ready after"), ("folder before", "ready before")],
)
def test_merge_state_refuses_pairs_of_models_with_other_contents(trained, name, other):
    for incoming in kinds_of_state(trained[other]):
        with pytest.raises(ValueError, match=r"the state belongs to a metric that differs in model \(\S+ instead of"):
            trained[name].merge_state(incoming)


def test_merge_state_takes_pairs_of_equal_contents_elsewhere(trained, tmp_path):
    metric = trained["folder before"]
    folder = shutil.copytree(metric.encoder.name, tmp_path / "copy")
    moved = BERTScore(FrozenEncoder(folder, num_layers=2))

    moved.merge_state(metric)
    moved.merge_state(metric.metric_state)

    assert_equal(moved.compute(), metric.compute(), 1e-6)


def test_merge_state_takes_pairs_of_a_pickled_ready_model(trained):
    metric = trained["ready before"]
    again = pickle.loads(pickle.dumps(metric))

    again.merge_state(metric)

    assert_equal(again.compute(), metric.compute(), 1e-6)


def test_contents_are_not_read_within_a_process(minilm, monkeypatch):
    monkeypatch.setattr(FrozenEncoder, "identity", property(lambda _: pytest.fail("the contents were read")))
    metric, other = (BERTScore(FrozenEncoder(minilm, num_layers=2)) for _ in range(2))
    metric(*FIRST)
    other.update(*FIRST)

    pickle.loads(pickle.dumps(metric)).merge_state(other)

    assert_equal(metric.clone().compute(), other.compute())


@pytest.mark.parametrize("idf", [False, True])
def test_pairs_of_inference_mode_are_kept_outside_of_it(minilm, idf):
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
    numbers = list(range(1000)) if indices else None
    num_tokens = encoder.tokenizer([*preds, *target]).lengths.sum()
    metric = BERTScore(encoder, **options)

    for _ in range(3):
        metric.update(preds, target, indices=numbers)

    constant = 8 + metric.metric_state["fingerprint"].numel()
    per_update = 12 * 1000
    if "idf" in options:
        per_update += 8 * num_tokens
    if indices:
        per_update += 8 * 1000
    assert constant < 500
    assert count_bytes(metric) == 3 * per_update + constant


def count_bytes(metric):
    """Return the size of a metric's states."""
    num_bytes = 0
    for state in metric.metric_state.values():
        parts = state if isinstance(state, list) else [state]
        num_bytes += sum(part.untyped_storage().nbytes() for part in parts)
    return num_bytes
