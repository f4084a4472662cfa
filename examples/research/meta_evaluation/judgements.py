"""Human judgements from JSON lines, plain or gzipped, and the scores of their texts."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bertscore_tm import FrozenEncoder, bert_score


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
    """

    candidates: list[str]
    references: list[list[str]]
    idf_texts: list[str]
    ratings: dict[str, list[float]] = field(default_factory=dict)
    systems: list[str] | None = None


def read(path: Path) -> Judged:
    """Read a file of human judgements; the keys of its first row determine its kind."""
    with (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    references = [row["references"] if "references" in row else [row["reference"]] for row in rows]
    idf_texts = [text for texts in references for text in texts]
    if "better" in rows[0]:
        candidates = [row[side] for side in ("better", "worse") for row in rows]
        return Judged(candidates, references * 2, idf_texts)
    human = [row["human"] if isinstance(row["human"], dict) else {"human": row["human"]} for row in rows]
    ratings = {name: [float(rating[name]) for rating in human] for name in human[0]}
    systems = [row["system"] for row in rows] if "system" in rows[0] else None
    return Judged([row["candidate"] for row in rows], references, idf_texts, ratings, systems)


def score(
    judged: Judged, encoder: FrozenEncoder, with_idf: bool, parts: Sequence[str] = ("f1",)
) -> NDArray[np.float64]:
    """Score a file's candidates with an encoder of all layers.

    Returns:
        Scores of shape (settings, candidates): first without idf, then with it, of each part all layers from 1.
    """
    texts = zip(judged.candidates, judged.references, strict=True)
    pairs = [(candidate, tuple(references)) for candidate, references in texts]
    # Sorted by references, since a repeated text of a call is encoded once.
    distinct = sorted(set(pairs), key=lambda pair: (pair[1], pair[0]))
    number = {pair: i for i, pair in enumerate(distinct)}
    candidates, references = [candidate for candidate, _ in distinct], [list(texts) for _, texts in distinct]
    rows = []
    for idf in [False, judged.idf_texts] if with_idf else [False]:
        scores = bert_score(candidates, references, encoder, idf=idf)
        rows += [np.asarray(scores[part][1:], dtype=np.float64) for part in parts]
    return np.concatenate(rows)[:, [number[pair] for pair in pairs]]
