"""Matching by optimal transport: no token is matched more often than it occurs."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["transported_similarity"]

# Far below any logarithm of a weight that matters.
_LOG_OF_NOTHING = -1e4
# Rows of the plan that sum to less are within their limit anyway.
_NO_MASS = 1e-6


def transported_similarity(
    similarities: Tensor,
    candidate_weights: Tensor,
    reference_weights: Tensor,
    temperature: float = 0.1,
    steps: int = 20,
) -> Tensor:
    r"""Return how much similarity can be had when no token is matched beyond its weight.

    With similarities s and weights w and w' of the candidate's and reference's tokens,

    .. math::
        S = \max_{T \ge 0} \sum_{ij} T_{ij} s_{ij}, \qquad \sum_j T_{ij} \le w_i, \quad \sum_i T_{ij} \le w'_j,

    so that P = S / sum(w) and R = S / sum(w'). Greedy matching lets all copies of a word match the one word of the
    other text; here the second copy finds it taken. Tokens may stay unmatched, which makes it a problem of partial
    transport. Solved by proximal steps with entropy (Xie et al., "A fast proximal point method for computing exact
    Wasserstein distance", UAI 2020, as Chen et al. use it in "Improving sequence-to-sequence learning via optimal
    transport", ICLR 2019), each projecting onto the inequalities of one side and then the other (Benamou et al.,
    "Iterative Bregman projections for regularized transportation problems", 2015). The last plan keeps both sides'
    limits, so that what is returned is S or a little less. The gradient goes through all steps.

    Args:
        similarities: s, shape (batch, candidate tokens, reference tokens).
        candidate_weights: w, at least 0, shape (batch, candidate tokens); 0 for tokens that take no part.
        reference_weights: w', at least 0, shape (batch, reference tokens).
        temperature: size of a step is its inverse; above 0. Small values commit to the first steps' matches, large ones
            need more steps.
        steps: number of steps, at least 1.

    Returns:
        S, shape (batch,), float32 at least.

    Raises:
        ValueError: the temperature or the number of steps is not positive.

    Example:
        >>> s = torch.eye(2)[[0, 1, 0, 1]][None]  # two words said twice
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
        log_rows, log_columns = _log(rows), _log(columns)
        gain = s / temperature
        log_plan = torch.zeros_like(s)
        # Padding takes no part from the start.
        to_columns = torch.where(columns > 0, 0.0, _LOG_OF_NOTHING).to(dtype)
        for _ in range(steps):
            log_plan = log_plan + gain
            to_rows = (log_rows - (log_plan + to_columns[:, None, :]).logsumexp(2)).clamp(max=0)
            to_columns = (log_columns - (log_plan + to_rows[:, :, None]).logsumexp(1)).clamp(max=0)
            log_plan = log_plan + to_rows[:, :, None] + to_columns[:, None, :]
        plan = log_plan.exp()
        # Columns keep their limits since the last step; rows may exceed theirs by what is left to converge.
        excess = (rows / plan.sum(2).clamp(min=_NO_MASS)).clamp(max=1)
        return (plan * s * excess[:, :, None]).sum((1, 2))


def _log(weights: Tensor) -> Tensor:
    """Logarithm of weights, finite and without gradient where they are 0."""
    there = weights > 0
    return torch.where(there, torch.where(there, weights, 1.0).log(), _LOG_OF_NOTHING)
