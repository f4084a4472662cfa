"""Relaxations: turn a generator's logits into probabilities of all tokens at each position."""

from collections.abc import Callable, Sequence
from typing import Literal

import torch
from torch import Tensor

from bertscore_tm.utilities.checks import require_positive

RelaxationName = Literal["softmax"]
# A function of logits, shape (..., vocabulary), a temperature and the ids that get probability 0. It returns
# probabilities of the same shape, float32 or float64, whose rows sum to 1, or NaN if the largest logit is not finite.
Relaxation = Callable[[Tensor, float, Sequence[int]], Tensor]


def softmax_relaxation(logits: Tensor, temperature: float = 1.0, excluded_ids: Sequence[int] = ()) -> Tensor:
    r"""Return token probabilities :math:`p = \mathrm{softmax}(z / u)` over content tokens.

    Args:
        logits: z, shape (..., vocabulary).
        temperature: u, above 0. A temperature below 1 sharpens the probabilities, towards one-hot.
        excluded_ids: ids that get probability 0, such as those of special tokens.

    Returns:
        The same shape, float32 or float64; each row sums to 1.

    Raises:
        ValueError: the temperature is not positive.

    Example:
        >>> softmax_relaxation(torch.tensor([0.0, 0.0, 9.0]), excluded_ids=[2])
        tensor([0.5000, 0.5000, 0.0000])
    """
    require_positive("temperature", temperature)
    z = mask_excluded(logits, excluded_ids)
    if temperature != 1:
        # Subtract the maximum first, because large logits divided by a small temperature would overflow.
        z = (z - z.detach().amax(-1, keepdim=True)) / temperature
    return z.softmax(-1)


def mask_excluded(logits: Tensor, excluded_ids: Sequence[int]) -> Tensor:
    """Return logits in float32 or float64 that give excluded tokens no probability, shape (..., vocabulary)."""
    z = logits.to(torch.promote_types(torch.float32, logits.dtype))
    if not excluded_ids:
        return z
    excluded = torch.zeros(z.shape[-1], dtype=torch.bool, device=z.device)
    excluded[list(excluded_ids)] = True
    # Use the lowest finite number, because a row whose other logits are -inf would become NaN.
    return z.masked_fill(excluded, torch.finfo(z.dtype).min)
