"""Relaxations: from a generator's logits to a probability for every token at every position.

A relaxation is a callable ``(logits, temperature, excluded_ids) -> probabilities``. The loss takes one by its name in
:data:`RELAXATIONS`, or any callable with this signature.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

__all__ = [
    "RELAXATIONS",
    "Relaxation",
    "RelaxationName",
    "StraightThrough",
    "entmax15_relaxation",
    "gumbel_softmax_relaxation",
    "mask_excluded",
    "resolve_relaxation",
    "softmax_relaxation",
    "sparsemax_relaxation",
    "straight_through",
]

RelaxationName = Literal["softmax", "gumbel", "straight-through", "straight-through-gumbel", "sparsemax", "entmax15"]
# From logits of shape (..., vocabulary), a temperature and the ids that get probability 0 to probabilities of the same
# shape, float32 or float64, whose rows sum to 1. A row whose largest logit is not finite gives NaN.
Relaxation = Callable[[Tensor, float, Sequence[int]], Tensor]

# Below this, distances from the largest logit give probability 0 in the sparse relaxations; squares stay finite.
_FAR_BELOW = -1e3
# Number of logits that the sparse relaxations sort first; they sort more where more have a probability.
_SORTED_AT_FIRST = 256


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


def sparsemax_relaxation(logits: Tensor, temperature: float = 1.0, excluded_ids: Sequence[int] = ()) -> Tensor:
    r"""Return sparse token probabilities: the point of the simplex nearest to z / u.

    Martins and Astudillo, "From softmax to sparsemax", ICML 2016. Computed by the entmax package.

    Args:
        logits: z, shape (..., vocabulary).
        temperature: u, above 0; a larger value gives more tokens a probability.
        excluded_ids: ids that get probability 0, such as those of special tokens.

    Returns:
        The same shape, float32 or float64; each row sums to 1, most entries are 0.

    Raises:
        ImportError: entmax is not installed.
        ValueError: the temperature is not positive.

    Example:
        >>> sparsemax_relaxation(torch.tensor([1.0, 0.5, -1.0]))
        tensor([0.7500, 0.2500, 0.0000])
    """
    return _relax_sparsely("sparsemax", logits, temperature, excluded_ids)


def entmax15_relaxation(logits: Tensor, temperature: float = 1.0, excluded_ids: Sequence[int] = ()) -> Tensor:
    r"""Return token probabilities between softmax and sparsemax: entmax with :math:`\alpha = 1.5`.

    Peters, Niculae and Martins, "Sparse sequence-to-sequence models", ACL 2019. Computed by the entmax package.

    Args:
        logits: z, shape (..., vocabulary).
        temperature: u, above 0; a larger value gives more tokens a probability.
        excluded_ids: ids that get probability 0, such as those of special tokens.

    Returns:
        The same shape, float32 or float64; each row sums to 1, most entries are 0.

    Raises:
        ImportError: entmax is not installed.
        ValueError: the temperature is not positive.

    Example:
        >>> entmax15_relaxation(torch.tensor([1.0, 0.5, -2.0]))
        tensor([0.6740, 0.3260, 0.0000])
    """
    return _relax_sparsely("entmax15", logits, temperature, excluded_ids)


def straight_through(probabilities: Tensor) -> Tensor:
    """Return the one-hot likeliest token with the gradient of the probabilities.

    Bengio et al., "Estimating or propagating gradients through stochastic neurons", 2013.

    Args:
        probabilities: shape (..., vocabulary).

    Returns:
        The same shape, exactly one-hot.

    Example:
        >>> straight_through(torch.tensor([0.2, 0.5, 0.3]))
        tensor([0., 1., 0.])
    """
    likeliest = probabilities.argmax(-1, keepdim=True)
    one_hot = torch.zeros_like(probabilities).scatter(-1, likeliest, 1.0)
    return one_hot + (probabilities - probabilities.detach())


@dataclass(frozen=True)
class StraightThrough:
    """One-hot probabilities with the gradient of another relaxation; see :func:`straight_through`.

    Args:
        relaxation: name or callable that gives the gradient; with ``"gumbel"``, the values are one-hot samples.

    Raises:
        ImportError: the relaxation needs the entmax package, which is not installed.
        ValueError: the relaxation's name is unknown.

    Example:
        >>> StraightThrough("softmax")(torch.tensor([0.0, 1.0, 0.5]), 1.0)
        tensor([0., 1., 0.])
    """

    relaxation: RelaxationName | Relaxation = "softmax"

    def __post_init__(self) -> None:
        resolve_relaxation(self.relaxation)

    def __call__(self, logits: Tensor, temperature: float = 1.0, excluded_ids: Sequence[int] = ()) -> Tensor:
        """Return one-hot probabilities.

        Args:
            logits: shape (..., vocabulary).
            temperature: temperature of the other relaxation, above 0.
            excluded_ids: tokens that get probability 0.

        Returns:
            The same shape, float32 or float64, exactly one-hot.
        """
        return straight_through(resolve_relaxation(self.relaxation)(logits, temperature, excluded_ids))


def resolve_relaxation(relaxation: RelaxationName | Relaxation) -> Relaxation:
    """Return the relaxation of a name, or the given callable.

    Args:
        relaxation: a key of :data:`RELAXATIONS`, or a callable.

    Returns:
        The callable.

    Raises:
        ImportError: the relaxation needs the entmax package, which is not installed.
        ValueError: the name is unknown.

    Example:
        >>> resolve_relaxation("softmax") is softmax_relaxation
        True
    """
    found = relaxation if callable(relaxation) else RELAXATIONS.get(relaxation)
    if found is None:
        names = ", ".join(map(repr, RELAXATIONS))
        raise ValueError(f"relaxation={relaxation!r} is not a callable or one of {names}")
    if found in (sparsemax_relaxation, entmax15_relaxation):
        # Raised here rather than in the first training step.
        _load_entmax("sparsemax" if found is sparsemax_relaxation else "entmax15")
    return found


RELAXATIONS: dict[str, Relaxation] = {
    "softmax": softmax_relaxation,
    "gumbel": gumbel_softmax_relaxation,
    "straight-through": StraightThrough(softmax_relaxation),
    "straight-through-gumbel": StraightThrough(gumbel_softmax_relaxation),
    "sparsemax": sparsemax_relaxation,
    "entmax15": entmax15_relaxation,
}


def mask_excluded(logits: Tensor, excluded_ids: Sequence[int]) -> Tensor:
    """Return logits in float32 or float64 in which excluded tokens get no probability.

    Args:
        logits: shape (..., vocabulary).
        excluded_ids: ids of the excluded tokens.

    Returns:
        The same shape.

    Example:
        >>> mask_excluded(torch.tensor([1.0, 5.0]), [1]).softmax(-1)
        tensor([1., 0.])
    """
    z = logits.to(torch.promote_types(torch.float32, logits.dtype))
    if not excluded_ids:
        return z
    excluded = torch.zeros(z.shape[-1], dtype=torch.bool, device=z.device)
    excluded[list(excluded_ids)] = True
    # The lowest finite number rather than -inf, so that a row whose other logits are -inf stays defined.
    return z.masked_fill(excluded, torch.finfo(z.dtype).min)


# Functions of the entmax package, wrapped once each.
_entmax_functions: dict[str, Callable[..., Tensor]] = {}


def _load_entmax(name: str) -> Callable[..., Tensor]:
    """Return a function of the entmax package as one operation for torch.compile, which cannot trace into it."""
    if name not in _entmax_functions:
        try:
            import entmax
        except ImportError as error:
            raise ImportError(f'{name} needs the entmax package: pip install "bertscore-tm[entmax]"') from error
        _entmax_functions[name] = torch.compiler.allow_in_graph(getattr(entmax, name))  # type: ignore[no-untyped-call]
    return _entmax_functions[name]


def _divide_by_temperature(z: Tensor, temperature: float) -> Tensor:
    """Return z / u, up to a shift of each row that keeps large logits over small temperatures from overflowing."""
    if not temperature > 0:
        raise ValueError(f"temperature must be above 0, got {temperature}")
    if temperature == 1:
        return z
    return (z - z.detach().amax(-1, keepdim=True)) / temperature


def _relax_sparsely(name: str, logits: Tensor, temperature: float, excluded_ids: Sequence[int]) -> Tensor:
    z = _divide_by_temperature(mask_excluded(logits, excluded_ids), temperature)
    peak = z.detach().amax(-1, keepdim=True)
    is_defined = peak.isfinite()
    below = (z - peak).clamp(min=_FAR_BELOW)
    entmax = _load_entmax(name)
    # A compiled graph sorts whole rows and handles undefined ones always, since checking values would break it.
    is_compiling = torch.compiler.is_compiling()
    k = None if is_compiling else min(_SORTED_AT_FIRST, z.shape[-1])
    if not is_compiling and is_defined.all():
        return entmax(below, dim=-1, k=k)
    # In other rows probabilities and gradients are NaN, as with softmax; entmax would raise an index error.
    p = entmax(torch.where(is_defined, below, 0.0), dim=-1, k=k)
    return torch.where(is_defined, p, z * torch.where(is_defined, torch.ones_like(peak), torch.nan))
