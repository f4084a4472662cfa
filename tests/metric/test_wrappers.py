"""What torchmetrics' wrappers do with the metric."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np
import pytest
from torchmetrics import MetricCollection
from torchmetrics.wrappers import (
    ClasswiseWrapper,
    MetricTracker,
    Running,
)

from tests.support.metric_kinds import BATCHES, LAYERS, TOLERANCE, Workshop, kind

pytestmark = pytest.mark.usefixtures("one_thread")


def f1_of(workshop: Workshop, numbers: Sequence[int], **options: Any) -> float:
    return workshop.scores(kind(**options), list(numbers))[2].double().mean().item()


EPOCHS = [[0, 1, 2], [3, 4], [5, 6, 7], [8]]


def test_tracker(workshop):
    kinds = {"f1": kind(component="f1"), "f1_idf": kind(component="f1", idf=True)}
    tracker = MetricTracker(MetricCollection({name: workshop.metric(made) for name, made in kinds.items()}))
    expected = {
        "f1": [f1_of(workshop, numbers) for numbers in EPOCHS],
        "f1_idf": [f1_of(workshop, numbers, idf=True) for numbers in EPOCHS],
    }
    for step, numbers in enumerate(EPOCHS):
        tracker.increment()
        found = tracker(*workshop.batch(kind(), numbers[:1]))
        assert found["f1"].item() == pytest.approx(f1_of(workshop, numbers[:1]), abs=TOLERANCE)
        tracker.update(*workshop.batch(kind(), numbers[1:]))
        for name, value in tracker.compute().items():
            assert value.item() == pytest.approx(expected[name][step], abs=TOLERANCE)
    assert tracker.n_steps == len(EPOCHS)
    assert tracker.maximize == [True] * 2
    best, steps = tracker.best_metric(return_step=True)
    for name, values in expected.items():
        assert tracker.compute_all()[name].tolist() == pytest.approx(values, abs=TOLERANCE)
        assert (best[name], steps[name]) == (pytest.approx(max(values), abs=TOLERANCE), int(np.argmax(values)))
    tracker.reset()
    tracker.update(*workshop.batch(kind(), EPOCHS[0]))
    assert tracker.compute()["f1"].item() == pytest.approx(expected["f1"][0], abs=TOLERANCE)


def test_layers_by_name(workshop):
    layers = [f"layer{layer}" for layer in range(LAYERS + 1)]
    wrapped = ClasswiseWrapper(workshop.metric(kind(all_layers=True, component="f1")), layers, prefix="f1_")
    wrapped.update(*workshop.batch(kind(), EPOCHS[0]))
    expected = workshop.scores(kind(all_layers=True), EPOCHS[0])[2].double().mean(-1)
    assert {name: value.item() for name, value in wrapped.compute().items()} == {
        f"f1_{name}": pytest.approx(value, abs=TOLERANCE) for name, value in zip(layers, expected.tolist(), strict=True)
    }


def test_running_window(workshop):
    options = {"idf": True, "rescale": True}
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
