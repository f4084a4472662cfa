"""Memory: whether an error means that it ran out, smaller steps where it does, and its return to the system."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from functools import cache
from typing import TypeVar, cast

import torch

__all__ = ["FEWEST_NUMBERS", "halve_until_it_fits", "is_out_of_memory", "numbers_per_step", "return_freed_memory"]

T = TypeVar("T")

# Numbers per matching step: 4 MB in float32, which stay in a processor's caches. An accelerator wants large steps.
_NUMBERS_PER_STEP = 1_000_000
_TIMES_ON_ACCELERATORS = 64
# When memory runs out, steps are halved down to this.
FEWEST_NUMBERS = 5_000

# CPU allocators and libraries raise a plain RuntimeError, recognizable only by its message.
_OUT_OF_MEMORY_MESSAGES = (
    "out of memory",
    "can't allocate memory",
    "not enough memory",
    "bad_alloc",
    "alloc_failed",
)
# oneDNN reports every failure to generate a kernel with this message, without its cause.
_ONEDNN_MESSAGE = "could not create a primitive"
# Generating a kernel takes less; glibc maps blocks of this size anew and never serves them from freed memory.
_PROBE_BYTES = 64 * 2**20


def numbers_per_step(device: torch.device) -> int:
    """Return how many numbers a matching step computes on a device, similarities and padded vectors of all layers."""
    return _NUMBERS_PER_STEP * (1 if device.type == "cpu" else _TIMES_ON_ACCELERATORS)


def is_out_of_memory(error: BaseException) -> bool:
    """Check whether an error means that memory ran out, on any device, so that a smaller step may succeed.

    oneDNN's "could not create a primitive" has many causes (missing memory, unsupported shapes, a system that forbids
    generated code). It counts only where memory is short, that is, where allocating 64 MiB fails too.
    """
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    if not isinstance(error, RuntimeError):
        return False
    message = str(error).lower()
    if any(known in message for known in _OUT_OF_MEMORY_MESSAGES):
        return True
    return _ONEDNN_MESSAGE in message and not _can_allocate(_PROBE_BYTES)


def _can_allocate(num_bytes: int) -> bool:
    try:
        torch.empty(num_bytes, dtype=torch.uint8, device="cpu")
    except (MemoryError, RuntimeError):
        return False
    return True


def halve_until_it_fits(
    step: Callable[[int], T], size: int, smallest: int, device: torch.device, advice: str
) -> tuple[T, int]:
    """Run a step, with half its size each time that memory runs out.

    Args:
        step: takes a size; when it fails, it leaves everything as it was.
        size: the size to start with.
        smallest: sizes below this are not tried.
        device: where the step runs.
        advice: completes the error "out of memory on the device with ...": what was computed, and what to do.

    Returns:
        The step's result, and the size with which it succeeded.

    Raises:
        OutOfMemoryError: memory ran out at the smallest size too.
    """
    while True:
        try:
            return step(size), size
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            if size // 2 < smallest:
                raise torch.OutOfMemoryError(f"out of memory on {device} with {advice}. The cause: {error}") from error
        # After the handler, since the error keeps alive what the failed step had computed.
        if device.type == "cuda":
            # Freed blocks that torch caches may be too small for the next step.
            torch.cuda.empty_cache()
        size //= 2


def return_freed_memory() -> None:
    """Return freed memory to the operating system on Linux, where glibc would keep it.

    Large tensors of different sizes leave holes between small tensors that stay allocated. Without this, a corpus of
    many steps takes several times the memory of one step, and a different amount in every run.
    """
    trim = _trim()
    if trim is not None:
        trim(0)


@cache
def _trim() -> Callable[[int], int] | None:
    if sys.platform != "linux":
        return None
    # Other C libraries, such as musl, lack this function.
    return cast("Callable[[int], int] | None", getattr(ctypes.CDLL(None), "malloc_trim", None))
