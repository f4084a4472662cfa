"""From the similarities of soft tokens to precision, recall and F1 that can be trained."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from bertscore_tm.core.matching import match
from bertscore_tm.core.scores import guarded_f1
from bertscore_tm.losses.soft_tokens import EncodedTokens
from bertscore_tm.losses.transport import transported_similarity

__all__ = ["SoftMatching", "best_or_mean", "soft_precision_recall_f1"]

SoftMatching = Literal["softmax", "logsumexp", "max", "transport"]


def soft_precision_recall_f1(
    similarities: Tensor,
    candidate: EncodedTokens,
    reference: EncodedTokens,
    matching: SoftMatching = "softmax",
    temperature: float = 0.1,
) -> dict[str, Tensor]:
    r"""Return the scores of pairs of texts, differentiable in the similarities.

    .. math::
        P = \frac{\sum_i w_i m_i}{\sum_i w_i}, \qquad R = \frac{\sum_j w'_j m'_j}{\sum_j w'_j}, \qquad
        F_1 = \frac{2PR}{P+R}

    with soft matches m of the candidate's tokens i and m' of the reference's tokens j
    (see :func:`bertscore_tm.core.matching.match`). ``"transport"`` puts one sum in the place of both numerators
    (see :func:`bertscore_tm.losses.transport.transported_similarity`).

    Args:
        similarities: cosine similarities, shape (batch, candidate positions, reference positions).
        candidate: candidates, for their keys and weights.
        reference: references, for their keys and weights.
        matching: how tokens are matched.
        temperature: of the soft matchings and of transport.

    Returns:
        ``precision``, ``recall`` and ``f1``, shape (batch,) each; 0 where a text has no content or no weight.

    Example:
        >>> def side(*weights):
        ...     weights = torch.tensor([weights])
        ...     return EncodedTokens(torch.empty(1, weights.shape[1], 0), weights > 0, weights, torch.tensor([True]))
        >>> scores = soft_precision_recall_f1(torch.tensor([[[1.0, 0.0], [0.0, 0.5]]]), side(1.0, 1.0), side(1.0, 3.0))
        >>> {name: round(score.item(), 3) for name, score in scores.items()}
        {'precision': 0.748, 'recall': 0.622, 'f1': 0.68}
    """
    both = candidate.has_content & reference.has_content
    if matching == "transport":
        sums = [transported_similarity(similarities, candidate.weights, reference.weights, temperature)] * 2
    else:
        sums = [
            (match(matrix, keys.keys, matching, temperature, keys.log_presence) * queries.weights).sum(1)
            for matrix, queries, keys in (
                (similarities, candidate, reference),
                (similarities.mT, reference, candidate),
            )
        ]
    means = []
    for summed, side in zip(sums, (candidate, reference), strict=True):
        total = side.weights.sum(1)
        scored = both & (total > 0)
        means.append(torch.where(scored, summed / torch.where(scored, total, 1.0), 0.0))
    precision, recall = means
    return {"precision": precision, "recall": recall, "f1": guarded_f1(precision, recall)}


def best_or_mean(scores: Tensor, items: Tensor | None, num_items: int, how: Literal["max", "mean"] = "max") -> Tensor:
    """Return each item's score over its references.

    Args:
        scores: one score per reference, shape (references,).
        items: number of each reference's item, shape (references,); ``None`` where every item has one.
        num_items: number of items, each with at least one reference.
        how: the best score, whose gradient equally good references share, or the mean.

    Returns:
        Shape (items,).

    Example:
        >>> best_or_mean(torch.tensor([0.1, 0.7, 0.4]), torch.tensor([0, 0, 1]), 2)
        tensor([0.7000, 0.4000])
    """
    if items is None:
        return scores
    if how == "max":
        return scores.new_full((num_items,), -torch.inf).scatter_reduce(0, items, scores, reduce="amax")
    counts = torch.bincount(items, minlength=num_items)
    return scores.new_zeros(num_items).index_add(0, items, scores) / counts
