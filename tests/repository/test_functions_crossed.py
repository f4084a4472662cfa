"""The path of a text through the package stays short enough to be read."""

import sys
from collections.abc import Callable
from pathlib import Path
from traceback import walk_stack
from types import CodeType, FrameType
from typing import Any

import pytest

import bertscore_tm
from bertscore_tm import BERTScore, callbacks, losses, rank_candidates
from bertscore_tm.losses import SoftBERTScoreLoss
from tests.support.soft_predictions import labels_of, near_labels

FOLDERS = tuple(str(Path(str(package.__file__)).parent) for package in (bertscore_tm, callbacks, losses))
# Kind of call: the largest number of functions, and how many may be active at once.
LIMITS = {"update": (90, 13), "update of new texts": (90, 13), "loss step": (105, 13), "ranking": (95, 13)}


def is_function(code: CodeType) -> bool:
    """A lambda or a comprehension is part of the function around it."""
    return code.co_filename.startswith(FOLDERS) and not code.co_name.startswith("<")


def functions_crossed(call: Callable[[], Any]) -> tuple[set[str], int]:
    """Return the functions of the package that a call crosses in this thread, and how many are active at most."""
    names: set[str] = set()
    depth = 0

    def note(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal depth
        if event == "call" and is_function(frame.f_code):
            names.add(f"{Path(frame.f_code.co_filename).name} {frame.f_code.co_qualname}")
            depth = max(depth, sum(is_function(active.f_code) for active, _ in walk_stack(frame)))

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return names, depth


@pytest.mark.parametrize("kind", LIMITS)
def test_a_call_crosses_few_functions(encoder, kind):
    metric = BERTScore(encoder)
    loss = SoftBERTScoreLoss(encoder)
    labels = labels_of(encoder)
    logits = near_labels(encoder, labels).requires_grad_()
    new = map(str, range(9))
    calls: dict[str, Callable[[], Any]] = {
        "update of new texts": lambda: metric.update(
            [f"a small cat {next(new)}", "a dog"], [f"the kitten {next(new)}", "my dog"]
        ),
        "update": lambda: metric.update(["a small cat", "a dog"], ["the kitten", "my dog"]),
        "loss step": lambda: loss(logits, labels).backward(),
        "ranking": lambda: rank_candidates([["a small cat", "a dog"]], ["the kitten"], encoder),
    }
    calls[kind]()  # loads the encoder, and caches the references
    metric.reset()
    names, depth = functions_crossed(calls[kind])
    most, deepest = LIMITS[kind]

    assert 30 < len(names) <= most, sorted(names)
    assert 5 < depth <= deepest
