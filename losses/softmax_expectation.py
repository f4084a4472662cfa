"""Expected embeddings under the softmax of given logits, whose probabilities never exist all at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from bertscore_tm.core.onednn import linear
from bertscore_tm.losses.relaxation import softmax_relaxation
from bertscore_tm.losses.vocabulary_chunks import over_temperature, vocabulary_parts

__all__ = ["softmax_expectation"]

# Words at a time, by all positions: few enough to stay in a processor's caches.
_WORDS_AT_ONCE = 2048


def softmax_expectation(
    logits: Tensor, table: Tensor, temperature: float = 1.0, excluded_ids: Sequence[int] = ()
) -> Tensor:
    r"""Return :math:`y = \mathrm{softmax}(z / u)\, E` over content tokens.

    The same as ``expected_embedding(softmax_relaxation(z, u, excluded_ids), table)``, with the same gradients, which
    can be differentiated again; but only the logits themselves are kept for the backward pass, and probabilities exist
    for a part of the vocabulary at a time. Logits must not be changed in place before the backward pass.

    Args:
        logits: z, shape (..., vocabulary).
        table: E, frozen, shape (vocabulary, width).
        temperature: u, above 0; below 1 sharpens, towards one-hot.
        excluded_ids: tokens that are no content (beginning, end, padding): their mass goes to the others.

    Returns:
        y, shape (..., width), float32 at least.

    Raises:
        ValueError: the temperature is not positive.

    Example:
        >>> table = torch.tensor([[0.0, 2.0], [4.0, 0.0], [8.0, 8.0]])
        >>> softmax_expectation(torch.tensor([0.0, 0.0, 9.0]), table, excluded_ids=[2])
        tensor([2., 1.])
    """
    if not temperature > 0:
        raise ValueError(f"temperature must be above 0, got {temperature}")
    rows = logits.reshape(-1, logits.shape[-1])
    y: Tensor = _SoftmaxExpectation.apply(rows, table.detach(), temperature, list(excluded_ids))  # type: ignore[no-untyped-call]
    return y.view(*logits.shape[:-1], table.shape[1])


class _SoftmaxExpectation(torch.autograd.Function):
    """Of each row, ``peak`` is the largest logit of content and ``total`` the sum of exp((z - peak) / u)."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, table: Tensor, temperature: float, excluded: list[int]) -> Tensor:
        """Return y, shape (rows, width)."""
        dtype = torch.promote_types(torch.float32, logits.dtype)
        y = torch.zeros(len(logits), table.shape[1], dtype=dtype, device=logits.device)
        peak = torch.full_like(y[:, :1], torch.finfo(dtype).min)
        total = torch.zeros_like(peak)
        for part, z in _parts(logits, excluded, dtype):
            before, peak = peak, torch.maximum(peak, z.amax(1, keepdim=True))
            weights = over_temperature(z.sub_(peak), temperature).exp_()
            rescale = over_temperature(before - peak, temperature).exp_()
            total = total * rescale + weights.sum(1, keepdim=True)
            y = y.mul_(rescale).add_(linear(weights, table[part].to(dtype).t()))
        y = y.div_(total)
        ctx.temperature, ctx.excluded = temperature, excluded
        ctx.save_for_backward(logits, table, y, peak, total)
        return y

    @staticmethod
    def backward(ctx: Any, grad_y: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradient of the logits."""
        logits, table, y, peak, total = ctx.saved_tensors
        dtype, temperature, excluded = y.dtype, ctx.temperature, ctx.excluded
        if torch.is_grad_enabled():
            # Of operations that can be differentiated in their turn.
            p = softmax_relaxation(logits, temperature, excluded)
            into_p = grad_y @ table.to(dtype).t()
            grad = p * (into_p - (p * into_p).sum(1, keepdim=True)) / temperature
            grad = grad.to(logits.dtype)
        else:
            # Divided here, in few numbers, rather than in each probability.
            grad_y = grad_y / total / temperature
            mean = (grad_y * y).sum(1, keepdim=True)
            grad = torch.empty_like(logits)
            for part, z in _parts(logits, excluded, dtype):
                weights = over_temperature(z.sub_(peak), temperature).exp_()
                torch.mul(weights, linear(grad_y, table[part].to(dtype)).sub_(mean), out=grad[:, part])
        # A row that is -inf elsewhere has all its mass on them.
        ids = torch.tensor(excluded, dtype=torch.long, device=grad.device)
        grad = grad.index_fill(1, ids, 0.0) if torch.is_grad_enabled() else grad.index_fill_(1, ids, 0.0)
        return grad, None, None, None


def _parts(logits: Tensor, excluded: list[int], dtype: torch.dtype) -> Iterator[tuple[slice, Tensor]]:
    """Give copies of the logits of a part of the vocabulary, with the lowest number for what is no content.

    The lowest finite number rather than -inf, so that a row that is -inf elsewhere stays defined.
    """
    memory = torch.empty(len(logits) * min(logits.shape[1], _WORDS_AT_ONCE), dtype=dtype, device=logits.device)
    for part, columns in vocabulary_parts(logits.shape[1], _WORDS_AT_ONCE, excluded, logits.device):
        words = part.stop - part.start
        z = memory[: len(logits) * words].view(len(logits), words).copy_(logits[:, part])
        yield part, z if columns is None else z.index_fill_(1, columns, torch.finfo(dtype).min)
