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
    target_column = None
    if target is not None:
        target_column = target.reshape(-1, 1)  # (positions, 1)
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
        # The peak is finite, because a row of -inf minus a peak of -inf would be NaN.
        self.peak = z.amax(1, keepdim=True).clamp(min=torch.finfo(z.dtype).min)  # (rows, 1)
        if earlier_peak is not None:
            self.peak = torch.maximum(earlier_peak, self.peak)
        weights = self.weigh_(z)
        total_of_chunk = weights.sum(1, keepdim=True)  # (rows, 1)
        if earlier_peak is None:
            self.total = total_of_chunk
            return weights, None
        factor = ((earlier_peak - self.peak) / self.temperature).exp_()  # (rows, 1)
        self.total = self.total * factor + total_of_chunk
        return weights, factor

    def weigh_(self, z: Tensor) -> Tensor:
        """Return the weights exp((z - peak) / u) of logits, which are overwritten.

        Denormal results become 0, because a CPU multiplies denormal numbers about 10 times slower.
        """
        z.sub_(self.peak)
        if self.temperature != 1:
            z.div_(self.temperature)
        if z.device.type == "cpu":
            log_smallest_normal = math.log(torch.finfo(z.dtype).tiny)
            torch.threshold_(z, log_smallest_normal, -math.inf)
        return z.exp_()


class _GivenLogits:
    """Logits that exist as a tensor, as the source of chunks of logits and the receiver of their gradient."""

    def __init__(self, logits: Tensor, indices: Tensor | None) -> None:
        self.rows = logits  # (positions, vocabulary)
        self.indices = indices  # rows that are needed, None for all; the gradient of the others is 0
        self.num_rows = len(logits)
        if indices is not None:
            self.num_rows = len(indices)
        self.vocab_size = logits.shape[1]
        self._grad_logits: Tensor | None = None

    def read(self, part: slice, buffer: Tensor) -> Tensor:
        """Return the logits of a part of the vocabulary, shape (rows, tokens), which may be the buffer."""
        logits = self.rows[:, part]
        if self.indices is not None:
            logits = logits.index_select(0, self.indices)
        # Copy the logits also without indices, because the chunk is overwritten, and to convert half precision.
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
        columns = self._grad_logits[:, part]  # (positions, tokens), a view
        if self.indices is None:
            columns.copy_(grad)
        else:
            columns.index_copy_(0, self.indices, grad.to(self.rows.dtype))

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
        bias = None
        if self.bias is not None:
            bias = self.bias[part]
        if self.settings.product != self.settings.dtype:
            # The product is in bfloat16, but the bias is added in the precision of everything else.
            buffer.copy_(self.rows @ weight.t())
            if bias is not None:
                buffer.add_(bias)
            return buffer
        if can_use_onednn(self.rows, weight):
            return linear(self.rows, weight, bias)
        if bias is None:
            # With beta=0, addmm ignores what the buffer holds.
            return buffer.addmm_(self.rows, weight.t(), beta=0)
        # The buffer becomes the bias in each row, and the product is added to it.
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
                # Every chunk of the vocabulary adds to the gradient of all states, unlike to that of weight and bias.
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


class _Chunk(NamedTuple):
    """Logits of a part of the vocabulary. The next chunk overwrites both buffers."""

    part: slice  # ids of the tokens
    excluded: Tensor | None  # columns of the excluded tokens, None if there are none
    logits: Tensor  # (rows, tokens)
    spare: Tensor  # a second buffer of this shape, or the first one if there is no second


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
        num_buffers = 1
        if target is not None:
            num_buffers = 2
        with torch.autocast(device_type=states.device.type, enabled=False):
            source = _make_source(states, weight, bias, indices, settings)
            content = _RunningSoftmax(settings.temperature)  # without excluded tokens
            full = _RunningSoftmax(temperature=1.0)  # all tokens, for the surprisal
            # Sum over the chunks of weights times embeddings, with the weights of the content's current peak.
            y: Any = None  # (rows, width)
            target_logit: Any = 0.0  # (rows, 1)
            for chunk in _read_chunks(source, settings, num_buffers):
                if target is not None:
                    is_inside, column = _locate(target, chunk.part)
                    target_logit = torch.where(is_inside, chunk.logits.gather(1, column), target_logit)
                    # add_ overwrites the logits, which are needed below, so give it a copy in the spare buffer.
                    full.add_(chunk.spare.copy_(chunk.logits))
                if chunk.excluded is not None:
                    # Use the lowest finite number, because a row whose other logits are -inf would become NaN.
                    chunk.logits.index_fill_(1, chunk.excluded, torch.finfo(settings.dtype).min)
                weights, factor = content.add_(chunk.logits)  # the logits become the weights, (rows, tokens)
                expected = _multiply(weights, table[chunk.part].t(), settings)  # (rows, width)
                if factor is None:
                    y = expected
                else:
                    # Scale the sum of the earlier chunks to the new peak.
                    y.mul_(factor).add_(expected)
            # The sum of weights times embeddings becomes their mean.
            y.div_(content.total)
            surprisal = None
            if target is not None:
                surprisal = full.peak - target_logit + full.total.log()  # (rows, 1)
        ctx.set_materialize_grads(False)
        ctx.settings = settings
        ctx.indices = indices
        ctx.save_for_backward(
            states, weight, bias, table, target, y, content.peak, content.total, full.peak, full.total
        )
        return y, surprisal

    @staticmethod
    def backward(ctx: Any, grad_y: Tensor | None, grad_surprisal: Tensor | None) -> tuple[Tensor | None, ...]:
        """Return the gradients of logits or hidden states, weight and bias. Raise an error if it is differentiated."""
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
        content = _RunningSoftmax(settings.temperature, peak, total)
        full = _RunningSoftmax(1.0, full_peak, full_total)
        num_buffers = 1
        if grad_surprisal is not None:
            num_buffers = 2
        with torch.autocast(device_type=states.device.type, enabled=False):
            source = _make_source(states, weight, bias, ctx.indices, settings)
            source.start_gradients(ctx.needs_input_grad)
            upstream = None
            if grad_y is not None:
                upstream = _UpstreamGradient.scale(grad_y, y, content)
            # The logits are computed again, because saving them would take as much memory as all logits.
            for chunk in _read_chunks(source, settings, num_buffers):
                grad = None
                if grad_surprisal is not None:
                    # This leaves the chunk's logits as they are, and overwrites the spare buffer.
                    grad = _surprisal_gradient(chunk, target, full, grad_surprisal)
                if upstream is not None:
                    grad = _add_embedding_gradient_(grad, chunk, table[chunk.part], content, upstream, settings)
                assert grad is not None
                source.add_gradient(chunk.part, grad)
        return *source.gradients(), None, None, None, None


def _surprisal_gradient(chunk: _Chunk, target: Tensor, full: _RunningSoftmax, grad_surprisal: Tensor) -> Tensor:
    """Return the gradient of the surprisals with respect to a chunk of logits, in the spare buffer.

    For a row with the upstream gradient g it is g (p - 1) at the target and g p elsewhere, as for cross-entropy.
    """
    logits = chunk.spare.copy_(chunk.logits)
    grad = full.weigh_(logits)  # (rows, tokens)
    # The weights become g p, because p = weights / total.
    grad.mul_(grad_surprisal / full.total)
    is_inside, column = _locate(target, chunk.part)
    # Subtract g at the target. Rows whose target is in another chunk add 0 to their first column.
    grad.scatter_add_(1, column, torch.where(is_inside, -grad_surprisal, 0.0))
    return grad


class _UpstreamGradient(NamedTuple):
    """Gradient of the expected embeddings y, divided by the total of their softmax and by its temperature."""

    rows: Tensor  # grad_y / (total u), (rows, width)
    mean: Tensor  # expectation of its product with the embedding of a token, (rows, 1)

    @classmethod
    def scale(cls, grad_y: Tensor, y: Tensor, content: _RunningSoftmax) -> "_UpstreamGradient":
        """Return the gradient after the divisions, which are made once here and not in every chunk."""
        divisor = content.total  # (rows, 1)
        if content.temperature != 1:
            divisor = divisor * content.temperature
        rows = grad_y / divisor
        return cls(rows, (rows * y).sum(1, keepdim=True))


def _add_embedding_gradient_(
    grad: Tensor | None,
    chunk: _Chunk,
    embeddings: Tensor,
    content: _RunningSoftmax,
    upstream: _UpstreamGradient,
    settings: _Settings,
) -> Tensor:
    r"""Add the gradient of y with respect to a chunk of logits to ``grad``, or return it if that is ``None``.

    With :math:`y = \sum_k p_k E_k` and the upstream gradient g, the derivative to logit k is
    :math:`p_k (g \cdot E_k - g \cdot y) / u`. The logits of the chunk are overwritten.

    Args:
        grad: gradient of the surprisals, shape (rows, tokens), which is overwritten.
        chunk: the chunk of logits.
        embeddings: embeddings of its tokens, shape (tokens, width).
        content: the softmax of the expected embeddings.
        upstream: g / (total u), and its mean.
        settings: the settings.
    """
    weights = content.weigh_(chunk.logits)  # the logits become p times the total, (rows, tokens)
    if chunk.excluded is not None:
        weights.index_fill_(1, chunk.excluded, 0.0)
    difference = _multiply(upstream.rows, embeddings, settings).sub_(upstream.mean)  # (rows, tokens)
    # Write into a buffer of the chunk, whose logits are not needed any more.
    if grad is None:
        return weights.mul_(difference)
    return grad.addcmul_(weights, difference)


def _make_source(
    states: Tensor, weight: Tensor | None, bias: Tensor | None, indices: Tensor | None, settings: _Settings
) -> _GivenLogits | _HiddenStates:
    """Return the source of logits: with a weight the states are hidden states, otherwise they are the logits."""
    if weight is None:
        return _GivenLogits(states, indices)
    return _HiddenStates(states, weight, bias, settings)


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
        excluded = None
        if columns:
            excluded = constant(columns, device)
        yield _Chunk(part, excluded, logits, spare=buffers[-1])


def _locate(target: Tensor, part: slice) -> tuple[Tensor, Tensor]:
    """Return which targets are in a chunk, and their columns in it, 0 for the others, shape (rows, 1) each."""
    is_inside = (target >= part.start) & (target < part.stop)
    return is_inside, torch.where(is_inside, target - part.start, 0)
