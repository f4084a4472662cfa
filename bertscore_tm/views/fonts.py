"""Installed fonts for the characters that matplotlib's default font lacks."""

import unicodedata
from collections.abc import Sequence
from functools import cache

from bertscore_tm.utilities.user_warnings import warn_user


def choose_fonts(labels: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the fonts that labels need, which matplotlib tries in order for each character, and the labels.

    A square replaces each character that no installed font has.
    """
    from matplotlib import rcParams
    from matplotlib.font_manager import FontProperties, findfont

    families = list(rcParams["font.family"])
    missing = set("".join("".join(labels).split())) - _characters_of(findfont(FontProperties()))
    for name, path in _installed_fonts().items():
        if missing and missing & _characters_of(path):
            families.append(name)
            missing -= _characters_of(path)
    # Joiners and selectors of forms have no shape of their own.
    shapes = {character for character in missing if unicodedata.category(character) not in ("Cf", "Mn")}
    if shapes:
        _warn_of_missing(frozenset(unicodedata.name(shape, "unknown").split()[0].title() for shape in shapes))
    squares = {ord(character): "\N{WHITE SQUARE}" if character in shapes else None for character in missing}
    return families, [label.translate(squares) for label in labels]


@cache
def _warn_of_missing(scripts: frozenset[str]) -> None:
    """Warn, once per process, of scripts that no installed font has."""
    from matplotlib import get_cachedir

    warn_user(
        f"no installed font has the characters of {', '.join(sorted(scripts))}, which pictures show as squares: "
        f"install Noto Sans (fonts-noto-core and fonts-noto-cjk on Debian), and remove matplotlib's list of fonts in "
        f"{get_cachedir()}"
    )


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
