"""Linear layers computed by oneDNN on a CPU, with frozen weights packed once.

torch multiplies float32 matrices with the BLAS library that it was built with, which is slow on some CPUs, and repacks
bfloat16 weights at every call. oneDNN, which torch bundles, is fast on all, and can keep a frozen weight packed.

The environment variable ``BERTSCORE_TM_ONEDNN`` is the switch: ``0`` uses torch's functions only, ``1`` uses oneDNN on
every processor. By default, float32 is left to torch on processors of Intel, where MKL is as fast without packing.
Scores change by float rounding only.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import cache
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

__all__ = ["FrozenLinear", "PackedLinear", "can_use_onednn", "is_eager", "linear", "pack_linears", "transposed_matmul"]

# oneDNN compiles a kernel for every number of rows, about half a megabyte, and keeps it. So matrices are cut into
# pieces of at most this many rows, and of a multiple of the step, padded if necessary.
_MAX_ROWS, _ROW_STEP = 512, 32


def is_eager() -> bool:
    """Check that code is neither compiled nor transformed by ``torch.func``, which custom gradients do not support."""
    return not torch.compiler.is_compiling() and not torch._C._are_functorch_transforms_active()


def can_use_onednn(rows: Tensor, weight: Tensor) -> bool:
    """Check whether oneDNN is to multiply two matrices, shapes (..., features) and (outputs, features)."""
    is_plain = is_eager() and type(rows) is Tensor and rows.numel() > 0
    return is_plain and rows.dtype == weight.dtype and _is_supported(weight)


def _is_supported(weight: Tensor) -> bool:
    """Check the switch, the weight's device and dtype, and that torch has the private operators used in this file.

    torch has no public function for a packed weight. ``_linear_pointwise`` is a linear layer,
    ``_reorder_linear_weight`` packs, and ``_is_mkldnn_bf16_supported`` tells whether the CPU has bfloat16 instructions.
    """
    switch, operators = os.environ.get("BERTSCORE_TM_ONEDNN"), torch.ops.mkldnn
    backend: Any = torch.backends.mkldnn
    if weight.device.type != "cpu" or switch == "0" or not backend.is_available() or not backend.enabled:
        return False
    if not all(hasattr(operators, name) for name in ("_linear_pointwise", "_reorder_linear_weight")):
        return False
    if weight.dtype == torch.float32:
        return switch == "1" or not _has_fast_blas()
    has_bfloat16 = weight.dtype == torch.bfloat16 and hasattr(operators, "_is_mkldnn_bf16_supported")
    return has_bfloat16 and bool(operators._is_mkldnn_bf16_supported())


@cache
def _has_fast_blas() -> bool:
    """Check whether torch's BLAS library is MKL and the processor one of Intel, for which MKL is made."""
    # Older versions of torch do not know the processor's name.
    capabilities: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    mkl: Any = torch.backends.mkl
    return bool(mkl.is_available()) and str(capabilities.get("cpu_name")).startswith("Intel")


def linear(rows: Tensor, weight: Tensor, bias: Tensor | None = None, packed: Tensor | None = None) -> Tensor:
    r"""Return :math:`x W^\top + b`, without gradient, by oneDNN where possible, such as where W has a packed copy."""
    if packed is None and not can_use_onednn(rows, weight):
        return functional.linear(rows, weight, bias)
    if 0 in rows.stride():
        rows = rows.contiguous()
    result, factor = rows.new_empty(len(rows), len(weight)), weight if packed is None else packed
    for part, (piece,) in _split_rows(rows):
        product: Tensor = torch.ops.mkldnn._linear_pointwise(piece, factor, bias, "none", [], "")
        if len(piece) == len(rows):
            return product  # not a view of it, as models may change it in place
        result[part] = product[: part.stop - part.start]
    return result


def transposed_matmul(left: Tensor, right: Tensor) -> Tensor:
    r"""Return :math:`A^\top B` of two matrices with equally many rows, without gradient, by oneDNN where possible."""
    if not can_use_onednn(left, right):
        return left.t() @ right
    total = left.new_zeros(left.shape[1], right.shape[1])
    for _, (left_rows, right_rows) in _split_rows(left, right):
        total += linear(left_rows.t(), right_rows.t())
    return total


def _split_rows(*matrices: Tensor) -> Iterator[tuple[slice, list[Tensor]]]:
    """Cut matrices into pieces of few different sizes; yield the place of each, and the pieces, padded by zeros."""
    start, rows = 0, len(matrices[0])
    while start < rows:
        left = min(rows - start, _MAX_ROWS)
        count = left // _ROW_STEP * _ROW_STEP or left
        part, padding = slice(start, start + count), max(_ROW_STEP - count, 0)
        yield part, [functional.pad(m[part], (0, 0, 0, padding)) if padding else m[part] for m in matrices]
        start += count


class FrozenLinear(torch.autograd.Function):
    """A linear layer with a frozen weight, whose gradient is computed by oneDNN too; arguments as :func:`linear`."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor, bias: Tensor | None, packed: Tensor | None) -> Tensor:
        """Return the output."""
        ctx.save_for_backward(weight)
        return linear(rows, weight, bias, packed)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradient with respect to the rows."""
        (weight,) = ctx.saved_tensors
        # With create_graph=True, the gradient is differentiated again.
        return grad @ weight if torch.is_grad_enabled() else linear(grad, weight.t()), None, None, None


class PackedLinear(nn.Linear):
    """A frozen ``nn.Linear`` that keeps a packed copy of its weight for a CPU, and elsewhere is a plain one."""

    def forward(self, input: Tensor) -> Tensor:
        """Return the output."""
        trained = self.weight.requires_grad or (self.bias is not None and self.bias.requires_grad)
        if not can_use_onednn(input, self.weight) or (trained and torch.is_grad_enabled()):
            return super().forward(input)
        packed = self.__dict__.get("_packed")
        if packed is None:
            with torch.inference_mode(False), torch.no_grad():
                packed = torch.ops.mkldnn._reorder_linear_weight(self.weight.detach(), _MAX_ROWS)
            self.__dict__["_packed"] = packed
        rows = input.reshape(-1, self.in_features)
        output: Tensor
        if torch.is_grad_enabled() and input.requires_grad:
            output = FrozenLinear.apply(rows, self.weight, self.bias, packed)  # type: ignore[no-untyped-call]
        else:
            output = linear(rows, self.weight, self.bias, packed)
        return output.view(*input.shape[:-1], self.out_features)

    def __getstate__(self) -> dict[str, Any]:
        # A copy packs its weight itself, as it may be moved to another device or dtype.
        return {name: value for name, value in self.__dict__.items() if name != "_packed"}


def pack_linears(model: nn.Module) -> None:
    """Turn the linear layers of a frozen model on the CPU, which nothing else uses, into packed ones, in place."""
    for module in model.modules():
        if type(module) is nn.Linear and _is_supported(module.weight):
            cast(Any, module).__class__ = PackedLinear
