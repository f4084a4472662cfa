"""Differentiable precision, recall and F1 from similarities, with a matching given by name or as a callable."""

from typing import Literal

import torch
from torch import Tensor

from bertscore_tm.matching.greedy import TOKENWISE_MATCHINGS, Matching, TokenMass
from bertscore_tm.matching.scores import selection_f1
from bertscore_tm.utilities.checks import resolve_callable

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
    (see :mod:`bertscore_tm.matching.greedy`). Where P or R is not positive, F1 is the smaller of the two, so that its
    gradient stays finite.

    Args:
        similarities: cosine similarities, shape (batch, candidate tokens, reference tokens).
        candidate: token weights of the candidates, shape (batch, candidate tokens), or a bool mask. 0 marks padding. A
            :class:`TokenMass` can also have tokens of weight 0 that can be matched, like the metric's special tokens.
        reference: the same for the references.
        matching: ``"softmax"``, ``"max"``, or a callable ``(similarities, candidate, reference, temperature) ->
            (candidate sums, reference sums)`` that takes each side as a :class:`TokenMass` and returns the numerators
            of P and R, shape (batch,) each.
        temperature: v of the softmax, above 0.

    Returns:
        ``precision``, ``recall`` and ``f1``, shape (batch,) each; 0 if the weights of a text sum to 0.

    Raises:
        ValueError: the matching's name is unknown, or the temperature is not positive.

    Example:
        >>> s = torch.tensor([[[1.0, 0.0], [0.0, 0.5]]])
        >>> scores = soft_precision_recall_f1(s, torch.tensor([[1.0, 1.0]]), torch.tensor([[1.0, 3.0]]))
        >>> {name: round(score.item(), 3) for name, score in scores.items()}
        {'precision': 0.748, 'recall': 0.622, 'f1': 0.68}
    """
    match = resolve_callable("matching", matching, TOKENWISE_MATCHINGS)
    candidate = _as_mass(candidate, similarities.dtype)
    reference = _as_mass(reference, similarities.dtype)
    candidate_sum, reference_sum = match(similarities, candidate, reference, temperature)
    # Both sides are divided at once, because on an accelerator small kernels take longer to start than to run.
    sums = torch.stack([candidate_sum, reference_sum])  # (2, batch)
    totals = torch.stack([candidate.weights.sum(1), reference.weights.sum(1)])  # (2, batch)
    # The factor is 1 / total, or 0 for a total of 0, without a division by 0 that would make gradients NaN.
    smallest = torch.finfo(totals.dtype).tiny
    factors = (totals > 0) / totals.clamp(min=smallest)
    precision, recall = sums * factors
    return {"precision": precision, "recall": recall, "f1": selection_f1(precision, recall)}


def _as_mass(side: Tensor | TokenMass, dtype: torch.dtype) -> TokenMass:
    """Return the tokens of one side as a :class:`TokenMass`. In plain weights 0 marks padding."""
    if isinstance(side, TokenMass):
        return side
    return TokenMass(side > 0, side.to(dtype))


def reduce_references(scores: Tensor, items: Tensor, num_items: int, how: Literal["max", "mean"] = "max") -> Tensor:
    """Return the largest or mean score over each item's references, shape (items,).

    If several references have the largest score, they share the gradient.

    Args:
        scores: score of each reference, shape (references,).
        items: index of each reference's item, shape (references,).
        num_items: number of items.
        how: ``"max"`` or ``"mean"``.
    """
    if how == "max":
        reduce = "amax"
    else:
        reduce = "mean"
    # Every item has a reference, so none of the initial values stays.
    return scores.new_full((num_items,), -torch.inf).scatter_reduce(0, items, scores, reduce, include_self=False)
