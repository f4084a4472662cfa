"""Timing of several implementations in turn, and figures with their spread."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any


@dataclass(frozen=True)
class Figure:
    """A figure with one value per round, in a unit such as ``"times"`` or ``"MB"``, or without one."""

    what: str
    values: Sequence[float]
    unit: str = ""

    def __str__(self) -> str:
        spread = f" ({min(self.values):.3g} to {max(self.values):.3g})" if len(self.values) > 1 else ""
        return f"{self.what}: {median(self.values):.3g}{spread} {self.unit}".rstrip()


def in_turn(
    functions: Mapping[str, Callable[[], Any]],
    rounds: int,
    preparations: Mapping[str, Callable[[], Any]] | None = None,
) -> dict[str, list[float]]:
    """Return the wall times of functions by name, called in turn, so that other programs slow all of them equally.

    Each is called once before the first round. Each round starts with another function. The preparation of a function
    is called right before each of its timings, and is not part of them.
    """
    for function in functions.values():
        function()
    names = list(functions)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for number in range(rounds):
        start = number % len(names)
        for name in names[start:] + names[:start]:
            if preparations and name in preparations:
                preparations[name]()
            began = time.perf_counter()
            functions[name]()
            seconds[name].append(time.perf_counter() - began)
    return seconds


def ratios(over: Sequence[float], under: Sequence[float]) -> list[float]:
    """Return the ratio of two times in each round."""
    return [a / b for a, b in zip(over, under, strict=True)]
