"""Relaxations: from a generator's logits to a probability for every token at every position.

A relaxation is a callable ``(logits, temperature, excluded_ids) -> probabilities``. The loss takes one by its name in
:data:`RELAXATIONS`, or any callable with this signature.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import torch
from torch import Tensor

from bertscore_tm.utilities.settings import require_positive

__all__ = [
    "RELAXATIONS",
    "Relaxation",
    "RelaxationName",
    "gumbel_softmax_relaxation",
    "mask_excluded",
    "softmax_relaxation",
]

RelaxationName = Literal["softmax", "gumbel"]
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
    return _divide_by_temperature(mask_excluded(logits, excluded_ids), temperature).softmax(-1)


def gumbel_softmax_relaxation(logits: Tensor, temperature: float = 1.0, excluded_ids: Sequence[int] = ()) -> Tensor:
    r"""Return a random relaxed sample, :math:`p = \mathrm{softmax}((z + g) / u)` with Gumbel noise g.

    Its largest entry is distributed as a sample of softmax(z) (Jang et al., "Categorical reparameterization with
    Gumbel-softmax", ICLR 2017; Maddison et al., "The concrete distribution", ICLR 2017). Noise comes from torch's
    global generator.

    Args:
        logits: z, shape (..., vocabulary).
        temperature: u, above 0; small values give nearly one-hot samples.
        excluded_ids: ids that are never sampled.

    Returns:
        The same shape, float32 or float64; each row sums to 1.

    Raises:
        ValueError: the temperature is not positive.

    Example:
        >>> _ = torch.manual_seed(0)
        >>> samples = gumbel_softmax_relaxation(torch.tensor([0.8, 0.2]).log().expand(1000, 2), 0.01)
        >>> round(samples[:, 0].mean().item(), 1)
        0.8
    """
    z = mask_excluded(logits, excluded_ids)
    noise = -torch.empty_like(z).exponential_().log()
    return _divide_by_temperature(z + noise, temperature).softmax(-1)


RELAXATIONS: dict[str, Relaxation] = {
    "softmax": softmax_relaxation,
    "gumbel": gumbel_softmax_relaxation,
}


def mask_excluded(logits: Tensor, excluded_ids: Sequence[int]) -> Tensor:
    """Return logits in float32 or float64 in which excluded tokens get no probability, shape (..., vocabulary)."""
    z = logits.to(torch.promote_types(torch.float32, logits.dtype))
    if not excluded_ids:
        return z
    excluded = torch.zeros(z.shape[-1], dtype=torch.bool, device=z.device)
    excluded[list(excluded_ids)] = True
    # The lowest finite number rather than -inf, so that a row whose other logits are -inf stays defined.
    return z.masked_fill(excluded, torch.finfo(z.dtype).min)


def _divide_by_temperature(z: Tensor, temperature: float) -> Tensor:
    """Return z / u, up to a shift of each row that keeps large logits over small temperatures from overflowing."""
    require_positive("temperature", temperature)
    if temperature == 1:
        return z
    return (z - z.detach().amax(-1, keepdim=True)) / temperature
