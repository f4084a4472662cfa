"""Heatmap of the similarities of two texts, with the greedy matches marked."""

from __future__ import annotations

import math
import unicodedata
from functools import partial
from importlib.util import find_spec
from io import BytesIO
from typing import TYPE_CHECKING, Any, cast

from torch import Tensor

from bertscore_tm.scoring.alignment import SPECIAL, AlignedText, AlignmentData
from bertscore_tm.views.fonts import choose_fonts

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

__all__ = ["draw_alignment", "require_matplotlib"]

# Texts may contain dollar signs, backslashes and underscores that are not formulas.
_PLAIN: dict[str, Any] = {"parse_math": False, "usetex": False}

# Black numbers and both marks are visible on the darkest shade.
_SHADES = ("#FFFFFF", "#D3E5F3", "#93C4E3", "#559DCF")
# The palette of Okabe and Ito, safe for colour-blind readers; the shapes differ too.
_PRECISION_COLOUR, _RECALL_COLOUR = "#D55E00", "#000000"
_BAR_COLOUR = "#8C8C8C"

_SPECIAL_MARK, _PIECE_MARK = "†", "·"
_LONGEST_LABEL = 24

# Half the width of a mark, in cells.
_SQUARE, _CIRCLE = 0.46, 0.37
# Inches.
_CELL, _SMALLEST_CELL, _CELL_WITH_NUMBER, _PANEL, _LARGEST_PANEL = 0.48, 0.17, 0.33, 6.0, 20.0
_GAP, _BAR, _COLOUR_BAR, _LONGEST_COLOUR_BAR, _DRAFT = 0.08, 0.45, 0.13, 4.0, 4.0
# Points.
_LARGEST_FONT, _SMALLEST_FONT, _LARGEST_NUMBER, _SMALL_PRINT = 10.0, 5.0, 9.0, 8.0


def draw_alignment(alignment: AlignmentData, ax: Axes | None = None) -> Figure:
    """Draw an alignment as a heatmap.

    See :meth:`bertscore_tm.Alignment.plot`.

    Args:
        alignment: the alignment.
        ax: axes to draw on. Default: a new figure.

    Returns:
        The figure.

    Raises:
        ImportError: matplotlib is not installed.
    """
    require_matplotlib("Alignment.plot")
    from matplotlib.figure import Figure

    rows, columns = alignment.similarity.shape
    if ax is not None:
        figure: Any = ax.figure
        while figure.figure is not figure:  # a subfigure
            figure = figure.figure
        if figure.get_layout_engine() is not None:
            # A layout engine sets the axes' size when the figure is drawn.
            figure.draw_without_rendering()
        box = ax.get_window_extent()
        _draw_matrix(ax, alignment, min(box.width / columns, box.height / rows) / figure.dpi)
        return cast("Figure", figure)
    longer = max(rows, columns)
    cell = min(max(_PANEL / longer, _SMALLEST_CELL), _CELL, _LARGEST_PANEL / longer)
    figure = Figure(figsize=(cell * columns + _DRAFT, cell * rows + _DRAFT), layout="constrained")
    # Notebooks call it where neither pyplot nor %matplotlib inline is used. Loggers accept no subclass of Figure.
    figure._repr_png_ = partial(_write_png, figure)
    new = figure.subplots()
    new.set_anchor("NW")
    _draw_matrix(new, alignment, cell)
    # The layout gives what labels leave to the axes; the second time the insets have their size.
    for _ in range(2):
        figure.draw_without_rendering()
        (width, height), panel = figure.get_size_inches(), new.get_position(original=True)
        # The layout ignores how wide the title is.
        title = new.get_tightbbox().x1 / figure.dpi + _GAP
        width = max(width * (1 - panel.width) + cell * columns, title)
        figure.set_size_inches(width, height * (1 - panel.height) + cell * rows)
    return cast("Figure", figure)


def require_matplotlib(name: str) -> None:
    """Raise an ImportError with the remedy if matplotlib is not installed.

    Args:
        name: the function that needs it.

    Raises:
        ImportError: matplotlib is not installed.
    """
    if find_spec("matplotlib") is None:
        raise ImportError(f'{name} needs matplotlib: pip install "bertscore-tm[plot]"')


def _write_png(figure: Figure) -> bytes:
    buffer = BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()


def _draw_matrix(ax: Axes, alignment: AlignmentData, cell: float) -> None:
    """Draw on axes whose cells have this size in inches."""
    from matplotlib.colors import LinearSegmentedColormap

    rows, columns = alignment.similarity.shape
    width, height = cell * columns, cell * rows
    low, high = alignment.similarity.min().item(), alignment.similarity.max().item()
    if low == high:
        low, high = min(low, 0.0), max(high, 1.0)
    image = ax.imshow(
        alignment.similarity.numpy(),
        cmap=LinearSegmentedColormap.from_list("similarity", _SHADES),
        vmin=low,
        vmax=high,
        aspect="equal",
        interpolation="nearest",
    )
    ax.grid(False)
    ax.tick_params(length=0)
    if cell >= _CELL_WITH_NUMBER:
        _write_numbers(ax, alignment.similarity, cell)
    _mark_matches(ax, alignment, cell)
    _label_axis(ax.xaxis, _labels(alignment.reference), cell, upright=True)
    _label_axis(ax.yaxis, _labels(alignment.candidate), cell, upright=False)
    ax.set_xlabel("reference", fontsize=_LARGEST_FONT)
    ax.set_ylabel("candidate", fontsize=_LARGEST_FONT)
    bar = _GAP + _BAR if alignment.is_weighted else 0.0
    if alignment.is_weighted:
        _draw_weights(ax, alignment, (width, height))
    length = min(max(height, 1.0), _LONGEST_COLOUR_BAR)
    place = (1 + (bar + 0.2) / width, (height - length) / height, _COLOUR_BAR / width, length / height)
    colour_bar: Any = ax.figure.colorbar(image, cax=ax.inset_axes(place))
    colour_bar.set_label("cosine similarity", fontsize=_SMALL_PRINT)
    colour_bar.ax.tick_params(labelsize=_SMALL_PRINT)
    colour_bar.ax.grid(False)
    above = bar * 72 + _write_legend(ax, alignment, 1 + (bar + 0.04) / height)
    settings: dict[str, Any] = {"xycoords": "axes fraction", "textcoords": "offset points", "annotation_clip": False}
    ax.annotate(alignment.settings, (0, 1), (0, above + 2), fontsize=_SMALL_PRINT, va="bottom", **settings, **_PLAIN)
    scores = f"P {alignment.precision:.3f}   R {alignment.recall:.3f}   F1 {alignment.f1:.3f}"
    ax.set_title(scores, loc="left", fontsize=_LARGEST_FONT + 1, pad=above + _SMALL_PRINT * 1.2 + 6)


def _write_numbers(ax: Axes, similarities: Tensor, cell: float) -> None:
    font = min(cell * 72 * 0.25, _LARGEST_NUMBER)
    for row, values in enumerate(similarities.tolist()):
        for column, value in enumerate(values):
            # Adding 0 turns -0.0 into 0.0.
            ax.text(column, row, f"{round(value, 2) + 0:.2f}", ha="center", va="center", fontsize=font, color="black")


def _mark_matches(ax: Axes, alignment: AlignmentData, cell: float) -> None:
    """Draw the marks in units of cells, so that they follow the figure's size."""
    from matplotlib.collections import EllipseCollection, PolyCollection

    style: dict[str, Any] = {"facecolors": "none", "linewidths": min(1.6, cell * 72 * 0.075)}
    candidate_matches = [(j, i) for i, j in enumerate(alignment.candidate.matches.tolist()) if j != SPECIAL]
    reference_matches = [(j, i) for j, i in enumerate(alignment.reference.matches.tolist()) if i != SPECIAL]
    if candidate_matches:
        corners = [(-_SQUARE, -_SQUARE), (_SQUARE, -_SQUARE), (_SQUARE, _SQUARE), (-_SQUARE, _SQUARE)]
        outlines = [[(x + dx, y + dy) for dx, dy in corners] for x, y in candidate_matches]
        squares = PolyCollection(outlines, edgecolors=_PRECISION_COLOUR, gid="precision-matches", **style)
        ax.add_collection(squares, autolim=False)
    if reference_matches:
        sizes = [2 * _CIRCLE] * len(reference_matches)
        circles = EllipseCollection(
            sizes,
            sizes,
            [0.0] * len(sizes),
            units="xy",
            offsets=reference_matches,
            offset_transform=ax.transData,
            edgecolors=_RECALL_COLOUR,
            gid="recall-matches",
            **style,
        )
        ax.add_collection(circles, autolim=False)


def _labels(text: AlignedText) -> list[str]:
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


def _label_axis(axis: Axis, labels: list[str], cell: float, *, upright: bool) -> None:
    font = max(min(_LARGEST_FONT, cell * 72 * 0.7), _SMALLEST_FONT)
    step = math.ceil(font * 1.2 / (cell * 72))
    # Centred on their baselines: a full stop in the middle of the line would look like another character.
    families, labels = choose_fonts(labels)
    style: dict[str, Any] = {"fontsize": font, "fontfamily": families, "va": "center_baseline", **_PLAIN}
    if upright:
        rotation = 45 if cell * 72 > 1.7 * font else 90
        style |= {"rotation": rotation, "ha": "right", "rotation_mode": "anchor"}
    axis.set_ticks(range(0, len(labels), step), labels[::step], **style)


def _draw_weights(ax: Axes, alignment: AlignmentData, panel: tuple[float, float]) -> None:
    width, height = panel
    column_bars = ax.inset_axes((0, 1 + _GAP / height, 1, _BAR / height))
    row_bars = ax.inset_axes((1 + _GAP / width, 0, _BAR / width, 1))
    column_weights, row_weights = alignment.reference.weights, alignment.candidate.weights
    column_bars.bar(range(len(column_weights)), column_weights.tolist(), width=0.8, color=_BAR_COLOUR)
    row_bars.barh(range(len(row_weights)), row_weights.tolist(), height=0.8, color=_BAR_COLOUR)
    highest = max(column_weights.max().item(), row_weights.max().item()) or 1.0
    column_bars.set(xlim=ax.get_xlim(), ylim=(0, highest), xticks=[])
    row_bars.set(ylim=ax.get_ylim(), xlim=(0, highest), yticks=[])
    ticks: dict[str, Any] = {"ticks": [0, highest], "labels": ["0", f"{highest:.3g}"], "fontsize": _SMALL_PRINT}
    column_bars.yaxis.set_ticks(**ticks)
    row_bars.xaxis.set_ticks(**ticks, rotation=90)
    column_bars.set_ylabel("weight", fontsize=_SMALL_PRINT)
    for bars in (column_bars, row_bars):
        bars.grid(False)
        bars.tick_params(length=2, pad=1)
        bars.spines[["top", "right"]].set_visible(False)
        bars.set_facecolor("none")


def _write_legend(ax: Axes, alignment: AlignmentData, bottom: float) -> float:
    """Explain the marks above a fraction of the axes' height, and return the explanation's height in points."""
    from matplotlib.lines import Line2D

    mark: dict[str, Any] = {"linestyle": "none", "markersize": 7}
    marks = [
        Line2D([], [], marker="s", mfc="none", mec=_PRECISION_COLOUR, label="candidate token's best match (P)", **mark),
        Line2D([], [], marker="o", mfc="none", mec=_RECALL_COLOUR, label="reference token's best match (R)", **mark),
    ]
    if any((side.matches == SPECIAL).any() for side in (alignment.candidate, alignment.reference)):
        label = "best match is a special token, which is not shown"
        marks.append(Line2D([], [], marker=r"$\dagger$", mfc="black", mec="black", mew=0.4, label=label, **mark))
    ax.legend(
        handles=marks,
        loc="lower left",
        bbox_to_anchor=(0, bottom),
        borderaxespad=0,
        borderpad=0.2,
        handletextpad=0.3,
        labelspacing=0.35,
        fontsize=_SMALL_PRINT,
        # Black marks need a light background, also on a dark figure.
        facecolor="white",
        edgecolor="none",
        labelcolor="black",
        framealpha=1,
    )
    return len(marks) * _SMALL_PRINT * 1.45 + 6
