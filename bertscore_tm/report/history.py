"""The validations of a training, read from the files of :class:`bertscore_tm.callbacks.ScoredTextWriter`."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from itertools import chain
from pathlib import PurePath
from typing import NamedTuple

import fsspec

from bertscore_tm.utilities.score_names import SCORES

# Of the candidates of all validations in a page.
_MOST_CHARACTERS = 5_000_000


class History(NamedTuple):
    """Candidates and scores of validations by name, oldest first, and the references that they have in common."""

    candidates: dict[str, list[str] | None]
    references: list[list[str]]
    scores: dict[str, dict[str, list[float]]]


def step_of(path: str) -> int:
    """Return the step in the name of a file such as ``val_step_499.jsonl``; a ValueError if there is none."""
    _, separator, step = PurePath(path).stem.rpartition("_step_")
    if not (separator and step.isdecimal()):
        raise ValueError(f"{path} must be named like val_step_499.jsonl, as ScoredTextWriter names its files")
    return int(step)


def read_history(paths: Sequence[str]) -> History:
    """Read validations, in order; those with other references than the last one are left out.

    Beyond five million characters the candidates of old validations are ``None``, except of the first and the best one.
    """
    validations = {}
    for path in paths:
        with fsspec.open(path, encoding="utf-8") as file:
            validations[f"step {step_of(path)}"] = [json.loads(line) for line in file]
    references = [row["references"] for row in validations[next(reversed(validations))]]
    candidates: dict[str, list[str] | None] = {}
    scores = {}
    for name, rows in validations.items():
        if [row["references"] for row in rows] == references:
            candidates[name] = [row["candidate"] for row in rows]
            # Scores that are not finite are null in JSON.
            scores[name] = {key: [math.nan if row[key] is None else row[key] for row in rows] for key in SCORES}
    _drop_texts(candidates, scores)
    return History(candidates, references, scores)


def _drop_texts(candidates: dict[str, list[str] | None], scores: dict[str, dict[str, list[float]]]) -> None:
    names = list(candidates)
    best = max(names, key=lambda name: sum(f1 for f1 in scores[name]["f1"] if math.isfinite(f1)))
    size = sum(map(len, chain.from_iterable(texts for texts in candidates.values() if texts is not None)))
    for name in names[1:-1]:
        texts = candidates[name]
        if size > _MOST_CHARACTERS and name != best and texts is not None:
            size -= sum(map(len, texts))
            candidates[name] = None
