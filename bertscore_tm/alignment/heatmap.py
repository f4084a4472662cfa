"""Heatmap of the similarities of two texts, with the greedy matches marked."""

from __future__ import annotations

import math
import unicodedata
from functools import partial
from importlib.util import find_spec
from io import BytesIO
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bertscore_tm.alignment.data import SPECIAL, AlignedText, AlignmentData
from bertscore_tm.alignment.fonts import choose_fonts

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage

# Options of labels that are texts, because their dollar signs, backslashes and underscores are not formulas.
_PLAIN: dict[str, Any] = {"parse_math": False, "usetex": False}

# Black numbers and both marks are visible on the darkest shade.
_SHADES = ("#FFFFFF", "#D3E5F3", "#93C4E3", "#559DCF")
# The palette of Okabe and Ito, safe for colour-blind readers; the shapes differ too.
_PRECISION_COLOUR = "#D55E00"
_RECALL_COLOUR = "#000000"
_WEIGHT_COLOUR = "#8C8C8C"

_SPECIAL_MARK = "†"  # after a token whose best match is a special token
_PIECE_MARK = "·"  # before a token that continues a word
_LONGEST_LABEL = 24  # characters

# Sizes in cells: half the side of a square, and the radius of a circle.
_SQUARE = 0.46
_CIRCLE = 0.37

# Sizes in inches.
_LARGEST_CELL = 0.48
_SMALLEST_CELL = 0.17
_CELL_WITH_NUMBER = 0.33  # the smallest cell that has its similarity as a number
_PANEL = 6.0  # side of the matrix, if its cells have neither the largest nor the smallest size
_LARGEST_PANEL = 20.0
_GAP = 0.08  # between the matrix and the bars of the weights
_BAR = 0.45  # of the largest weight
_COLOUR_BAR = 0.13  # width

# Sizes of fonts in points.
_LARGEST_FONT = 10.0
_SMALLEST_FONT = 5.0
_LARGEST_NUMBER = 9.0
_SMALL_PRINT = 8.0
_POINTS_PER_INCH = 72


def draw_alignment(alignment: AlignmentData, ax: Axes | None = None) -> Figure:
    """Draw an alignment on the given axes or on a new figure; see :meth:`bertscore_tm.Alignment.plot`."""
    require_matplotlib("Alignment.plot")
    if ax is None:
        return _draw_figure(alignment)
    # Axes of a subfigure share the canvas of the whole figure.
    figure: Figure = ax.figure.canvas.figure
    if figure.get_layout_engine() is not None:
        # A layout engine sets the axes' size when the figure is drawn.
        figure.draw_without_rendering()
    panel = ax.get_window_extent()  # in pixels
    rows, columns = alignment.similarity.shape
    cell = min(panel.width / columns, panel.height / rows) / figure.dpi
    _draw_matrix(ax, alignment, cell)
    return figure


def _draw_figure(alignment: AlignmentData) -> Figure:
    """Draw an alignment on a new figure of a size that fits the number of tokens."""
    from matplotlib.figure import Figure

    rows, columns = alignment.similarity.shape
    longer = max(rows, columns)
    # With hundreds of tokens this is less than the smallest size, because the limit of the whole panel comes first.
    largest_cell = min(_LARGEST_CELL, _LARGEST_PANEL / longer)
    cell = _clamp(_PANEL / longer, least=_SMALLEST_CELL, most=largest_cell)
    width = cell * columns
    height = cell * rows
    figure = Figure(figsize=(width, height))
    # Notebooks call it where neither pyplot nor %matplotlib inline is used. Loggers accept no subclass of Figure.
    figure._repr_png_ = partial(_write_png, figure)  # type: ignore[attr-defined]
    # At first the matrix fills the figure, which then grows by the labels, legend and bars around it.
    ax = figure.add_axes((0, 0, 1, 1))
    _draw_matrix(ax, alignment, cell)
    box = figure.get_tightbbox().padded(_GAP)  # in inches, from the lower left corner of the matrix
    figure.set_size_inches(box.size)
    # Leave the matrix at the same place and size in inches, as fractions of the larger figure.
    ax.set_position((-box.x0 / box.width, -box.y0 / box.height, width / box.width, height / box.height))
    return figure


def _clamp(value: float, *, least: float, most: float) -> float:
    """Limit a value to a range; ``most`` wins if it is less than ``least``."""
    return min(max(value, least), most)


def require_matplotlib(name: str) -> None:
    """Raise an ImportError with the remedy if matplotlib, which the named function needs, is not installed."""
    if find_spec("matplotlib") is None:
        raise ImportError(f'{name} needs matplotlib: pip install "bertscore-tm[plot]"')


def _write_png(figure: Figure) -> bytes:
    buffer = BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()


def _draw_matrix(ax: Axes, alignment: AlignmentData, cell: float) -> None:
    """Draw the similarities, and everything around them, on axes whose cells have this size in inches."""
    similarity = alignment.similarity.numpy()
    rows, columns = similarity.shape
    width = cell * columns
    height = cell * rows
    image = _draw_similarities(ax, similarity)
    if cell >= _CELL_WITH_NUMBER:
        _write_numbers(ax, similarity, cell)
    _mark_matches(ax, alignment, cell)
    _label_tokens(ax.xaxis, alignment.reference, cell, is_upright=True)
    _label_tokens(ax.yaxis, alignment.candidate, cell, is_upright=False)
    ax.set_xlabel("reference", fontsize=_LARGEST_FONT)
    ax.set_ylabel("candidate", fontsize=_LARGEST_FONT)
    bars = 0.0  # inches that the bars of the weights take above the matrix and to its right
    if alignment.is_weighted:
        bars = _GAP + _BAR
        _draw_weights(ax, alignment, width, height)
    _draw_colour_bar(ax, image, width, height, bars)
    # The legend is above the bars, and the title above the legend.
    legend_height = _write_legend(ax, alignment, bottom=1 + (bars + 0.04) / height)  # in points
    scores = f"P {alignment.precision:.3f}   R {alignment.recall:.3f}   F1 {alignment.f1:.3f}"
    padding = bars * _POINTS_PER_INCH + legend_height + 6
    ax.set_title(scores, loc="left", fontsize=_LARGEST_FONT + 1, pad=padding)


def _draw_similarities(ax: Axes, similarity: NDArray[np.float32]) -> AxesImage:
    """Draw a cell per pair of tokens, the darker the more similar they are."""
    from matplotlib.colors import LinearSegmentedColormap

    low = similarity.min()
    high = similarity.max()
    if low == high:
        # A range of one value has no shades.
        low = min(low, 0.0)
        high = max(high, 1.0)
    shades = LinearSegmentedColormap.from_list("similarity", _SHADES)
    image = ax.imshow(similarity, cmap=shades, vmin=low, vmax=high, aspect="equal", interpolation="nearest")
    # The user's style may have grid lines.
    ax.grid(False)
    ax.tick_params(length=0)
    return image


def _write_numbers(ax: Axes, similarity: NDArray[np.float32], cell: float) -> None:
    """Write the similarity into each cell."""
    font = min(cell * _POINTS_PER_INCH * 0.25, _LARGEST_NUMBER)
    for (row, column), value in np.ndenumerate(similarity):
        # The format "z" writes 0.00 instead of -0.00.
        ax.text(column, row, f"{value:z.2f}", ha="center", va="center", fontsize=font, color="black")


def _mark_matches(ax: Axes, alignment: AlignmentData, cell: float) -> None:
    """Draw a square for each candidate token's best match, and a circle for each reference token's.

    The marks are in units of cells, so that they follow the figure's size.
    """
    from matplotlib.collections import PatchCollection
    from matplotlib.patches import Circle, Rectangle

    side = 2 * _SQUARE
    squares = []
    for row, column in _list_matches(alignment.candidate):
        squares.append(Rectangle((column - _SQUARE, row - _SQUARE), side, side))
    circles = []
    for column, row in _list_matches(alignment.reference):
        circles.append(Circle((column, row), _CIRCLE))
    style: dict[str, Any] = {"facecolors": "none", "linewidths": min(1.6, cell * _POINTS_PER_INCH * 0.075)}
    # Collections, because thousands of single patches would be slow to draw.
    precision_marks = PatchCollection(squares, edgecolors=_PRECISION_COLOUR, gid="precision-matches", **style)
    recall_marks = PatchCollection(circles, edgecolors=_RECALL_COLOUR, gid="recall-matches", **style)
    ax.add_collection(precision_marks, autolim=False)
    ax.add_collection(recall_marks, autolim=False)


def _list_matches(text: AlignedText) -> list[tuple[int, int]]:
    """Return the indices of the tokens that match a token of the other text, with the index of that token."""
    return [(token, match) for token, match in enumerate(text.matches.tolist()) if match != SPECIAL]


def _label_tokens(axis: Axis, text: AlignedText, cell: float, *, is_upright: bool) -> None:
    """Label an axis with the tokens of a text, turned if they would be too wide for their cells."""
    cell_in_points = cell * _POINTS_PER_INCH
    font = _clamp(cell_in_points * 0.7, least=_SMALLEST_FONT, most=_LARGEST_FONT)
    # Label every second token, or every third one and so on, in cells that are smaller than a label.
    step = math.ceil(font * 1.2 / cell_in_points)
    families, labels = choose_fonts(_make_labels(text))
    # Center labels on their baselines: a full stop in the middle of the line would look like another character.
    style: dict[str, Any] = {"fontsize": font, "fontfamily": families, "va": "center_baseline", **_PLAIN}
    if is_upright:
        rotation = 90
        if cell_in_points > 1.7 * font:
            # Slanted labels are easier to read, but need more space.
            rotation = 45
        style |= {"rotation": rotation, "ha": "right", "rotation_mode": "anchor"}
    axis.set_ticks(range(0, len(labels), step), labels[::step], **style)


def _make_labels(text: AlignedText) -> list[str]:
    """Return the labels of tokens: shortened, with marks of continued words and of special best matches."""
    labels = []
    before = " "  # the last character of the token before
    for token, is_joined, match in zip(text.tokens, text.joined, text.matches.tolist(), strict=True):
        label = token
        if len(token) > _LONGEST_LABEL:
            label = f"{token[: _LONGEST_LABEL - 1]}…"
        # Scripts with wide characters, such as Chinese, have no spaces between words.
        is_wide = unicodedata.east_asian_width(token[0]) == "W"
        continues_word = is_joined and before.isalnum() and token[0].isalnum() and not is_wide
        if continues_word:
            label = _PIECE_MARK + label
        if match == SPECIAL:
            label += _SPECIAL_MARK
        labels.append(label)
        before = token[-1]
    return labels


def _draw_weights(ax: Axes, alignment: AlignmentData, width: float, height: float) -> None:
    """Draw the token weights as bars: the reference's above the matrix, the candidate's to its right.

    ``width`` and ``height`` are the matrix's, in inches.
    """
    column_weights = alignment.reference.weights.tolist()
    row_weights = alignment.candidate.weights.tolist()
    # Left, bottom, width and height as fractions of the matrix.
    above = ax.inset_axes((0, 1 + _GAP / height, 1, _BAR / height))
    right = ax.inset_axes((1 + _GAP / width, 0, _BAR / width, 1))
    above.bar(range(len(column_weights)), column_weights, width=0.8, color=_WEIGHT_COLOUR)
    right.barh(range(len(row_weights)), row_weights, height=0.8, color=_WEIGHT_COLOUR)
    # Axes cannot end at 0, where they begin, if all weights are 0.
    highest = max(*column_weights, *row_weights) or 1.0
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


def _draw_colour_bar(ax: Axes, image: AxesImage, width: float, height: float, bars: float) -> None:
    """Draw the scale of the shades to the right of the matrix and of the bars of weights.

    All sizes are in inches: ``width`` and ``height`` are the matrix's, and the bars are ``bars`` wide.
    """
    length = max(height, 1.0)
    left = 1 + (bars + 0.2) / width
    bottom = 1 - length / height  # below a matrix that is less high than the colour bar is long
    # Left, bottom, width and height as fractions of the matrix.
    place = ax.inset_axes((left, bottom, _COLOUR_BAR / width, length / height))
    colour_bar = ax.figure.colorbar(image, cax=place)
    colour_bar.set_label("cosine similarity", fontsize=_SMALL_PRINT)
    colour_bar.ax.tick_params(labelsize=_SMALL_PRINT)
    colour_bar.ax.grid(False)


def _write_legend(ax: Axes, alignment: AlignmentData, bottom: float) -> float:
    """Place a legend whose lower edge is at ``bottom``, a fraction of the axes' height.

    Returns:
        The legend's height in points.
    """
    from matplotlib.lines import Line2D

    mark: dict[str, Any] = {"linestyle": "none", "markersize": 7}
    marks = [
        Line2D([], [], marker="s", mfc="none", mec=_PRECISION_COLOUR, label="candidate token's best match (P)", **mark),
        Line2D([], [], marker="o", mfc="none", mec=_RECALL_COLOUR, label="reference token's best match (R)", **mark),
    ]
    sides = (alignment.candidate, alignment.reference)
    has_special_match = any((side.matches == SPECIAL).any() for side in sides)
    if has_special_match:
        label = "best match is a special token, which is not shown"
        marks.append(Line2D([], [], marker=r"$\dagger$", mfc="black", mec="black", mew=0.4, label=label, **mark))
    # Black marks need a light background, also on a dark figure.
    colours: dict[str, Any] = {"facecolor": "white", "edgecolor": "none", "labelcolor": "black", "framealpha": 1}
    spaces: dict[str, Any] = {"borderaxespad": 0, "borderpad": 0.2, "handletextpad": 0.3, "labelspacing": 0.35}
    place: dict[str, Any] = {"loc": "lower left", "bbox_to_anchor": (0, bottom), "alignment": "left"}
    fonts: dict[str, Any] = {"fontsize": _SMALL_PRINT, "title_fontsize": _SMALL_PRINT}
    legend = ax.legend(handles=marks, title=alignment.settings, **place, **colours, **spaces, **fonts)
    legend.get_title().set(color="black", **_PLAIN)
    height_in_inches = legend.get_window_extent().height / ax.figure.dpi
    return height_in_inches * _POINTS_PER_INCH
