"""What all pictures of a score share: their content, and figures that are as large as what is drawn in them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertscore_tm.encoder import FrozenEncoder
from bertscore_tm.plotting.fonts import Lettering
from bertscore_tm.scoring.alignment import Alignment
from bertscore_tm.scoring.token_weights import TokenWeights

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "PLAIN",
    "Picture",
    "Size",
    "axes_of_size",
    "caption_of",
    "figure_of",
    "fit_figure",
    "require_matplotlib",
    "size_of",
    "write_title",
]

# Width and height in inches.
Size = tuple[float, float]

# Texts may hold dollar signs, backslashes and underscores, which are no formulae.
PLAIN: dict[str, Any] = {"parse_math": False, "usetex": False}

# Points.
_CAPTION, _HEADLINE = 8.0, 11.0
# Inches.
_MARGIN = 0.12
# Room around the axes while their labels are drawn for the first time.
_DRAFT = 3.0


@dataclass(frozen=True)
class Picture:
    """What a picture shows.

    Args:
        alignment: the two texts, token by token.
        caption: model and settings.
        weighted: whether tokens have weights of their own.
    """

    alignment: Alignment
    caption: str
    weighted: bool

    @property
    def headline(self) -> str:
        """The scores."""
        one = self.alignment
        return f"P {one.precision:.3f}   R {one.recall:.3f}   F1 {one.f1:.3f}"

    @property
    def words(self) -> Iterator[str]:
        """Every text that is drawn and not ours."""
        yield self.caption
        yield from self.alignment.candidate.tokens
        yield from self.alignment.reference.tokens


def caption_of(encoder: FrozenEncoder, layer: int, weights: TokenWeights, rescaled: str) -> str:
    """Say in short which settings a score has.

    Args:
        encoder: the encoder.
        layer: its layer.
        weights: the tokens' weights.
        rescaled: name of the baseline, ``"no"`` without.

    Returns:
        The model and what differs from the defaults.
    """
    facts = [Path(encoder.name).name if Path(encoder.name).is_dir() else encoder.name, f"layer {layer}"]
    if weights.source.kind == "mapping":
        facts.append("weights as given")
    elif not weights.is_uniform:
        number = weights.source.num_documents
        facts.append(f"idf of {number} text{'' if number == 1 else 's'}")
    if rescaled != "no":
        facts.append(f"rescaled ({rescaled.partition('#')[0]})")
    return ", ".join(facts)


def require_matplotlib(name: str) -> None:
    """Make sure that matplotlib is installed.

    Args:
        name: what needs it, for the error.

    Raises:
        ImportError: it is not.
    """
    if find_spec("matplotlib") is None:
        raise ImportError(f'{name} needs matplotlib: pip install "bertscore-tm[plot]"')


def axes_of_size(size: Size) -> Axes:
    """Make a figure of its own, outside of pyplot.

    Args:
        size: of the axes, in inches.

    Returns:
        The axes; their figure is larger than what will be drawn around them.
    """
    from matplotlib.figure import Figure

    width, height = (length + 2 * _DRAFT for length in size)
    figure = Figure(figsize=(width, height))
    return figure.add_axes((_DRAFT / width, _DRAFT / height, size[0] / width, size[1] / height))


def fit_figure(ax: Axes, size: Size) -> Figure:
    """Give a figure the size of what is drawn in it.

    Args:
        ax: its axes.
        size: of the axes, in inches.

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
    done: Figure = figure
    return done


def figure_of(ax: Axes) -> Figure:
    """Return the figure that axes are in, also those of a subfigure.

    Args:
        ax: the axes.

    Returns:
        The figure.
    """
    figure: Any = ax.figure
    while figure.figure is not figure:
        figure = figure.figure
    whole: Figure = figure
    return whole


def size_of(ax: Axes) -> Size:
    """Return the size of axes.

    Args:
        ax: the axes.

    Returns:
        Width and height in inches.
    """
    figure: Any = figure_of(ax)
    if figure.get_layout_engine() is not None:
        # Such a figure gives its axes their size when it is drawn.
        figure.draw_without_rendering()
    box = ax.get_window_extent()
    return float(box.width / figure.dpi), float(box.height / figure.dpi)


def write_title(ax: Axes, picture: Picture, lettering: Lettering, above: float) -> None:
    """Write the scores, and below them the settings.

    Args:
        ax: the axes.
        picture: what the picture shows.
        lettering: the fonts.
        above: distance from the axes, in points.
    """
    ax.annotate(
        lettering(picture.caption),
        (0, 1),
        (0, above + 2),
        xycoords="axes fraction",
        textcoords="offset points",
        fontsize=_CAPTION,
        va="bottom",
        annotation_clip=False,
        fontfamily=lettering.families,
        **PLAIN,
    )
    ax.set_title(picture.headline, loc="left", fontsize=_HEADLINE, pad=above + _CAPTION * 1.2 + 6)
