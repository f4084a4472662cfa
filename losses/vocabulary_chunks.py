"""Going through a vocabulary part by part, so that nothing of its whole size exists for all positions."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = ["over_temperature", "vocabulary_parts"]


def vocabulary_parts(
    vocab_size: int, chunk_size: int, excluded_ids: Sequence[int], device: torch.device
) -> list[tuple[slice, Tensor | None]]:
    """Cut a vocabulary into parts.

    Args:
        vocab_size: number of tokens.
        chunk_size: tokens in a part.
        excluded_ids: tokens that are no content.
        device: where to put their numbers.

    Returns:
        The parts, and which of their columns are excluded, if any.

    Example:
        >>> vocabulary_parts(5, 3, [4], torch.device("cpu"))
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


def over_temperature(differences: Tensor, temperature: float) -> Tensor:
    """Divide in place, where it makes a difference.

    Args:
        differences: any shape.
        temperature: above 0.

    Returns:
        The same tensor.

    Example:
        >>> over_temperature(torch.tensor([1.0]), 0.5)
        tensor([2.])
    """
    return differences if temperature == 1 else differences.div_(temperature)
