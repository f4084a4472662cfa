"""Expected input embeddings of an encoder, from a generator's probabilities, logits or hidden states."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bertscore_tm.device.memory import constant
from bertscore_tm.device.onednn import FrozenLinear, can_use_onednn, linear
from bertscore_tm.losses.reduction import Reduction
from bertscore_tm.utilities.checks import require_at_least, require_choice, require_positive

# Tokens per chunk of the vocabulary: few enough to stay in a processor's caches.
_TOKENS_PER_CHUNK = 2048
# Logits per chunk on an accelerator, which wants few and large steps: 256 MB in float32.
_LOGITS_PER_CHUNK = 2**26


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
        rows = probabilities.reshape(-1, len(table))  # (positions, vocabulary)
        y: Tensor = FrozenLinear.apply(rows, table.t(), None, None)  # type: ignore[no-untyped-call]
        return y.view(*probabilities.shape[:-1], table.shape[1])


def softmax_expectation(
    logits: Tensor,
    table: Tensor,
    temperature: float = 1.0,
    excluded_ids: Sequence[int] = (),
    indices: Tensor | None = None,
) -> Tensor:
    """Return ``expected_embedding(softmax_relaxation(logits, temperature, excluded_ids), table)``, shape (rows, width).

    The rows are the flattened positions, or those with the given indices; the others have no gradient. Only the logits
    are saved for the backward pass: do not change them in place before. Precisions and derivatives are as for
    :func:`linear_expected_embedding`.
    """
    rows = logits.reshape(-1, logits.shape[-1])  # (positions, vocabulary)
    dtype = torch.promote_types(torch.float32, logits.dtype)
    settings = _Settings(temperature, [*excluded_ids], None, dtype, product_dtype(logits, dtype), indices)
    y: Tensor = _ExpectedEmbedding.apply(rows, None, None, table.detach(), None, settings)[0]  # type: ignore[no-untyped-call]
    return y


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
    chunk_size: int | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    r"""Return expected input embeddings from hidden states, without a tensor of all logits.

    With hidden states h, the generator's output layer W and b, a temperature u and embeddings E,

    .. math::
        z = h W^\top + b, \qquad y = \mathrm{softmax}(z / u)\, E,

    equal to ``expected_embedding(softmax_relaxation(z, u, excluded_ids), table)`` in forward and backward pass. Logits
    and probabilities are computed for ``chunk_size`` tokens of the vocabulary at a time, with a running maximum and sum
    (Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018), and again in the backward pass. Leave
    out positions that are not needed, as in ``input[mask]``. On an accelerator the products of bfloat16 states are
    computed in bfloat16, all else in float32; y then differs from that in float64 by at most 0.8% of the largest entry
    of the table, for the logits that such a product gives.

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
            become inefficient. Default: 2,048 on a CPU; on an accelerator as many as 2**26 logits have.

    Returns:
        y, shape (..., width), float32, or float64 where an argument is; with a target also the cross-entropy, in the
        same precision: a scalar, or shape (...) and 0 at ignored positions with ``reduction="none"``. Where all targets
        are ignored the mean is NaN, without gradient, as in PyTorch.

    Raises:
        ValueError: the table has another vocabulary, a target is outside it, the temperature or chunk size is not
            positive, or the reduction is unknown.

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
    positions, vocab_size = input.shape[:-1], len(linear_weight)
    if len(table) != vocab_size:
        raise ValueError(
            f"table must have a row for each of the {vocab_size} tokens of linear_weight, got shape "
            f"{tuple(table.shape)}: generator and encoder must share their vocabulary"
        )
    if chunk_size is not None:
        require_at_least("chunk_size", chunk_size, 1)
    require_choice("reduction", reduction, Reduction)
    if target is not None:
        require_token_ids(target, target != ignore_index, vocab_size, ignore_index)
    dtype = torch.float32
    for tensor in (input, linear_weight, table, linear_bias):
        if tensor is not None:
            dtype = torch.promote_types(dtype, tensor.dtype)
    result: tuple[Tensor, Tensor] = _ExpectedEmbedding.apply(  # type: ignore[no-untyped-call]
        input.reshape(-1, input.shape[-1]),
        linear_weight,
        None if linear_bias is None else linear_bias.to(dtype),
        table,
        None if target is None else target.reshape(-1, 1),
        _Settings(temperature, [*excluded_ids], chunk_size, dtype, product_dtype(input, dtype)),
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


def require_token_ids(target: Tensor, needed: Tensor, vocab_size: int, ignore_index: int) -> None:
    """Raise an error if labels hold ids outside the vocabulary at needed positions."""
    # Checked on the CPU only: elsewhere the check would synchronize the device, and it would break a compiled graph.
    checks = target.device.type == "cpu" and not torch.compiler.is_compiling()
    if checks and (needed & ((target < 0) | (target >= vocab_size))).any():
        raise ValueError(
            f"target holds ids outside the vocabulary of {vocab_size}: mark positions to ignore with "
            f"ignore_index={ignore_index}"
        )


@dataclass(frozen=True)
class _Settings:
    """How expectations are computed: the products in a precision, all else in ``dtype``."""

    temperature: float
    excluded_ids: list[int]
    chunk_size: int | None  # as many tokens as suit the device
    dtype: torch.dtype
    product: torch.dtype
    indices: Tensor | None = None  # all rows of logits


def product_dtype(values: Tensor, dtype: torch.dtype) -> torch.dtype:
    """Return the precision of products, where ``dtype`` is that of all else; float16 would lose small gradients."""
    return torch.bfloat16 if values.device.type != "cpu" and values.dtype == torch.bfloat16 else dtype


def _multiply(rows: Tensor, weight: Tensor, settings: _Settings) -> Tensor:
    r"""Return :math:`x W^\top`, computed in the precision of products."""
    return linear(rows.to(settings.product), weight.to(settings.product)).to(settings.dtype)


@dataclass
class _RunningSoftmax:
    """Softmax of rows whose logits come in chunks: the largest logit so far, and the sum of exp((z - peak) / u).

    They are kept apart, as their log-sum-exp would round large logits; ``None`` before the first chunk.
    """

    temperature: float
    peak: Any = None
    total: Any = None

    def add_(self, z: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return exp((z - peak) / u), written into z, and the factor by which earlier sums, if any, shrink."""
        before, self.peak = self.peak, z.amax(1, keepdim=True).clamp(min=torch.finfo(z.dtype).min)
        if before is not None:
            self.peak = torch.maximum(before, self.peak)
        weights = _weigh_(z, self.peak, self.temperature)
        total = weights.sum(1, keepdim=True)
        if before is None:
            self.total = total
            return weights, None
        factor = ((before - self.peak) / self.temperature).exp_()
        self.total = self.total * factor + total
        return weights, factor


class _ExpectedEmbedding(torch.autograd.Function):
    """Expected embeddings y and, with a target, its surprisal -log p(target) over all tokens at temperature 1.

    Of logits or, with the weight and bias of an output layer, of hidden states; over chunks of the vocabulary.
    """

    @staticmethod
    def forward(
        ctx: Any,
        states: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        table: Tensor,
        target: Tensor | None,
        settings: _Settings,
    ) -> tuple[Tensor, Tensor | None]:
        """Return y of the needed rows, shape (needed, width), and the surprisals, shape (needed, 1)."""
        require_positive("temperature", settings.temperature)
        with torch.autocast(device_type=states.device.type, enabled=False):
            content, full = (_RunningSoftmax(u) for u in (settings.temperature, 1.0))
            y: Any = None
            target_logit: Any = 0.0
            num_buffers = 1 if target is None else 2
            rows = states if weight is None else states.to(settings.product)
            for part, columns, logits, spare in _read_logits(rows, weight, bias, settings, num_buffers):
                if target is not None:
                    full.add_(spare.copy_(logits))
                    inside, column = _locate(target, part)
                    target_logit = torch.where(inside, logits.gather(1, column), target_logit)
                if columns is not None:
                    # Not -inf, so that a row whose other logits are -inf stays defined.
                    logits.index_fill_(1, columns, torch.finfo(settings.dtype).min)
                weights, factor = content.add_(logits)
                expected = _multiply(weights, table[part].t(), settings)
                y = expected if factor is None else y.mul_(factor).add_(expected)
            y.div_(content.total)
            surprisal = None if target is None else full.peak - target_logit + full.total.log()
        ctx.set_materialize_grads(False)
        ctx.settings = settings
        ctx.save_for_backward(
            states, weight, bias, table, target, y, content.peak, content.total, full.peak, full.total
        )
        return y, surprisal

    @staticmethod
    def backward(ctx: Any, grad_y: Tensor | None, grad_surprisal: Tensor | None) -> tuple[Tensor | None, ...]:
        """Return the gradients of logits or hidden states, weight and bias."""
        # torch's once_differentiable would treat gradients of a constant upstream as constants, without an error.
        if torch.is_grad_enabled():
            raise RuntimeError(
                "expected embeddings cannot be differentiated twice: leave out create_graph=True, or use "
                "softmax_relaxation(logits) @ table"
            )
        if grad_y is None and grad_surprisal is None:
            return None, None, None, None, None, None
        states, weight, bias, table, target, y, peak, total, full_peak, full_total = ctx.saved_tensors
        settings, indices = ctx.settings, ctx.settings.indices
        grad_states: Any = None
        if ctx.needs_input_grad[0] and weight is None:
            # All of it is written if all rows are needed.
            grad_states = torch.empty_like(states) if indices is None else torch.zeros_like(states)
        grad_weight = torch.empty_like(weight) if ctx.needs_input_grad[1] else None
        grad_bias = torch.empty_like(bias) if ctx.needs_input_grad[2] else None
        with torch.autocast(device_type=states.device.type, enabled=False):
            if grad_y is not None:
                # Divided here rather than in every probability.
                grad_y = grad_y / (total if settings.temperature == 1 else total * settings.temperature)
                mean = (grad_y * y).sum(1, keepdim=True)
            num_buffers = 1 if grad_surprisal is None else 2
            rows = states if weight is None else states.to(settings.product)
            for part, columns, logits, spare in _read_logits(rows, weight, bias, settings, num_buffers):
                if grad_surprisal is not None:
                    inside, column = _locate(target, part)
                    grad = _weigh_(spare.copy_(logits), full_peak, 1.0)
                    grad.mul_(grad_surprisal / full_total)
                    grad.scatter_add_(1, column, torch.where(inside, -grad_surprisal, 0.0))
                if grad_y is not None:
                    weights = _weigh_(logits, peak, settings.temperature)
                    if columns is not None:
                        weights.index_fill_(1, columns, 0.0)
                    into_p = _multiply(grad_y, table[part], settings).sub_(mean)
                    grad = weights.mul_(into_p) if grad_surprisal is None else grad.addcmul_(weights, into_p)
                if weight is None:
                    if grad_states is not None and indices is not None:
                        grad_states[:, part].index_copy_(0, indices, grad.to(states.dtype))
                    elif grad_states is not None:
                        grad_states[:, part] = grad
                    continue
                if grad_bias is not None:
                    grad_bias[part] = grad.sum(0)
                grad = grad.to(settings.product)
                if ctx.needs_input_grad[0]:
                    into_states = _multiply(grad, weight[part].t(), settings)
                    grad_states = into_states if grad_states is None else grad_states.add_(into_states)
                if grad_weight is not None:
                    grad_weight[part] = grad.t() @ rows
        if grad_states is not None:
            grad_states = grad_states.to(states.dtype)
        return grad_states, grad_weight, grad_bias, None, None, None


def _read_logits(
    states: Tensor, weight: Tensor | None, bias: Tensor | None, settings: _Settings, num_buffers: int
) -> Iterator[tuple[slice, Tensor | None, Tensor, Tensor]]:
    """Yield the tokens of a chunk of the vocabulary, the columns of the excluded ones, if any, and the logits.

    The next chunk overwrites the logits and, with two buffers, a second one of the same shape.
    """
    num_rows, device = len(states if settings.indices is None else settings.indices), states.device
    vocab_size = states.shape[1] if weight is None else len(weight)
    size = settings.chunk_size or _TOKENS_PER_CHUNK
    if settings.chunk_size is None and device.type != "cpu":
        size = max(_LOGITS_PER_CHUNK // max(num_rows, 1) // 128 * 128, size)
    # Reused for every chunk, as allocating would cost more than computing.
    memory = states.new_empty(num_buffers, num_rows * min(size, vocab_size), dtype=settings.dtype)
    for start in range(0, vocab_size, size):
        part = slice(start, min(start + size, vocab_size))
        shape = num_rows, part.stop - start
        buffers = memory[:, : math.prod(shape)].view(num_buffers, *shape)
        logits = buffers[0]
        if weight is None:
            chunk = states[:, part]
            logits.copy_(chunk if settings.indices is None else chunk.index_select(0, settings.indices))
        else:
            head, part_bias = weight[part].to(states.dtype), None if bias is None else bias[part]
            if settings.product == settings.dtype and can_use_onednn(states, head):
                logits = linear(states, head, part_bias)
            elif settings.product != settings.dtype:
                logits.copy_(states @ head.t())
                if part_bias is not None:
                    logits.add_(part_bias)
            elif part_bias is None:
                logits.addmm_(states, head.t(), beta=0)
            else:
                logits.copy_(part_bias).addmm_(states, head.t())
        columns = [token - start for token in settings.excluded_ids if start <= token < part.stop]
        yield part, constant(columns, device) if columns else None, logits, buffers[-1]


def _weigh_(z: Tensor, peak: Tensor, temperature: float) -> Tensor:
    """Return exp((z - peak) / u), in place, and 0 for denormal results, which a CPU multiplies some 10 times slower."""
    z.sub_(peak)
    if temperature != 1:
        z.div_(temperature)
    if z.device.type == "cpu":
        torch.threshold_(z, math.log(torch.finfo(z.dtype).tiny), -math.inf)
    return z.exp_()


def _locate(target: Tensor, part: slice) -> tuple[Tensor, Tensor]:
    """Return which targets are in a chunk, and their columns in it, 0 for the others."""
    inside = (target >= part.start) & (target < part.stop)
    return inside, torch.where(inside, target - part.start, 0)
