"""Work on batches of texts that goes on in smaller batches where memory does not suffice."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence

import torch

from bertscore_tm.core.token_vectors import token_batches

__all__ = ["encode_in_batches", "free_unused", "is_out_of_memory"]

# A batch is cut short to save padding from this part of the budget on.
_FEWEST_BATCHES = 8
# Allocators of processors and libraries have no error type of their own. The last is what oneDNN says of a kernel that
# finds no memory.
_SAID = (
    "out of memory",
    "can't allocate memory",
    "not enough memory",
    "bad_alloc",
    "alloc_failed",
    "could not create a primitive",
)


def is_out_of_memory(error: BaseException) -> bool:
    """Tell whether an error says that there is not enough memory, on whatever device.

    Args:
        error: any error.

    Returns:
        Whether less work at a time may help.

    Example:
        >>> is_out_of_memory(torch.OutOfMemoryError("tried to allocate 2 GiB")), is_out_of_memory(RuntimeError("a bug"))
        (True, False)
    """
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(said in str(error).lower() for said in _SAID)


def free_unused(device: torch.device) -> None:
    """Give memory back that torch keeps for later: in pieces, it may be too small for what is needed next.

    Args:
        device: where memory ran out.
    """
    if device.type == "cuda":
        torch.cuda.empty_cache()


def encode_in_batches(
    encode: Callable[[list[int]], None],
    sizes: Sequence[int],
    budget: int,
    device: torch.device,
    *,
    batch_size: int | None = None,
    equal: bool = False,
) -> int:
    """Encode texts batch by batch; a batch that memory does not suffice for is halved, and so are those behind it.

    Args:
        encode: encodes the texts of these numbers together, or leaves everything as it was.
        sizes: tokens of each text.
        budget: largest padded size of a batch, in tokens.
        device: where it encodes.
        batch_size: largest number of texts in a batch.
        equal: put only texts of equal length together.

    Returns:
        The budget that memory suffices for.

    Raises:
        OutOfMemoryError: memory does not suffice for a single text.

    Example:
        >>> def encode(numbers):
        ...     if len(numbers) > 2:
        ...         raise MemoryError
        ...     print("encodes", numbers)
        >>> with warnings.catch_warnings(action="ignore"):
        ...     encode_in_batches(encode, [5, 5, 5, 5, 4], 100, torch.device("cpu"))
        encodes [0, 1]
        encodes [2, 3]
        encodes [4]
        12
    """
    order = sorted(range(len(sizes)), key=lambda i: -sizes[i])
    done, failed = 0, 0
    while done < len(order):
        rest = [sizes[i] for i in order[done:]]
        for batch in token_batches(rest, budget, batch_size, equal, least=budget // _FEWEST_BATCHES):
            try:
                encode(order[done : done + len(batch)])
            except (MemoryError, RuntimeError) as error:
                if not is_out_of_memory(error):
                    raise
                if len(batch) == 1:
                    raise torch.OutOfMemoryError(
                        f"memory on {device} does not suffice to encode a single text of {rest[0]} tokens, beside the "
                        f"vectors of {sum(sizes)} tokens in all: pass fewer texts at a time, a smaller max_length, "
                        f"long_text='window', dtype='bfloat16', or another device. The cause: {error}"
                    ) from error
                failed, budget = failed or len(batch), len(batch) * rest[0] // 2
                break
            if failed:
                warnings.warn(
                    f"memory on {device} did not suffice to encode {failed} texts of up to {rest[0]} tokens together, "
                    f"so it is {len(batch)} from here on, with the same scores; batch_size={len(batch)} spares the "
                    f"failed attempts",
                    stacklevel=4,
                )
                failed = 0
            done += len(batch)
        # Outside of the handler, since the error holds what the failed batch had computed.
        if failed:
            free_unused(device)
    return budget
