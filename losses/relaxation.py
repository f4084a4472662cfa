"""From a generator's logits to a probability for every token at every position.

Small interchangeable objects, each with a function that does its work. All take logits, a temperature and tokens to
leave out; a callable of your own that takes the same fits in their place.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, get_args

import torch
from torch import Tensor

__all__ = [
    "Entmax15",
    "GumbelSoftmax",
    "Relaxation",
    "RelaxationName",
    "RelaxationObject",
    "Softmax",
    "Sparsemax",
    "StraightThrough",
    "TopK",
    "entmax15_relaxation",
    "exclude",
    "gumbel_softmax_relaxation",
    "relaxation_named",
    "softmax_relaxation",
    "sparsemax_relaxation",
    "straight_through",
    "top_k_relaxation",
]

RelaxationName = Literal["softmax", "gumbel", "straight-through", "straight-through-gumbel", "sparsemax", "entmax15"]

# Below this, distances from the largest logit give probability 0 in the sparse relaxations; squares stay finite.
_FAR_BELOW = -1e3
# As many logits are sorted at first; more where more have a probability.
_SORTED_AT_FIRST = 256


class Relaxation(Protocol):
    """Anything that turns logits into probabilities of tokens."""

    def __call__(self, logits: Tensor, temperature: float = 1.0, excluded_ids: Sequence[int] = ()) -> Tensor:
        """Return probabilities.

        Args:
            logits: shape (..., vocabulary).
            temperature: above 0; below 1 sharpens.
            excluded_ids: tokens that get probability 0.

        Returns:
            The same shape, float32 at least; each row sums to 1.
        """
        ...


class RelaxationObject(ABC):
    """A relaxation that is an object, by which configuration files know it."""

    @abstractmethod
    def __call__(self, logits: Tensor, temperature: float = 1.0, excluded_ids: Sequence[int] = ()) -> Tensor:
        """Return probabilities; see :meth:`Relaxation.__call__`."""


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
    return _scaled(exclude(logits, excluded_ids), temperature).softmax(-1)


def gumbel_softmax_relaxation(logits: Tensor, temperature: float = 1.0, excluded_ids: Sequence[int] = ()) -> Tensor:
    r"""Return a random relaxed sample, :math:`p = \mathrm{softmax}((z + g) / u)` with Gumbel noise g.

    Its largest entry is distributed as a sample of softmax(z) (Jang et al., "Categorical reparameterization with
    Gumbel-softmax", ICLR 2017; Maddison et al., "The concrete distribution", ICLR 2017). Noise comes from torch's
    global generator.

    Args:
        logits: z, shape (..., vocabulary).
        temperature: u, above 0; small values give nearly one-hot samples.
        excluded_ids: tokens that are never sampled.

    Returns:
        The same shape, float32 at least; each row sums to 1.

    Raises:
        ValueError: the temperature is not positive.

    Example:
        >>> _ = torch.manual_seed(0)
        >>> samples = gumbel_softmax_relaxation(torch.tensor([0.8, 0.2]).log().expand(1000, 2), 0.01)
        >>> round(samples[:, 0].mean().item(), 1)
        0.8
    """
    z = exclude(logits, excluded_ids)
    noise = -torch.empty_like(z).exponential_().log()
    return _scaled(z + noise, temperature).softmax(-1)


def sparsemax_relaxation(logits: Tensor, temperature: float = 1.0, excluded_ids: Sequence[int] = ()) -> Tensor:
    r"""Return sparse token probabilities, the point of the simplex that is nearest to z / u.

    Martins and Astudillo, "From softmax to sparsemax", ICML 2016. Computed by the entmax package.

    Args:
        logits: z, shape (..., vocabulary).
        temperature: u, above 0; larger values give more tokens a probability.
        excluded_ids: tokens that are no content: they get none.

    Returns:
        The same shape, float32 at least; each row sums to 1, most entries are 0.

    Raises:
        ImportError: entmax is not installed.
        ValueError: the temperature is not positive.

    Example:
        >>> sparsemax_relaxation(torch.tensor([1.0, 0.5, -1.0]))
        tensor([0.7500, 0.2500, 0.0000])
    """
    return _sparse("sparsemax", logits, temperature, excluded_ids)


def entmax15_relaxation(logits: Tensor, temperature: float = 1.0, excluded_ids: Sequence[int] = ()) -> Tensor:
    r"""Return token probabilities between softmax and sparsemax: entmax with :math:`\alpha = 1.5`.

    Peters, Niculae and Martins, "Sparse sequence-to-sequence models", ACL 2019. Computed by the entmax package.

    Args:
        logits: z, shape (..., vocabulary).
        temperature: u, above 0; larger values give more tokens a probability.
        excluded_ids: tokens that are no content: they get none.

    Returns:
        The same shape, float32 at least; each row sums to 1, most entries are 0.

    Raises:
        ImportError: entmax is not installed.
        ValueError: the temperature is not positive.

    Example:
        >>> entmax15_relaxation(torch.tensor([1.0, 0.5, -2.0]))
        tensor([0.6740, 0.3260, 0.0000])
    """
    return _sparse("entmax15", logits, temperature, excluded_ids)


def straight_through(probabilities: Tensor) -> Tensor:
    """Return the likeliest token alone, one-hot, with the gradient of the probabilities.

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


def top_k_relaxation(
    logits: Tensor,
    k: int,
    temperature: float = 1.0,
    excluded_ids: Sequence[int] = (),
    relaxation: Relaxation = softmax_relaxation,
) -> Tensor:
    """Return probabilities over the k likeliest tokens of each position.

    Args:
        logits: shape (..., vocabulary).
        k: how many tokens share the probability, at least 1; all of them where k exceeds the vocabulary.
        temperature: of the relaxation, above 0.
        excluded_ids: tokens that are no content.
        relaxation: what makes probabilities of the k logits.

    Returns:
        The same shape, float32 at least; each row sums to 1 and has at most k entries above 0.

    Raises:
        ValueError: k or the temperature is not positive.

    Example:
        >>> top_k_relaxation(torch.tensor([3.0, 1.0, 3.0, 2.0]), 2)
        tensor([0.5000, 0.0000, 0.5000, 0.0000])
    """
    if k < 1:
        raise ValueError(f"k must be at least 1, got {k}")
    z = exclude(logits, excluded_ids)
    values, ids = z.topk(min(k, z.shape[-1]), dim=-1)
    probabilities = relaxation(values, temperature)
    return torch.zeros_like(z, dtype=probabilities.dtype).scatter(-1, ids, probabilities)


@dataclass(frozen=True)
class Softmax(RelaxationObject):
    """Softmax with temperature; see :func:`softmax_relaxation`.

    Example:
        >>> Softmax()(torch.tensor([0.0, 0.0, 9.0]), temperature=0.5, excluded_ids=[2])
        tensor([0.5000, 0.5000, 0.0000])
    """

    def __call__(self, logits: Tensor, temperature: float = 1.0, excluded_ids: Sequence[int] = ()) -> Tensor:
        """Return probabilities; see :meth:`Relaxation.__call__`."""
        return softmax_relaxation(logits, temperature, excluded_ids)


@dataclass(frozen=True)
class GumbelSoftmax(RelaxationObject):
    """Relaxed random samples; see :func:`gumbel_softmax_relaxation`.

    Example:
        >>> GumbelSoftmax()(torch.zeros(2, 5)).shape
        torch.Size([2, 5])
    """

    def __call__(self, logits: Tensor, temperature: float = 1.0, excluded_ids: Sequence[int] = ()) -> Tensor:
        """Return probabilities; see :meth:`Relaxation.__call__`."""
        return gumbel_softmax_relaxation(logits, temperature, excluded_ids)


@dataclass(frozen=True)
class Sparsemax(RelaxationObject):
    """Sparse probabilities; see :func:`sparsemax_relaxation`. Needs the extra ``[entmax]``.

    Raises:
        ImportError: entmax is not installed.

    Example:
        >>> Sparsemax()(torch.tensor([1.0, 0.5, -1.0]))
        tensor([0.7500, 0.2500, 0.0000])
    """

    def __post_init__(self) -> None:
        # Said now rather than in the first step.
        _mapping("sparsemax")

    def __call__(self, logits: Tensor, temperature: float = 1.0, excluded_ids: Sequence[int] = ()) -> Tensor:
        """Return probabilities; see :meth:`Relaxation.__call__`."""
        return sparsemax_relaxation(logits, temperature, excluded_ids)


@dataclass(frozen=True)
class Entmax15(RelaxationObject):
    """Probabilities between softmax and sparsemax; see :func:`entmax15_relaxation`. Needs the extra ``[entmax]``.

    Raises:
        ImportError: entmax is not installed.

    Example:
        >>> Entmax15()(torch.tensor([1.0, 0.5, -2.0]))
        tensor([0.6740, 0.3260, 0.0000])
    """

    def __post_init__(self) -> None:
        # Said now rather than in the first step.
        _mapping("entmax15")

    def __call__(self, logits: Tensor, temperature: float = 1.0, excluded_ids: Sequence[int] = ()) -> Tensor:
        """Return probabilities; see :meth:`Relaxation.__call__`."""
        return entmax15_relaxation(logits, temperature, excluded_ids)


@dataclass(frozen=True)
class StraightThrough(RelaxationObject):
    """One-hot values with the gradient of another relaxation; see :func:`straight_through`.

    Args:
        relaxation: where the gradient comes from; with :class:`GumbelSoftmax`, one-hot samples.

    Example:
        >>> StraightThrough()(torch.tensor([0.0, 1.0, 0.5]))
        tensor([0., 1., 0.])
    """

    relaxation: RelaxationObject | Relaxation = field(default_factory=Softmax)

    def __call__(self, logits: Tensor, temperature: float = 1.0, excluded_ids: Sequence[int] = ()) -> Tensor:
        """Return probabilities; see :meth:`Relaxation.__call__`."""
        return straight_through(self.relaxation(logits, temperature, excluded_ids))


@dataclass(frozen=True)
class TopK(RelaxationObject):
    """Another relaxation over the k likeliest tokens alone; see :func:`top_k_relaxation`.

    The loss's own ``top_k`` gives the same in less memory.

    Args:
        k: how many tokens share the probability.
        relaxation: what makes probabilities of their logits.

    Raises:
        ValueError: k is not positive.

    Example:
        >>> TopK(2)(torch.tensor([3.0, 1.0, 3.0, 2.0]))
        tensor([0.5000, 0.0000, 0.5000, 0.0000])
    """

    k: int
    relaxation: RelaxationObject | Relaxation = field(default_factory=Softmax)

    def __post_init__(self) -> None:
        if self.k < 1:
            raise ValueError(f"k must be at least 1, got {self.k}")

    def __call__(self, logits: Tensor, temperature: float = 1.0, excluded_ids: Sequence[int] = ()) -> Tensor:
        """Return probabilities; see :meth:`Relaxation.__call__`."""
        return top_k_relaxation(logits, self.k, temperature, excluded_ids, self.relaxation)


def relaxation_named(relaxation: RelaxationName | Relaxation) -> Relaxation:
    """Return the relaxation of a name, or the relaxation itself.

    Args:
        relaxation: ``"softmax"``, ``"gumbel"``, ``"straight-through"``, ``"straight-through-gumbel"``, ``"sparsemax"``,
            ``"entmax15"``, or a callable.

    Returns:
        A callable.

    Raises:
        ImportError: it needs the entmax package, which is not installed.
        ValueError: there is none of this name.

    Example:
        >>> relaxation_named("straight-through-gumbel")
        StraightThrough(relaxation=GumbelSoftmax())
    """
    if callable(relaxation):
        return relaxation
    if relaxation not in _NAMED:
        names = ", ".join(map(repr, get_args(RelaxationName)))
        raise ValueError(f"relaxation={relaxation!r} is neither a callable nor one of {names}")
    return _NAMED[relaxation]()


_NAMED: dict[str, Callable[[], Relaxation]] = {
    "softmax": Softmax,
    "gumbel": GumbelSoftmax,
    "straight-through": StraightThrough,
    "straight-through-gumbel": lambda: StraightThrough(GumbelSoftmax()),
    "sparsemax": Sparsemax,
    "entmax15": Entmax15,
}

# Functions of the entmax package that have been asked for.
_mappings: dict[str, Callable[..., Tensor]] = {}


def _mapping(name: str) -> Callable[..., Tensor]:
    """A function of the entmax package, as one operation for torch.compile, which cannot look into it."""
    if name not in _mappings:
        try:
            import entmax
        except ImportError as error:
            raise ImportError(f'{name} needs the entmax package: pip install "bertscore-tm[entmax]"') from error
        _mappings[name] = torch.compiler.allow_in_graph(getattr(entmax, name))  # type: ignore[no-untyped-call]
    return _mappings[name]


def exclude(logits: Tensor, excluded_ids: Sequence[int]) -> Tensor:
    """Return logits in float32 at least, so low for some tokens that they get no probability.

    Args:
        logits: shape (..., vocabulary).
        excluded_ids: the tokens.

    Returns:
        The same shape.

    Example:
        >>> exclude(torch.tensor([1.0, 5.0]), [1]).softmax(-1)
        tensor([1., 0.])
    """
    z = logits.to(torch.promote_types(torch.float32, logits.dtype))
    if not excluded_ids:
        return z
    excluded = torch.zeros(z.shape[-1], dtype=torch.bool, device=z.device)
    excluded[list(excluded_ids)] = True
    # The lowest finite number rather than -inf, so that a row that is -inf elsewhere stays defined.
    return z.masked_fill(excluded, torch.finfo(z.dtype).min)


def _scaled(z: Tensor, temperature: float) -> Tensor:
    """Logits over the temperature; shifted before, so that large logits over small temperatures do not overflow."""
    if not temperature > 0:
        raise ValueError(f"temperature must be above 0, got {temperature}")
    if temperature == 1:
        return z
    return (z - z.detach().amax(-1, keepdim=True)) / temperature


def _sparse(name: str, logits: Tensor, temperature: float, excluded_ids: Sequence[int]) -> Tensor:
    z = exclude(logits, excluded_ids)
    z = _scaled(z, temperature)
    z = (z - z.detach().amax(-1, keepdim=True)).clamp(min=_FAR_BELOW)
    # The whole row is sorted where a shorter sort could not look whether it was enough.
    k = None if torch.compiler.is_compiling() else min(_SORTED_AT_FIRST, z.shape[-1])
    return _mapping(name)(z, dim=-1, k=k)
