"""Encoding in batches that shrink when memory runs out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch

from bertscore_tm.core.token_vectors import token_batches
from bertscore_tm.utilities.user_warnings import warn_user

__all__ = ["encode_in_batches", "halve_until_it_fits", "is_out_of_memory"]

T = TypeVar("T")

# A batch ends early, to save padding, once it holds this fraction of the token budget.
_BUDGET_FRACTION = 8
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


def is_out_of_memory(error: BaseException) -> bool:
    """Check whether an error means that memory ran out, on any device.

    oneDNN's "could not create a primitive" has many causes (missing memory, unsupported shapes, a system that forbids
    generated code). It counts only where memory is short, that is, where allocating 64 MiB fails too.

    Args:
        error: any error.

    Returns:
        Whether a smaller step may succeed.

    Example:
        >>> is_out_of_memory(torch.OutOfMemoryError("tried to allocate 2 GiB")), is_out_of_memory(RuntimeError("a bug"))
        (True, False)
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

    Example:
        >>> def step(size):
        ...     if size > 3:
        ...         raise MemoryError
        ...     return "done"
        >>> halve_until_it_fits(step, 10, 1, torch.device("cpu"), "10 texts: pass fewer texts")
        ('done', 2)
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


def encode_in_batches(
    encode: Callable[[list[int]], None],
    sizes: Sequence[int],
    budget: int,
    device: torch.device,
    *,
    batch_size: int | None = None,
    equal: bool = False,
) -> int:
    """Encode texts batch by batch, with smaller batches from the point on where memory runs out.

    Args:
        encode: encodes the texts with these indices together; when it fails, it leaves everything as it was.
        sizes: tokens of each text, at least 1.
        budget: largest padded size of a batch, in tokens.
        device: where the texts are encoded.
        batch_size: largest number of texts in a batch.
        equal: put only texts of equal length together.

    Returns:
        The budget that fits in memory, in tokens.

    Raises:
        OutOfMemoryError: memory runs out for a single text.

    Example:
        >>> import warnings
        >>> def encode(indices):
        ...     if len(indices) > 2:
        ...         raise MemoryError
        ...     print("encodes", indices)
        >>> with warnings.catch_warnings(action="ignore"):
        ...     encode_in_batches(encode, [5, 5, 5, 5, 4], 100, torch.device("cpu"))
        encodes [0, 1]
        encodes [2, 3]
        encodes [4]
        12
    """
    order = sorted(range(len(sizes)), key=lambda i: -sizes[i])
    done = 0

    def encode_next(num_tokens: int) -> None:
        encode(order[done : done + num_tokens // sizes[order[done]]])

    while done < len(order):
        rest = [sizes[i] for i in order[done:]]
        for batch in token_batches(rest, budget, batch_size, equal, least=budget // _BUDGET_FRACTION):
            longest = sizes[order[done]]
            _, num_tokens = halve_until_it_fits(
                encode_next,
                len(batch) * longest,
                longest,
                device,
                f"a single text of {longest} tokens, next to the vectors of {sum(sizes)} tokens: pass fewer texts at a "
                f"time, a smaller max_length, long_text='window', dtype='bfloat16', or another device",
            )
            num_texts = num_tokens // longest
            done += num_texts
            if num_texts < len(batch):
                warn_user(
                    f"out of memory on {device} with {len(batch)} texts of up to {longest} tokens; continuing with "
                    f"batches of {num_texts} (scores are unaffected); batch_size={num_texts} avoids the failed attempts"
                )
                budget = num_tokens
                break
    return budget
