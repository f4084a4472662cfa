"""Reader of human judgements from JSON lines, plain or gzipped; the keys of a file determine its kind."""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_FEWEST_ROWS = 5  # for a correlation


@dataclass(frozen=True)
class Judged:
    """Human judgements of a file: ranked pairs of candidates, or candidates with ratings, larger is better.

    Args:
        candidates: the texts to score; of ranked pairs first all better, then all worse ones.
        references: the references of each candidate.
        idf_texts: the references of every row, as often as they occur, from which both packages with ``idf=True`` and
            the reference package's WMT18 script compute weights: a reference counts once for each of its judgements.
        ratings: values by the rating's name, one per candidate; of ranked pairs none.
        systems: the system of each candidate, if the file contains it.
        documents: the document of each candidate, if the file contains it.
    """

    candidates: list[str]
    references: list[list[str]]
    idf_texts: list[str]
    ratings: dict[str, list[float]] = field(default_factory=dict)
    systems: list[str] | None = None
    documents: list[str] | None = None


def read(path: Path, num_references: int | None = None) -> Judged:
    """Read a file of human judgements, of each row all references or the first ones.

    Raises:
        ValueError: a row is invalid; the message names file and line.
    """
    rows = _rows(path)
    if len(rows) < _FEWEST_ROWS:
        raise ValueError(f"{path}: {len(rows)} rows; statistics require at least {_FEWEST_ROWS}")

    def column(name: str, kind: type) -> list[Any]:
        values = [row.get(name) for row in rows]
        _check(path, name, kind.__name__, [isinstance(value, kind) for value in values], values)
        return values

    references = [row.get("references", [row.get("reference")]) for row in rows]
    is_valid = [texts and isinstance(texts, list) and _all(texts, str) for texts in references]
    _check(path, "references", "list of strings, or 'reference' a string", is_valid, references)
    references = [texts[:num_references] for texts in references]
    idf_texts = [text for texts in references for text in texts]
    if "better" in rows[0]:
        return Judged(column("better", str) + column("worse", str), references * 2, idf_texts)
    systems, documents = (column(name, str) if name in rows[0] else None for name in ("system", "document"))
    human = column("human", dict)
    are_numbers = [
        values.keys() == human[0].keys()
        and _all(values.values(), int | float)
        and all(map(math.isfinite, values.values()))
        for values in human
    ]
    _check(path, "human", f"mapping of {[*human[0]]} to finite numbers", are_numbers, human)
    ratings = {name: [float(values[name]) for values in human] for name in human[0]}
    for name, values in ratings.items():
        if len(set(values)) == 1:
            raise ValueError(f"{path}: all values of {name!r} are {values[0]}: judgements must differ")
    return Judged(column("candidate", str), references, idf_texts, ratings, systems, documents)


def _rows(path: Path) -> list[dict[str, Any]]:
    with (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="utf-8") as file:
        lines = list(file)
    rows: list[Any] = []
    for line in lines:
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError as error:
            raise ValueError(f"{path}, line {len(rows) + 1}: invalid JSON: {error}") from error
    _check(path, "row", "JSON object", [isinstance(row, dict) for row in rows], rows)
    return rows


def _all(values: Iterable[Any], kind: Any) -> bool:
    return all(isinstance(value, kind) for value in values)


def _check(path: Path, name: str, kind: str, is_valid: list[Any], values: list[Any]) -> None:
    """Raise an error that names the first invalid line, if there is one."""
    for line, (valid, value) in enumerate(zip(is_valid, values, strict=True), start=1):
        if not valid:
            raise ValueError(f"{path}, line {line}: {name!r} must be a {kind}, got {value!r}")
