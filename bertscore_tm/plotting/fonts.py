"""Which installed fonts a picture needs, so that texts of every script can be read in it."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from functools import cache

__all__ = ["Lettering", "lettering_for"]

# Common families with other scripts, where several have the same characters the widest spread first. Colour emoji
# fonts are left out, since matplotlib cannot draw them.
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


class Lettering:
    """Font families for some texts, and what to draw in the place of characters that none of them has.

    Args:
        families: names of font families, in the order in which matplotlib is to look for a character.
        missing: characters that none of them has.

    Example:
        >>> Lettering(["DejaVu Sans"], {"今"})("a 今")
        'a □'
    """

    def __init__(self, families: list[str], missing: Iterable[str]) -> None:
        self.families = families
        # Those that only change their neighbours are no loss.
        self._replaced = str.maketrans({c: _PLACEHOLDER if c.isprintable() else "" for c in missing})

    def __call__(self, text: str) -> str:
        """Replace what cannot be drawn."""
        return text.translate(self._replaced)


def lettering_for(texts: Iterable[str]) -> Lettering:
    """Find fonts for texts, the user's own first, and warn once when there are none for some characters.

    Args:
        texts: everything that is to be drawn.

    Returns:
        The families, and a function that makes a text drawable.
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
    lost = sorted(c for c in missing if c.isprintable())
    if lost:
        some = " ".join(lost[:10]) + (" ..." if len(lost) > 10 else "")
        warnings.warn(
            f"no installed font has {len(lost)} of the characters ({some}), drawn as {_PLACEHOLDER}: install one that "
            f"has them, such as a Noto font of the script, or use contributions_html, which shows every script",
            stacklevel=3,
        )
    return Lettering(families, missing)


@cache
def _characters(family: str) -> frozenset[str]:
    from matplotlib.font_manager import FontProperties, findfont, get_font

    return frozenset(map(chr, get_font(findfont(FontProperties(family=[family]))).get_charmap()))
