"""Figures as large as their drawing, and the title that all drawings share."""

from __future__ import annotations

from functools import partial
from importlib.util import find_spec
from io import BytesIO
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from bertscore_tm.scoring.alignment import AlignmentData

__all__ = [
    "PLAIN",
    "Size",
    "create_axes",
    "find_figure",
    "fit_figure",
    "format_scores",
    "measure_axes",
    "require_matplotlib",
    "write_title",
]

# Width and height in inches.
Size = tuple[float, float]

# Texts may contain dollar signs, backslashes and underscores that are not formulas.
PLAIN: dict[str, Any] = {"parse_math": False, "usetex": False}

# Points.
_SETTINGS, _SCORES = 8.0, 11.0
# Inches.
_MARGIN = 0.12
# Space around the axes while their labels are measured.
_DRAFT = 3.0


def format_scores(alignment: AlignmentData) -> str:
    """Return the scores of an alignment in one line.

    Args:
        alignment: the alignment.

    Returns:
        Precision, recall and F1 with three decimals.
    """
    return f"P {alignment.precision:.3f}   R {alignment.recall:.3f}   F1 {alignment.f1:.3f}"


def require_matplotlib(name: str) -> None:
    """Raise an error if matplotlib is not installed.

    Args:
        name: the function that needs it, for the error message.

    Raises:
        ImportError: matplotlib is not installed.
    """
    if find_spec("matplotlib") is None:
        raise ImportError(f'{name} needs matplotlib: pip install "bertscore-tm[plot]"')


def create_axes(size: Size) -> Axes:
    """Create a figure with axes, unknown to pyplot.

    Args:
        size: size of the axes in inches.

    Returns:
        The axes; their figure has space for labels, see :func:`fit_figure`.
    """
    from matplotlib.figure import Figure

    width, height = (length + 2 * _DRAFT for length in size)
    figure: Any = Figure(figsize=(width, height))
    # Notebooks call it where neither pyplot nor %matplotlib inline is used. Loggers accept no subclass of Figure.
    figure._repr_png_ = partial(_write_png, figure)
    ax: Axes = figure.add_axes((_DRAFT / width, _DRAFT / height, size[0] / width, size[1] / height))
    return ax


def _write_png(figure: Figure) -> bytes:
    buffer = BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()


def fit_figure(ax: Axes, size: Size) -> Figure:
    """Resize a figure of :func:`create_axes` to its drawing.

    Args:
        ax: the figure's axes.
        size: size of the axes in inches.

    Returns:
        The figure.
    """
    figure: Any = ax.figure
    drawn = ax.get_tightbbox()
    assert drawn is not None
    panel = ax.get_window_extent()
    left, bottom = (panel.x0 - drawn.x0) / figure.dpi + _MARGIN, (panel.y0 - drawn.y0) / figure.dpi + _MARGIN
    width, height = drawn.width / figure.dpi + 2 * _MARGIN, drawn.height / figure.dpi + 2 * _MARGIN
    figure.set_size_inches(width, height)
    ax.set_position((left / width, bottom / height, size[0] / width, size[1] / height))
    fitted: Figure = figure
    return fitted


def find_figure(ax: Axes) -> Figure:
    """Return the figure that contains axes, also axes of a subfigure.

    Args:
        ax: the axes.

    Returns:
        The outermost figure.
    """
    figure: Any = ax.figure
    while figure.figure is not figure:
        figure = figure.figure
    outermost: Figure = figure
    return outermost


def measure_axes(ax: Axes) -> Size:
    """Return the size of axes.

    Args:
        ax: the axes.

    Returns:
        Width and height in inches.
    """
    figure: Any = find_figure(ax)
    if figure.get_layout_engine() is not None:
        # A layout engine sets the axes' size when the figure is drawn.
        figure.draw_without_rendering()
    box = ax.get_window_extent()
    return float(box.width / figure.dpi), float(box.height / figure.dpi)


def write_title(ax: Axes, alignment: AlignmentData, above: float) -> None:
    """Write the scores, and the settings below them.

    Args:
        ax: the axes.
        alignment: the alignment.
        above: distance from the axes, in points.
    """
    ax.annotate(
        alignment.settings,
        (0, 1),
        (0, above + 2),
        xycoords="axes fraction",
        textcoords="offset points",
        fontsize=_SETTINGS,
        va="bottom",
        annotation_clip=False,
        **PLAIN,
    )
    ax.set_title(format_scores(alignment), loc="left", fontsize=_SCORES, pad=above + _SETTINGS * 1.2 + 6)
