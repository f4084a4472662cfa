"""Timing of several implementations in turn, and figures with their spread."""

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
        what: name of the figure.
        values: one value per round.
        unit: unit of the values: ``"times"``, ``"share"``, ``"pairs/s"``, ``"TFLOP/s"``, ``"MB"``, ``"kB"``, ``"s"``,
            ``"ms"`` or ``""``.
        target: target of the median; ``None``: no target.
        at_most: the target is an upper bound instead of a lower bound.
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


def in_turn(functions: Mapping[str, Callable[[], Any]], rounds: int) -> dict[str, list[float]]:
    """Time several functions in turn, so that other programs slow all of them equally.

    Each is called once before the first round. Each round starts with another function.

    Args:
        functions: the functions by name.
        rounds: number of timings of each.

    Returns:
        Wall times in seconds by name, one per round.

    Example:
        >>> sorted(in_turn({"nothing": lambda: None, "little": lambda: sum(range(9))}, rounds=3))
        ['little', 'nothing']
    """
    for function in functions.values():
        function()
    names = list(functions)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for number in range(rounds):
        start = number % len(names)
        for name in names[start:] + names[:start]:
            began = time.perf_counter()
            functions[name]()
            seconds[name].append(time.perf_counter() - began)
    return seconds


def ratios(over: Sequence[float], under: Sequence[float]) -> list[float]:
    """Return the ratio of two times in each round.

    Args:
        over: numerators, seconds of each round.
        under: denominators, seconds of the same rounds.

    Returns:
        The ratio of each round.

    Example:
        >>> ratios([2.0, 3.0], [1.0, 2.0])
        [2.0, 1.5]
    """
    return [a / b for a, b in zip(over, under, strict=True)]
