"""Linear layers whose weights lie in memory as the processor reads them fastest.

On processors torch multiplies float32 matrices with the library it was built with, which knows some processors better
than others, and rearranges bfloat16 weights at every call. A frozen weight can be rearranged once, for oneDNN, which
torch brings along.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn

__all__ = ["PackedLinear", "pack_linears"]

# oneDNN compiles code for every number of rows that it meets, about half a megabyte, and keeps it. So products are of
# at most so many rows, and of a multiple of the other number, padded where there are fewer.
_MOST_ROWS, _ROWS_STEP = 512, 32


class PackedLinear(nn.Linear):
    """A frozen linear layer with its weight a second time in the arrangement of oneDNN.

    Used without gradients on a processor; everything else goes the way of ``nn.Linear``. The numbers are those of
    ``nn.Linear`` but for the order of summation.
    """

    _packed: Tensor | None

    def forward(self, input: Tensor) -> Tensor:
        """Return the product."""
        weight = self.weight
        if (
            torch.compiler.is_compiling()
            or type(input) is not Tensor
            or input.device.type != "cpu"
            or input.dtype != weight.dtype
            or input.numel() == 0
            or (torch.is_grad_enabled() and (input.requires_grad or weight.requires_grad))
        ):
            return super().forward(input)
        packed = self.__dict__.get("_packed")
        if packed is None:
            with torch.inference_mode(False), torch.no_grad():
                packed = self.__dict__["_packed"] = torch.ops.mkldnn._reorder_linear_weight(weight, _MOST_ROWS)
        rows = input.reshape(-1, self.in_features)
        product = rows.new_empty(len(rows), self.out_features)
        start = 0
        while start < len(rows):
            count = min(len(rows) - start, _MOST_ROWS)
            part = rows[start : start + count]
            if count > _ROWS_STEP:
                count -= count % _ROWS_STEP
                part = part[:count]
            elif count < _ROWS_STEP:
                part = nn.functional.pad(part, (0, 0, 0, _ROWS_STEP - count))
            found = torch.ops.mkldnn._linear_pointwise(part, packed, self.bias, "none", [], "")
            product[start : start + count] = found[:count]
            start += count
        return product.view(*input.shape[:-1], self.out_features)

    def __getstate__(self) -> dict[str, Any]:
        # Copies make an arrangement of their own, since they may go to another device or precision.
        return {name: value for name, value in self.__dict__.items() if name != "_packed"}


def pack_linears(model: nn.Module) -> None:
    """Make the linear layers of a frozen model on the processor packed ones, in place.

    Args:
        model: the model, which belongs to the caller alone.
    """
    available: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    if not (available and hasattr(torch.ops.mkldnn, "_linear_pointwise")):
        return
    for module in model.modules():
        if type(module) is nn.Linear and _can_pack(module.weight):
            cast(Any, module).__class__ = PackedLinear


def _can_pack(weight: Tensor) -> bool:
    if weight.device.type != "cpu":
        return False
    if weight.dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return weight.dtype == torch.float32
