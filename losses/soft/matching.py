"""Precision, recall and F1 from similarities, differentiable, with a matching given by name or as a callable."""

from typing import Any, Literal

import torch
from torch import Tensor

from bertscore_tm.core.matching import TOKENWISE_MATCHINGS, Matching, TokenMass
from bertscore_tm.core.onednn import is_eager
from bertscore_tm.core.scores import selection_f1
from bertscore_tm.utilities.settings import resolve_callable

MatchingName = Literal["softmax", "max"]


def soft_precision_recall_f1(
    similarities: Tensor,
    candidate: Tensor | TokenMass,
    reference: Tensor | TokenMass,
    matching: MatchingName | Matching = "softmax",
    temperature: float = 0.1,
) -> dict[str, Tensor]:
    r"""Return precision, recall and F1 of pairs of texts, differentiable in the similarities.

    .. math::
        P = \frac{\sum_i w_i m_i}{\sum_i w_i}, \qquad R = \frac{\sum_j w'_j m'_j}{\sum_j w'_j}, \qquad
        F_1 = \frac{2PR}{P+R}

    with the matched similarities m of the candidate's tokens i and m' of the reference's tokens j
    (see :mod:`bertscore_tm.core.matching`). Where P or R is not positive, F1 is the smaller of the two, so that its
    gradient stays finite.

    Args:
        similarities: cosine similarities, shape (batch, candidate tokens, reference tokens).
        candidate: token weights of the candidates, shape (batch, candidate tokens), or a bool mask; 0 marks padding. A
            :class:`TokenMass` allows tokens that can be matched and have weight 0, as the metric's special tokens.
        reference: the same of the references.
        matching: ``"softmax"``, ``"max"``, or a callable ``(similarities, candidate, reference, temperature) ->
            (candidate sums, reference sums)`` that takes each side as a :class:`TokenMass` and returns the numerators
            of P and R, shape (batch,) each.
        temperature: v of the softmax, above 0.

    Returns:
        ``precision``, ``recall`` and ``f1``, shape (batch,) each; 0 where the weights of a text sum to 0.

    Raises:
        ValueError: the matching's name is unknown, or the temperature is not positive.

    Example:
        >>> s = torch.tensor([[[1.0, 0.0], [0.0, 0.5]]])
        >>> scores = soft_precision_recall_f1(s, torch.tensor([[1.0, 1.0]]), torch.tensor([[1.0, 3.0]]))
        >>> {name: round(score.item(), 3) for name, score in scores.items()}
        {'precision': 0.748, 'recall': 0.622, 'f1': 0.68}
    """
    match = matching if callable(matching) else resolve_callable("matching", matching, TOKENWISE_MATCHINGS)
    masses = [
        side if isinstance(side, TokenMass) else TokenMass(side > 0, side.to(similarities.dtype))
        for side in (candidate, reference)
    ]
    matched = match(similarities, masses[0], masses[1], temperature)
    sums = matched if isinstance(matched, Tensor) else torch.stack(matched)  # (2, batch)
    totals = torch.stack([mass.weights.sum(1) for mass in masses])  # (2, batch)
    precision, recall = sums * ((totals > 0) / totals.clamp(min=torch.finfo(totals.dtype).tiny))
    f1 = _SelectionF1.apply(precision, recall) if is_eager() else selection_f1(precision, recall)  # type: ignore[no-untyped-call]
    return {"precision": precision, "recall": recall, "f1": f1}


class _SelectionF1(torch.autograd.Function):
    """:func:`selection_f1`, whose gradient autograd would compute in twice as many steps."""

    @staticmethod
    def forward(ctx: Any, precision: Tensor, recall: Tensor) -> Tensor:
        """Return F1."""
        ctx.save_for_backward(precision, recall)
        smaller = torch.minimum(precision, recall)
        return torch.where(smaller > 0, 2 * precision * recall / (precision + recall), smaller)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        """Return the gradients, that of 2PR/(P+R) by P being 2R^2/(P+R)^2; they can be differentiated again."""
        precision, recall = ctx.saved_tensors
        other, is_smaller = torch.stack([recall, precision]), precision < recall
        positive = (other > 0).all(0)
        share = other / torch.where(positive, precision + recall, 1.0)  # (2, batch)
        slopes = torch.where(positive, 2 * share * share, torch.stack([is_smaller, ~is_smaller]))
        of_precision, of_recall = grad * slopes
        return of_precision, of_recall


def reduce_references(scores: Tensor, items: Tensor, num_items: int, how: Literal["max", "mean"] = "max") -> Tensor:
    """Reduce scores over each item's references, by their items' indices; equally good ones share the gradient."""
    reduce = "amax" if how == "max" else "mean"
    return scores.new_full((num_items,), -torch.inf).scatter_reduce(0, items, scores, reduce, include_self=False)
