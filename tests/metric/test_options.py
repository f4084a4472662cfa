"""What the metric's options change: weights, picked layers, and objects with a metric's own settings."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from bertscore_tm import Baseline, BERTScore, FrozenEncoder
from bertscore_tm.alignment.alignment import compute_alignment
from bertscore_tm.functional import bert_score
from bertscore_tm.losses import SoftBERTScoreLoss
from bertscore_tm.scoring.idf import token_weights
from bertscore_tm.scoring.settings import ScoreSettings
from tests.support.metrics import LAYERS, VOCABULARY, assert_close, assert_equal
from tests.support.ranks import run_ranks
from tests.support.texts import real_pairs

COUNT = 8

# Real texts, cut short.
PREDS, TARGET = real_pairs(COUNT, words=9)

# A corpus that is not the references, with documents that come twice.
CORPUS = [*PREDS[:5], *TARGET[4:], *TARGET[4:6]]


def updated(metric: BERTScore, preds: Sequence[str] = PREDS, target: Sequence[Any] = TARGET) -> BERTScore:
    """A metric with pairs in batches of three."""
    for start in range(0, len(preds), 3):
        metric.update(preds[start : start + 3], target[start : start + 3])
    return metric


@pytest.mark.parametrize(("how", "side"), [("update", 0), ("forward", 1)])
def test_a_token_without_a_weight_loses_nothing(encoder, how, side):
    ids = encoder.tokenizer([*PREDS, *TARGET]).rows()
    mapping = {token: 1 + token % 3 for row in ids for token in row}
    metric = updated(BERTScore(encoder, idf=mapping, reduction="none"))
    assert_equal(metric.compute(), bert_score(PREDS, TARGET, encoder, idf=mapping))
    before, count = metric.compute(), len(metric.scores)
    bad = [[PREDS[0], PREDS[1]], [TARGET[0], TARGET[1]]]
    bad[side][0] = "zebra"
    with pytest.raises(ValueError, match=r"no weight for token id \d+ \('zebra'\).*pass texts"):
        getattr(metric, how)(*bad)
    assert len(metric.scores) == count
    assert_equal(metric.compute(), before, 0)
    metric.update(PREDS[:1], TARGET[:1])
    assert_close(metric.compute()["f1"][-1:], before["f1"][:1])


def test_a_mapping_is_read_once_and_not_changed(encoder):
    mapping = defaultdict(lambda: 0.5, {token: float(token % 5) for token in np.arange(1000, 4000)})
    every_weight, size = dict.fromkeys(range(VOCABULARY), 0.5) | mapping, len(mapping)
    metric = BERTScore(encoder, idf=mapping, reduction="none")
    updated(metric)
    assert len(mapping) == size
    mapping.clear()
    updated(metric)
    expected = bert_score(PREDS * 2, TARGET * 2, encoder, idf=every_weight)
    assert_equal(metric.compute(), expected)


@pytest.mark.parametrize("how", ["metric", "settings", "loss", "function"])
def test_weights_that_are_handed_out_are_copies(encoder, how):
    metric = BERTScore(encoder, reduction="none")
    expected = updated(metric).compute()
    weights = {
        "metric": metric.token_weights,
        "settings": lambda: metric.score_settings().weights,
        "loss": lambda: SoftBERTScoreLoss(encoder).weights,
        "function": lambda: token_weights(encoder),
    }[how]()
    weights.table.fill_(0)
    for later in (metric, BERTScore(encoder, reduction="none")):
        later.reset()
        assert_equal(updated(later).compute(), expected, 0)


def test_weights_and_baselines_that_are_passed_are_copied(encoder, table):
    weights, baseline = token_weights(encoder, CORPUS), Baseline.read(table)
    metric = BERTScore(encoder, idf=weights, rescale=baseline, reduction="none")
    expected = bert_score(PREDS, TARGET, encoder, idf=CORPUS, rescale=table)
    weights.table.fill_(1)
    baseline.table.fill_(0.5)
    assert_equal(updated(metric).compute(), expected)


# --- a layer of all


def test_negative_numbers_count_from_the_models_last_layer(minilm):
    """Not from the last one that comes out."""
    some = FrozenEncoder(minilm, num_layers=4, all_layers=True)
    result = updated(BERTScore(some, layer=-4, reduction="none")).compute()
    assert_close(result["f1"], bert_score(PREDS, TARGET, FrozenEncoder(minilm, num_layers=3))["f1"])
    for layer in (5, -1, -8):
        with pytest.raises(ValueError, match=rf"num_layers \(--num-layers\) {layer} is not one of the layers 0 to 4"):
            BERTScore(some, layer=layer)


def test_signatures_and_states_differ_by_picked_layer(minilm, every):
    table = [BERTScore(every, layer=2), BERTScore(every, layer=3), BERTScore(every)]
    assert len({metric.signature() for metric in table}) == len(table)
    for metric in table[1:]:
        with pytest.raises(ValueError, match="layer"):
            table[0].merge_state(updated(metric))
    # A layer has the same vectors in every encoder.
    shallower = FrozenEncoder(minilm, num_layers=4, all_layers=True)
    same = BERTScore(every, layer=-5)
    for metric in (same, same.clone(), BERTScore(FrozenEncoder(minilm, num_layers=2)), BERTScore(shallower, layer=2)):
        assert metric.signature() == table[0].signature()
    table[0].merge_state(updated(same))
    assert_equal(table[0].compute(), same.compute(), 0)


# --- other settings


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"reduction": "sum"}, ValueError, "reduction='sum'"),
        ({"no_such_option": 1}, ValueError, "Unexpected keyword"),
        ({"component": "F1"}, ValueError, "component='F1' is not one of 'precision', 'recall', 'f1'"),
        ({"component": True}, ValueError, "component=True is not one of"),
        ({"layer": 1}, ValueError, "layer=1 needs an encoder with all_layers=True"),
    ],
)
def test_impossible_settings(encoder, options, error, message):
    with pytest.raises(error, match=message):
        BERTScore(encoder, **options)


# --- weights, pairs and alignments with a metric's own settings
def weights_on_a_rank(rank, folder):
    metric = BERTScore(FrozenEncoder(folder, num_layers=LAYERS), idf=True)
    # The last pair on both ranks, as a sampler would repeat it; the second rank has nothing else.
    numbers = list(range(COUNT)) if rank == 0 else [COUNT - 1]
    metric.update([PREDS[i] for i in numbers], [TARGET[i] for i in numbers], indices=numbers)
    weights = metric.token_weights()
    return weights.table, weights.source, metric.compute()["f1"]


@pytest.mark.distributed
def test_weights_for_a_loss_are_those_of_all_ranks(minilm):
    encoder = FrozenEncoder(minilm, num_layers=LAYERS)
    expected = BERTScore(encoder, idf=TARGET)
    expected.update(PREDS, TARGET)
    for table, source, f1 in run_ranks(weights_on_a_rank, 2, str(minilm)):
        assert torch.equal(table, expected.token_weights().table)
        assert source == expected.token_weights().source
        assert f1.item() == pytest.approx(expected.compute()["f1"].item(), abs=1e-6)


@pytest.mark.parametrize("options", [{"component": "f1", "idf": True}, {"component": "recall", "idf": CORPUS}])
def test_a_metric_of_the_same_settings_gives_pairs(encoder, options):
    metric = BERTScore(encoder, **options)
    metric.update(PREDS[:4], TARGET[:4])
    twin = updated(metric.per_pair())
    assert_equal(twin.compute(), bert_score(PREDS, TARGET, encoder, idf=options["idf"]))
    assert metric.update_count == 1  # its pairs are its own


def test_a_metric_aligns_with_its_own_settings(minilm, every):
    texts = "a cat sleeps", "the kitten is sleeping"
    encoder = FrozenEncoder(minilm, num_layers=5)
    sents = ["a cat", "the kitten", "the dog is sleeping"]
    aligned = BERTScore(every, layer=5, idf=sents).align(*texts)
    other = compute_alignment(*texts, ScoreSettings.create(encoder, sents))
    assert aligned.candidate.tokens == other.candidate.tokens
    assert torch.allclose(aligned.similarity, other.similarity, atol=1e-6)
    assert torch.allclose(aligned.candidate.shares, other.candidate.shares, atol=1e-6)
    metric = BERTScore(every, layer=5, idf=True)
    with pytest.raises(ValueError, match="there are none yet: call update first"):
        metric.align(*texts)
    metric.update(["x"] * 3, sents)
    scores = bert_score([texts[0]], [texts[1]], encoder, idf=sents)
    assert metric.align(*texts).f1 == pytest.approx(scores["f1"].item(), abs=1e-6)
    assert metric.align(*texts).settings.endswith("layer 5, idf of 3 texts")
    with pytest.raises(ValueError, match="an alignment needs a single layer"):
        BERTScore(every).align(*texts)
