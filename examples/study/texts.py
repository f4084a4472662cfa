"""Texts of the study: manual pages, whose one-line description summarizes the rest."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bertscore_tm.utilities.files import write_atomically
from examples.study.manual_pages import collect_pages

__all__ = ["Pair", "Texts", "load_texts"]

_HELD_OUT_SHARE = 0.15
_VALIDATION_SHARE = 0.05


@dataclass(frozen=True)
class Pair:
    """A document and its summary.

    Args:
        document: the text.
        summary: its one-line summary.
    """

    document: str
    summary: str


@dataclass(frozen=True)
class Texts:
    """Pairs from different families of commands.

    Args:
        train: pairs to train on.
        validation: pairs that show when cross-entropy stops improving.
        held_out: pairs to compare the arms on.
    """

    train: list[Pair]
    validation: list[Pair]
    held_out: list[Pair]


def load_texts(path: Path, train_pairs: int, held_out_pairs: int) -> Texts:
    """Return the texts; they are stored in a file, so that every call with the same path returns the same texts.

    All pages of a command, library or family of commands are on the same side.

    Args:
        path: JSON file of the stored texts.
        train_pairs: number of training pairs; 0 for all.
        held_out_pairs: number of held-out pairs.

    Returns:
        The texts, drawn at random with a fixed seed.

    Raises:
        ValueError: this machine has too few manual pages.
    """
    if not path.exists():
        sides: dict[str, list[Pair]] = {"train": [], "validation": [], "held_out": []}
        for page in collect_pages():
            sides[_side(page.group)].append(Pair(page.document, page.summary))
        if len(sides["held_out"]) < held_out_pairs or not sides["train"] or not sides["validation"]:
            counts = ", ".join(f"{len(pairs)} {side}" for side, pairs in sides.items())
            raise ValueError(
                f"the manual pages of this machine give {counts} pairs, but {held_out_pairs} held_out pairs and some "
                f"of each other side are needed: install more manual pages, or pass a smaller --held-out-pairs"
            )
        counts_kept = {"train": train_pairs or None, "validation": None, "held_out": held_out_pairs}
        kept = {side: _shuffled(pairs)[: counts_kept[side]] for side, pairs in sides.items()}
        rows = {side: [(pair.document, pair.summary) for pair in pairs] for side, pairs in kept.items()}
        path.parent.mkdir(parents=True, exist_ok=True)
        with write_atomically(path) as file:
            json.dump(rows, file)
    stored = json.loads(path.read_text(encoding="utf-8"))
    return Texts(**{side: [Pair(*row) for row in rows] for side, rows in stored.items()})


def _side(group: str) -> str:
    """Return the side of a family of commands, the same on every machine."""
    number = int.from_bytes(hashlib.sha256(group.encode()).digest()[:6], "big") / 2**48
    if number < _HELD_OUT_SHARE:
        return "held_out"
    return "validation" if number < _HELD_OUT_SHARE + _VALIDATION_SHARE else "train"


def _shuffled(pairs: Sequence[Pair]) -> list[Pair]:
    return random.Random(0).sample(list(pairs), len(pairs))
