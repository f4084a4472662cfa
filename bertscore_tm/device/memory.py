"""Memory: sizes of steps, copies to an accelerator, whether its memory ran out, and the return to the system."""

import ctypes
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

# Numbers per matching step: 4 MB in float32, which stay in a processor's caches. An accelerator wants large steps.
_NUMBERS_PER_STEP = 1_000_000
_TIMES_ON_ACCELERATORS = 64


def numbers_per_step(device: torch.device) -> int:
    """Return how many numbers a matching step computes on a device, similarities and padded vectors of all layers."""
    return _NUMBERS_PER_STEP * (1 if device.type == "cpu" else _TIMES_ON_ACCELERATORS)


def device_with_index(device: torch.device | str) -> torch.device:
    """Return a device as tensors report it: ``cuda`` is ``cuda:0``."""
    return torch.empty(0, dtype=torch.float32, device=device).device


def send(values: Tensor | NDArray[Any], device: torch.device) -> Tensor:
    """Copy a small tensor or array of the CPU to a device, for which the program does not wait on CUDA."""
    if not isinstance(values, Tensor):
        values = torch.from_numpy(values)
    if device.type == "cuda":
        # Of a pool that keeps the memory until the copy is complete. It may be short, and the program then waits.
        with suppress(RuntimeError):
            values = values.pin_memory()
    return values.to(device, non_blocking=device.type != "mps")


def constant(values: Sequence[int], device: torch.device) -> Tensor:
    """Return integers as a tensor on a device, which an accelerator keeps."""
    if device.type == "cpu":
        return torch.tensor(values, dtype=torch.long, device="cpu")
    return _constant(tuple(values), device)


@lru_cache(maxsize=256)
def _constant(values: tuple[int, ...], device: torch.device) -> Tensor:
    with torch.inference_mode(False):
        return send(torch.tensor(values, dtype=torch.long, device="cpu"), device)


def is_out_of_memory(error: BaseException) -> bool:
    """Check whether an error means that an accelerator's memory ran out, so that a smaller batch may fit.

    Libraries of CUDA, and MPS, raise a plain ``RuntimeError``, recognizable only by its message.
    """
    message = str(error).lower()
    is_known = isinstance(error, RuntimeError) and ("out of memory" in message or "alloc_failed" in message)
    return is_known or isinstance(error, torch.OutOfMemoryError)


def empty_cache(device: torch.device) -> None:
    """Free the memory that torch keeps for later tensors on an accelerator: its blocks may be too small for them."""
    getattr(getattr(torch, device.type, None), "empty_cache", int)()


def return_freed_memory() -> None:
    """Return freed memory to the operating system on Linux, where glibc would keep it.

    Large tensors of different sizes leave holes between small tensors that stay allocated. Without this, a corpus of
    many steps takes several times the memory of one step, and a different amount in every run.
    """
    if sys.platform == "linux":
        # Other C libraries, such as musl, lack this function.
        getattr(ctypes.CDLL(None), "malloc_trim", int)(0)
