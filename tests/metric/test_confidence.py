"""Intervals of the metric: ``confidence=``."""

from __future__ import annotations

import math
from typing import Any

import pytest

from bertscore_tm import BERTScore, FrozenEncoder
from bertscore_tm.functional import SCORES, bert_score
from bertscore_tm.statistics import mean_interval
from tests.support.short_pairs import (
    CORPUS,
    INTERVAL,
    LAYERS,
    PREDS,
    TARGET,
    assert_close,
    baseline,
    mean,
    updated,
)

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize(
    ("kind", "reduction", "confidence"),
    [
        ("plain", "mean", 0.5),
        ("idf", "none", 0.95),
        ("corpus", "mean", 0.95),
        ("all layers", "none", 0.5),
        ("picked", "mean", 0.95),
        ("rescaled", "none", 0.95),
        ("all layers, rescaled", "mean", 0.5),
    ],
)
def test_an_interval_is_that_of_the_pairs(minilm, every, tmp_path, kind, reduction, confidence):
    options: dict[str, Any] = {}
    if "rescaled" in kind:
        options |= {"rescale": baseline(tmp_path)}
    if kind in ("idf", "corpus"):
        options |= {"idf": True if kind == "idf" else CORPUS}
    encoder = every if "layers" in kind or kind == "picked" else FrozenEncoder(minilm, num_layers=LAYERS)
    metric = BERTScore(
        encoder,
        layer=4 if kind == "picked" else None,
        reduction=reduction,
        confidence=confidence,
        **options,
    )
    found = updated(metric).compute()
    f1 = bert_score(PREDS, TARGET, encoder, **options)["f1"]
    f1 = f1[4] if kind == "picked" else f1
    assert list(found) == [*SCORES, *INTERVAL]
    layers = f1.shape[:-1]
    for name, end in zip(INTERVAL, mean_interval(f1, confidence, bounds=(-math.inf, 1)), strict=True):
        assert found[name].shape == layers
        assert_close(found[name], end)
    assert_close(found["f1"], f1 if reduction == "none" else mean(f1))
    average = mean(f1)
    assert (found["f1_low"] < average).all()
    assert (average < found["f1_high"]).all()


@pytest.mark.parametrize("rescaled", [False, True])
def test_one_pair_has_no_interval(every, tmp_path, rescaled):
    options: dict[str, Any] = {"rescale": baseline(tmp_path)} if rescaled else {}
    metric = BERTScore(every, confidence=0.95, **options)
    metric.update(PREDS[0], TARGET[0])
    found = metric.compute()
    for name in INTERVAL:
        assert found[name].shape == found["f1"].shape
        assert found[name].isnan().all()
    assert found["f1"].isfinite().all()


@pytest.mark.parametrize("rescaled", [False, True])
def test_an_interval_does_not_leave_the_range_of_scores(encoder, tmp_path, rescaled):
    options: dict[str, Any] = {"rescale": baseline(tmp_path)} if rescaled else {}
    metric = BERTScore(encoder, reduction="none", confidence=0.999, **options)
    metric.update([TARGET[0], TARGET[1], PREDS[2]], TARGET[:3])
    found = metric.compute()
    low, high = mean_interval(found["f1"], 0.999)
    b = metric._baseline.rows[2].item() if rescaled else 0.0
    least = (-1 - b) / (1 - b)
    assert high > 1
    assert found["f1_high"] == 1
    assert found["f1_low"].item() == pytest.approx(max(low.item(), least), abs=1e-5)


def test_no_pair_has_no_interval(minilm, encoder):
    for metric, shape in (
        (BERTScore(encoder, confidence=0.95), ()),
        (BERTScore(encoder, confidence=0.95, idf=True, reduction="none"), ()),
        (BERTScore(FrozenEncoder(minilm, num_layers=LAYERS, all_layers=True), confidence=0.95), (LAYERS + 1,)),
    ):
        with pytest.warns(UserWarning, match="before the ``update``"):
            found = metric.compute()
        assert all(found[name].shape == shape and found[name].isnan().all() for name in INTERVAL)


def test_repeated_pairs_count_once(encoder):
    metric = BERTScore(encoder, confidence=0.9)
    for numbers in ([3, 1], [1, 3, 0], [2]):
        metric.update([PREDS[i] for i in numbers], [TARGET[i] for i in numbers], indices=numbers)
    found = metric.compute()
    f1 = bert_score(PREDS[:4], TARGET[:4], encoder)["f1"]
    for name, end in zip(INTERVAL, mean_interval(f1, 0.9, bounds=(-1, 1)), strict=True):
        assert_close(found[name], end)


@pytest.mark.parametrize("confidence", [0, 1, 0.0, 1.0, -0.1, 1.5, 95, math.nan, math.inf])
def test_impossible_confidence(encoder, confidence):
    with pytest.raises(ValueError, match="confidence must be between 0 and 1, got"):
        BERTScore(encoder, confidence=confidence)
