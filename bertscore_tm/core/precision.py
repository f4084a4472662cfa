"""Precision of products on a device: TF32, which rounds the operands of float32 products, and bfloat16."""

from collections.abc import Callable

import torch

from bertscore_tm.utilities.process_switch import ProcessSwitch

_PRODUCTS = torch.backends.cuda.matmul
_NAME, _EXACT = ("fp32_precision", "ieee") if hasattr(_PRODUCTS, "fp32_precision") else ("allow_tf32", False)
# Products in float32 without TF32 on CUDA, whatever the switch of torch says.
exact_products = ProcessSwitch(
    lambda: getattr(_PRODUCTS, _NAME), lambda value: setattr(_PRODUCTS, _NAME, value), _EXACT
)


def may_use_tf32(device: torch.device) -> bool:
    """Check whether float32 products on a device may round their operands to TF32."""
    if device.type != "cuda":
        return False
    products = torch.backends.cuda.matmul
    # torch 2.9 and later raise where the old switch is read after the new one was set.
    return bool(products.fp32_precision == "tf32" if hasattr(products, "fp32_precision") else products.allow_tf32)


def fast_half_precision(device: torch.device) -> torch.dtype | None:
    """Return the half precision that a device computes in hardware: bfloat16, float16 on older GPUs, or ``None``."""
    if device.type == "cuda":
        # Of this device, as a machine may have several kinds.
        is_new = torch.version.hip is not None or torch.cuda.get_device_capability(device) >= (8, 0)
        has_float16 = torch.cuda.get_device_capability(device) >= (7, 0)
        return torch.bfloat16 if is_new else torch.float16 if has_float16 else None
    # Private: a version of torch without it computes in float32.
    check: Callable[[], bool] = getattr(torch.cpu, "_is_avx512_bf16_supported", bool)
    return torch.bfloat16 if device.type == "cpu" and check() else None
