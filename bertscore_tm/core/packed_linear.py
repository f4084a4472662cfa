"""Linear layers whose weights lie in memory as the processor reads them fastest.

bfloat16 weights are rearranged by torch at every call, and float32 ones never. A frozen weight can be rearranged once,
for oneDNN.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn

from bertscore_tm.core.onednn import FrozenProduct, arranged, product, serves, serves_weight

__all__ = ["PackedLinear", "pack_linears"]


class PackedLinear(nn.Linear):
    """A frozen linear layer with its weight a second time in the arrangement of oneDNN.

    Used on a processor; everything else goes the way of ``nn.Linear``. The numbers are those of ``nn.Linear`` but for
    the order of summation.
    """

    def forward(self, input: Tensor) -> Tensor:
        """Return the product."""
        trained = self.weight.requires_grad or (self.bias is not None and self.bias.requires_grad)
        if not serves(input, self.weight) or (trained and torch.is_grad_enabled()):
            return super().forward(input)
        packed = self.__dict__.get("_packed")
        if packed is None:
            packed = self.__dict__["_packed"] = arranged(self.weight)
        rows = input.reshape(-1, self.in_features)
        if torch.is_grad_enabled() and input.requires_grad:
            found: Tensor = FrozenProduct.apply(rows, self.weight, self.bias, packed)  # type: ignore[no-untyped-call]
        else:
            found = product(rows, self.weight, self.bias, packed)
        return found.view(*input.shape[:-1], self.out_features)

    def __getstate__(self) -> dict[str, Any]:
        # Copies make an arrangement of their own, since they may go to another device or precision.
        return {name: value for name, value in self.__dict__.items() if name != "_packed"}


def pack_linears(model: nn.Module) -> None:
    """Make the linear layers of a frozen model on the processor packed ones, in place.

    Args:
        model: the model, which belongs to the caller alone.
    """
    for module in model.modules():
        if type(module) is nn.Linear and serves_weight(module.weight):
            cast(Any, module).__class__ = PackedLinear
