"""Settings of all parts of the benchmark."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

__all__ = ["Options", "Texts", "flat_texts"]

# A candidate and its references.
Texts = Sequence[tuple[str, list[str]]]


@dataclass(frozen=True)
class Options:
    """Settings of a run.

    Args:
        rounds: number of timings of each implementation.
        threads: number of torch threads.
        pairs: number of pairs to score; ``None``: the default of each part.
        model: name or folder of the encoder.
        num_layers: encoder layer.
        texts: candidates with their references.
    """

    rounds: int
    threads: int
    pairs: int | None
    model: str
    num_layers: int
    texts: Texts


def flat_texts(texts: Texts) -> list[str]:
    """Return candidates and references as one list.

    Args:
        texts: candidates with their references.

    Returns:
        All texts, with repetitions.

    Example:
        >>> flat_texts([("a", ["b", "c"]), ("d", ["b"])])
        ['a', 'b', 'c', 'd', 'b']
    """
    return list(chain.from_iterable((candidate, *references) for candidate, references in texts))
