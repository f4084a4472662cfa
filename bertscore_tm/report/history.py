"""The validations of a training, read from the files of :class:`bertscore_tm.callbacks.ScoredTextWriter`."""

import json
import math
import os
import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import PurePath
from typing import Any

import fsspec

from bertscore_tm.utilities.score_names import SCORE_NAMES
from bertscore_tm.utilities.user_warnings import warn_user

# Of the candidates of all validations in a page.
_MOST_CHARACTERS = 5_000_000

File = str | os.PathLike[str]
Candidates = dict[str, list[str] | None]
Scores = dict[str, dict[str, list[float]]]
Sources = list[str] | None
# Steps and mean F1 of each run.
Courses = dict[str, list[tuple[int, float]]]


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
    return f"step {step}, validation {number}" if number else f"step {step}"


def best_of(scores: Scores) -> str:
    """Return the validation with the largest mean F1."""
    return max(scores, key=lambda name: sum(f1 for f1 in scores[name]["f1"] if math.isfinite(f1)))


def _read_row(line: bytes, place: str) -> dict[str, Any]:
    """Return a row of a file; an error names its place."""
    keys = ["candidate", "references", *SCORE_NAMES]
    try:
        row = json.loads(line)
    except ValueError as error:
        raise ValueError(f"{place}: not JSON as ScoredTextWriter writes it: {error}") from error
    if missing := [key for key in keys if not isinstance(row, dict) or key not in row]:
        raise ValueError(f"{place}: has no {missing[0]!r}: a row is an object with {', '.join(keys)}")
    return dict(row)


def read_history(paths: Sequence[File]) -> tuple[Candidates, list[list[str]], Scores, Sources]:
    """Return candidates of validations by name, by step, references and sources of the last one, and scores by name.

    Sources are ``None`` unless every row has one. Validations with other references are left out, with a warning.
    Beyond five million characters the candidates of old ones are ``None``, except of the first and the best one.
    """
    paths = sorted(paths, key=step_of)
    for path, other in pairwise(paths):
        if step_of(path) == step_of(other):
            raise ValueError(f"{path} and {other} are of one step: give the files of one training and one dataloader")
    validations = {}
    for path in paths:
        with fsspec.open(path) as file:
            lines = enumerate(file, 1)
            validations[name_of(path)] = [_read_row(line, f"{path}:{i}") for i, line in lines if line.strip()]
    last = validations[next(reversed(validations))]
    references = [row["references"] for row in last]
    sources = [row["source"] for row in last if row.get("source") is not None]
    candidates: Candidates = {}
    scores, sizes = {}, {}
    for name, rows in validations.items():
        if [row["references"] for row in rows] == references:
            candidates[name] = [row["candidate"] for row in rows]
            # Scores that are not finite are null in JSON.
            scores[name] = {key: [math.nan if row[key] is None else row[key] for row in rows] for key in SCORE_NAMES}
            sizes[name] = sum(len(row["candidate"]) for row in rows)
    if left_out := [name for name in validations if name not in candidates]:
        warn_user(
            f"validations left out because their references differ from those of the last one: {len(left_out)} "
            f"({', '.join(left_out)}). Shuffled data needs BERTScoreCallback(index_key=...)"
        )
    best = best_of(scores)
    for name in list(sizes)[1:-1]:
        if sum(sizes.values()) > _MOST_CHARACTERS and name != best:
            candidates[name], sizes[name] = None, 0
    return candidates, references, scores, sources if len(sources) == len(last) else None


def read_runs(runs: Mapping[str, Sequence[File]]) -> tuple[Candidates, list[list[str]], Scores, Sources, Courses]:
    """Return the best validation of each run as :func:`read_history` does, and the steps and mean F1 of all of each."""
    candidates: Candidates = {}
    references: list[list[str]] = []
    scores: Scores = {}
    courses: Courses = {}
    for run, paths in runs.items():
        run_candidates, run_references, run_scores, sources = read_history(paths)
        if courses and run_references != references:
            raise ValueError(f"{run} has other references than {next(iter(runs))}: give runs with one validation set")
        references, best = run_references, best_of(run_scores)
        name = f"{run} ({best})"
        candidates[name], scores[name] = run_candidates[best], run_scores[best]
        steps = {name_of(path): step_of(path)[0] for path in paths}
        courses[run] = [(steps[name], sum(scored["f1"]) / len(scored["f1"])) for name, scored in run_scores.items()]
    return candidates, references, scores, sources, courses
