"""What all parts of the benchmark are told."""

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
        rounds: how often each way is timed.
        threads: torch threads of every way.
        pairs: how many pairs to score; ``None`` for each part's own number.
        model: name or folder of the encoder.
        num_layers: its layer.
        texts: candidates and their references, to choose from.
    """

    rounds: int
    threads: int
    pairs: int | None
    model: str
    num_layers: int
    texts: Texts


def flat_texts(texts: Texts) -> list[str]:
    """Return candidates and references alike.

    Args:
        texts: candidates and their references.

    Returns:
        Each text as often as it occurs.

    Example:
        >>> flat_texts([("a", ["b", "c"]), ("d", ["b"])])
        ['a', 'b', 'c', 'd', 'b']
    """
    return list(chain.from_iterable((candidate, *references) for candidate, references in texts))
