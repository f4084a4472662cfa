"""What the metric's options change: picked layers, single scores, read-only settings."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import bert_score as oracle
import numpy as np
import pytest
import torch
from torch import Tensor

from bertscore_tm import BERTScore, FrozenEncoder
from bertscore_tm.functional import bert_score
from bertscore_tm.losses import SoftBERTScoreLoss
from tests.support.models import tiny_model
from tests.support.short_pairs import (
    CORPUS,
    COUNT,
    LAYERS,
    ONE,
    PREDS,
    SEVERAL,
    TARGET,
    assert_close,
    baseline,
    mean,
    stacked,
    updated,
)

pytestmark = pytest.mark.usefixtures("one_thread")


# --- a layer of all


@pytest.mark.parametrize(("layer", "idf"), [(0, True), (3, False), (-1, False), (-5, True)])
def test_a_picked_layer(minilm, every, layer, idf):
    number = layer if layer >= 0 else 7 + layer
    picked = updated(BERTScore(every, layer=layer, idf=idf, reduction="none"), PREDS, SEVERAL)
    average = updated(BERTScore(every, layer=layer, idf=idf), PREDS, SEVERAL)
    found, averaged = picked.compute(), average.compute()
    row = stacked(bert_score(PREDS, SEVERAL, every, idf=idf))[:, number]
    assert_close(stacked(found), row)
    assert_close(stacked(averaged), mean(row))
    # What it gives out has no dimension of layers.
    assert {value.shape for value in found.values()} == {(COUNT,)}
    assert {value.shape for value in averaged.values()} == {()}
    # BERT has no norm after its last layer, so that a model cut there gives the same.
    assert_close(stacked(bert_score(PREDS, SEVERAL, FrozenEncoder(minilm, num_layers=layer), idf=idf)), row)
    theirs = oracle.score(PREDS, SEVERAL, model_type=minilm, num_layers=number, idf=idf, **ONE)
    assert_close(stacked(found), torch.stack(theirs))


@pytest.mark.parametrize("family", ["gpt2", "modernbert"])
def test_a_picked_layer_of_a_model_with_a_final_norm(family):
    """Every layer comes with the norm, as that of a model that is cut there."""
    ready, tokenizer = tiny_model(family)
    every = FrozenEncoder(ready, tokenizer, all_layers=True)
    for layer in range(every.num_layers + 1):
        picked = BERTScore(every, layer=layer, reduction="none")
        cut = FrozenEncoder(ready, tokenizer, num_layers=layer)
        assert_close(stacked(updated(picked).compute()), stacked(bert_score(PREDS, TARGET, cut)))


def test_negative_numbers_count_from_the_models_last_layer(minilm):
    """Not from the last one that comes out."""
    some = FrozenEncoder(minilm, num_layers=4, all_layers=True)
    found = updated(BERTScore(some, layer=-4, reduction="none")).compute()
    assert_close(found["f1"], bert_score(PREDS, TARGET, FrozenEncoder(minilm, num_layers=3))["f1"])
    for layer in (5, 6, 7, -1, -2, -8, 100):
        with pytest.raises(ValueError, match=f"={layer} is not one of the layers 0 to 4"):
            BERTScore(some, layer=layer)


def test_one_layer_is_picked_from_all_layers_only(encoder):
    with pytest.raises(ValueError, match="layer=1 needs an encoder with all_layers=True"):
        BERTScore(encoder, layer=1)


def test_rescaling_of_a_picked_layer(every, tmp_path):
    table = baseline(tmp_path)
    for layer in (0, 2, 5, -1):
        number = layer % 7
        options: dict[str, Any] = {"rescale": table}
        raw = stacked(updated(BERTScore(every, layer=layer, reduction="none")).compute())
        row = torch.tensor([0.1 + number / 20, 0.2 + number / 25, 0.15 + number / 30])[:, None]
        for reduction in ("none", "mean"):
            found = stacked(updated(BERTScore(every, layer=layer, reduction=reduction, **options)).compute())
            expected = (raw - row) / (1 - row)
            assert_close(found, expected if reduction == "none" else mean(expected), 2e-6)
        rows = stacked(updated(BERTScore(every, reduction="none", **options)).compute())
        assert_close(rows[:, number], (raw - row) / (1 - row), 2e-6)


def test_signatures_and_states_differ_by_picked_layer(minilm, every):
    table = [BERTScore(every, layer=2), BERTScore(every, layer=3), BERTScore(every)]
    assert len({metric.signature() for metric in table}) == len(table)
    for metric in table[1:]:
        with pytest.raises(ValueError, match="layer"):
            table[0].merge_state(updated(metric))
    # A layer has the same vectors in every encoder.
    shallower = FrozenEncoder(minilm, num_layers=4, all_layers=True)
    for metric in (
        BERTScore(every, layer=-5),
        BERTScore(FrozenEncoder(minilm, num_layers=2)),
        BERTScore(shallower, layer=2),
    ):
        assert metric.signature() == table[0].signature()
    same = updated(BERTScore(every, layer=-5))
    table[0].merge_state(same)
    assert torch.equal(stacked(table[0].compute()), stacked(same.compute()))
    for other in (copy.deepcopy(same), same.clone(), pickle.loads(pickle.dumps(same))):
        assert other.signature() == same.signature()
        assert torch.equal(stacked(updated(other).compute()), stacked(updated(same.clone()).compute()))


# --- one score alone


@pytest.mark.parametrize(
    ("score", "reduction", "all_layers", "idf"),
    [
        ("precision", "mean", False, True),
        ("precision", "none", True, False),
        ("recall", "none", False, True),
        ("recall", "mean", True, True),
        ("f1", "mean", False, False),
        ("f1", "none", True, True),
    ],
)
def test_one_score(minilm, every, score, reduction, all_layers, idf):
    encoder = FrozenEncoder(minilm, num_layers=LAYERS, all_layers=all_layers)
    metric = updated(BERTScore(encoder, idf=idf, component=score, reduction=reduction))
    expected = bert_score(PREDS, TARGET, encoder, idf=idf)[score]
    layers = (LAYERS + 1,) if all_layers else ()
    found = metric.compute()
    assert isinstance(found, Tensor)
    assert found.shape == ((*layers, COUNT) if reduction == "none" else layers)
    assert_close(found, expected if reduction == "none" else mean(expected))
    assert torch.equal(found, updated(BERTScore(encoder, idf=idf, reduction=reduction)).compute()[score])
    one = metric(PREDS[0], TARGET[0])
    assert one.shape == ((*layers, 1) if reduction == "none" else layers)
    assert metric.compute().shape == ((*layers, COUNT + 1) if reduction == "none" else layers)


def test_one_score_excludes_other_settings(encoder):
    for score in ("F1", "f2", "hash", "", 1, ["f1"], True):
        with pytest.raises(ValueError, match=r"component=.* is not one of 'precision', 'recall', 'f1'"):
            BERTScore(encoder, component=score)
    with pytest.raises(ValueError, match=r"component='recall' computes a single tensor.*confidence=0.9: remove one"):
        BERTScore(encoder, component="recall", confidence=0.9)


# --- other settings


def test_impossible_cache_bytes(encoder):
    for make in (BERTScore, SoftBERTScoreLoss):
        for negative in (-1, -(2**30)):
            with pytest.raises(ValueError, match=f"cache_bytes must be at least 0, got {negative}"):
                make(encoder, cache_bytes=negative)
        # Refused at once, as otherwise some of them fail only when a cache fills up.
        for wrong in (1e6, 0.5, "1GB", None, True):
            with pytest.raises(TypeError, match=f"cache_bytes must be an integer, got {wrong!r}"):
                make(encoder, cache_bytes=wrong)
        made = make(encoder, cache_bytes=np.int64(5))
        assert (type(made.cache_bytes), made.cache_bytes) == (int, 5)


@pytest.mark.parametrize(
    ("options", "reduction"),
    [({}, "mean"), ({"idf": True}, "none"), ({"idf": CORPUS}, "none"), ({"confidence": 0.9}, "mean")],
    ids=str,
)
def test_states_on_the_cpu(encoder, options, reduction):
    metrics = [BERTScore(encoder, compute_on_cpu=flag, reduction=reduction, **options) for flag in (False, True)]
    for metric in metrics:
        metric(PREDS[:3], TARGET[:3])
        updated(metric, PREDS[3:], TARGET[3:])
        for name in metric._dtypes:
            assert all(part.device.type == "cpu" for part in getattr(metric, name))
    found = [metric.compute() for metric in metrics]
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])
    assert_close(found[1]["f1"], (mean if reduction == "mean" else torch.clone)(wanted_f1(encoder, options)))


def wanted_f1(encoder: FrozenEncoder, options: dict[str, Any]) -> Tensor:
    chosen = {name: value for name, value in options.items() if name != "confidence"}
    f1: Tensor = bert_score(PREDS, TARGET, encoder, **chosen)["f1"]
    return f1
