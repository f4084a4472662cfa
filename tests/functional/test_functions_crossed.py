"""The path of a text through the package stays short enough to be read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from bertscore_tm import BERTScore, rank_candidates
from bertscore_tm.losses import SoftBERTScoreLoss
from tests.support.function_counts import functions_crossed
from tests.support.soft_predictions import labels_of, near_labels

pytestmark = pytest.mark.usefixtures("one_thread")

# Kind of call: functions and depth.
LIMITS = {"update": (60, 11), "loss step": (70, 11), "ranking": (64, 11)}


@pytest.mark.parametrize("kind", LIMITS)
def test_a_call_crosses_few_functions(encoder, kind):
    metric, loss = BERTScore(encoder), SoftBERTScoreLoss(encoder)
    labels = labels_of(encoder)
    logits = near_labels(encoder, labels).requires_grad_()
    calls: dict[str, Callable[[], Any]] = {
        "update": lambda: metric.update(["a small cat", "a dog"], ["the kitten", "my dog"]),
        "loss step": lambda: loss(logits, labels).backward(),
        "ranking": lambda: rank_candidates([["a small cat", "a dog"]], ["the kitten"], encoder),
    }
    calls[kind]()  # loads the encoder, and caches the references
    metric.reset()
    crossed = functions_crossed(calls[kind])
    most, deepest = LIMITS[kind]
    assert 30 < len(crossed.names) <= most, crossed
    assert 5 < crossed.depth <= deepest, crossed
