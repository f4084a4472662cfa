"""Both texts with each token shaded by its share of the score, as a figure."""

from __future__ import annotations

from itertools import groupby, pairwise
from typing import TYPE_CHECKING, Any

from bertscore_tm.plotting.alignment import Alignment
from bertscore_tm.plotting.figures import (
    PLAIN,
    Size,
    create_axes,
    drawn_texts,
    find_figure,
    fit_figure,
    measure_axes,
    require_matplotlib,
    write_title,
)
from bertscore_tm.plotting.fonts import FontFallback, find_fonts
from bertscore_tm.plotting.shading import NEGATIVE, POSITIVE, STRONGEST, ShadedText, find_reversed, shade_texts

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure

__all__ = ["draw_contributions"]

# Points. Longer texts get a wider panel and a smaller font.
_FONTS = (11.0, 10.0, 9.0, 8.0, 7.0, 6.0, 5.0, 4.0)
_WIDTHS = (480.0, 620.0, 780.0, 1000.0, 1440.0)
_NARROWEST = 260.0
_SMALL_PRINT, _HEADING, _GAP = 7.0, 28.0, 6.0
_SCALE_WIDTH, _SCALE_HEIGHT = 90.0, 7.0
# Units of the font size.
_PADDING, _SPACE, _LINE = 0.18, 0.3, 1.9


def draw_contributions(alignment: Alignment, ax: Axes | None = None) -> Figure:
    """Draw both texts, shaded.

    See :meth:`bertscore_tm.plotting.alignment.Alignment.plot_contributions`.

    Args:
        alignment: the alignment.
        ax: axes to draw on. Default: a new figure.

    Returns:
        The figure.

    Raises:
        ImportError: matplotlib is not installed.
    """
    require_matplotlib("Alignment.plot_contributions")
    fonts = find_fonts(drawn_texts(alignment))
    if ax is not None:
        _draw_texts(ax, alignment, fonts, measure_axes(ax))
        return find_figure(ax)
    size = _panel_size(alignment, fonts)
    new = create_axes(size)
    _draw_texts(new, alignment, fonts, size)
    return fit_figure(new, size)


def _measure_tokens(side: ShadedText, fonts: FontFallback) -> list[float]:
    """Measure the tokens, in units of the font size."""
    from matplotlib.figure import Figure

    figure = Figure()
    text = figure.text(0, 0, "", fontsize=_FONTS[0], fontfamily=fonts.families, **PLAIN)
    widths = []
    for token in side.text.tokens:
        text.set_text(fonts.replace_missing(token))
        widths.append(text.get_window_extent().width / figure.dpi * 72 / _FONTS[0] + 2 * _PADDING)
    return widths


def _wrap_lines(widths: list[float], joined: list[bool], line: float) -> list[tuple[int, float]]:
    """Break a text into lines, within words only where a word is longer than a line.

    Returns:
        The line of each token, and its start on the line, in units of the font size.
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


def _reverse_runs(
    places: list[tuple[int, float]], widths: list[float], is_reversed: list[bool]
) -> list[tuple[int, float]]:
    """Mirror each run of tokens that are read against the text's direction, line by line."""
    ordered: list[tuple[int, float]] = []
    tokens = zip(places, widths, is_reversed, strict=True)
    for (row, mirrored), group in groupby(tokens, key=lambda token: (token[0][0], token[2])):
        run = [(x, width) for (_, x), width, _ in group]
        ends = run[0][0] + run[-1][0] + run[-1][1]
        ordered += [(row, ends - x - width if mirrored else x) for x, width in run]
    return ordered


def _panel_height(widths: list[list[float]], sides: tuple[ShadedText, ShadedText], font: float, width: float) -> float:
    num_lines = sum(
        _wrap_lines(one, side.text.joined, width / font)[-1][0] + 1 for one, side in zip(widths, sides, strict=True)
    )
    return num_lines * _LINE * font + 2 * _HEADING + _GAP


def _panel_size(alignment: Alignment, fonts: FontFallback) -> Size:
    sides = shade_texts(alignment)
    widths = [_measure_tokens(side, fonts) for side in sides]
    longest = max(sum(one) + _SPACE * len(one) for one in widths) * _FONTS[0]
    for font, width in zip(_FONTS, _WIDTHS, strict=False):
        height = _panel_height(widths, sides, font, width)
        if height <= width:
            break
    width = min(width, max(longest, _NARROWEST))
    return width / 72, height / 72


def _draw_texts(ax: Axes, alignment: Alignment, fonts: FontFallback, size: Size) -> None:
    from matplotlib.colors import LinearSegmentedColormap

    width, height = (length * 72 for length in size)
    sides = shade_texts(alignment)
    widths = [_measure_tokens(side, fonts) for side in sides]
    fitting = (font for font in _FONTS if _panel_height(widths, sides, font, width) <= height + 0.01)
    font = next(fitting, _FONTS[-1])
    ends = [[1 - STRONGEST * (1 - c / 255) for c in colour] for colour in (NEGATIVE, POSITIVE)]
    shades = LinearSegmentedColormap.from_list("share", [ends[0], (1, 1, 1), ends[1]])
    ax.set(xlim=(0, width), ylim=(height, 0))
    ax.axis("off")
    top = 0.0
    for side, measured in zip(sides, widths, strict=True):
        ax.text(0, top + _HEADING / 2, side.heading, fontsize=font, va="center", color="gray")
        _draw_scale(ax, side, shades, (width, height), top)
        top += _HEADING
        places = _wrap_lines(measured, side.text.joined, width / font)
        places = _reverse_runs(places, measured, find_reversed(side))
        for token, extent, shade, (row, x) in zip(side.text.tokens, measured, side.shades, places, strict=True):
            left = width - (x + extent) * font if side.right_to_left else x * font
            _draw_token(ax, fonts, token, font, shades((shade + 1) / 2), left, top + row * _LINE * font, extent)
        top += (places[-1][0] + 1) * _LINE * font + _GAP
    write_title(ax, alignment, fonts, 4)


def _draw_token(
    ax: Axes, fonts: FontFallback, token: str, font: float, colour: Any, left: float, top: float, extent: float
) -> None:
    from matplotlib.patches import Rectangle

    box = Rectangle(
        (left, top), extent * font, 1.5 * font, facecolor=colour, edgecolor="#BBBBBB", linewidth=0.5, gid="token"
    )
    ax.add_patch(box)
    ax.text(
        left + extent * font / 2,
        top + 1.1 * font,
        fonts.replace_missing(token),
        fontsize=font,
        ha="center",
        va="baseline",
        color="black",
        fontfamily=fonts.families,
        **PLAIN,
    )


def _draw_scale(ax: Axes, side: ShadedText, shades: Colormap, size: Size, top: float) -> None:
    """Draw the colour scale at the right end of the heading."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    full = side.full_share
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
