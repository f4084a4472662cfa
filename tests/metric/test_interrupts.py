"""KeyboardInterrupt anywhere in a call of the metric: the call takes effect wholly or not at all."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torchmetrics

import bertscore_tm.metric
from bertscore_tm import BERTScore, FrozenEncoder
from tests.support.models import tiny_model

pytestmark = pytest.mark.usefixtures("one_thread")

FOLDERS = tuple(str(Path(module.__file__).parent) for module in (bertscore_tm.metric, torchmetrics))
FIRST, SECOND, THIRD = (
    (["a cat sat", "good morning"], ["the cat sat", "hello there"]),
    (["it rains in Paris"], ["rain falls on the capital"]),
    (["the train was late", "nobody came"], [["the train came late", "a delayed train"], ["no one showed up"]]),
)


class Interrupter:
    """Raises KeyboardInterrupt at one of the places in the metric where Python handles signals.

    These are the start of a function and the end of a call.
    """

    def __init__(self, place: int) -> None:
        self.left = place

    def __call__(self, frame: FrameType, event: str, arg: Any) -> None:
        # A profiler cannot raise within a generator that is resumed, as a signal would.
        at_start = event == "call" and not frame.f_code.co_flags & inspect.CO_GENERATOR
        if (at_start or event == "c_return") and frame.f_code.co_filename.startswith(FOLDERS):
            self.left -= 1
            if self.left < 0:
                raise KeyboardInterrupt


def is_interrupted(call: Callable[[], Any], place: int) -> bool:
    sys.setprofile(Interrupter(place))
    try:
        call()
    except KeyboardInterrupt:
        return True
    finally:
        sys.setprofile(None)
    return False


def scores_of(metric: BERTScore) -> list[list[float]]:
    return [score.tolist() for score in metric.compute().values()]


@pytest.fixture(scope="module")
def encoder() -> FrozenEncoder:
    model, tokenizer = tiny_model("bert")
    return FrozenEncoder(model=model, tokenizer=tokenizer, num_layers=1)


@pytest.mark.parametrize(
    ("call", "options"),
    [("forward", {}), *((call, {"idf": True, "reduction": "none"}) for call in ("forward", "merge_state", "reset"))],
)
@pytest.mark.filterwarnings("ignore:The ``compute`` method")
def test_interrupted_calls_take_effect_wholly_or_not_at_all(encoder, call, options):
    def metric_of(*batches: tuple[Any, Any]) -> BERTScore:
        metric = BERTScore(encoder, **options)
        for batch in batches:
            metric.update(*batch)
        return metric

    first, third = metric_of(FIRST), scores_of(metric_of(THIRD))
    arguments = {"forward": SECOND, "merge_state": (metric_of(SECOND),), "reset": ()}[call]
    completed = () if call == "reset" else (FIRST, SECOND)
    outcomes = [(scores_of(metric_of(*held)), scores_of(metric_of(*held, THIRD))) for held in ((FIRST,), completed)]
    place, interrupted = 0, True
    while interrupted:
        metric = first.clone()
        interrupted = is_interrupted(lambda metric=metric: getattr(metric, call)(*arguments), place)
        found = scores_of(metric)
        possible = [later for now, later in outcomes if now == found]
        assert possible, f"{call} interrupted at place {place} of the metric gives {found}"
        assert [score.tolist() for score in metric(*THIRD).values()] == third
        assert scores_of(metric) in possible
        place += 1
    # Nothing is left out: the last call was complete, and those before were interrupted.
    assert found == outcomes[1][0]
    assert place > 40
