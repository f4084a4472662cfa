"""Reader of human judgements from JSON lines, plain or gzipped; the keys of a file determine its kind."""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_FEWEST_ROWS = 5  # for a correlation


@dataclass(frozen=True)
class Judged:
    """Human judgements of a file.

    Args:
        kind: ``"ranked"``, pairs of candidates of which annotators preferred one; ``"rated"``, candidates with numeric
            ratings, larger is better; or ``"labelled"``, paraphrases and other pairs (see ``paraphrases.py``).
        candidates: the texts to score; of ranked pairs first all better, then all worse ones.
        references: the references of each candidate.
        idf_texts: the references of every row, as often as they occur, from which both packages with ``idf=True`` and
            the reference package's WMT18 script compute weights: a reference counts once for each of its judgements.
        ratings: values by the rating's name, one per candidate; of labelled pairs ``"label"``, 1 or 0.
        systems: the system of each candidate, if the file contains it.
        documents: the document of each candidate, if the file contains it.
    """

    kind: str
    candidates: list[str]
    references: list[list[str]]
    idf_texts: list[str]
    ratings: dict[str, list[float]] = field(default_factory=dict)
    systems: list[str] | None = None
    documents: list[str] | None = None


def read(path: Path, num_references: int | None = None) -> Judged:
    """Read a file of human judgements.

    Args:
        path: JSON lines; gzipped if the name ends in ``.gz``.
        num_references: number of references per row to keep, from the first. Default: all.

    Raises:
        ValueError: a row is invalid; the message names file and line.
        OSError: the file cannot be read.
    """
    rows = list(_rows(path))
    if len(rows) < _FEWEST_ROWS:
        raise ValueError(f"{path}: {len(rows)} rows; statistics require at least {_FEWEST_ROWS}")
    references = [row.references()[:num_references] for row in rows]
    idf_texts = [text for several in references for text in several]
    if "better" in rows[0].values:
        candidates = [row.text(name) for name in ("better", "worse") for row in rows]
        return Judged("ranked", candidates, references * 2, idf_texts)
    if "human" not in rows[0].values:
        raise rows[0].error("requires 'better' (ranked pairs) or 'human' (ratings)")
    values = [row.ratings() for row in rows]
    names = list(values[0])
    for row, value in zip(rows, values, strict=True):
        if sorted(value) != sorted(names):
            raise row.error(f"ratings {sorted(value)} differ from those of the first row, {sorted(names)}")
    ratings = {name: [float(value[name]) for value in values] for name in names}
    groups = [[row.text(name) for row in rows] if name in rows[0].values else None for name in ("system", "document")]
    judged = Judged("rated", [row.text("candidate") for row in rows], references, idf_texts, ratings, *groups)
    for name, column in ratings.items():
        if len(set(column)) == 1:
            raise ValueError(f"{path}: all values of {name!r} are {column[0]}: judgements must differ")
    return judged


@dataclass(frozen=True)
class _Row:
    path: Path
    line: int
    values: dict[str, Any]

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
        return several

    def ratings(self) -> dict[str, float]:
        human = self.values.get("human")
        if not isinstance(human, dict) or not human:
            raise self.error(f"'human' must map at least one rating name to a number, got {human!r}")
        for name, value in human.items():
            if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
                raise self.error(f"rating {name!r} must be a finite number, got {value!r}")
        return human


def _rows(path: Path) -> Iterator[_Row]:
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            try:
                values = json.loads(line)
            except json.JSONDecodeError as error:
                raise ValueError(f"{path}, line {number}: invalid JSON: {error}") from error
            if not isinstance(values, dict):
                raise ValueError(f"{path}, line {number}: must be a JSON object, got {line.strip()[:80]}")
            yield _Row(path, number, values)
