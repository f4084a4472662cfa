"""What torchmetrics' wrappers do with the metric."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
import pytest
from torchmetrics.wrappers import (
    ClasswiseWrapper,
    LambdaInputTransformer,
    MetricTracker,
    MinMaxMetric,
    MultitaskWrapper,
    Running,
)
from transformers import AutoTokenizer

from tests.support.metric_kinds import BATCHES, HELD, LAYERS, TOLERANCE, Workshop, kind

pytestmark = pytest.mark.usefixtures("one_thread")


def f1_of(workshop: Workshop, numbers: Sequence[int], **options: Any) -> float:
    return workshop.scores(kind(**options), list(numbers))[2].double().mean().item()


EPOCHS = [[0, 1, 2], [3, 4], [5, 6, 7], [8]]


@pytest.mark.parametrize("idf", [False, True])
def test_tracker(workshop, idf):
    tracker = MetricTracker(workshop.metric(kind(component="f1", idf=idf)))
    expected = [f1_of(workshop, numbers, idf=idf) for numbers in EPOCHS]
    for numbers, value in zip(EPOCHS, expected, strict=True):
        tracker.increment()
        assert tracker(*workshop.batch(kind(), numbers[:1])).item() == pytest.approx(
            f1_of(workshop, numbers[:1], idf=idf), abs=1e-6
        )
        if numbers[1:]:
            tracker.update(*workshop.batch(kind(), numbers[1:]))
        assert tracker.compute().item() == pytest.approx(value, abs=TOLERANCE)
    assert tracker.n_steps == len(EPOCHS)
    assert tracker.compute_all().tolist() == pytest.approx(expected, abs=TOLERANCE)
    best, step = tracker.best_metric(return_step=True)
    assert (best, step) == (pytest.approx(max(expected), abs=TOLERANCE), int(np.argmax(expected)))
    tracker.reset()
    tracker.update(*workshop.batch(kind(), EPOCHS[0]))
    assert tracker.compute().item() == pytest.approx(expected[0], abs=TOLERANCE)


def test_layers_by_name(workshop):
    layers = [f"layer{layer}" for layer in range(LAYERS + 1)]
    wrapped = ClasswiseWrapper(workshop.metric(kind(all_layers=True, component="f1")), layers, prefix="f1_")
    wrapped.update(*workshop.batch(kind(), EPOCHS[0]))
    expected = workshop.scores(kind(all_layers=True), EPOCHS[0])[2].double().mean(-1)
    assert {name: value.item() for name, value in wrapped.compute().items()} == {
        f"f1_{name}": pytest.approx(value, abs=TOLERANCE) for name, value in zip(layers, expected.tolist(), strict=True)
    }


def test_minimum_and_maximum(workshop):
    wrapped = MinMaxMetric(workshop.metric(kind(component="f1")))
    seen: list[float] = []
    for numbers in EPOCHS:
        wrapped._base_metric.reset()
        wrapped.update(*workshop.batch(kind(), numbers))
        seen.append(f1_of(workshop, numbers))
        found = {name: value.item() for name, value in wrapped.compute().items()}
        assert found == pytest.approx({"raw": seen[-1], "max": max(seen), "min": min(seen)}, abs=TOLERANCE)
    assert len(set(seen)) > 2


@pytest.mark.parametrize("options", [{"idf": True}, {"rescale": True}], ids=str)
def test_running_window(workshop, options):
    running = Running(workshop.metric(kind(component="f1", **options)), window=2)
    for step, numbers in enumerate(BATCHES):
        if step % 2:
            running.update(*workshop.batch(kind(), numbers))
        else:
            assert running(*workshop.batch(kind(), numbers)).item() == pytest.approx(
                f1_of(workshop, numbers, **options), abs=TOLERANCE
            )
        window = list(chain(*BATCHES[max(step - 1, 0) : step + 1]))
        assert running.compute().item() == pytest.approx(f1_of(workshop, window, **options), abs=TOLERANCE)


def test_arithmetic_of_metrics(workshop):
    batches = [workshop.batch(kind(), numbers) for numbers in EPOCHS[:2]]
    numbers = EPOCHS[0] + EPOCHS[1]
    f1, recall = (workshop.scores(kind(), numbers)[place].double().mean().item() for place in (2, 1))
    composed = {
        "gap": (workshop.metric(kind(component="f1")) - workshop.metric(kind(component="recall")), f1 - recall),
        "percent": (100 * workshop.metric(kind(component="f1")), 100 * f1),
        "picked": (workshop.metric(kind())["f1"], f1),
    }
    for name, (metric, wanted) in composed.items():
        for batch in batches:
            metric.update(*batch)
        assert metric.compute().item() == pytest.approx(wanted, abs=1e-4 if name == "percent" else TOLERANCE)


def test_inputs_transformed_and_by_task(workshop):
    metric = workshop.metric(kind(component="f1"))
    tokenizer = AutoTokenizer.from_pretrained(workshop.model)
    preds, target = workshop.texts(kind(), HELD)
    # What generate() returns, decoded by the wrapper.
    ids = tokenizer(preds, padding=True, return_tensors="pt").input_ids
    decoded = tokenizer.batch_decode(ids, skip_special_tokens=True)
    transformed = LambdaInputTransformer(metric.clone(), partial(tokenizer.batch_decode, skip_special_tokens=True))
    assert transformed(ids, target).item() == metric(decoded, target).item()
    tasks = MultitaskWrapper({"title": metric.clone(), "summary": metric.clone()})
    tasks.reset()
    of_task = {"title": workshop.texts(kind(), [0, 1]), "summary": workshop.texts(kind(), [2, 3])}
    tasks.update(*({task: texts[side] for task, texts in of_task.items()} for side in (0, 1)))
    found = {task: value.item() for task, value in tasks.compute().items()}
    assert found == pytest.approx({"title": f1_of(workshop, [0, 1]), "summary": f1_of(workshop, [2, 3])}, abs=TOLERANCE)
