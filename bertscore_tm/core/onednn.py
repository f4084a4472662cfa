"""Products of matrices on a processor by oneDNN, which torch brings along.

torch multiplies float32 matrices with the library it was built with, which knows some processors better than others.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

__all__ = [
    "FrozenProduct",
    "arranged",
    "product",
    "runs_as_it_stands",
    "serves",
    "serves_weight",
    "transposed_product",
]

# oneDNN compiles code for every number of rows that it meets, about half a megabyte, and keeps it. So products are of
# at most so many rows, and of a multiple of the other number, padded where there are fewer.
_MOST_ROWS, _ROWS_STEP = 512, 32


def runs_as_it_stands() -> bool:
    """Tell whether code is neither compiled nor transformed by ``torch.func``, which hand-written gradients stop.

    Returns:
        Whether that is so.

    Example:
        >>> runs_as_it_stands(), torch.func.vmap(lambda x: x + runs_as_it_stands())(torch.zeros(2))
        (True, tensor([0., 0.]))
    """
    return not torch.compiler.is_compiling() and not torch._C._are_functorch_transforms_active()


def serves(rows: Tensor, weight: Tensor) -> bool:
    """Tell whether a product can be made by oneDNN: of plain tensors on the processor, and not in compiled code.

    Args:
        rows: shape (..., features).
        weight: shape (outputs, features).

    Returns:
        Whether it can.

    Example:
        >>> serves(torch.ones(2, 3, dtype=torch.float64), torch.ones(4, 3, dtype=torch.float64))
        False
    """
    return (
        runs_as_it_stands()
        and type(rows) is Tensor
        and rows.dtype == weight.dtype
        and rows.numel() > 0
        and serves_weight(weight)
    )


def serves_weight(weight: Tensor) -> bool:
    """Tell whether oneDNN multiplies with a weight faster than torch does by itself.

    Args:
        weight: shape (outputs, features).

    Returns:
        Whether it does.
    """
    if weight.device.type != "cpu" or not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    if not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        return False
    if weight.dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return weight.dtype == torch.float32


def arranged(weight: Tensor) -> Tensor:
    """Return a weight in the arrangement in which oneDNN reads it fastest.

    Args:
        weight: shape (outputs, features).

    Returns:
        A tensor for :func:`product` alone.
    """
    with torch.inference_mode(False), torch.no_grad():
        packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), _MOST_ROWS)
        return packed


def product(rows: Tensor, weight: Tensor, bias: Tensor | None = None, packed: Tensor | None = None) -> Tensor:
    r"""Return :math:`x W^\top + b`, without gradient, by oneDNN where it serves.

    Args:
        rows: x, shape (rows, features).
        weight: W, shape (outputs, features); a transposed view is fine.
        bias: b, shape (outputs,).
        packed: what :func:`arranged` made of the weight.

    Returns:
        Shape (rows, outputs).

    Example:
        >>> product(torch.ones(1, 3), torch.eye(3), torch.ones(3))
        tensor([[2., 2., 2.]])
    """
    if not serves(rows, weight):
        return nn.functional.linear(rows, weight, bias)
    if 0 in rows.stride():
        rows = rows.contiguous()
    whole: Tensor | None = None
    for start, count, padding in _pieces(len(rows)):
        part = rows[start : start + count]
        if padding:
            part = nn.functional.pad(part, (0, 0, 0, padding))
        found: Tensor = torch.ops.mkldnn._linear_pointwise(
            part, weight if packed is None else packed, bias, "none", [], ""
        )
        if count == len(rows) and not padding:
            return found
        if whole is None:
            whole = found.new_empty(len(rows), found.shape[1])
        whole[start : start + count] = found[:count]
    assert whole is not None
    return whole


def transposed_product(left: Tensor, right: Tensor) -> Tensor:
    r"""Return :math:`A^\top B`, without gradient, by oneDNN where it serves.

    Args:
        left: A, shape (rows, features).
        right: B, shape (rows, outputs).

    Returns:
        Shape (features, outputs).

    Example:
        >>> transposed_product(torch.tensor([[1.0], [2.0]]), torch.tensor([[3.0], [4.0]]))
        tensor([[11.]])
    """
    if not serves(left, right):
        return left.t() @ right
    total: Tensor | None = None
    for start, count, padding in _pieces(len(left)):
        parts = [side[start : start + count] for side in (left, right)]
        if padding:
            parts = [nn.functional.pad(part, (0, 0, 0, padding)) for part in parts]
        found = product(parts[0].t(), parts[1].t())
        total = found if total is None else total.add_(found)
    assert total is not None
    return total


class FrozenProduct(torch.autograd.Function):
    """The product with a frozen weight, whose gradient is such a product too."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor, bias: Tensor | None, packed: Tensor | None) -> Tensor:
        """Return the product; arguments as of :func:`product`."""
        ctx.save_for_backward(weight)
        return product(rows, weight, bias, packed)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradient of the rows."""
        (weight,) = ctx.saved_tensors
        # With create_graph=True the gradient is differentiated in its turn.
        into_rows = grad @ weight if torch.is_grad_enabled() else product(grad, weight.t())
        return into_rows, None, None, None


def _pieces(rows: int) -> Iterator[tuple[int, int, int]]:
    """Cut rows into products of few different sizes; each piece's start, number of rows, and rows of padding."""
    start = 0
    while start < rows:
        left = min(rows - start, _MOST_ROWS)
        count = left // _ROWS_STEP * _ROWS_STEP or left
        yield start, count, max(_ROWS_STEP - count, 0)
        start += count
