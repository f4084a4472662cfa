"""Linear layers computed by oneDNN on a CPU, with frozen weights packed once.

torch multiplies float32 matrices with the BLAS library that it was built with, which is slow on some CPUs, and repacks
bfloat16 weights at every call. oneDNN, which torch bundles, is fast on all, and can keep a frozen weight packed. In
float32, MKL is as fast on processors of Intel and needs no packing: there torch's functions are used.

Set the environment variable ``BERTSCORE_TM_ONEDNN=0`` or call :class:`disable_onednn` to use torch's functions only;
``BERTSCORE_TM_ONEDNN=1`` uses oneDNN on every processor.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import cache
from types import TracebackType
from typing import Any, cast

import torch
from torch import Tensor, nn

__all__ = [
    "FrozenLinear",
    "PackedLinear",
    "can_use_onednn",
    "disable_onednn",
    "is_eager",
    "linear",
    "pack_linears",
    "pack_weight",
    "transposed_matmul",
]

# oneDNN compiles a kernel for every number of rows, about half a megabyte, and keeps it. So matrices are cut into
# pieces of at most this many rows, and of a multiple of the step, padded if necessary.
_MAX_ROWS, _ROW_STEP = 512, 32


class disable_onednn:  # noqa: N801
    """Compute with torch's functions only, from the call on; as a context manager, until its end.

    Applies to the whole process, also to layers whose weights are packed already. Scores change by float rounding.

    Example:
        >>> with disable_onednn():
        ...     can_use_onednn(torch.ones(2, 3), torch.ones(4, 3))
        False
    """

    # The only state of the switch.
    is_disabled = os.environ.get("BERTSCORE_TM_ONEDNN", "1") == "0"

    def __init__(self) -> None:
        self.before = disable_onednn.is_disabled
        disable_onednn.is_disabled = True

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        disable_onednn.is_disabled = self.before


def is_eager() -> bool:
    """Check that code is neither compiled nor transformed by ``torch.func``, which custom gradients do not support.

    Returns:
        Whether it runs eagerly.

    Example:
        >>> is_eager(), torch.func.vmap(lambda x: x + is_eager())(torch.zeros(2))
        (True, tensor([0., 0.]))
    """
    return not torch.compiler.is_compiling() and not torch._C._are_functorch_transforms_active()


def can_use_onednn(rows: Tensor, weight: Tensor) -> bool:
    """Check whether oneDNN can multiply two matrices, and is not disabled.

    Args:
        rows: shape (..., features).
        weight: shape (outputs, features).

    Returns:
        Whether both are plain tensors on the CPU, of one dtype in which oneDNN is to be used, in eager code.

    Example:
        >>> can_use_onednn(torch.ones(2, 3, dtype=torch.float64), torch.ones(4, 3, dtype=torch.float64))
        False
    """
    return (
        not disable_onednn.is_disabled
        and is_eager()
        and type(rows) is Tensor
        and rows.dtype == weight.dtype
        and rows.numel() > 0
        and _is_supported(weight)
    )


def _is_supported(weight: Tensor) -> bool:
    """Check whether torch was built with oneDNN and has the operators used here, for the weight's device and dtype.

    torch has no public function for a packed weight. This file uses three private operators: ``_linear_pointwise``
    (a linear layer), ``_reorder_linear_weight`` (packing) and ``_is_mkldnn_bf16_supported`` (whether the CPU has
    bfloat16 instructions). If a version of torch lacks one, or oneDNN is turned off in ``torch.backends.mkldnn``,
    torch's public functions are used everywhere.
    """
    if weight.device.type != "cpu" or weight.dtype not in (torch.float32, torch.bfloat16):
        return False
    backend: Any = torch.backends.mkldnn
    if not backend.is_available() or not backend.enabled:
        return False
    operators = torch.ops.mkldnn
    if not all(hasattr(operators, name) for name in ("_linear_pointwise", "_reorder_linear_weight")):
        return False
    if weight.dtype == torch.float32:
        return os.environ.get("BERTSCORE_TM_ONEDNN") == "1" or not _has_fast_blas()
    return hasattr(operators, "_is_mkldnn_bf16_supported") and bool(operators._is_mkldnn_bf16_supported())


@cache
def _has_fast_blas() -> bool:
    """Check whether torch's BLAS library is MKL and the processor one of Intel, for which MKL is made."""
    # Older versions of torch do not know the processor's name.
    capabilities: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    has_mkl: bool = torch.backends.mkl.is_available()  # type: ignore[no-untyped-call]
    return has_mkl and str(capabilities.get("cpu_name")).startswith("Intel")


def pack_weight(weight: Tensor) -> Tensor:
    """Return a weight in the memory layout that oneDNN reads fastest.

    Args:
        weight: shape (outputs, features).

    Returns:
        An opaque tensor, for the argument ``packed`` of :func:`linear`.
    """
    with torch.inference_mode(False), torch.no_grad():
        packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), _MAX_ROWS)
        return packed


def linear(rows: Tensor, weight: Tensor, bias: Tensor | None = None, packed: Tensor | None = None) -> Tensor:
    r"""Return :math:`x W^\top + b`, without gradient, by oneDNN where possible.

    Args:
        rows: x, shape (rows, features).
        weight: W, shape (outputs, features); a transposed view is fine.
        bias: b, shape (outputs,).
        packed: the output of :func:`pack_weight` for the weight.

    Returns:
        Shape (rows, outputs).

    Example:
        >>> linear(torch.ones(1, 3), torch.eye(3), torch.ones(3))
        tensor([[2., 2., 2.]])
    """
    if not can_use_onednn(rows, weight):
        return nn.functional.linear(rows, weight, bias)
    if 0 in rows.stride():
        rows = rows.contiguous()
    result: Tensor | None = None
    for start, count, padding in _pieces(len(rows)):
        part = rows[start : start + count]
        if padding:
            part = nn.functional.pad(part, (0, 0, 0, padding))
        product: Tensor = torch.ops.mkldnn._linear_pointwise(
            part, weight if packed is None else packed, bias, "none", [], ""
        )
        if count == len(rows) and not padding:
            return product
        if result is None:
            result = product.new_empty(len(rows), product.shape[1])
        result[start : start + count] = product[:count]
    assert result is not None
    return result


def transposed_matmul(left: Tensor, right: Tensor) -> Tensor:
    r"""Return :math:`A^\top B`, without gradient, by oneDNN where possible.

    Args:
        left: A, shape (rows, features).
        right: B, shape (rows, outputs).

    Returns:
        Shape (features, outputs).

    Example:
        >>> transposed_matmul(torch.tensor([[1.0], [2.0]]), torch.tensor([[3.0], [4.0]]))
        tensor([[11.]])
    """
    if not can_use_onednn(left, right):
        return left.t() @ right
    total: Tensor | None = None
    for start, count, padding in _pieces(len(left)):
        parts = [side[start : start + count] for side in (left, right)]
        if padding:
            parts = [nn.functional.pad(part, (0, 0, 0, padding)) for part in parts]
        product = linear(parts[0].t(), parts[1].t())
        total = product if total is None else total.add_(product)
    assert total is not None
    return total


class FrozenLinear(torch.autograd.Function):
    """A linear layer with a frozen weight, whose gradient is computed by oneDNN too."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor, bias: Tensor | None, packed: Tensor | None) -> Tensor:
        """Return the output; arguments as in :func:`linear`."""
        ctx.save_for_backward(weight)
        return linear(rows, weight, bias, packed)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradient with respect to the rows."""
        (weight,) = ctx.saved_tensors
        # With create_graph=True, the gradient is differentiated again.
        grad_rows = grad @ weight if torch.is_grad_enabled() else linear(grad, weight.t())
        return grad_rows, None, None, None


class PackedLinear(nn.Linear):
    """A frozen ``nn.Linear`` that keeps a packed copy of its weight, for use on a CPU.

    Elsewhere it behaves as ``nn.Linear``. Outputs differ from those of ``nn.Linear`` by the order of summation only.
    """

    def forward(self, input: Tensor) -> Tensor:
        """Return the output."""
        trained = self.weight.requires_grad or (self.bias is not None and self.bias.requires_grad)
        if not can_use_onednn(input, self.weight) or (trained and torch.is_grad_enabled()):
            return super().forward(input)
        packed = self.__dict__.get("_packed")
        if packed is None:
            packed = self.__dict__["_packed"] = pack_weight(self.weight)
        rows = input.reshape(-1, self.in_features)
        if torch.is_grad_enabled() and input.requires_grad:
            output: Tensor = FrozenLinear.apply(rows, self.weight, self.bias, packed)  # type: ignore[no-untyped-call]
        else:
            output = linear(rows, self.weight, self.bias, packed)
        return output.view(*input.shape[:-1], self.out_features)

    def __getstate__(self) -> dict[str, Any]:
        # A copy packs its weight itself, as it may be moved to another device or dtype.
        return {name: value for name, value in self.__dict__.items() if name != "_packed"}


def pack_linears(model: nn.Module) -> None:
    """Turn the linear layers of a frozen model on the CPU into packed ones, in place.

    Args:
        model: the model; nothing else may use it.
    """
    for module in model.modules():
        if type(module) is nn.Linear and _is_supported(module.weight):
            cast(Any, module).__class__ = PackedLinear


def _pieces(rows: int) -> Iterator[tuple[int, int, int]]:
    """Cut rows into pieces of few different sizes; yield each piece's start, rows, and rows of padding."""
    start = 0
    while start < rows:
        left = min(rows - start, _MAX_ROWS)
        count = left // _ROW_STEP * _ROW_STEP or left
        yield start, count, max(_ROW_STEP - count, 0)
        start += count
