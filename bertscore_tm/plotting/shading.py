"""Shades of tokens by their share of the score, for web pages."""

from __future__ import annotations

from dataclasses import dataclass

from bertscore_tm.scoring.alignment import AlignedText, Alignment

__all__ = ["NEGATIVE", "POSITIVE", "STRONGEST", "ShadedText", "shade_texts"]

# RGB, safe for colour-blind readers; text is readable on both.
NEGATIVE, POSITIVE = (213, 94, 0), (0, 114, 178)
# Opacity of the darkest shade.
STRONGEST = 0.62


@dataclass(frozen=True)
class ShadedText:
    """One of the two texts in a picture of contributions.

    Args:
        name: ``"candidate"`` or ``"reference"``.
        score: letter of the score that its shares sum to, ``"P"`` or ``"R"``.
        text: the text.
    """

    name: str
    score: str
    text: AlignedText

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
        ShadedText("candidate", "P", candidate),
        ShadedText("reference", "R", reference),
    )
