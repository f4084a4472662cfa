"""Scale a loss so that its gradient is as large as that of another loss."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = ["gradient_norm", "match_gradient_norm"]


def match_gradient_norm(loss: Tensor, reference: Tensor, tensors: Tensor | Sequence[Tensor]) -> Tensor:
    r"""Scale a loss so that its gradient has the norm of another loss's gradient.

    .. math:: \mathrm{loss} \cdot \frac{\lVert \nabla \mathrm{reference} \rVert}{\lVert \nabla \mathrm{loss} \rVert}

    The gradients of sequence-level losses shrink and grow with the rewards, alpha and the lengths of the texts. Scaled
    to cross-entropy, their weight in the sum means the same in every step: a weight of 0.3 adds a gradient of 0.3 times
    the norm of cross-entropy's. The factor is taken without gradient, from one partial backward pass per loss. Each
    rank computes its own.

    Args:
        loss: loss to scale, scalar, with gradient.
        reference: loss whose gradient norm is matched, such as cross-entropy, scalar, with gradient.
        tensors: tensors that both losses depend on and whose gradients are compared; those close to the losses are
            cheapest, such as the weight of the output layer.

    Returns:
        The scaled loss, scalar; 0 where its gradient is 0.

    Raises:
        ValueError: a loss is not a scalar, or does not depend on the tensors.

    Example:
        >>> weight = torch.tensor([3.0, 4.0], requires_grad=True)
        >>> scaled = match_gradient_norm((weight**2).sum(), weight.sum() * 5, weight)
        >>> torch.autograd.grad(scaled, weight)[0].norm()
        tensor(7.0711)
    """
    tensors = [tensors] if isinstance(tensors, Tensor) else list(tensors)
    norm, reference_norm = (
        gradient_norm(name, value, tensors) for name, value in (("loss", loss), ("reference", reference))
    )
    factor = torch.where(norm > 0, reference_norm / torch.where(norm > 0, norm, 1.0), 0.0)
    return loss * factor.to(loss.dtype)


def gradient_norm(name: str, loss: Tensor, tensors: Sequence[Tensor]) -> Tensor:
    """Return the norm of a scalar loss's gradient with respect to some tensors, shape ()."""
    if loss.ndim != 0:
        raise ValueError(f"{name} must be a scalar, got shape {tuple(loss.shape)}: reduce it to its mean")
    gradients = torch.autograd.grad(loss, tensors, retain_graph=True, allow_unused=True) if loss.requires_grad else ()
    found = [gradient for gradient in gradients if gradient is not None]
    if not found:
        raise ValueError(f"{name} does not depend on the tensors, so its gradient has no norm to compare")
    norm: Tensor = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(one.float()) for one in found]))
    return norm
