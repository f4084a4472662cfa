"""The validations of a training, read from the files of :class:`bertscore_tm.callbacks.ScoredTextWriter`."""

import json
import math
import os
import re
from collections.abc import Sequence
from itertools import pairwise
from pathlib import PurePath
from typing import Any, NamedTuple

import fsspec

from bertscore_tm.utilities.checks import SCORE_NAMES
from bertscore_tm.utilities.warnings import warn_user

# Limit on the total length of the stored candidates, in characters.
_MOST_CHARACTERS = 5_000_000

File = str | os.PathLike[str]
Candidates = dict[str, list[str] | None]
Scores = dict[str, dict[str, list[float]]]


class History(NamedTuple):
    """Validations of a training by name: their candidates and scores, and what they share.

    ``sources`` are ``None`` unless every row has one. ``signature`` is "unknown" for files of older versions.
    """

    candidates: Candidates
    references: list[list[str]]
    scores: Scores
    sources: list[str] | None
    signature: str


def step_of(path: File) -> tuple[int, int]:
    """Return the step in the name of a file such as ``val_step_499.jsonl``; a ValueError if there is none.

    The second number is that of the validation in ``val_step_499_validation_2.jsonl``, or 0.
    """
    match = re.fullmatch(r".*_step_(\d+)(?:_validation_(\d+))?", PurePath(path).stem, re.DOTALL)
    if match is None:
        raise ValueError(f"{path} must be named like val_step_499.jsonl, as ScoredTextWriter names its files")
    return int(match[1]), int(match[2] or 0)


def name_of(path: File) -> str:
    """Return the name of the validation in a file."""
    step, number = step_of(path)
    if number:
        return f"step {step}, validation {number}"
    return f"step {step}"


def _read_row(line: bytes, place: str) -> dict[str, Any]:
    """Return a row of a file; an error names its place."""
    keys = ["candidate", "references", *SCORE_NAMES]
    try:
        row = json.loads(line)
    except ValueError as error:
        raise ValueError(f"{place}: not JSON as ScoredTextWriter writes it: {error}") from error
    for key in keys:
        if not isinstance(row, dict) or key not in row:
            raise ValueError(f"{place}: has no {key!r}: a row is an object with {', '.join(keys)}")
    return dict(row)


def _read_rows(path: File) -> list[dict[str, Any]]:
    """Return the rows of a file, without blank lines."""
    with fsspec.open(path) as file:
        return [_read_row(line, f"{path}:{number}") for number, line in enumerate(file, 1) if line.strip()]


def _signature_of(rows: list[dict[str, Any]]) -> str:
    """Return the signature of a file, which all of its rows have; files of older versions have none."""
    return str(rows[0].get("signature", "unknown"))


def read_history(paths: Sequence[File]) -> History:
    """Read the validations that have the references and the signature of the last one that has rows.

    The others are left out, with a warning; if none has rows, there is a ValueError. Beyond five million characters the
    candidates of old validations are ``None``, except for the first and the best one.
    """
    paths = sorted(paths, key=step_of)
    for path, other in pairwise(paths):
        if step_of(path) == step_of(other):
            raise ValueError(f"{path} and {other} are of one step: give the files of one training and one dataloader")
    files = {name_of(path): _read_rows(path) for path in paths}
    without_rows = [name for name, rows in files.items() if not rows]
    validations = {name: rows for name, rows in files.items() if rows}
    if not validations:
        raise ValueError("no validation has rows. Give a file of ScoredTextWriter with at least one row")
    *_, last = validations.values()
    references = [row["references"] for row in last]
    signature = _signature_of(last)
    with_other_references = []
    with_other_signature = []
    candidates: Candidates = {}
    scores: Scores = {}
    for name, rows in validations.items():
        if [row["references"] for row in rows] != references:
            with_other_references.append(name)
        elif _signature_of(rows) != signature:
            with_other_signature.append(name)
        else:
            candidates[name] = [row["candidate"] for row in rows]
            # Scores that are not finite are null in JSON.
            scores[name] = {key: [math.nan if row[key] is None else row[key] for row in rows] for key in SCORE_NAMES}
    if without_rows:
        warn_user(f"validations left out because their files have no rows: {_count_and_list(without_rows)}")
    if with_other_references:
        warn_user(
            f"validations left out because their references differ from those of the last one: "
            f"{_count_and_list(with_other_references)}. Shuffled data needs BERTScoreCallback(index_key=...)"
        )
    if with_other_signature:
        warn_user(
            f"validations left out because their signature differs from that of the last one: "
            f"{_count_and_list(with_other_signature)}"
        )
    _drop_old_texts(candidates, scores)
    sources = [row["source"] for row in last if row.get("source") is not None]
    has_all_sources = len(sources) == len(last)
    return History(candidates, references, scores, sources if has_all_sources else None, signature)


def _count_and_list(names: list[str]) -> str:
    return f"{len(names)} ({', '.join(names)})"


def _drop_old_texts(candidates: Candidates, scores: Scores) -> None:
    """Replace old candidates by ``None`` until the others fit, except for the first, best and last validation."""
    best = max(scores, key=lambda name: sum(f1 for f1 in scores[name]["f1"] if math.isfinite(f1)))
    sizes = {name: sum(map(len, texts or ())) for name, texts in candidates.items()}
    for name in list(sizes)[1:-1]:
        is_too_large = sum(sizes.values()) > _MOST_CHARACTERS
        if is_too_large and name != best:
            candidates[name] = None
            sizes[name] = 0
