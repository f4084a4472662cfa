"""From the similarities of soft tokens to precision, recall and F1 that can be trained."""

from __future__ import annotations

import torch
from torch import Tensor

from bertscore_tm.losses.soft_tokens import EncodedTokens
from bertscore_tm.matching import Matching, match
from bertscore_tm.scoring import guarded_f1

__all__ = ["soft_precision_recall_f1"]


def soft_precision_recall_f1(
    similarities: Tensor,
    candidate: EncodedTokens,
    reference: EncodedTokens,
    matching: Matching = "softmax",
    temperature: float = 0.1,
) -> dict[str, Tensor]:
    r"""Return the scores of pairs of texts, differentiable in the similarities.

    .. math::
        P = \frac{\sum_i w_i m_i}{\sum_i w_i}, \qquad R = \frac{\sum_j w'_j m'_j}{\sum_j w'_j}, \qquad
        F_1 = \frac{2PR}{P+R}

    with soft matches m of the candidate's tokens i and m' of the reference's tokens j
    (see :func:`bertscore_tm.matching.match`).

    Args:
        similarities: cosine similarities, shape (batch, candidate positions, reference positions).
        candidate: candidates, for their keys and weights.
        reference: references, for their keys and weights.
        matching: how tokens are matched.
        temperature: of the soft matchings.

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
    means = []
    for matrix, queries, keys in (
        (similarities, candidate.weights, reference.keys),
        (similarities.mT, reference.weights, candidate.keys),
    ):
        matched = match(matrix, keys, matching, temperature)
        total = queries.sum(1)
        scored = both & (total > 0)
        mean = (matched * queries).sum(1) / torch.where(scored, total, 1.0)
        means.append(torch.where(scored, mean, 0.0))
    precision, recall = means
    return {"precision": precision, "recall": recall, "f1": guarded_f1(precision, recall)}
