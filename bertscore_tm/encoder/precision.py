"""Precisions of an encoder, and whether a device computes them in hardware."""

from __future__ import annotations

from functools import cache
from typing import Literal

import torch

from bertscore_tm.utilities.user_warnings import warn_user

__all__ = ["as_dtype", "has_native_bfloat16", "warn_of_slow_bfloat16"]

_DTYPES = {"float64": torch.float64, "float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def as_dtype(dtype: str | torch.dtype) -> torch.dtype | Literal["auto"]:
    """Return the dtype of a name.

    Args:
        dtype: a name such as ``"float32"``, ``"auto"``, or a dtype.

    Returns:
        The dtype, or ``"auto"``.

    Raises:
        ValueError: the name is unknown.

    Example:
        >>> as_dtype("bfloat16")
        torch.bfloat16
    """
    if isinstance(dtype, torch.dtype):
        return dtype
    if dtype == "auto":
        return "auto"
    if dtype not in _DTYPES:
        raise ValueError(f"dtype={dtype!r} is not one of 'auto', {', '.join(map(repr, _DTYPES))}")
    return _DTYPES[dtype]


def has_native_bfloat16(device: torch.device) -> bool:
    """Check whether a device computes bfloat16 in hardware.

    Args:
        device: the device.

    Returns:
        Whether it does; unknown devices do not.
    """
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    if device.type == "cpu":
        return bool(torch.cpu._is_avx512_bf16_supported())
    return False


@cache
def warn_of_slow_bfloat16() -> None:
    """Warn, once per process, that the processor computes bfloat16 more slowly than float32."""
    warn_user(
        "this processor has no bfloat16 instructions, so that dtype='bfloat16' is slower than 'float32' on it: use "
        "dtype='auto', which chooses bfloat16 only where the device computes it natively"
    )
