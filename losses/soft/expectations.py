"""Expected input embeddings of an encoder, from a generator's probabilities, logits or hidden states."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bertscore_tm.device.memory import constant
from bertscore_tm.device.onednn import FrozenLinear, can_use_onednn, linear
from bertscore_tm.losses.reduction import Reduction
from bertscore_tm.utilities.checks import require_at_least, require_choice, require_positive

# Tokens per chunk of the vocabulary on a CPU: few enough that a chunk stays in the processor's caches.
_TOKENS_PER_CHUNK = 2048
# Logits per chunk on an accelerator, where a few large kernels are faster than many small ones: 256 MB in float32.
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
        # oneDNN is faster, but does not compute a gradient of the table.
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

    The rows are the flattened positions, or those at the given indices. Other positions get no gradient. Only the
    logits are saved for the backward pass: do not change them in place before it. Precisions and derivatives are those
    of :func:`linear_expected_embedding`.
    """
    rows = logits.reshape(-1, logits.shape[-1])  # (positions, vocabulary)
    dtype = torch.promote_types(torch.float32, logits.dtype)
    settings = _Settings(
        temperature, [*excluded_ids], chunk_size=None, dtype=dtype, product=product_dtype(logits, dtype)
    )
    result: tuple[Tensor, None] = _ExpectedEmbedding.apply(  # type: ignore[no-untyped-call]
        rows, None, None, table.detach(), None, indices, settings
    )
    return result[0]


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

    which equals ``expected_embedding(softmax_relaxation(z, u, excluded_ids), table)`` in forward and backward pass.
    Logits and probabilities are computed for ``chunk_size`` tokens of the vocabulary at a time, with a running maximum
    and sum (Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018), and again in the backward pass.
    Leave out positions that are not needed, as in ``input[mask]``.

    On an accelerator the products of bfloat16 states are computed in bfloat16, everything else in float32. Compared
    with float64 from the same logits, y differs by at most 0.8% of the largest entry of the table.

    Argument names are those of ``torch.nn.functional.linear_cross_entropy``. Gradients reach ``input``,
    ``linear_weight`` and ``linear_bias``; they cannot be differentiated again.

    Args:
        input: h, shape (..., features).
        linear_weight: W, the output layer's weight, shape (vocabulary, features).
        table: E, frozen, shape (vocabulary, width).
        target: token ids, shape (...). With a target the cross-entropy is returned too, from the same pass. It is
            computed at temperature 1 over all tokens, including the excluded ones.
        linear_bias: b, shape (vocabulary,).
        temperature: u, above 0. A temperature below 1 sharpens the probabilities, towards one-hot.
        excluded_ids: tokens that get no probability, such as special tokens.
        reduction: of the cross-entropy: ``"mean"`` over the targets that are not ignored, ``"sum"`` or ``"none"``.
        ignore_index: target id that the cross-entropy ignores.
        chunk_size: tokens of the vocabulary per chunk. Smaller chunks need less memory; below some hundreds, matrix
            products become inefficient. Default: 2,048 on a CPU; on an accelerator as many as give 2**26 logits.

    Returns:
        y, shape (..., width), float64 if an argument is, else float32. With a target also the cross-entropy in the same
        precision: a scalar, or with ``reduction="none"`` shape (...), 0 at ignored positions. If all targets are
        ignored, the mean is NaN without gradient, as in PyTorch.

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
    vocab_size = len(linear_weight)
    if len(table) != vocab_size:
        raise ValueError(
            f"table must have a row for each of the {vocab_size} tokens of linear_weight, got shape "
            f"{tuple(table.shape)}. Generator and encoder must share their vocabulary."
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
    settings = _Settings(temperature, [*excluded_ids], chunk_size, dtype, product=product_dtype(input, dtype))
    positions = input.shape[:-1]
    rows = input.reshape(-1, input.shape[-1])  # (positions, features)
    if linear_bias is not None:
        linear_bias = linear_bias.to(dtype)
    target_column = None if target is None else target.reshape(-1, 1)  # (positions, 1)
    result: tuple[Tensor, Tensor] = _ExpectedEmbedding.apply(  # type: ignore[no-untyped-call]
        rows, linear_weight, linear_bias, table, target_column, None, settings
    )
    y = result[0].view(*positions, table.shape[1])
    if target is None:
        return y
    is_ignored = target == ignore_index
    surprisal = result[1].view(positions).masked_fill(is_ignored, 0.0)
    if reduction == "none":
        return y, surprisal
    if reduction == "sum":
        return y, surprisal.sum()
    # Divide by 0 if all targets are ignored: the result is NaN, as in PyTorch.
    return y, surprisal.sum() / (~is_ignored).sum()


def require_token_ids(target: Tensor, needed: Tensor, vocab_size: int, ignore_index: int) -> None:
    """Raise a ValueError if labels hold ids outside the vocabulary at needed positions."""
    # Check labels on the CPU only, because the check would synchronize an accelerator and break a compiled graph.
    if target.device.type != "cpu" or torch.compiler.is_compiling():
        return
    is_outside = (target < 0) | (target >= vocab_size)
    if (needed & is_outside).any():
        raise ValueError(
            f"target holds ids outside the vocabulary of {vocab_size}. Mark positions to ignore with "
            f"ignore_index={ignore_index}."
        )


@dataclass(frozen=True)
class _Settings:
    """Settings and precisions of an expected embedding."""

    temperature: float
    excluded_ids: list[int]
    chunk_size: int | None  # tokens of the vocabulary per chunk; None chooses them for the device
    dtype: torch.dtype  # of everything except matrix products
    product: torch.dtype  # of matrix products


def product_dtype(values: Tensor, dtype: torch.dtype) -> torch.dtype:
    """Return the precision of matrix products: bfloat16 for bfloat16 values on an accelerator, else ``dtype``.

    Products of float16 values are computed in ``dtype``, because float16 would lose small gradients.
    """
    if values.device.type != "cpu" and values.dtype == torch.bfloat16:
        return torch.bfloat16
    return dtype


def _multiply(rows: Tensor, weight: Tensor, settings: _Settings) -> Tensor:
    r"""Return :math:`x W^\top`, computed in the precision of products."""
    return linear(rows.to(settings.product), weight.to(settings.product)).to(settings.dtype)


@dataclass
class _RunningSoftmax:
    """Softmax of rows whose logits come in chunks: the largest logit so far (peak), and the sum of exp((z - peak) / u).

    Peak and sum are two numbers, because their log-sum-exp would round large logits. Both are ``None`` before the first
    chunk.
    """

    temperature: float
    peak: Any = None  # (rows, 1)
    total: Any = None  # (rows, 1)

    def add_(self, z: Tensor) -> tuple[Tensor, Tensor | None]:
        """Add a chunk of logits, shape (rows, tokens). The logits are overwritten.

        Returns:
            The weights exp((z - peak) / u) of the chunk, and the factor that rescales earlier sums to the new peak. The
            factor is ``None`` for the first chunk.
        """
        earlier_peak = self.peak
        self.peak = z.amax(1, keepdim=True).clamp(min=torch.finfo(z.dtype).min)
        if earlier_peak is not None:
            self.peak = torch.maximum(earlier_peak, self.peak)
        weights = _exponentiate_(z, self.peak, self.temperature)
        total = weights.sum(1, keepdim=True)
        if earlier_peak is None:
            self.total = total
            return weights, None
        factor = ((earlier_peak - self.peak) / self.temperature).exp_()
        self.total = self.total * factor + total
        return weights, factor


class _GivenLogits:
    """Logits that exist as a tensor, as the source of chunks of logits and the receiver of their gradient."""

    def __init__(self, logits: Tensor, indices: Tensor | None) -> None:
        self.rows = logits  # (positions, vocabulary)
        self.indices = indices  # rows that are needed, None for all; the gradient of the others is 0
        self.num_rows = len(logits) if indices is None else len(indices)
        self.vocab_size = logits.shape[1]
        self._grad_logits: Tensor | None = None

    def read(self, part: slice, buffer: Tensor) -> Tensor:
        """Return the logits of a part of the vocabulary, shape (rows, tokens), which may be the buffer."""
        logits = self.rows[:, part]
        if self.indices is not None:
            logits = logits.index_select(0, self.indices)
        return buffer.copy_(logits)

    def start_gradients(self, needed: Sequence[bool]) -> None:
        """Allocate the gradient of the logits if it is needed."""
        if not needed[0]:
            return
        if self.indices is None:
            # Zeros are not necessary, because the chunks write all rows.
            self._grad_logits = torch.empty_like(self.rows)
        else:
            self._grad_logits = torch.zeros_like(self.rows)

    def add_gradient(self, part: slice, grad: Tensor) -> None:
        """Write the gradient of the logits of a part of the vocabulary, shape (rows, tokens)."""
        if self._grad_logits is None:
            return
        if self.indices is None:
            self._grad_logits[:, part] = grad
        else:
            self._grad_logits[:, part].index_copy_(0, self.indices, grad.to(self.rows.dtype))

    def gradients(self) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """Return the gradient of the logits; there is no weight and no bias."""
        return self._grad_logits, None, None


class _HiddenStates:
    """Hidden states with an output layer, as the source of chunks of logits and the receiver of their gradient."""

    def __init__(self, states: Tensor, weight: Tensor, bias: Tensor | None, settings: _Settings) -> None:
        self.rows = states.to(settings.product)  # (rows, features)
        self.weight = weight  # (vocabulary, features)
        self.bias = bias  # (vocabulary,)
        self.settings = settings
        self.num_rows = len(states)
        self.vocab_size = len(weight)
        self._states_dtype = states.dtype
        self._needs_grad_states = False
        self._grad_states: Tensor | None = None
        self._grad_weight: Tensor | None = None
        self._grad_bias: Tensor | None = None

    def read(self, part: slice, buffer: Tensor) -> Tensor:
        """Return the logits of a part of the vocabulary, shape (rows, tokens), which may be the buffer."""
        weight = self.weight[part].to(self.rows.dtype)
        bias = None if self.bias is None else self.bias[part]
        if self.settings.product != self.settings.dtype:
            # The product is in bfloat16, but the bias is added in the precision of everything else.
            buffer.copy_(self.rows @ weight.t())
            return buffer if bias is None else buffer.add_(bias)
        if can_use_onednn(self.rows, weight):
            return linear(self.rows, weight, bias)
        if bias is None:
            # With beta=0, addmm ignores what the buffer holds.
            return buffer.addmm_(self.rows, weight.t(), beta=0)
        return buffer.copy_(bias).addmm_(self.rows, weight.t())

    def start_gradients(self, needed: Sequence[bool]) -> None:
        """Allocate the gradients of weight and bias that are needed."""
        self._needs_grad_states = needed[0]
        if needed[1]:
            self._grad_weight = torch.empty_like(self.weight)
        if needed[2]:
            self._grad_bias = torch.empty_like(self.bias)  # type: ignore[arg-type]

    def add_gradient(self, part: slice, grad: Tensor) -> None:
        """Add the contribution of a part of the vocabulary, the gradient of its logits, shape (rows, tokens)."""
        if self._grad_bias is not None:
            self._grad_bias[part] = grad.sum(0)
        grad = grad.to(self.settings.product)
        if self._needs_grad_states:
            grad_states = _multiply(grad, self.weight[part].t(), self.settings)  # (rows, features)
            if self._grad_states is not None:
                grad_states = self._grad_states.add_(grad_states)
            self._grad_states = grad_states
        if self._grad_weight is not None:
            self._grad_weight[part] = grad.t() @ self.rows

    def gradients(self) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """Return the gradients of hidden states, weight and bias."""
        grad_states = self._grad_states
        if grad_states is not None:
            grad_states = grad_states.to(self._states_dtype)
        return grad_states, self._grad_weight, self._grad_bias


class _ExpectedEmbedding(torch.autograd.Function):
    """Expected embeddings y and, with a target, its surprisal -log p(target) over all tokens at temperature 1.

    The input is logits or, with the weight and bias of an output layer, hidden states. The vocabulary is processed in
    chunks, so that there is never a second tensor of all logits.
    """

    @staticmethod
    def forward(
        ctx: Any,
        states: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        table: Tensor,
        target: Tensor | None,
        indices: Tensor | None,
        settings: _Settings,
    ) -> tuple[Tensor, Tensor | None]:
        """Return y of the needed rows, shape (rows, width), and the surprisals, shape (rows, 1)."""
        require_positive("temperature", settings.temperature)
        with torch.autocast(device_type=states.device.type, enabled=False):
            source = _make_source(states, weight, bias, indices, settings)
            content = _RunningSoftmax(settings.temperature)  # without excluded tokens
            full = _RunningSoftmax(temperature=1.0)  # all tokens, for the surprisal
            y: Any = None
            target_logit: Any = 0.0
            for chunk in _read_chunks(source, settings, num_buffers=1 if target is None else 2):
                if target is not None:
                    # Work on a copy, because add_ overwrites the logits.
                    full.add_(chunk.spare.copy_(chunk.logits))
                    is_inside, column = _locate(target, chunk.part)
                    target_logit = torch.where(is_inside, chunk.logits.gather(1, column), target_logit)
                if chunk.excluded is not None:
                    # Use the lowest finite number, because a row whose other logits are -inf would become NaN.
                    chunk.logits.index_fill_(1, chunk.excluded, torch.finfo(settings.dtype).min)
                weights, factor = content.add_(chunk.logits)
                expected = _multiply(weights, table[chunk.part].t(), settings)  # (rows, width)
                if factor is None:
                    y = expected
                else:
                    y.mul_(factor).add_(expected)
            y.div_(content.total)
            surprisal = None
            if target is not None:
                surprisal = full.peak - target_logit + full.total.log()
        ctx.set_materialize_grads(False)
        ctx.settings = settings
        ctx.indices = indices
        ctx.save_for_backward(
            states, weight, bias, table, target, y, content.peak, content.total, full.peak, full.total
        )
        return y, surprisal

    @staticmethod
    def backward(ctx: Any, grad_y: Tensor | None, grad_surprisal: Tensor | None) -> tuple[Tensor | None, ...]:
        """Return the gradients of logits or hidden states, weight and bias."""
        # torch's once_differentiable would not raise an error: it treats a constant upstream gradient as a constant.
        if torch.is_grad_enabled():
            raise RuntimeError(
                "expected embeddings cannot be differentiated twice. Leave out create_graph=True, or use "
                "softmax_relaxation(logits) @ table."
            )
        if grad_y is None and grad_surprisal is None:
            return (None,) * 7
        states, weight, bias, table, target, y, peak, total, full_peak, full_total = ctx.saved_tensors
        settings = ctx.settings
        temperature = settings.temperature
        with torch.autocast(device_type=states.device.type, enabled=False):
            source = _make_source(states, weight, bias, ctx.indices, settings)
            source.start_gradients(ctx.needs_input_grad)
            if grad_y is not None:
                # Divide here and not in every chunk: p = weights / total, and dp/dz has a factor 1 / u.
                scale = total if temperature == 1 else total * temperature  # (rows, 1)
                grad_y = grad_y / scale
                mean = (grad_y * y).sum(1, keepdim=True)  # (rows, 1)
            for chunk in _read_chunks(source, settings, num_buffers=1 if grad_surprisal is None else 2):
                # The gradient of softmax cross-entropy is p - 1 at the target and p elsewhere.
                if grad_surprisal is not None:
                    is_inside, column = _locate(target, chunk.part)
                    grad = _exponentiate_(chunk.spare.copy_(chunk.logits), full_peak, 1.0)
                    grad.mul_(grad_surprisal / full_total)
                    grad.scatter_add_(1, column, torch.where(is_inside, -grad_surprisal, 0.0))
                # The gradient of y = p E is p (grad_y E^T - mean), where mean is the expectation of grad_y E^T.
                if grad_y is not None:
                    weights = _exponentiate_(chunk.logits, peak, temperature)
                    if chunk.excluded is not None:
                        weights.index_fill_(1, chunk.excluded, 0.0)
                    difference = _multiply(grad_y, table[chunk.part], settings).sub_(mean)  # (rows, tokens)
                    if grad_surprisal is None:
                        grad = weights.mul_(difference)
                    else:
                        grad = grad.addcmul_(weights, difference)
                source.add_gradient(chunk.part, grad)
        return *source.gradients(), None, None, None, None


def _make_source(
    states: Tensor, weight: Tensor | None, bias: Tensor | None, indices: Tensor | None, settings: _Settings
) -> _GivenLogits | _HiddenStates:
    """Return the source of logits: with a weight the states are hidden states, otherwise they are the logits."""
    if weight is None:
        return _GivenLogits(states, indices)
    return _HiddenStates(states, weight, bias, settings)


class _Chunk(NamedTuple):
    """Logits of a part of the vocabulary. The next chunk overwrites both buffers."""

    part: slice  # ids of the tokens
    excluded: Tensor | None  # columns of the excluded tokens, None if there are none
    logits: Tensor  # (rows, tokens)
    spare: Tensor  # a second buffer of this shape, or the first one if there is no second


def _read_chunks(source: _GivenLogits | _HiddenStates, settings: _Settings, num_buffers: int) -> Iterator[_Chunk]:
    """Yield the logits of a source in chunks of the vocabulary, with one or two buffers."""
    device = source.rows.device
    num_rows = source.num_rows
    vocab_size = source.vocab_size
    size = settings.chunk_size or _TOKENS_PER_CHUNK
    if settings.chunk_size is None and device.type != "cpu":
        # Round to a multiple of 128, because kernels compute products in tiles of this width.
        tokens_that_fit = _LOGITS_PER_CHUNK // max(num_rows, 1) // 128 * 128
        size = max(tokens_that_fit, size)
    # Reuse the memory for all chunks, because to allocate it for each would take longer than to compute the logits.
    memory = source.rows.new_empty(num_buffers, num_rows * min(size, vocab_size), dtype=settings.dtype)
    for start in range(0, vocab_size, size):
        part = slice(start, min(start + size, vocab_size))
        num_tokens = part.stop - part.start
        # The last chunk may be smaller, so take the beginning of the memory.
        buffers = memory[:, : num_rows * num_tokens].view(num_buffers, num_rows, num_tokens)
        logits = source.read(part, buffers[0])
        columns = [token - start for token in settings.excluded_ids if start <= token < part.stop]
        excluded = constant(columns, device) if columns else None
        yield _Chunk(part, excluded, logits, spare=buffers[-1])


def _exponentiate_(z: Tensor, peak: Tensor, temperature: float) -> Tensor:
    """Return exp((z - peak) / u), computed in place.

    Denormal results become 0, because a CPU multiplies denormal numbers about 10 times slower.
    """
    z.sub_(peak)
    if temperature != 1:
        z.div_(temperature)
    if z.device.type == "cpu":
        log_smallest_normal = math.log(torch.finfo(z.dtype).tiny)
        torch.threshold_(z, log_smallest_normal, -math.inf)
    return z.exp_()


def _locate(target: Tensor, part: slice) -> tuple[Tensor, Tensor]:
    """Return which targets are in a chunk, and their columns in it, 0 for the others, shape (rows, 1) each."""
    is_inside = (target >= part.start) & (target < part.stop)
    return is_inside, torch.where(is_inside, target - part.start, 0)
