"""Heatmap of the similarities of two texts, with the greedy matches marked."""

from __future__ import annotations

import math
import unicodedata
from functools import partial
from importlib.util import find_spec
from io import BytesIO
from typing import TYPE_CHECKING, Any

import numpy as np

from bertscore_tm.alignment.data import SPECIAL, AlignedText, AlignmentData
from bertscore_tm.alignment.fonts import choose_fonts

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

# Texts may contain dollar signs, backslashes and underscores that are not formulas.
_PLAIN: dict[str, Any] = {"parse_math": False, "usetex": False}

# Black numbers and both marks are visible on the darkest shade.
_SHADES = ("#FFFFFF", "#D3E5F3", "#93C4E3", "#559DCF")
# The palette of Okabe and Ito, safe for colour-blind readers; the shapes differ too.
_PRECISION_COLOUR, _RECALL_COLOUR = "#D55E00", "#000000"

_SPECIAL_MARK, _PIECE_MARK = "†", "·"
_LONGEST_LABEL = 24

# Half the width of a mark, in cells.
_SQUARE, _CIRCLE = 0.46, 0.37
# Inches.
_CELL, _SMALLEST_CELL, _CELL_WITH_NUMBER, _PANEL, _LARGEST_PANEL = 0.48, 0.17, 0.33, 6.0, 20.0
_GAP, _BAR, _COLOUR_BAR = 0.08, 0.45, 0.13
# Points.
_LARGEST_FONT, _SMALLEST_FONT, _LARGEST_NUMBER, _SMALL_PRINT = 10.0, 5.0, 9.0, 8.0


def draw_alignment(alignment: AlignmentData, ax: Axes | None = None) -> Figure:
    """Draw an alignment on axes, by default those of a new figure; see :meth:`bertscore_tm.Alignment.plot`."""
    require_matplotlib("Alignment.plot")
    from matplotlib.figure import Figure

    rows, columns = alignment.similarity.shape
    if ax is not None:
        # Axes of a subfigure share the canvas of the whole figure.
        figure = ax.figure.canvas.figure
        if figure.get_layout_engine() is not None:
            # A layout engine sets the axes' size when the figure is drawn.
            figure.draw_without_rendering()
        panel = ax.get_window_extent()
        _draw_matrix(ax, alignment, min(panel.width / columns, panel.height / rows) / figure.dpi)
        return figure
    longer = max(rows, columns)
    cell = min(max(_PANEL / longer, _SMALLEST_CELL), _CELL, _LARGEST_PANEL / longer)
    width, height = cell * columns, cell * rows
    figure = Figure(figsize=(width, height))
    # Notebooks call it where neither pyplot nor %matplotlib inline is used. Loggers accept no subclass of Figure.
    figure._repr_png_ = partial(_write_png, figure)  # type: ignore[attr-defined]
    ax = figure.add_axes((0, 0, 1, 1))
    _draw_matrix(ax, alignment, cell)
    # The figure grows by what is around the matrix.
    box = figure.get_tightbbox().padded(_GAP)
    figure.set_size_inches(box.size)
    ax.set_position((-box.x0 / box.width, -box.y0 / box.height, width / box.width, height / box.height))
    return figure


def require_matplotlib(name: str) -> None:
    """Raise an ImportError with the remedy if matplotlib, which the named function needs, is not installed."""
    if find_spec("matplotlib") is None:
        raise ImportError(f'{name} needs matplotlib: pip install "bertscore-tm[plot]"')


def _write_png(figure: Figure) -> bytes:
    buffer = BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()


def _draw_matrix(ax: Axes, alignment: AlignmentData, cell: float) -> None:
    """Draw on axes whose cells have this size in inches."""
    from matplotlib.colors import LinearSegmentedColormap

    similarity = alignment.similarity.numpy()
    low, high = similarity.min(), similarity.max()
    if low == high:
        low, high = min(low, 0.0), max(high, 1.0)
    shades = LinearSegmentedColormap.from_list("similarity", _SHADES)
    image = ax.imshow(similarity, cmap=shades, vmin=low, vmax=high, aspect="equal", interpolation="nearest")
    ax.grid(False)
    ax.tick_params(length=0)
    if cell >= _CELL_WITH_NUMBER:
        font = min(cell * 72 * 0.25, _LARGEST_NUMBER)
        for (row, column), value in np.ndenumerate(similarity):
            ax.text(column, row, f"{value:z.2f}", ha="center", va="center", fontsize=font, color="black")
    _mark_matches(ax, alignment, cell)
    _label_axis(ax.xaxis, alignment.reference, cell, upright=True)
    _label_axis(ax.yaxis, alignment.candidate, cell, upright=False)
    ax.set_xlabel("reference", fontsize=_LARGEST_FONT)
    ax.set_ylabel("candidate", fontsize=_LARGEST_FONT)
    height, width = (cell * count for count in similarity.shape)
    bar = 0.0
    if alignment.is_weighted:
        bar = _GAP + _BAR
        _draw_weights(ax, alignment, width, height)
    length = max(height, 1.0)
    place = (1 + (bar + 0.2) / width, 1 - length / height, _COLOUR_BAR / width, length / height)
    colour_bar = ax.figure.colorbar(image, cax=ax.inset_axes(place))
    colour_bar.set_label("cosine similarity", fontsize=_SMALL_PRINT)
    colour_bar.ax.tick_params(labelsize=_SMALL_PRINT)
    colour_bar.ax.grid(False)
    above = bar * 72 + _write_legend(ax, alignment, 1 + (bar + 0.04) / height)
    scores = f"P {alignment.precision:.3f}   R {alignment.recall:.3f}   F1 {alignment.f1:.3f}"
    ax.set_title(scores, loc="left", fontsize=_LARGEST_FONT + 1, pad=above + 6)


def _mark_matches(ax: Axes, alignment: AlignmentData, cell: float) -> None:
    """Draw the marks in units of cells, so that they follow the figure's size."""
    from matplotlib.collections import PatchCollection
    from matplotlib.patches import Circle, Rectangle

    width = 2 * _SQUARE
    squares = [
        Rectangle((match - _SQUARE, token - _SQUARE), width, width)
        for token, match in _list_matches(alignment.candidate)
    ]
    circles = [Circle((token, match), _CIRCLE) for token, match in _list_matches(alignment.reference)]
    style: dict[str, Any] = {"facecolors": "none", "linewidths": min(1.6, cell * 72 * 0.075)}
    for marks, colour, gid in ((squares, _PRECISION_COLOUR, "precision"), (circles, _RECALL_COLOUR, "recall")):
        collection = PatchCollection(marks, edgecolors=colour, gid=f"{gid}-matches", **style)
        ax.add_collection(collection, autolim=False)


def _list_matches(text: AlignedText) -> list[tuple[int, int]]:
    """Return the tokens that match a token of the other text, with that token."""
    return [(token, match) for token, match in enumerate(text.matches.tolist()) if match != SPECIAL]


def _label_axis(axis: Axis, text: AlignedText, cell: float, *, upright: bool) -> None:
    font = max(min(_LARGEST_FONT, cell * 72 * 0.7), _SMALLEST_FONT)
    step = math.ceil(font * 1.2 / (cell * 72))
    # Centred on their baselines: a full stop in the middle of the line would look like another character.
    families, labels = choose_fonts(_label_tokens(text))
    style: dict[str, Any] = {"fontsize": font, "fontfamily": families, "va": "center_baseline", **_PLAIN}
    if upright:
        style |= {"rotation": 45 if cell * 72 > 1.7 * font else 90, "ha": "right", "rotation_mode": "anchor"}
    axis.set_ticks(range(0, len(labels), step), labels[::step], **style)


def _label_tokens(text: AlignedText) -> list[str]:
    """Label the tokens; marks show continued words and special best matches."""
    labels = []
    before = " "
    for token, joined, match in zip(text.tokens, text.joined, text.matches.tolist(), strict=True):
        short = token if len(token) <= _LONGEST_LABEL else f"{token[: _LONGEST_LABEL - 1]}…"
        # Scripts with wide characters have no spaces between words.
        inside = joined and before.isalnum() and token[0].isalnum() and unicodedata.east_asian_width(token[0]) != "W"
        labels.append((_PIECE_MARK if inside else "") + short + (_SPECIAL_MARK if match == SPECIAL else ""))
        before = token[-1]
    return labels


def _draw_weights(ax: Axes, alignment: AlignmentData, width: float, height: float) -> None:
    """Draw bars above and to the right of a matrix of this size in inches."""
    above = ax.inset_axes((0, 1 + _GAP / height, 1, _BAR / height))
    right = ax.inset_axes((1 + _GAP / width, 0, _BAR / width, 1))
    columns, rows = alignment.reference.weights.tolist(), alignment.candidate.weights.tolist()
    above.bar(range(len(columns)), columns, width=0.8, color="#8C8C8C")
    right.barh(range(len(rows)), rows, height=0.8, color="#8C8C8C")
    highest = max(*columns, *rows) or 1.0
    labels = ["0", f"{highest:.3g}"]
    above.set(xlim=ax.get_xlim(), ylim=(0, highest), xticks=[], yticks=[0, highest], yticklabels=labels)
    right.set(ylim=ax.get_ylim(), xlim=(0, highest), yticks=[], xticks=[0, highest], xticklabels=labels)
    right.tick_params(axis="x", rotation=90)
    above.set_ylabel("weight", fontsize=_SMALL_PRINT)
    for bars in (above, right):
        bars.grid(False)
        bars.tick_params(length=2, pad=1, labelsize=_SMALL_PRINT)
        bars.spines[["top", "right"]].set_visible(False)
        bars.set_facecolor("none")


def _write_legend(ax: Axes, alignment: AlignmentData, bottom: float) -> float:
    """Explain the picture above a fraction of the axes' height, and return the explanation's height in points."""
    from matplotlib.lines import Line2D

    mark: dict[str, Any] = {"linestyle": "none", "markersize": 7}
    marks = [
        Line2D([], [], marker="s", mfc="none", mec=_PRECISION_COLOUR, label="candidate token's best match (P)", **mark),
        Line2D([], [], marker="o", mfc="none", mec=_RECALL_COLOUR, label="reference token's best match (R)", **mark),
    ]
    if any((side.matches == SPECIAL).any() for side in (alignment.candidate, alignment.reference)):
        label = "best match is a special token, which is not shown"
        marks.append(Line2D([], [], marker=r"$\dagger$", mfc="black", mec="black", mew=0.4, label=label, **mark))
    # Black marks need a light background, also on a dark figure.
    colours: dict[str, Any] = {"facecolor": "white", "edgecolor": "none", "labelcolor": "black", "framealpha": 1}
    spaces: dict[str, Any] = {"borderaxespad": 0, "borderpad": 0.2, "handletextpad": 0.3, "labelspacing": 0.35}
    place: dict[str, Any] = {"loc": "lower left", "bbox_to_anchor": (0, bottom), "alignment": "left"}
    fonts: dict[str, Any] = {"fontsize": _SMALL_PRINT, "title_fontsize": _SMALL_PRINT}
    legend = ax.legend(handles=marks, title=alignment.settings, **place, **colours, **spaces, **fonts)
    legend.get_title().set(color="black", **_PLAIN)
    return legend.get_window_extent().height / ax.figure.dpi * 72
