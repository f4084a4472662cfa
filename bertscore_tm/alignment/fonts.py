"""Installed fonts for the characters that matplotlib's default font lacks."""

import unicodedata
from collections.abc import Sequence
from functools import cache

from bertscore_tm.utilities.warnings import warn_user

# Fonts in the order of the search. Unifont is last, because it has nearly all characters but in coarse shapes.
_FAMILIES = (
    "Noto Sans CJK JP",
    "Noto Sans Devanagari",
    "Noto Sans Bengali",
    "Noto Sans Tamil",
    "Noto Sans Thai",
    "Arial Unicode MS",  # macOS
    "Microsoft YaHei",  # Windows, as the following ones
    "Malgun Gothic",
    "Nirmala UI",
    "Leelawadee UI",
    "Segoe UI Emoji",
    "Unifont",
    "Unifont Upper",
)


def choose_fonts(labels: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the font families for labels, and the labels with a square for each character that no family has.

    Matplotlib tries the families in their order for each character.
    """
    from matplotlib import rcParams
    from matplotlib.font_manager import fontManager

    missing = set("".join("".join(labels).split()))
    families = list(rcParams["font.family"])
    for family in families:
        missing = _find_missing(missing, family)
    installed = {font.name for font in fontManager.ttflist}
    for family in _FAMILIES:
        if missing and family in installed:
            still_missing = _find_missing(missing, family)
            if still_missing != missing:
                families.append(family)
                missing = still_missing
    replacements: dict[int, str | None] = {}
    scripts = set()
    for character in missing:
        has_shape = unicodedata.category(character) not in ("Cf", "Mn")
        if has_shape:
            replacements[ord(character)] = "\N{WHITE SQUARE}"
            # The first word of a character's name is its script.
            scripts.add(unicodedata.name(character, "unknown").split()[0].title())
        else:
            # Remove joiners and variation selectors, because they are invisible.
            replacements[ord(character)] = None
    if scripts:
        _warn_of_missing(frozenset(scripts))
    return families, [label.translate(replacements) for label in labels]


def _find_missing(characters: set[str], family: str) -> set[str]:
    """Return the characters that a font family lacks."""
    from matplotlib.font_manager import FontProperties, findfont, get_font

    # Pass a list, because a single string would be parsed as a fontconfig pattern.
    charmap = get_font(findfont(FontProperties(family=[family]))).get_charmap()
    return {character for character in characters if ord(character) not in charmap}


@cache
def _warn_of_missing(scripts: frozenset[str]) -> None:
    """Warn once per process about scripts that no font has."""
    from matplotlib import get_cachedir

    warn_user(
        f"no font has the characters of {', '.join(sorted(scripts))}, which pictures show as squares. Set matplotlib's "
        f"font.family to a font that has them, or install Unifont (fonts-unifont on Debian) and remove matplotlib's "
        f"list of fonts in {get_cachedir()}"
    )
