"""Ways of doing the same, measured in turn, and figures with their spread."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from examples.benchmarks.tables import Record

__all__ = ["COLUMNS", "Figure", "in_turn", "ratios"]

COLUMNS = {"what": "", "median": ".3g", "minimum": ".3g", "maximum": ".3g", "unit": "", "target": "", "met": ""}


@dataclass(frozen=True)
class Figure:
    """A figure measured several times.

    Args:
        what: what was measured.
        values: one value per round.
        unit: of the values: ``"times"``, ``"share"``, ``"pairs/s"``, ``"TFLOP/s"``, ``"MB"``, ``"kB"``, ``"s"``,
            ``"ms"`` or ``""``.
        target: what its median should reach; ``None`` where nothing is asked for.
        at_most: whether the target is an upper bound.
    """

    what: str
    values: Sequence[float]
    unit: str
    target: float | None = None
    at_most: bool = False

    @property
    def met(self) -> bool | None:
        """Whether the median reaches the target."""
        if self.target is None:
            return None
        middle = median(self.values)
        return middle <= self.target if self.at_most else middle >= self.target

    def record(self) -> Record:
        """Return the figure as a row of a table."""
        bound = None if self.target is None else f"{'at most' if self.at_most else 'at least'} {self.target:g}"
        return {
            "what": self.what,
            "median": median(self.values),
            "minimum": min(self.values),
            "maximum": max(self.values),
            "unit": self.unit,
            "target": bound,
            "met": self.met,
            "rounds": len(self.values),
        }


def in_turn(ways: Mapping[str, Callable[[], Any]], rounds: int) -> dict[str, list[float]]:
    """Time several ways, one after the other in each round, so that a busy machine slows all of them alike.

    Each goes once before the first round, and each round begins with another one.

    Args:
        ways: functions by name.
        rounds: how often each is timed.

    Returns:
        Wall times in seconds by name, one per round.

    Example:
        >>> sorted(in_turn({"nothing": lambda: None, "little": lambda: sum(range(9))}, rounds=3))
        ['little', 'nothing']
    """
    for way in ways.values():
        way()
    names = list(ways)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for number in range(rounds):
        start = number % len(names)
        for name in names[start:] + names[:start]:
            began = time.perf_counter()
            ways[name]()
            seconds[name].append(time.perf_counter() - began)
    return seconds


def ratios(over: Sequence[float], under: Sequence[float]) -> list[float]:
    """Return the ratio of two times in each round.

    Args:
        over: seconds of each round.
        under: seconds of another way in the same rounds.

    Returns:
        How many times longer the first took.

    Example:
        >>> ratios([2.0, 3.0], [1.0, 2.0])
        [2.0, 1.5]
    """
    return [a / b for a, b in zip(over, under, strict=True)]
