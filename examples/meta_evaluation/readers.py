"""Readers of human judgements from JSON lines, plain or gzipped; the keys of a file determine its kind."""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_FEWEST_ROWS = 5  # for a correlation


@dataclass(frozen=True)
class Ranked:
    """Pairs of candidates for the same references, of which annotators preferred one (daRR).

    Args:
        better: the preferred candidate of each judgement.
        worse: the other candidate of each judgement.
        references: the references of each judgement.
    """

    better: list[str]
    worse: list[str]
    references: list[list[str]]

    def pairs(self) -> tuple[list[str], list[list[str]]]:
        """Return candidates and references to score: first all better candidates, then all worse ones."""
        return [*self.better, *self.worse], [*self.references, *self.references]


@dataclass(frozen=True)
class Rated:
    """Candidates with numeric human ratings; larger is better.

    Args:
        candidates: the rated texts.
        references: the references of each candidate.
        ratings: values of each rating, one per candidate, by name.
        systems: the system of each candidate, if the file contains it.
        documents: the document of each candidate, if the file contains it.
    """

    candidates: list[str]
    references: list[list[str]]
    ratings: dict[str, list[float]]
    systems: list[str] | None
    documents: list[str] | None

    def pairs(self) -> tuple[list[str], list[list[str]]]:
        """Return candidates and references to score."""
        return self.candidates, self.references


@dataclass(frozen=True)
class Labelled:
    """Pairs of texts labelled as paraphrases or not.

    Args:
        candidates: one text of each pair.
        references: the other texts of each pair.
        labels: 1 for paraphrases, 0 for other pairs.
    """

    candidates: list[str]
    references: list[list[str]]
    labels: list[int]

    def pairs(self) -> tuple[list[str], list[list[str]]]:
        """Return candidates and references to score."""
        return self.candidates, self.references


Judged = Ranked | Rated | Labelled


def read(path: Path, num_references: int | None = None) -> Judged:
    """Read a file of human judgements.

    Args:
        path: JSON lines; gzipped if the name ends in ``.gz``.
        num_references: number of references per row to keep, from the first. Default: all.

    Returns:
        The judgements, in the file's order.

    Raises:
        ValueError: a row is invalid; the message names file and line.
        OSError: the file cannot be read.
    """
    rows = [_Row(path, number, values, num_references) for number, values in _lines(path)]
    if len(rows) < _FEWEST_ROWS:
        raise ValueError(f"{path}: {len(rows)} rows; statistics require at least {_FEWEST_ROWS}")
    kinds: dict[str, Callable[[list[_Row]], Judged]] = {"better": _ranked, "human": _rated, "label": _labelled}
    for key, kind in kinds.items():
        if key in rows[0].values:
            return kind(rows)
    raise rows[0].error("requires 'better' (ranked pairs), 'human' (ratings) or 'label' (paraphrases)")


@dataclass(frozen=True)
class _Row:
    path: Path
    line: int
    values: dict[str, Any]
    num_references: int | None

    def error(self, reason: str) -> ValueError:
        return ValueError(f"{self.path}, line {self.line}: {reason}")

    def text(self, key: str) -> str:
        value = self.values.get(key)
        if not isinstance(value, str):
            raise self.error(f"{key!r} must be a string, got {value!r}")
        return value

    def references(self) -> list[str]:
        if ("reference" in self.values) == ("references" in self.values):
            raise self.error("requires either 'reference', a string, or 'references', a list of strings")
        if "reference" in self.values:
            return [self.text("reference")]
        several = self.values["references"]
        if not isinstance(several, list) or not several or not all(isinstance(text, str) for text in several):
            raise self.error(f"'references' must be a list of at least one string, got {several!r}")
        return several[: self.num_references]

    def ratings(self, names: list[str] | None) -> dict[str, float]:
        human = self.values.get("human")
        if not isinstance(human, dict) or not human:
            raise self.error(f"'human' must map at least one rating name to a number, got {human!r}")
        if names is not None and sorted(human) != sorted(names):
            raise self.error(f"ratings {sorted(human)} differ from those of the first row, {sorted(names)}")
        for name, value in human.items():
            if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
                raise self.error(f"rating {name!r} must be a finite number, got {value!r}")
        return human


def _lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            try:
                values = json.loads(line)
            except json.JSONDecodeError as error:
                raise ValueError(f"{path}, line {number}: invalid JSON: {error}") from error
            if not isinstance(values, dict):
                raise ValueError(f"{path}, line {number}: must be a JSON object, got {line.strip()[:80]}")
            yield number, values


def _ranked(rows: list[_Row]) -> Ranked:
    return Ranked(
        [row.text("better") for row in rows], [row.text("worse") for row in rows], [row.references() for row in rows]
    )


def _rated(rows: list[_Row]) -> Rated:
    names = list(rows[0].ratings(None))
    values = [row.ratings(names) for row in rows]
    judged = Rated(
        [row.text("candidate") for row in rows],
        [row.references() for row in rows],
        {name: [float(value[name]) for value in values] for name in names},
        *([row.text(key) for row in rows] if key in rows[0].values else None for key in ("system", "document")),
    )
    for name, column in judged.ratings.items():
        if len(set(column)) == 1:
            raise ValueError(
                f"{rows[0].path}: all ratings {name!r} are {column[0]}; a correlation requires different ones"
            )
    return judged


def _labelled(rows: list[_Row]) -> Labelled:
    for row in rows:
        if row.values.get("label") not in (0, 1):
            raise row.error(f"'label' must be 1 (paraphrase) or 0, got {row.values.get('label')!r}")
    judged = Labelled(
        [row.text("candidate") for row in rows],
        [row.references() for row in rows],
        [int(row.values["label"]) for row in rows],
    )
    if len(set(judged.labels)) == 1:
        raise ValueError(f"{rows[0].path}: all labels are {judged.labels[0]}; both 0 and 1 are required")
    return judged
