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
Rows = list[dict[str, Any]]
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
    """Return a row of a file, or raise a ValueError that names its place."""
    try:
        row = json.loads(line)
    except ValueError as error:
        raise ValueError(f"{place}: not JSON as ScoredTextWriter writes it: {error}") from error
    keys = ["candidate", "references", *SCORE_NAMES]
    for key in keys:
        if not isinstance(row, dict) or key not in row:
            raise ValueError(f"{place}: has no {key!r}. A row is an object with {', '.join(keys)}")
    return dict(row)


def _read_rows(path: File) -> Rows:
    """Return the rows of a file, without blank lines."""
    rows = []
    # Files may be URLs, and lines are read as bytes, because json finds the encoding of each.
    with fsspec.open(path) as file:
        for number, line in enumerate(file, start=1):
            if line.strip():
                rows.append(_read_row(line, f"{path}:{number}"))
    return rows


def _read_files(paths: Sequence[File]) -> dict[str, Rows]:
    """Return the rows of each file by the name of its validation, in the order of the steps."""
    paths = sorted(paths, key=step_of)
    for path, other in pairwise(paths):
        if step_of(path) == step_of(other):
            raise ValueError(f"{path} and {other} are of one step. Give the files of one training and one dataloader")
    return {name_of(path): _read_rows(path) for path in paths}


def read_history(paths: Sequence[File]) -> History:
    """Read the validations that have the same references and signature as the last validation with rows.

    Other validations are left out, with a warning. If no validation has rows, there is a ValueError. Beyond five
    million characters the candidates of old validations are ``None``, except for the first and the best one.
    """
    validations = {}
    without_rows = []
    for name, rows in _read_files(paths).items():
        if rows:
            validations[name] = rows
        else:
            without_rows.append(name)
    if not validations:
        raise ValueError("no validation has rows. Give a file of ScoredTextWriter with at least one row")
    # A training that was resumed with other data continues with the newer files, so the last one decides.
    last = list(validations.values())[-1]
    with_other_references = []
    with_other_signature = []
    candidates: Candidates = {}
    scores: Scores = {}
    for name, rows in validations.items():
        if _references_of(rows) != _references_of(last):
            with_other_references.append(name)
        elif _signature_of(rows) != _signature_of(last):
            with_other_signature.append(name)
        else:
            candidates[name] = [row["candidate"] for row in rows]
            scores[name] = _scores_of(rows)
    _warn_if_left_out("their files have no rows", without_rows)
    _warn_if_left_out(
        "their references differ from those of the last one",
        with_other_references,
        remedy=". Shuffled data needs BERTScoreCallback(index_key=...)",
    )
    _warn_if_left_out("their signature differs from that of the last one", with_other_signature)
    _drop_old_texts(candidates, scores)
    return History(candidates, _references_of(last), scores, _sources_of(last), _signature_of(last))


def _references_of(rows: Rows) -> list[list[str]]:
    return [row["references"] for row in rows]


def _scores_of(rows: Rows) -> dict[str, list[float]]:
    """Return the scores of a file by their names. Scores that are not finite are null in JSON, and NaN here."""
    scores = {}
    for name in SCORE_NAMES:
        values = []
        for row in rows:
            value = row[name]
            if value is None:
                value = math.nan
            values.append(value)
        scores[name] = values
    return scores


def _sources_of(rows: Rows) -> list[str] | None:
    """Return the sources of a file, or ``None`` unless every row has one."""
    sources = []
    for row in rows:
        source = row.get("source")
        if source is None:
            return None
        sources.append(source)
    return sources


def _signature_of(rows: Rows) -> str:
    """Return the signature of a file, which all of its rows have; files of older versions have none."""
    return str(rows[0].get("signature", "unknown"))


def _warn_if_left_out(reason: str, names: list[str], remedy: str = "") -> None:
    """Warn about validations that are left out for a reason, if there are any."""
    if names:
        warn_user(f"validations left out because {reason}: {len(names)} ({', '.join(names)}){remedy}")


def _drop_old_texts(candidates: Candidates, scores: Scores) -> None:
    """Replace old candidates by ``None`` until the others fit, except for the first, best and last validation."""
    best = max(scores, key=lambda name: _sum_finite(scores[name]["f1"]))
    sizes = {name: sum(map(len, texts or ())) for name, texts in candidates.items()}
    total = sum(sizes.values())
    # The oldest ones are dropped first, because the page compares the newest ones most often.
    for name in list(sizes)[1:-1]:
        if total <= _MOST_CHARACTERS:
            return
        if name != best:
            candidates[name] = None
            total -= sizes[name]


def _sum_finite(values: list[float]) -> float:
    """Return the sum of the values that are finite. All validations have equally many rows, so sums rank like means."""
    return sum(value for value in values if math.isfinite(value))
