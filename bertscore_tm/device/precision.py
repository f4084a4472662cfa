"""Precision of products on a device: TF32, which rounds the operands of float32 products, and bfloat16."""

from collections.abc import Callable

import torch

from bertscore_tm.device.switches import ProcessSwitch

_PRODUCTS = torch.backends.cuda.matmul
# torch 2.9 and later raise where the old switch is read after the new one was set.
_IS_NEW = hasattr(_PRODUCTS, "fp32_precision")
_NAME, _EXACT, _TF32 = ("fp32_precision", "ieee", "tf32") if _IS_NEW else ("allow_tf32", False, True)
# Products in float32 without TF32 on CUDA, whatever the switch of torch says.
exact_products = ProcessSwitch(
    lambda: getattr(_PRODUCTS, _NAME), lambda value: setattr(_PRODUCTS, _NAME, value), _EXACT
)


def may_use_tf32(device: torch.device) -> bool:
    """Check whether float32 products on a device may round their operands to TF32."""
    return device.type == "cuda" and bool(getattr(_PRODUCTS, _NAME) == _TF32)


def fast_half_precision(device: torch.device) -> torch.dtype | None:
    """Return the half precision that a device computes in hardware: bfloat16, float16 on older GPUs, or ``None``."""
    if device.type == "cuda":
        # Of this device, as a machine may have several kinds.
        capability = torch.cuda.get_device_capability(device)
        if torch.version.hip is not None or capability >= (8, 0):
            return torch.bfloat16
        return torch.float16 if capability >= (7, 0) else None
    # Private: a version of torch without it computes in float32.
    check: Callable[[], bool] = getattr(torch.cpu, "_is_avx512_bf16_supported", bool)
    return torch.bfloat16 if device.type == "cpu" and check() else None
