"""Precision of matrix products on a device: TF32, which rounds the operands of float32 products, and bfloat16."""

from collections.abc import Callable
from typing import Any

import torch

from bertscore_tm.device.switches import ProcessSwitch

_MATMUL = torch.backends.cuda.matmul
# torch 2.9 and later raise an error if allow_tf32 is read after fp32_precision was set.
if hasattr(_MATMUL, "fp32_precision"):
    _NAME = "fp32_precision"
    _EXACT: str | bool = "ieee"
    _TF32: str | bool = "tf32"
else:
    _NAME = "allow_tf32"
    _EXACT = False
    _TF32 = True


def _read_precision() -> Any:
    return getattr(_MATMUL, _NAME)


def _write_precision(value: Any) -> None:
    setattr(_MATMUL, _NAME, value)


# Float32 products without TF32 on CUDA, even if the user allows it for training.
exact_products = ProcessSwitch(_read_precision, _write_precision, _EXACT)


def may_use_tf32(device: torch.device) -> bool:
    """Return whether float32 products on a device may round their operands to TF32."""
    return device.type == "cuda" and bool(_read_precision() == _TF32)


def fast_half_precision(device: torch.device) -> torch.dtype | None:
    """Return the half precision that a device has in hardware: bfloat16, float16 on older GPUs, or ``None``."""
    if device.type == "cuda":
        # Ask for this device, because a machine may have several kinds.
        capability = torch.cuda.get_device_capability(device)
        is_amd = torch.version.hip is not None
        if is_amd or capability >= (8, 0):  # Ampere
            return torch.bfloat16
        if capability >= (7, 0):  # Volta
            return torch.float16
        return None
    if device.type == "cpu":
        # The function is private. If a version of torch lacks it, compute in float32.
        has_bfloat16: Callable[[], bool] = getattr(torch.cpu, "_is_avx512_bf16_supported", bool)
        if has_bfloat16():
            return torch.bfloat16
    return None
