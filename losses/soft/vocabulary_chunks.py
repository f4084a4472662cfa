"""Chunks of a vocabulary, so that no tensor of positions times vocabulary is allocated."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = ["divide_by_temperature_", "exponentiate_", "split_vocabulary"]


def split_vocabulary(
    vocab_size: int, chunk_size: int, excluded_ids: Sequence[int], device: torch.device
) -> list[tuple[slice, Tensor | None]]:
    """Split a vocabulary into chunks.

    Args:
        vocab_size: number of tokens.
        chunk_size: tokens in a chunk.
        excluded_ids: tokens that get no probability.
        device: where to put their indices.

    Returns:
        The chunks, each with the indices of its excluded columns, ``None`` where it has none.

    Example:
        >>> split_vocabulary(5, 3, [4], torch.device("cpu"))
        [(slice(0, 3, None), None), (slice(3, 5, None), tensor([1]))]
    """
    excluded = sorted(excluded_ids)
    indices = torch.tensor(excluded, dtype=torch.long, device=device)
    parts: list[tuple[slice, Tensor | None]] = []
    for start in range(0, vocab_size, chunk_size):
        stop = min(start + chunk_size, vocab_size)
        first, last = (sum(token < end for token in excluded) for end in (start, stop))
        parts.append((slice(start, stop), indices[first:last] - start if first < last else None))
    return parts


def divide_by_temperature_(differences: Tensor, temperature: float) -> Tensor:
    """Divide by a temperature in place, unless it is 1.

    Args:
        differences: any shape.
        temperature: above 0.

    Returns:
        The same tensor.

    Example:
        >>> divide_by_temperature_(torch.tensor([1.0]), 0.5)
        tensor([2.])
    """
    return differences if temperature == 1 else differences.div_(temperature)


def exponentiate_(differences: Tensor) -> Tensor:
    """Exponentiate in place, with 0 for denormal results: a processor multiplies them some 10 times slower.

    Args:
        differences: from the largest logit, any shape.

    Returns:
        The same tensor.

    Example:
        >>> exponentiate_(torch.tensor([0.0, -80.0, -90.0]))
        tensor([1.0000e+00, 1.8049e-35, 0.0000e+00])
    """
    if differences.device.type == "cpu":
        torch.threshold_(differences, math.log(torch.finfo(differences.dtype).tiny), -math.inf)
    return differences.exp_()
