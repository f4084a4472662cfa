"""Precision, recall and F1 from similarities, differentiable, with a matching given by name or as a callable."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from bertscore_tm.core.matching import TOKENWISE_MATCHINGS, Matching, TokenMass
from bertscore_tm.core.scores import selection_f1

__all__ = [
    "MATCHINGS",
    "Matching",
    "MatchingName",
    "TokenMass",
    "match_by_transport",
    "reduce_references",
    "resolve_matching",
    "soft_precision_recall_f1",
    "transported_similarity",
]

MatchingName = Literal["softmax", "logsumexp", "max", "transport"]

# Stands for the logarithm of 0; far below the logarithm of any weight that matters.
_LOG_OF_ZERO = -1e4
# Rows of the plan with a smaller sum are within their limit.
_SMALLEST_ROW_SUM = 1e-6


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
    (see :mod:`bertscore_tm.core.matching`). ``"transport"`` uses one sum as both numerators
    (see :func:`transported_similarity`). Where P or R is not positive, F1 is the smaller of the two, so that its
    gradient stays finite.

    Args:
        similarities: cosine similarities, shape (batch, candidate tokens, reference tokens).
        candidate: token weights of the candidates, shape (batch, candidate tokens), or a bool mask; 0 marks padding. A
            :class:`TokenMass` allows tokens that can be matched and have weight 0, as the metric's special tokens.
        reference: the same of the references.
        matching: ``"softmax"``, ``"logsumexp"``, ``"max"``, ``"transport"``, or a callable ``(similarities, candidate,
            reference, temperature) -> (candidate sums, reference sums)`` that takes each side as a
            :class:`TokenMass` and returns the numerators of P and R, shape (batch,) each.
        temperature: v of the soft matchings and of transport, above 0.

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
    sides = _to_token_mass(candidate, similarities.dtype), _to_token_mass(reference, similarities.dtype)
    sums = resolve_matching(matching)(similarities, sides[0], sides[1], temperature)
    precision, recall = (_divide_by_weight(summed, side.weights) for summed, side in zip(sums, sides, strict=True))
    return {"precision": precision, "recall": recall, "f1": selection_f1(precision, recall)}


def resolve_matching(matching: MatchingName | Matching) -> Matching:
    """Return the matching of a name, or the given callable.

    Args:
        matching: a key of :data:`MATCHINGS`, or a callable.

    Returns:
        The callable.

    Raises:
        ValueError: the name is unknown.

    Example:
        >>> resolve_matching("transport") is match_by_transport
        True
    """
    found = matching if callable(matching) else MATCHINGS.get(matching)
    if found is None:
        names = ", ".join(map(repr, MATCHINGS))
        raise ValueError(f"matching={matching!r} is not a callable or one of {names}")
    return found


def match_by_transport(
    similarities: Tensor, candidate: TokenMass, reference: TokenMass, temperature: float
) -> tuple[Tensor, Tensor]:
    """Return the transported similarity as the numerator of both precision and recall.

    Args:
        similarities: shape (batch, candidate tokens, reference tokens).
        candidate: the candidates' tokens.
        reference: the references' tokens.
        temperature: see :func:`transported_similarity`.

    Returns:
        The same sums twice, shape (batch,) each.

    Example:
        >>> ones = [TokenMass(torch.ones(1, n) > 0, torch.ones(1, n)) for n in (4, 2)]
        >>> sums = match_by_transport(torch.eye(2)[[0, 1, 0, 1]][None], *ones, 0.1)
        >>> [round(summed.item(), 3) for summed in sums]
        [2.0, 2.0]
    """
    total = transported_similarity(similarities, candidate.weights, reference.weights, temperature)
    return total, total


MATCHINGS: dict[str, Matching] = {**TOKENWISE_MATCHINGS, "transport": match_by_transport}


def transported_similarity(
    similarities: Tensor,
    candidate_weights: Tensor,
    reference_weights: Tensor,
    temperature: float = 0.1,
    steps: int = 20,
) -> Tensor:
    r"""Return the largest similarity of a partial transport between two texts.

    With similarities s and weights w and w' of the candidate's and reference's tokens,

    .. math::
        S = \max_{T \ge 0} \sum_{ij} T_{ij} s_{ij}, \qquad \sum_j T_{ij} \le w_i, \quad \sum_i T_{ij} \le w'_j,

    so that P = S / sum(w) and R = S / sum(w'). Tokens may stay unmatched, and none is matched beyond its weight: greedy
    matching lets all copies of a word match the one word of the other text, transport only the first copy. Solved by
    proximal steps with entropy (Xie et al., "A fast proximal point method for computing exact Wasserstein distance",
    UAI 2020, as Chen et al. use it in "Improving sequence-to-sequence learning via optimal transport", ICLR 2019), each
    projecting onto the inequalities of one side and then the other (Benamou et al., "Iterative Bregman projections for
    regularized transportation problems", 2015). The returned plan keeps both sides' limits, so the result is S or
    slightly less. The gradient goes through all steps.

    Args:
        similarities: s, shape (batch, candidate tokens, reference tokens).
        candidate_weights: w, at least 0, shape (batch, candidate tokens); 0 for padding.
        reference_weights: w', at least 0, shape (batch, reference tokens).
        temperature: inverse of the step size, above 0. A small value commits to the matches of the first steps, a
            large one needs more steps.
        steps: number of steps, at least 1.

    Returns:
        S, shape (batch,), float32 or float64.

    Raises:
        ValueError: the temperature or the number of steps is not positive.

    Example:
        >>> s = torch.eye(2)[[0, 1, 0, 1]][None]  # two words, repeated
        >>> total = transported_similarity(s, torch.ones(1, 4), torch.ones(1, 2))
        >>> precision, recall = total / 4, total / 2
        >>> round(precision.item(), 2), round(recall.item(), 2)
        (0.5, 1.0)
    """
    if not temperature > 0:
        raise ValueError(f"temperature must be above 0, got {temperature}")
    if steps < 1:
        raise ValueError(f"steps must be at least 1, got {steps}")
    dtype = torch.promote_types(torch.float32, similarities.dtype)
    with torch.autocast(device_type=similarities.device.type, enabled=False):
        s = similarities.to(dtype)
        rows, columns = candidate_weights.to(dtype), reference_weights.to(dtype)
        log_rows, log_columns = _masked_log(rows), _masked_log(columns)
        gain = s / temperature
        log_plan = torch.zeros_like(s)
        # Padding is excluded from the first step on.
        to_columns = torch.where(columns > 0, torch.zeros_like(columns), _LOG_OF_ZERO)
        for _ in range(steps):
            log_plan = log_plan + gain
            to_rows = (log_rows - (log_plan + to_columns[:, None, :]).logsumexp(2)).clamp(max=0)
            to_columns = (log_columns - (log_plan + to_rows[:, :, None]).logsumexp(1)).clamp(max=0)
            log_plan = log_plan + to_rows[:, :, None] + to_columns[:, None, :]
        plan = log_plan.exp()
        # The last projection keeps the columns' limits; rows may exceed theirs as long as the steps have not converged.
        excess = (rows / plan.sum(2).clamp(min=_SMALLEST_ROW_SUM)).clamp(max=1)
        return (plan * s * excess[:, :, None]).sum((1, 2))


def reduce_references(
    scores: Tensor, items: Tensor | None, num_items: int, how: Literal["max", "mean"] = "max"
) -> Tensor:
    """Reduce scores over the references of each item.

    Args:
        scores: one score per reference, shape (references,).
        items: index of each reference's item, shape (references,); ``None`` where every item has one reference.
        num_items: number of items, each with at least one reference.
        how: ``"max"``, whose gradient equally good references share, or ``"mean"``.

    Returns:
        Shape (items,).

    Example:
        >>> reduce_references(torch.tensor([0.1, 0.7, 0.4]), torch.tensor([0, 0, 1]), 2)
        tensor([0.7000, 0.4000])
    """
    if items is None:
        return scores
    if how == "max":
        return scores.new_full((num_items,), -torch.inf).scatter_reduce(0, items, scores, reduce="amax")
    counts = torch.bincount(items, minlength=num_items)
    return scores.new_zeros(num_items).index_add(0, items, scores) / counts


def _to_token_mass(side: Tensor | TokenMass, dtype: torch.dtype) -> TokenMass:
    return side if isinstance(side, TokenMass) else TokenMass(side > 0, side.to(dtype))


def _divide_by_weight(summed: Tensor, weights: Tensor) -> Tensor:
    total = weights.sum(1)
    weighted = total > 0
    return torch.where(weighted, summed / torch.where(weighted, total, 1.0), 0.0)


def _masked_log(weights: Tensor) -> Tensor:
    """Return the logarithm of weights, finite and without gradient where they are 0."""
    positive = weights > 0
    return torch.where(positive, torch.where(positive, weights, 1.0).log(), _LOG_OF_ZERO)
