"""Memory of CPUs and accelerators: sizes of steps, asynchronous copies, out-of-memory errors, freed memory."""

import ctypes
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

# Numbers per matching step on a CPU: 4 MB in float32 fit into its caches.
_NUMBERS_PER_STEP = 1_000_000
# An accelerator needs larger steps, because each one launches several kernels.
_ACCELERATOR_FACTOR = 64


def numbers_per_step(device: torch.device) -> int:
    """Return the size of a matching step on a device, in numbers: similarities and padded vectors of all layers."""
    if device.type == "cpu":
        return _NUMBERS_PER_STEP
    return _NUMBERS_PER_STEP * _ACCELERATOR_FACTOR


def device_with_index(device: torch.device | str) -> torch.device:
    """Return a device as tensors report it: ``cuda`` is ``cuda:0``."""
    return torch.empty(0, dtype=torch.float32, device=device).device


def send(values: Tensor | NDArray[Any], device: torch.device) -> Tensor:
    """Copy a small tensor or array from the CPU to a device, asynchronously on CUDA."""
    if not isinstance(values, Tensor):
        values = torch.from_numpy(values)
    if device.type == "cuda":
        # A copy is asynchronous from pinned memory only, which torch does not reuse until the copy is complete. If
        # pinning fails, the copy is synchronous.
        with suppress(RuntimeError):
            values = values.pin_memory()
    return values.to(device, non_blocking=device.type != "mps")


def constant(values: Sequence[int], device: torch.device) -> Tensor:
    """Return integers as a tensor on a device, from a cache on an accelerator."""
    if device.type == "cpu":
        return torch.tensor(values, dtype=torch.long, device="cpu")
    return _constant(tuple(values), device)


@lru_cache(maxsize=256)
def _constant(values: tuple[int, ...], device: torch.device) -> Tensor:
    # A cached inference tensor could not be used in training.
    with torch.inference_mode(False):
        return send(torch.tensor(values, dtype=torch.long, device="cpu"), device)


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error means that an accelerator is out of memory, so that a smaller batch may fit."""
    if isinstance(error, torch.OutOfMemoryError):
        return True
    # MPS and libraries of CUDA raise a plain RuntimeError, which is recognizable only by its message.
    if not isinstance(error, RuntimeError):
        return False
    message = str(error).lower()
    return "out of memory" in message or "alloc_failed" in message


def empty_cache(device: torch.device) -> None:
    """Empty the cache of torch's allocator on an accelerator, because its blocks may be too small for later tensors."""
    backend = getattr(torch, device.type, None)
    empty = getattr(backend, "empty_cache", None)
    if empty is not None:  # there is no such function for a CPU
        empty()


def return_freed_memory() -> None:
    """Return freed memory to the operating system on Linux, where glibc would keep it.

    Large tensors of different sizes leave holes between small tensors that stay allocated. Without this, a corpus of
    many steps takes several times the memory of one step, and a different amount in every run.
    """
    if sys.platform != "linux":
        return
    malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if malloc_trim is not None:  # C libraries other than glibc, such as musl, lack it
        malloc_trim(0)
