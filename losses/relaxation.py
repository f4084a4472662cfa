"""From a generator's logits to a probability for every token at every position."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = ["softmax_relaxation"]


def softmax_relaxation(logits: Tensor, temperature: float = 1.0, excluded_ids: Sequence[int] = ()) -> Tensor:
    r"""Return token probabilities :math:`p = \mathrm{softmax}(z / u)` over content tokens.

    Args:
        logits: z, shape (..., vocabulary).
        temperature: u, above 0; below 1 sharpens, towards one-hot.
        excluded_ids: tokens that are no content (beginning, end, padding): their mass goes to the others.

    Returns:
        The same shape, float32 at least; each row sums to 1.

    Raises:
        ValueError: the temperature is not positive.

    Example:
        >>> softmax_relaxation(torch.tensor([0.0, 0.0, 9.0]), excluded_ids=[2])
        tensor([0.5000, 0.5000, 0.0000])
    """
    if not temperature > 0:
        raise ValueError(f"temperature must be above 0, got {temperature}")
    z = logits.to(torch.promote_types(torch.float32, logits.dtype))
    if excluded_ids:
        excluded = torch.zeros(z.shape[-1], dtype=torch.bool, device=z.device)
        excluded[list(excluded_ids)] = True
        # The lowest finite number rather than -inf, so that a row that is -inf elsewhere stays defined.
        z = z.masked_fill(excluded, torch.finfo(z.dtype).min)
    if temperature != 1:
        # Shifted before the division, so that large logits over small temperatures do not overflow.
        z = (z - z.detach().amax(-1, keepdim=True)) / temperature
    return z.softmax(-1)
