"""Expected embeddings under a softmax of logits, without a tensor of all probabilities."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from bertscore_tm.core.onednn import linear
from bertscore_tm.losses.soft.relaxation import softmax_relaxation
from bertscore_tm.losses.soft.vocabulary_chunks import divide_by_temperature_, exponentiate_, split_vocabulary

__all__ = ["softmax_expectation"]

# Tokens per chunk, at all positions: few enough to stay in a processor's caches.
_TOKENS_PER_CHUNK = 2048


def softmax_expectation(
    logits: Tensor,
    table: Tensor,
    temperature: float = 1.0,
    excluded_ids: Sequence[int] = (),
    kept: Tensor | None = None,
    ignored: Tensor | None = None,
) -> Tensor:
    r"""Return :math:`y = \mathrm{softmax}(z / u)\, E` over content tokens.

    Equals ``expected_embedding(softmax_relaxation(z, u, excluded_ids), table)`` with the same gradients, which can be
    differentiated again. Only the logits are saved for the backward pass, and probabilities are computed for one chunk
    of the vocabulary at a time. Do not change the logits in place before the backward pass.

    Args:
        logits: z, shape (..., vocabulary).
        table: E, frozen, shape (vocabulary, width).
        temperature: u, above 0; below 1 sharpens, towards one-hot.
        excluded_ids: tokens that get no probability, such as special tokens.
        kept: positions that are needed, as indices of the flattened positions, shape (kept,). The others are not
            computed; y and its gradient are 0 there. Default: all.
        ignored: positions whose logits may be anything, such as NaN, and count as 0, shape (positions,), bool; for an
            accelerator, which would have to wait for the indices of the others. Default: none.

    Returns:
        y, shape (..., width), float32 or float64.

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
    y: Tensor = _SoftmaxExpectation.apply(rows, table.detach(), temperature, list(excluded_ids), kept, ignored)  # type: ignore[no-untyped-call]
    if kept is not None:
        y = y.new_zeros(len(rows), table.shape[1]).index_copy(0, kept, y)
    return y.view(*logits.shape[:-1], table.shape[1])


class _SoftmaxExpectation(torch.autograd.Function):
    """Of each row, ``peak`` is the largest logit of content and ``total`` the sum of exp((z - peak) / u)."""

    @staticmethod
    def forward(
        ctx: Any,
        logits: Tensor,
        table: Tensor,
        temperature: float,
        excluded: list[int],
        kept: Tensor | None,
        ignored: Tensor | None,
    ) -> Tensor:
        """Return y of the kept rows, shape (kept, width)."""
        dtype = torch.promote_types(torch.float32, logits.dtype)
        num_rows = len(logits) if kept is None else len(kept)
        y = torch.zeros(num_rows, table.shape[1], dtype=dtype, device=logits.device)
        peak = torch.full_like(y[:, :1], torch.finfo(dtype).min)
        total = torch.zeros_like(peak)
        for part, z in _copy_chunks(logits, excluded, kept, ignored, dtype):
            before, peak = peak, torch.maximum(peak, z.amax(1, keepdim=True))
            weights = exponentiate_(divide_by_temperature_(z.sub_(peak), temperature))
            rescale = divide_by_temperature_(before - peak, temperature).exp_()
            total = total * rescale + weights.sum(1, keepdim=True)
            y = y.mul_(rescale).add_(linear(weights, table[part].to(dtype).t()))
        y = y.div_(total)
        ctx.temperature, ctx.excluded, ctx.kept = temperature, excluded, kept
        ctx.save_for_backward(logits, table, y, peak, total, ignored)
        return y

    @staticmethod
    def backward(ctx: Any, grad_y: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradient of the logits."""
        logits, table, y, peak, total, ignored = ctx.saved_tensors
        dtype, temperature, excluded, kept = y.dtype, ctx.temperature, ctx.excluded, ctx.kept
        if torch.is_grad_enabled():
            # Only differentiable operations, for create_graph=True.
            z = logits if kept is None else logits[kept]
            z = z if ignored is None else z.masked_fill(ignored[:, None], 0.0)
            p = softmax_relaxation(z, temperature, excluded)
            into_p = grad_y @ table.to(dtype).t()
            grad = p * (into_p - (p * into_p).sum(1, keepdim=True)) / temperature
            grad = grad.to(logits.dtype)
            if kept is not None:
                grad = torch.zeros_like(logits).index_copy(0, kept, grad)
        else:
            # Divided here rather than in every probability.
            grad_y = grad_y / total / temperature
            mean = (grad_y * y).sum(1, keepdim=True)
            grad = torch.empty_like(logits) if kept is None else torch.zeros_like(logits)
            for part, z in _copy_chunks(logits, excluded, kept, ignored, dtype):
                weights = exponentiate_(divide_by_temperature_(z.sub_(peak), temperature))
                into_p = linear(grad_y, table[part].to(dtype)).sub_(mean)
                if kept is None:
                    torch.mul(weights, into_p, out=grad[:, part])
                else:
                    grad[:, part].index_copy_(0, kept, weights.mul_(into_p).to(grad.dtype))
        # A row that is -inf elsewhere has all its mass on them.
        ids = torch.tensor(excluded, dtype=torch.long, device=grad.device)
        grad = grad.index_fill(1, ids, 0.0) if torch.is_grad_enabled() else grad.index_fill_(1, ids, 0.0)
        return grad, None, None, None, None, None


def _copy_chunks(
    logits: Tensor, excluded: list[int], kept: Tensor | None, ignored: Tensor | None, dtype: torch.dtype
) -> Iterator[tuple[slice, Tensor]]:
    """Yield copies of the kept rows' logits of each chunk, with the lowest finite number at excluded tokens.

    The lowest finite number rather than -inf, so that a row whose other logits are -inf stays defined.
    """
    num_rows = len(logits) if kept is None else len(kept)
    memory = torch.empty(num_rows * min(logits.shape[1], _TOKENS_PER_CHUNK), dtype=dtype, device=logits.device)
    for part, columns in split_vocabulary(logits.shape[1], _TOKENS_PER_CHUNK, excluded, logits.device):
        words = part.stop - part.start
        chunk = logits[:, part] if kept is None else logits[:, part].index_select(0, kept)
        z = memory[: num_rows * words].view(num_rows, words).copy_(chunk)
        if ignored is not None:
            z.masked_fill_(ignored[:, None], 0.0)
        yield part, z if columns is None else z.index_fill_(1, columns, torch.finfo(dtype).min)
