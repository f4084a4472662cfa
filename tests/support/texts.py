"""Real texts."""

from __future__ import annotations

from functools import cache

from examples.docstrings import collect_pairs


@cache
def _stdlib_pairs():
    return collect_pairs((), include_stdlib=True)


def real_pairs(count: int) -> tuple[list[str], list[str]]:
    """Real texts about the same thing: a docstring's summary, and the beginning of the text that it summarises."""
    pairs = _stdlib_pairs()
    chosen = pairs[:: len(pairs) // count][:count]
    return [pair.summary for pair in chosen], [" ".join(pair.document.split()[:30]) for pair in chosen]


def several_references(references: list[str]) -> list[list[str]]:
    """Ragged lists of one to three references per candidate, of which the first is the right one."""
    count = len(references)
    return [[references[(i + k) % count] for k in range(1 + i % 3)] for i in range(count)]
