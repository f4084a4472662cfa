"""Both texts with each token shaded by its share of the score, as a figure and as a web page."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from bertscore_tm.plotting.fonts import Lettering
from bertscore_tm.plotting.pictures import PLAIN, Picture, Size, write_title
from bertscore_tm.scoring.alignment import SPECIAL, AlignedText

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap

__all__ = ["draw_sentences", "sentences_html", "sentences_size"]

# Below and above zero; the colour-blind can tell them apart, and text can be read on both.
_LESS, _MORE = (213, 94, 0), (0, 114, 178)
_STRONGEST = 0.62

# Points.
_FONTS = (11.0, 10.0, 9.0, 8.0, 7.0, 6.0, 5.0, 4.0)
_WIDTHS = (480.0, 620.0, 780.0, 1000.0, 1440.0)
_NARROWEST = 260.0
_SMALL_PRINT, _HEADING, _BETWEEN = 7.0, 28.0, 6.0
_SCALE_WIDTH, _SCALE_HEIGHT = 90.0, 7.0
# Parts of the font's size.
_PADDING, _SPACE, _LINE = 0.18, 0.3, 1.9


@dataclass(frozen=True)
class _Side:
    """One of the two texts in a picture."""

    name: str
    score: str
    text: AlignedText
    right_to_left: bool

    @property
    def heading(self) -> str:
        """Name of the text, and what is missing in its picture."""
        special = self.text.special_share
        return self.name if abs(special) < 5e-4 else f"{self.name} (special tokens add {special:.3f})"

    @property
    def shades(self) -> list[float]:
        """Shares as parts of the full share, from -1 to 1."""
        full = self.text.full_share or 1.0
        shades: list[float] = (self.text.shares / full).clamp(-1, 1).tolist()
        return shades

    @property
    def lowest_shade(self) -> float:
        """Where the colours begin."""
        return min(0.0, *self.shades)


def _sides(picture: Picture) -> tuple[_Side, _Side]:
    one = picture.alignment
    return (
        _Side("candidate", "P", one.candidate, _right_to_left(one.candidate.tokens)),
        _Side("reference", "R", one.reference, _right_to_left(one.reference.tokens)),
    )


def _right_to_left(tokens: list[str]) -> bool:
    """Tell as browsers do: by the first letter that has a direction."""
    directions = (unicodedata.bidirectional(c) for token in tokens for c in token)
    return next((direction for direction in directions if direction in ("L", "R", "AL")), "L") != "L"


def _widths(side: _Side, lettering: Lettering) -> list[float]:
    """Measure the tokens, in parts of the font's size."""
    from matplotlib.figure import Figure

    figure = Figure()
    text = figure.text(0, 0, "", fontsize=_FONTS[0], fontfamily=lettering.families, **PLAIN)
    widths = []
    for token in side.text.tokens:
        text.set_text(lettering(token))
        widths.append(text.get_window_extent().width / figure.dpi * 72 / _FONTS[0] + 2 * _PADDING)
    return widths


def _places(widths: list[float], joined: list[bool], line: float) -> list[tuple[int, float]]:
    """Break a text into lines, within words only where a word is longer than a line.

    Returns:
        The line of each token, and where on it the token begins.
    """
    starts = [number for number in range(len(widths)) if number == 0 or not joined[number]]
    words = [list(range(start, stop)) for start, stop in pairwise([*starts, len(widths)])]
    places: list[tuple[int, float]] = []
    row, x = 0, 0.0
    for word in words:
        whole = sum(widths[number] for number in word)
        if places:
            row, x = (row, x + _SPACE) if x + _SPACE + whole <= line or whole > line else (row + 1, 0.0)
        for number in word:
            if x > 0 and x + widths[number] > line:
                row, x = row + 1, 0.0
            places.append((row, x))
            x += widths[number]
    return places


def _height(widths: list[list[float]], sides: tuple[_Side, _Side], font: float, width: float) -> float:
    rows = [_places(one, side.text.joined, width / font)[-1][0] + 1 for one, side in zip(widths, sides, strict=True)]
    return sum(rows) * _LINE * font + 2 * _HEADING + _BETWEEN


def sentences_size(picture: Picture, lettering: Lettering) -> Size:
    """Return the size that the texts ask for.

    Args:
        picture: what to draw.
        lettering: the fonts.

    Returns:
        Width and height in inches.
    """
    sides = _sides(picture)
    widths = [_widths(side, lettering) for side in sides]
    longest = max(sum(one) + _SPACE * len(one) for one in widths) * _FONTS[0]
    for font, width in zip(_FONTS, _WIDTHS, strict=False):
        height = _height(widths, sides, font, width)
        if height <= width:
            break
    width = min(width, max(longest, _NARROWEST))
    return width / 72, height / 72


def draw_sentences(ax: Axes, picture: Picture, lettering: Lettering, size: Size) -> None:
    """Draw both texts, shaded, with scores and scales.

    Args:
        ax: the axes to draw on.
        picture: what to draw.
        lettering: the fonts.
        size: size of the axes in inches.
    """
    from matplotlib.colors import LinearSegmentedColormap

    width, height = (length * 72 for length in size)
    sides = _sides(picture)
    widths = [_widths(side, lettering) for side in sides]
    fitting = (font for font in _FONTS if _height(widths, sides, font, width) <= height + 0.01)
    font = next(fitting, _FONTS[-1])
    ends = [[1 - _STRONGEST * (1 - c / 255) for c in colour] for colour in (_LESS, _MORE)]
    shades = LinearSegmentedColormap.from_list("share", [ends[0], (1, 1, 1), ends[1]])
    ax.set(xlim=(0, width), ylim=(height, 0))
    ax.axis("off")
    top = 0.0
    for side, measured in zip(sides, widths, strict=True):
        ax.text(0, top + _HEADING / 2, side.heading, fontsize=font, va="center", color="gray")
        _draw_scale(ax, side, shades, (width, height), top)
        top += _HEADING
        places = _places(measured, side.text.joined, width / font)
        for token, extent, shade, (row, x) in zip(side.text.tokens, measured, side.shades, places, strict=True):
            left = width - (x + extent) * font if side.right_to_left else x * font
            _draw_token(ax, lettering, token, font, shades((shade + 1) / 2), left, top + row * _LINE * font, extent)
        top += (places[-1][0] + 1) * _LINE * font + _BETWEEN
    write_title(ax, picture, lettering, 4)


def _draw_token(
    ax: Axes, lettering: Lettering, token: str, font: float, colour: Any, left: float, top: float, extent: float
) -> None:
    from matplotlib.patches import Rectangle

    box = Rectangle(
        (left, top), extent * font, 1.5 * font, facecolor=colour, edgecolor="#BBBBBB", linewidth=0.5, gid="token"
    )
    ax.add_patch(box)
    ax.text(
        left + extent * font / 2,
        top + 1.1 * font,
        lettering(token),
        fontsize=font,
        ha="center",
        va="baseline",
        color="black",
        fontfamily=lettering.families,
        **PLAIN,
    )


def _draw_scale(ax: Axes, side: _Side, shades: Colormap, size: Size, top: float) -> None:
    """Draw what the shades mean, at the right end of the heading."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    full = side.text.full_share or 1.0
    width, height = size
    scale = ax.inset_axes(
        (
            1 - (_SCALE_WIDTH + 12) / width,
            1 - (top + 5 + _SCALE_HEIGHT) / height,
            _SCALE_WIDTH / width,
            _SCALE_HEIGHT / height,
        )
    )
    figure: Any = ax.figure
    bar = figure.colorbar(ScalarMappable(Normalize(-full, full), shades), cax=scale, orientation="horizontal")
    lowest = side.lowest_shade * full
    scale.set_xlim(lowest, full)
    ticks = [lowest, 0.0, full] if lowest < 0 else [0.0, full]
    bar.set_ticks(ticks, labels=[f"{tick:.2g}" for tick in ticks])
    scale.grid(False)
    scale.tick_params(labelsize=_SMALL_PRINT, length=2, pad=1)
    scale.set_ylabel(f"share of {side.score}", fontsize=_SMALL_PRINT, rotation=0, ha="right", va="center", labelpad=3)


_STYLE = """
.bertscore { color: #111; background: #fff; padding: 1em; max-width: 60em; font: 16px/2 system-ui, sans-serif; }
.bertscore p { margin: 0 0 1em; overflow-wrap: anywhere; }
.bertscore h1, .bertscore h2 { font-size: 1em; line-height: 1.5; margin: 0; }
.bertscore h2 { font-weight: normal; display: flex; flex-wrap: wrap; gap: .4em; align-items: center; }
.bertscore small { opacity: .75; }
.bertscore mark { --of: MORE; color: inherit; padding: .15em .2em; border-radius: .2em;
  background: rgba(var(--of), calc(var(--share) * STRONGEST)); box-shadow: inset 0 0 0 1px rgba(128, 128, 128, .4);
  -webkit-print-color-adjust: exact; print-color-adjust: exact; }
.bertscore mark.less { --of: LESS; }
.bertscore .scale { width: 6em; height: .8em; box-shadow: inset 0 0 0 1px rgba(128, 128, 128, .4);
  -webkit-print-color-adjust: exact; print-color-adjust: exact; }
@media (prefers-color-scheme: dark) { .bertscore { color: #eee; background: #1b1b1b; } }
"""


def sentences_html(picture: Picture) -> str:
    """Write both texts, shaded, as a web page.

    Args:
        picture: what to show.

    Returns:
        A page that needs nothing else; everything that is not ours is escaped.
    """
    style = _STYLE.replace("MORE", _rgb(_MORE)).replace("LESS", _rgb(_LESS)).replace("STRONGEST", str(_STRONGEST))
    sides = _sides(picture)
    parts = [
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>BERTScore</title>',
        f'<meta name="viewport" content="width=device-width"><style>{style}</style></head>',
        '<body><div class="bertscore">',
        f"<h1>{escape(picture.headline)}</h1><small>{escape(picture.caption)}</small>",
    ]
    for side, other in zip(sides, reversed(sides), strict=True):
        parts.append(_scale_html(side))
        parts.append(f'<p dir="auto" lang="">{"".join(_tokens_html(side, other, picture.weighted))}</p>')
    return "\n".join([*parts, "</div></body></html>", ""])


def _scale_html(side: _Side) -> str:
    full = side.text.full_share or 1.0
    below = abs(side.lowest_shade)
    zero = below / (1 + below) * 100
    gradient = (
        f"linear-gradient(to right, rgba({_rgb(_LESS)}, {below * _STRONGEST:.3f}), transparent {zero:.1f}%, "
        f"rgba({_rgb(_MORE)}, {_STRONGEST}))"
    )
    return (
        f"<h2><b>{escape(side.heading)}</b> <small>share of {side.score}: {side.lowest_shade * full:.2g}</small>"
        f'<span class="scale" style="background: {gradient}"></span><small>{full:.2g}</small></h2>'
    )


def _tokens_html(side: _Side, other: _Side, weighted: bool) -> Iterator[str]:
    text = side.text
    for number, (token, shade) in enumerate(zip(text.tokens, side.shades, strict=True)):
        match = int(text.matches[number])
        partner = "a special token" if match == SPECIAL else f"“{other.text.tokens[match]}”"
        about = f"adds {text.shares[number]:.4f} to {side.score}; similarity {text.best[number]:.3f} with {partner}"
        if weighted:
            about += f"; weight {text.weights[number]:.3g}"
        space = "" if number == 0 or text.joined[number] else " "
        less = ' class="less"' if shade < 0 else ""
        yield f'{space}<mark{less} style="--share: {abs(shade):.3f}" title="{escape(about)}">{escape(token)}</mark>'


def _rgb(colour: tuple[int, int, int]) -> str:
    return ", ".join(map(str, colour))
