"""Expected input embeddings of an encoder under a generator's token probabilities.

Computed from the probabilities, or from the generator's hidden states without a tensor of all logits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, overload

import torch
from torch import Tensor

from bertscore_tm.core.onednn import FrozenLinear, can_use_onednn, linear, transposed_matmul
from bertscore_tm.core.reductions import Reduction
from bertscore_tm.losses.soft.vocabulary_chunks import divide_by_temperature_, exponentiate_, split_vocabulary
from bertscore_tm.utilities.settings import require_choice

__all__ = ["expected_embedding", "linear_expected_embedding"]


def expected_embedding(probabilities: Tensor, table: Tensor) -> Tensor:
    r"""Return :math:`y_t = \sum_k p_{tk} E_k`, the expected input embedding at each position.

    Args:
        probabilities: p, shape (..., vocabulary).
        table: E, the encoder's input embeddings, shape (vocabulary, width).

    Returns:
        Shape (..., width), in the precision of the probabilities.

    Example:
        >>> expected_embedding(torch.tensor([0.5, 0.5]), torch.tensor([[0.0, 2.0], [4.0, 0.0]]))
        tensor([2., 1.])
    """
    with torch.autocast(device_type=probabilities.device.type, enabled=False):
        table = table.to(probabilities.dtype)
        if table.requires_grad or not can_use_onednn(probabilities, table):
            return probabilities @ table
        rows = probabilities.reshape(-1, len(table))
        y: Tensor = FrozenLinear.apply(rows, table.t(), None, None)  # type: ignore[no-untyped-call]
        return y.view(*probabilities.shape[:-1], table.shape[1])


@overload
def linear_expected_embedding(
    input: Tensor,
    linear_weight: Tensor,
    table: Tensor,
    target: None = None,
    *,
    linear_bias: Tensor | None = None,
    temperature: float = 1.0,
    excluded_ids: Sequence[int] = (),
    reduction: Reduction = "mean",
    ignore_index: int = -100,
    chunk_size: int = 2048,
) -> Tensor: ...


@overload
def linear_expected_embedding(
    input: Tensor,
    linear_weight: Tensor,
    table: Tensor,
    target: Tensor,
    *,
    linear_bias: Tensor | None = None,
    temperature: float = 1.0,
    excluded_ids: Sequence[int] = (),
    reduction: Reduction = "mean",
    ignore_index: int = -100,
    chunk_size: int = 2048,
) -> tuple[Tensor, Tensor]: ...


def linear_expected_embedding(
    input: Tensor,
    linear_weight: Tensor,
    table: Tensor,
    target: Tensor | None = None,
    *,
    linear_bias: Tensor | None = None,
    temperature: float = 1.0,
    excluded_ids: Sequence[int] = (),
    reduction: Reduction = "mean",
    ignore_index: int = -100,
    chunk_size: int = 2048,
) -> Tensor | tuple[Tensor, Tensor]:
    r"""Return expected input embeddings from hidden states, without a tensor of all logits.

    With hidden states h, the generator's output layer W and b, a temperature u and embeddings E,

    .. math::
        z = h W^\top + b, \qquad y = \mathrm{softmax}(z / u)\, E,

    equal to ``expected_embedding(softmax_relaxation(z, u, excluded_ids), table)`` in forward and backward pass. Logits
    and probabilities are computed for ``chunk_size`` tokens of the vocabulary at a time, with a running maximum and sum
    (Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018), and again in the backward pass. Leave
    out positions that are not needed, as in ``input[mask]``.

    Argument names are those of ``torch.nn.functional.linear_cross_entropy``. Gradients reach ``input``,
    ``linear_weight`` and ``linear_bias``; they cannot be differentiated again.

    Args:
        input: h, shape (..., features).
        linear_weight: W, the output layer's weight, shape (vocabulary, features).
        table: E, frozen, shape (vocabulary, width).
        target: token ids, shape (...), to return the cross-entropy too, from the same pass; over all tokens, excluded
            or not, at temperature 1.
        linear_bias: b, shape (vocabulary,).
        temperature: u, above 0; below 1 sharpens, towards one-hot.
        excluded_ids: tokens that get no probability, such as special tokens.
        reduction: of the cross-entropy: ``"mean"`` over the targets that are not ignored, ``"sum"`` or ``"none"``.
        ignore_index: target id that the cross-entropy ignores.
        chunk_size: tokens of the vocabulary per chunk. Fewer need less memory; below some hundreds, matrix products
            become inefficient.

    Returns:
        y, shape (..., width), float32, or float64 where an argument is; with a target also the cross-entropy, in the
        same precision: a scalar, or shape (...) and 0 at ignored positions with ``reduction="none"``. Where all targets
        are ignored the mean is NaN, without gradient, as in PyTorch.

    Raises:
        TypeError: an argument other than the target is not floating-point, or the target is not int64.
        ValueError: shapes do not fit, an id is outside the vocabulary, the temperature or chunk size is not positive,
            the reduction is unknown, or the table requires a gradient.

    Example:
        >>> head = torch.tensor([[1.0, 0.0], [0.0, 1.0], [9.0, 9.0]], requires_grad=True)
        >>> table = torch.tensor([[0.0, 2.0], [4.0, 0.0], [8.0, 8.0]])
        >>> hidden = torch.tensor([[0.0, 0.0], [200.0, 0.0]])
        >>> linear_expected_embedding(hidden, head, table, excluded_ids=[2])
        tensor([[2., 1.],
                [0., 2.]], grad_fn=<ViewBackward0>)
        >>> y, cross_entropy = linear_expected_embedding(hidden, head, table, torch.tensor([2, -100]))
        >>> round(cross_entropy.item(), 4)  # log(3)
        1.0986
    """
    _check(input, linear_weight, table, target, linear_bias, temperature, reduction, ignore_index, chunk_size)
    vocab_size = len(linear_weight)
    excluded = sorted({*excluded_ids})
    if excluded and not 0 <= excluded[0] <= excluded[-1] < vocab_size:
        raise ValueError(f"excluded_ids holds ids outside the vocabulary of {vocab_size}: {excluded}")
    dtype = torch.float32
    for tensor in (input, linear_weight, table, linear_bias):
        if tensor is not None:
            dtype = torch.promote_types(dtype, tensor.dtype)
    positions = input.shape[:-1]
    result: tuple[Tensor, Tensor] = _LinearExpectedEmbedding.apply(  # type: ignore[no-untyped-call]
        input.reshape(-1, input.shape[-1]).to(dtype),
        linear_weight,
        None if linear_bias is None else linear_bias.to(dtype),
        table,
        None if target is None else target.reshape(-1, 1),
        temperature,
        excluded,
        chunk_size,
    )
    y = result[0].view(*positions, table.shape[1])
    if target is None:
        return y
    ignored = target == ignore_index
    surprisal = result[1].view(positions).masked_fill(ignored, 0.0)
    if reduction == "none":
        return y, surprisal
    total = surprisal.sum()
    return y, total if reduction == "sum" else total / (~ignored).sum()


def _check(
    input: Tensor,
    weight: Tensor,
    table: Tensor,
    target: Tensor | None,
    bias: Tensor | None,
    temperature: float,
    reduction: str,
    ignore_index: int,
    chunk_size: int,
) -> None:
    for name, tensor in (("input", input), ("linear_weight", weight), ("table", table), ("linear_bias", bias)):
        if tensor is not None and not tensor.is_floating_point():
            raise TypeError(f"{name} must be a floating-point tensor, got {tensor.dtype}")
    if weight.ndim != 2 or input.ndim == 0 or input.shape[-1] != weight.shape[1]:
        raise ValueError(
            f"input and linear_weight must have shapes (..., features) and (vocabulary, features), got "
            f"{tuple(input.shape)} and {tuple(weight.shape)}"
        )
    if table.ndim != 2 or len(table) != len(weight):
        raise ValueError(
            f"table must have a row for each of the {len(weight)} tokens of linear_weight, got shape "
            f"{tuple(table.shape)}: generator and encoder must share their vocabulary"
        )
    if bias is not None and bias.shape != weight.shape[:1]:
        raise ValueError(f"linear_bias must have shape {(len(weight),)}, got {tuple(bias.shape)}")
    if table.requires_grad and torch.is_grad_enabled():
        raise ValueError("table cannot get a gradient: pass table.detach()")
    if not temperature > 0:
        raise ValueError(f"temperature must be above 0, got {temperature}")
    if chunk_size < 1:
        raise ValueError(f"chunk_size must be at least 1, got {chunk_size}")
    require_choice("reduction", reduction, Reduction)
    if target is None:
        return
    if target.dtype != torch.int64:
        raise TypeError(f"target must hold token ids as int64, got {target.dtype}")
    if target.shape != input.shape[:-1]:
        raise ValueError(f"target must have the shape {tuple(input.shape[:-1])} of input, got {tuple(target.shape)}")
    # Checked on the CPU only: elsewhere each check would synchronize the device, and it would break a graph.
    if target.device.type == "cpu" and not torch.compiler.is_compiling():
        outside = (target != ignore_index) & ((target < 0) | (target >= len(weight)))
        if outside.any():
            raise ValueError(
                f"target holds ids outside the vocabulary of {len(weight)}: mark positions to ignore with "
                f"ignore_index={ignore_index}"
            )


class _LinearExpectedEmbedding(torch.autograd.Function):
    """Expected embeddings y and, with a target, its surprisal -log p(target), over chunks of the vocabulary.

    Of each row, ``peak`` is the largest logit of content and ``total`` the sum of exp((z - peak) / u), so that the
    softmax is exp((z - peak) / u) / total. They are kept apart, as their log-sum-exp would round large logits.
    ``full_peak`` and ``full_total`` are the same over all tokens at temperature 1, for the surprisal.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        table: Tensor,
        target: Tensor | None,
        temperature: float,
        excluded: list[int],
        chunk_size: int,
    ) -> tuple[Tensor, Tensor | None]:
        """Return y, shape (rows, width), and the surprisals, shape (rows, 1)."""
        dtype, lowest = hidden.dtype, torch.finfo(hidden.dtype).min
        parts = split_vocabulary(len(weight), chunk_size, excluded, hidden.device)
        with torch.autocast(device_type=hidden.device.type, enabled=False):
            y = hidden.new_zeros(len(hidden), table.shape[1])
            peak = full_peak = hidden.new_full((len(hidden), 1), lowest)
            total = full_total = target_logit = hidden.new_zeros(len(hidden), 1)
            # Reused for every chunk, as allocating would cost more than computing.
            work = hidden.new_empty(1 if target is None else 2, len(hidden) * min(chunk_size, len(weight)))
            for part, columns in parts:
                logits = _logits(work[0], hidden, weight[part].to(dtype), bias, part)
                if target is not None:
                    before, full_peak = full_peak, torch.maximum(full_peak, logits.amax(1, keepdim=True))
                    weights = exponentiate_(_view(work[1], logits.shape).copy_(logits).sub_(full_peak))
                    full_total = full_total * (before - full_peak).exp() + weights.sum(1, keepdim=True)
                    inside, column = _locate(target, part)
                    target_logit = torch.where(inside, logits.gather(1, column), target_logit)
                if columns is not None:
                    # Not -inf, so that a row whose other logits are -inf stays defined.
                    logits.index_fill_(1, columns, lowest)
                before, peak = peak, torch.maximum(peak, logits.amax(1, keepdim=True))
                weights = exponentiate_(divide_by_temperature_(logits.sub_(peak), temperature))
                rescale = divide_by_temperature_(before - peak, temperature).exp_()
                total = total * rescale + weights.sum(1, keepdim=True)
                y.mul_(rescale).add_(linear(weights, table[part].to(dtype).t()))
            y.div_(total)
            surprisal = None if target is None else full_peak - target_logit + full_total.log()
        ctx.set_materialize_grads(False)
        ctx.temperature, ctx.excluded, ctx.chunk_size = temperature, excluded, chunk_size
        ctx.save_for_backward(hidden, weight, bias, table, target, y, peak, total, full_peak, full_total)
        return y, surprisal

    @staticmethod
    def backward(ctx: Any, grad_y: Tensor | None, grad_surprisal: Tensor | None) -> tuple[Tensor | None, ...]:
        """Return the gradients of hidden states, weight and bias."""
        # torch's once_differentiable would treat gradients of a constant upstream as constants, without an error.
        if torch.is_grad_enabled():
            raise RuntimeError(
                "linear_expected_embedding cannot be differentiated twice: leave out create_graph=True, or use "
                "expected_embedding(softmax_relaxation(logits), table)"
            )
        hidden, weight, bias, table, target, y, peak, total, full_peak, full_total = ctx.saved_tensors
        dtype = hidden.dtype
        grad_hidden = torch.zeros_like(hidden) if ctx.needs_input_grad[0] else None
        grad_weight = torch.empty_like(weight) if ctx.needs_input_grad[1] else None
        grad_bias = torch.empty_like(bias) if ctx.needs_input_grad[2] else None
        parts = split_vocabulary(len(weight), ctx.chunk_size, ctx.excluded, hidden.device)
        with torch.autocast(device_type=hidden.device.type, enabled=False):
            if grad_y is not None:
                # Divided here rather than in every probability.
                grad_y = grad_y / total / ctx.temperature
                mean = (grad_y * y).sum(1, keepdim=True)
            work = hidden.new_empty(2, len(hidden) * min(ctx.chunk_size, len(weight)))
            for part, columns in parts:
                head = weight[part].to(dtype)
                logits = _logits(work[0], hidden, head, bias, part)
                grad = _view(work[1], logits.shape).zero_()
                if grad_surprisal is not None:
                    inside, column = _locate(target, part)
                    exponentiate_(grad.copy_(logits).sub_(full_peak)).mul_(grad_surprisal / full_total)
                    grad.scatter_add_(1, column, torch.where(inside, -grad_surprisal, 0.0))
                if grad_y is not None:
                    weights = exponentiate_(divide_by_temperature_(logits.sub_(peak), ctx.temperature))
                    if columns is not None:
                        weights.index_fill_(1, columns, 0.0)
                    grad.addcmul_(weights, linear(grad_y, table[part].to(dtype)).sub_(mean))
                if grad_hidden is not None:
                    grad_hidden.add_(linear(grad, head.t()))
                if grad_weight is not None:
                    grad_weight[part] = transposed_matmul(grad, hidden)
                if grad_bias is not None:
                    grad_bias[part] = grad.sum(0)
        return grad_hidden, grad_weight, grad_bias, None, None, None, None, None


def _view(memory: Tensor, shape: Sequence[int]) -> Tensor:
    return memory[: math.prod(shape)].view(*shape)


def _logits(memory: Tensor, hidden: Tensor, head: Tensor, bias: Tensor | None, part: slice) -> Tensor:
    """Return the logits of a chunk of the vocabulary, written into ``memory`` where the product allows it."""
    own_bias = None if bias is None else bias[part]
    if can_use_onednn(hidden, head):
        return linear(hidden, head, own_bias)
    logits = _view(memory, (len(hidden), len(head)))
    if own_bias is None:
        return logits.addmm_(hidden, head.t(), beta=0)
    return logits.copy_(own_bias).addmm_(hidden, head.t())


def _locate(target: Tensor, part: slice) -> tuple[Tensor, Tensor]:
    """Return which targets are in a chunk, and their columns in it, 0 for the others."""
    inside = (target >= part.start) & (target < part.stop)
    return inside, torch.where(inside, target - part.start, 0)
