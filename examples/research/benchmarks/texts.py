"""Settings of the benchmarks, and texts of the lengths and repetitions that they need."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain


@dataclass(frozen=True)
class Options:
    """Settings of a run."""

    rounds: int  # timings of each implementation
    threads: int
    pairs: int | None  # or targets; None: the default of each part
    texts: Sequence[tuple[str, str]]  # candidates with their references

    def flat_texts(self) -> list[str]:
        """Return candidates and references as one list."""
        return list(chain.from_iterable(self.texts))


def cut_sentences(texts: Sequence[str], count: int, words: tuple[int, int]) -> list[str]:
    """Cut texts into distinct pieces with random numbers of words between two limits, as translated sentences have."""
    chooser, source = random.Random(0), [word for text in texts for word in text.split()]
    shortest, longest = words
    pieces: dict[str, None] = {}
    start = 0
    for _ in range(2 * count):
        length = chooser.randint(shortest, longest)
        pieces[" ".join(source[(start + i) % len(source)] for i in range(length))] = None
        start += length
    return list(pieces)[:count]


def make_items(texts: Sequence[str], count: int, num_candidates: int) -> list[list[str]]:
    """Return items whose candidates resemble samples of a generator: the item's text from another word on, numbered."""
    items = []
    for item in range(count):
        words = texts[item].split()
        turns = [(i % len(words), item * num_candidates + i) for i in range(num_candidates)]
        items.append([" ".join([*words[turn:], *words[:turn], str(number)]) for turn, number in turns])
    return items


def short_texts(words: Sequence[str], count: int, seed: int) -> list[str]:
    """Return distinct random texts of 3 to 6 words; the last word of each is its number."""
    chooser = random.Random(seed)
    return [" ".join([*chooser.choices(words, k=chooser.randint(3, 6) - 1), str(i)]) for i in range(count)]
