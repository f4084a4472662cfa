"""The path of a text through the package stays short enough to be read."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import bertscore_tm
from bertscore_tm import BERTScore, callbacks, losses, rank_candidates
from bertscore_tm.losses import SoftBERTScoreLoss
from tests.support.soft_predictions import labels_of, near_labels

pytestmark = pytest.mark.usefixtures("one_thread")


def files_crossed(call: Callable[[], Any]) -> set[str]:
    """Return the names of our files in which a function is called, such as ``core/matching.py``."""
    roots = [Path(str(package.__file__)).parent for package in (bertscore_tm, losses, callbacks)]
    found = set()

    def note(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call" and frame.f_code.co_name != "<module>":
            found.add(frame.f_code.co_filename)

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    paths = [Path(name) for name in found]
    return {"/".join(path.parts[-2:]) for path in paths if any(root in path.parents for root in roots)}


@pytest.mark.parametrize("kind", ["metric", "ranking", "loss step"])
def test_a_text_crosses_few_files(encoder, kind):
    metric, loss = BERTScore(encoder, cache_bytes=0), SoftBERTScoreLoss(encoder)
    labels = labels_of(encoder)
    logits = near_labels(encoder, labels).requires_grad_()

    def score() -> None:
        metric.update(["a small cat"], ["the kitten"])
        metric.compute()
        metric.reset()

    calls: dict[str, Callable[[], Any]] = {
        "metric": score,
        "ranking": lambda: rank_candidates([["a small cat", "a dog"]], ["the kitten"], encoder),
        "loss step": lambda: loss(logits, labels).backward(),
    }
    calls[kind]()  # loads the encoder, and caches the targets
    crossed = files_crossed(calls[kind])
    assert 5 < len(crossed) <= 14, sorted(crossed)
    assert len([name for name in crossed if name.startswith("soft/")]) <= 5
