"""Fonts for texts of any script: installed families that have the characters."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

from bertscore_tm.utilities.user_warnings import warn_user

__all__ = ["FontFallback", "find_fonts"]

# Common families for other scripts; of those with the same characters, the most common first. Without colour emoji
# fonts, which matplotlib cannot draw.
_FAMILIES = (
    "DejaVu Sans",
    *("Noto Sans CJK SC", "Noto Sans CJK JP", "Noto Sans CJK TC", "Noto Sans CJK KR", "Noto Sans SC", "Noto Sans JP"),
    *("Source Han Sans SC", "Source Han Sans CN", "Source Han Sans", "WenQuanYi Micro Hei", "WenQuanYi Zen Hei"),
    *("Droid Sans Fallback", "PingFang SC", "Hiragino Sans GB", "Hiragino Sans", "Heiti SC", "STHeiti"),
    *("Microsoft YaHei", "SimHei", "SimSun", "Yu Gothic", "Meiryo", "MS Gothic", "IPAexGothic", "IPAGothic"),
    *("Noto Sans KR", "Apple SD Gothic Neo", "Malgun Gothic", "NanumGothic", "UnDotum"),
    *("Noto Sans Arabic", "Noto Naskh Arabic", "Geeza Pro", "Amiri", "Noto Sans Hebrew", "Arial Hebrew"),
    *("Noto Sans Devanagari", "Lohit Devanagari", "Kohinoor Devanagari", "Nirmala UI", "Mangal"),
    *("Noto Sans Bengali", "Noto Sans Tamil", "Noto Sans Telugu", "Noto Sans Thai", "Thonburi", "Leelawadee UI"),
    *("Noto Sans Georgian", "Noto Sans Armenian", "Noto Sans Ethiopic", "Noto Sans", "FreeSans", "FreeSerif"),
    *("Arial", "Tahoma", "Segoe UI", "Arial Unicode MS", "Noto Emoji", "Segoe UI Emoji", "Segoe UI Symbol"),
    *("Apple Symbols", "Noto Sans Symbols", "Noto Sans Symbols 2", "Symbola", "Unifont"),
)
_PLACEHOLDER = "□"


class FontFallback:
    """Font families for given texts, and the characters that none of them has.

    Args:
        families: names of font families, in the order in which matplotlib looks a character up.
        missing: characters that none of the families has.

    Example:
        >>> FontFallback(["DejaVu Sans"], {"今"}).replace_missing("a 今")
        'a □'
    """

    def __init__(self, families: list[str], missing: Iterable[str]) -> None:
        self.families = families
        # Invisible characters, such as joiners, need no placeholder.
        self._replacements = str.maketrans({c: _PLACEHOLDER if c.isprintable() else "" for c in missing})

    def replace_missing(self, text: str) -> str:
        """Return a text with a placeholder for each character that no font has."""
        return text.translate(self._replacements)


def find_fonts(texts: Iterable[str]) -> FontFallback:
    """Find installed fonts for texts, and warn about characters that no font has.

    Args:
        texts: all texts of a drawing.

    Returns:
        The families, those of ``rcParams["font.family"]`` first, and the missing characters.
    """
    from matplotlib import font_manager, rcParams

    families = list(rcParams["font.family"])
    missing = {c for text in texts for c in text if not c.isspace()}
    for family in families:
        missing -= _characters(family)
    installed = set(font_manager.get_font_names())
    for family in _FAMILIES:
        if not missing:
            break
        if family in installed and missing & _characters(family):
            families.append(family)
            missing -= _characters(family)
    unavailable = sorted(c for c in missing if c.isprintable())
    if unavailable:
        characters = " ".join(unavailable[:10]) + (" ..." if len(unavailable) > 10 else "")
        warn_user(
            f"no installed font has {len(unavailable)} of the characters ({characters}), drawn as {_PLACEHOLDER}: "
            f"install a font for the script, such as a Noto font. contributions_html shows alignments in every script"
        )
    return FontFallback(families, missing)


@cache
def _characters(family: str) -> frozenset[str]:
    from matplotlib.font_manager import FontProperties, findfont, get_font

    return frozenset(map(chr, get_font(findfont(FontProperties(family=[family]))).get_charmap()))
