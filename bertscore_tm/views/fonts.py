"""Installed fonts for the characters that matplotlib's default font lacks."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from functools import cache

from bertscore_tm.utilities.user_warnings import warn_user

__all__ = ["choose_fonts"]

_NO_GLYPH = "\N{WHITE SQUARE}"


def choose_fonts(labels: Sequence[str]) -> tuple[list[str], list[str]]:
    """Choose fonts that have the characters of labels.

    Args:
        labels: the labels.

    Returns:
        Names of fonts, the default ones first, which matplotlib tries in order for each character; and the labels, with
        a square for each character that no installed font has.
    """
    from matplotlib import get_cachedir, rcParams
    from matplotlib.font_manager import FontProperties, findfont

    families = list(rcParams["font.family"])
    characters = {character for character in "".join(labels) if not character.isspace()}
    missing = characters - _characters_of(findfont(FontProperties()))
    for name, path in _installed_fonts().items() if missing else ():
        covered = missing & _characters_of(path)
        if covered:
            families.append(name)
            missing -= covered
        if not missing:
            break
    # Joiners and selectors of forms have no shape of their own.
    replaced: dict[str, str | int | None] = {
        character: "" if unicodedata.category(character) in ("Cf", "Mn") else _NO_GLYPH for character in missing
    }
    if _NO_GLYPH in replaced.values():
        shown = "".join(sorted(character for character, square in replaced.items() if square))
        warn_user(
            f"no installed font has the characters {shown[:20]!r}: install Noto Sans of their script, and remove "
            f"the cached list of fonts in {get_cachedir()}"
        )
    return families, [label.translate(str.maketrans(replaced)) for label in labels]


@cache
def _installed_fonts() -> dict[str, str]:
    """Return the files of upright fonts by name, without the one that draws a placeholder for any character."""
    from matplotlib.font_manager import fontManager

    fonts = [font for font in fontManager.ttflist if font.style == "normal" and font.weight in (400, "normal")]
    fonts.sort(key=lambda font: "Serif" in font.name)
    return {font.name: font.fname for font in fonts if not font.name.startswith("Last Resort")}


@cache
def _characters_of(path: str) -> frozenset[str]:
    """Return the characters of a font; none of one of coloured pictures, which matplotlib cannot draw."""
    from matplotlib.ft2font import FT2Font

    try:
        font = FT2Font(path)
    except RuntimeError:
        return frozenset()
    return frozenset(map(chr, font.get_charmap())) if font.scalable else frozenset()
