"""Relaxations: from a generator's logits to a probability for every token at every position."""

from collections.abc import Callable, Sequence
from typing import Literal

import torch
from torch import Tensor

from bertscore_tm.utilities.checks import require_positive

RelaxationName = Literal["softmax"]
# From logits of shape (..., vocabulary), a temperature and the ids that get probability 0 to probabilities of the same
# shape, float32 or float64, whose rows sum to 1. A row whose largest logit is not finite gives NaN.
Relaxation = Callable[[Tensor, float, Sequence[int]], Tensor]


def softmax_relaxation(logits: Tensor, temperature: float = 1.0, excluded_ids: Sequence[int] = ()) -> Tensor:
    r"""Return token probabilities :math:`p = \mathrm{softmax}(z / u)` over content tokens.

    Args:
        logits: z, shape (..., vocabulary).
        temperature: u, above 0; below 1 sharpens, towards one-hot.
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
        # Shifted, so that large logits over small temperatures do not overflow.
        z = (z - z.detach().amax(-1, keepdim=True)) / temperature
    return z.softmax(-1)


def mask_excluded(logits: Tensor, excluded_ids: Sequence[int]) -> Tensor:
    """Return logits in float32 or float64 in which excluded tokens get no probability, shape (..., vocabulary)."""
    z = logits.to(torch.promote_types(torch.float32, logits.dtype))
    if not excluded_ids:
        return z
    excluded = torch.zeros(z.shape[-1], dtype=torch.bool, device=z.device)
    excluded[list(excluded_ids)] = True
    # The lowest finite number rather than -inf, so that a row whose other logits are -inf stays defined.
    return z.masked_fill(excluded, torch.finfo(z.dtype).min)
