"""Timing of several implementations in turn, and figures with their spread."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

Record = dict[str, str | int | float | bool | None]
_COLUMNS = {"what": "", "median": ".3g", "minimum": ".3g", "maximum": ".3g", "unit": "", "target": "", "met": ""}


@dataclass(frozen=True)
class Figure:
    """A figure measured several times.

    Args:
        what: name of the figure.
        values: one value per round.
        unit: unit of the values, such as ``"times"``, ``"share"``, ``"pairs/s"``, ``"MB"`` or ``""``.
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
        return {
            "what": self.what,
            "median": median(self.values),
            "minimum": min(self.values),
            "maximum": max(self.values),
            "unit": self.unit,
            "target": None if self.target is None else f"{'at most' if self.at_most else 'at least'} {self.target:g}",
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
    """Return the ratio of two times in each round."""
    return [a / b for a, b in zip(over, under, strict=True)]


def table(records: Sequence[Record]) -> str:
    """Return the records of figures as a plain table, with ``None`` as a dash."""
    rows = [list(_COLUMNS), *([_format(record[key], spec) for key, spec in _COLUMNS.items()] for record in records)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    sides = ["<", *(">" for _ in widths[1:])]
    return "\n".join(
        "  ".join(f"{cell:{side}{width}}" for cell, side, width in zip(row, sides, widths, strict=True)) for row in rows
    )


def _format(value: str | int | float | bool | None, spec: str) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return format(value, spec)
