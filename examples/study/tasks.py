"""Tasks of the study: documents with one-line summaries, with training and held-out pairs from different sources."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bertscore_tm.utilities.files import write_atomically
from examples.docstrings import DocstringPair, load_corpus
from examples.study.manual_pages import collect_pages

__all__ = ["TASKS", "Pair", "Task", "load_task"]

HELD_OUT_PACKAGES = frozenset({"networkx", "torchmetrics"})
_HELD_OUT_SHARE = 0.12
_FEWEST_PAIRS = 100


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
class Task:
    """Training and held-out pairs of one generator.

    Args:
        name: name of the task.
        train: training pairs.
        held_out: held-out pairs, which are measured.
    """

    name: str
    train: list[Pair]
    held_out: list[Pair]


def docstrings() -> tuple[list[Pair], list[Pair]]:
    """Return docstrings of installed packages; two packages are held out."""
    train, held_out = [], []
    for pair in _all_docstrings():
        side = held_out if pair.module.split(".")[0] in HELD_OUT_PACKAGES else train
        side.append(Pair(pair.document, pair.summary))
    return train, held_out


def manual_pages() -> tuple[list[Pair], list[Pair]]:
    """Return manual pages; an eighth of the commands, libraries and families of commands is held out."""
    train, held_out = [], []
    for page in collect_pages():
        number = int.from_bytes(hashlib.sha256(page.group.encode()).digest()[:6], "big") / 2**48
        side = held_out if number < _HELD_OUT_SHARE else train
        side.append(Pair(page.document, page.summary))
    return train, held_out


TASKS: dict[str, Callable[[], tuple[list[Pair], list[Pair]]]] = {
    "docstrings": docstrings,
    "manual-pages": manual_pages,
}
"""Loaders of training and held-out pairs, by the value of ``--tasks``."""


def load_task(name: str, folder: Path, train_pairs: int, eval_pairs: int) -> Task:
    """Return a task; the pairs are stored, so that every call with the same folder returns the same task.

    Args:
        name: one of ``TASKS``.
        folder: folder of the stored pairs.
        train_pairs: number of training pairs; 0 for all.
        eval_pairs: number of held-out pairs.

    Returns:
        The task, with pairs drawn at random with a fixed seed.

    Raises:
        ValueError: this machine has too few texts for the task.
    """
    path = folder / f"{name}.jsonl"
    if not path.exists():
        train, held_out = TASKS[name]()
        if min(len(train), len(held_out)) < _FEWEST_PAIRS:
            raise ValueError(
                f"the task {name!r} found {len(train)} training pairs and {len(held_out)} held-out pairs on this "
                f"machine, but requires {_FEWEST_PAIRS} of each: omit it from --tasks"
            )
        sides = {"train": _sample(train, train_pairs), "held_out": _sample(held_out, eval_pairs)}
        rows = [(side, pair.document, pair.summary) for side, pairs in sides.items() for pair in pairs]
        folder.mkdir(parents=True, exist_ok=True)
        with write_atomically(path) as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return Task(name, *([Pair(*texts) for side, *texts in rows if side == one] for one in ("train", "held_out")))


def _all_docstrings() -> list[DocstringPair]:
    """Return all pairs of the demo's corpus."""
    train, validation = load_corpus()
    return [*train, *validation]


def _sample(pairs: Sequence[Pair], count: int) -> list[Pair]:
    """Draw pairs without replacement."""
    shuffled = random.Random(0).sample(list(pairs), len(pairs))
    return shuffled[: count or None]
