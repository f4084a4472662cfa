"""Shades of tokens by their share of the score, for figures and web pages."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from bertscore_tm.plotting.alignment import AlignedText, Alignment

__all__ = ["NEGATIVE", "POSITIVE", "STRONGEST", "ShadedText", "find_reversed", "shade_texts"]

# RGB, safe for colour-blind readers; text is readable on both.
NEGATIVE, POSITIVE = (213, 94, 0), (0, 114, 178)
# Opacity of the darkest shade.
STRONGEST = 0.62

# Whether characters of Unicode's classes are read from right to left. Numbers have no influence on their text.
_STRONG = {"L": False, "R": True, "AL": True}
_NUMBERS = {"EN": False, "AN": False}


@dataclass(frozen=True)
class ShadedText:
    """One of the two texts in a picture of contributions.

    Args:
        name: ``"candidate"`` or ``"reference"``.
        score: letter of the score that its shares sum to, ``"P"`` or ``"R"``.
        text: the text.
        right_to_left: whether it is written from right to left.
    """

    name: str
    score: str
    text: AlignedText
    right_to_left: bool

    @property
    def heading(self) -> str:
        """Name of the text, and the share of its special tokens."""
        special = self.text.special_share
        return self.name if abs(special) < 5e-4 else f"{self.name} (special tokens add {special:.3f})"

    @property
    def shades(self) -> list[float]:
        """Shares divided by the full share, from -1 to 1."""
        shades: list[float] = (self.text.shares / self.full_share).clamp(-1, 1).tolist()
        return shades

    @property
    def lowest_shade(self) -> float:
        """The lower end of the colour scale."""
        return min(0.0, *self.shades)

    @property
    def full_share(self) -> float:
        """The share at the upper end of the colour scale."""
        return self.text.full_share or 1.0


def shade_texts(alignment: Alignment) -> tuple[ShadedText, ShadedText]:
    """Return both texts with their shades.

    Args:
        alignment: the alignment.

    Returns:
        The candidate and the reference.
    """
    candidate, reference = alignment.candidate, alignment.reference
    return (
        ShadedText("candidate", "P", candidate, _is_right_to_left(candidate.tokens)),
        ShadedText("reference", "R", reference, _is_right_to_left(reference.tokens)),
    )


def find_reversed(side: ShadedText) -> list[bool]:
    """Find the tokens that are read against the direction of their text, such as Hebrew words in an English text.

    Args:
        side: the text.

    Returns:
        Whether each token is, with punctuation between two such tokens.
    """
    directions = [_first_direction(token, _STRONG | _NUMBERS) for token in side.text.tokens]
    before = _fill(directions, side.right_to_left)
    after = reversed([*_fill(reversed(directions), side.right_to_left)])
    return [one == other != side.right_to_left for one, other in zip(before, after, strict=True)]


def _fill(directions: Iterable[bool | None], last: bool) -> Iterator[bool]:
    for direction in directions:
        last = last if direction is None else direction
        yield last


def _is_right_to_left(tokens: list[str]) -> bool:
    """Decide as browsers do, by the first character that has a direction."""
    return _first_direction("".join(tokens), _STRONG) or False


def _first_direction(text: str, is_right_to_left: Mapping[str, bool]) -> bool | None:
    return next(
        (is_right_to_left[kind] for kind in map(unicodedata.bidirectional, text) if kind in is_right_to_left), None
    )
