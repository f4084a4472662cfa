"""Padding that changes vectors: how it is found out, and batches without it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor
from transformers import PretrainedConfig

from bertscore_tm.core.token_vectors import unit_vectors

__all__ = ["are_same_vectors", "mixes_padding", "run_by_length", "switches_rope"]

# Tokens of the longer text.
_LONGER = 64
# Distance between unit vectors that rounding explains: 1e-6 in float32, 0.01 in bfloat16 (MiniLM). Only texts of equal
# length share a batch where it is exceeded, which costs time and changes no score.
_TOLERANCE = 1e-5
_TOLERANCE_IN_EPS = 8


def mixes_padding(
    run: Callable[[Tensor, Tensor], Tensor],
    ids: Sequence[int],
    pad_id: int,
    *,
    max_length: int | None,
    dtype: torch.dtype,
    device: torch.device,
) -> bool:
    """Check whether a text gets other vectors next to a longer text than alone.

    Args:
        run: returns token vectors, shape (texts, positions, width), of token ids and the mask of real positions, both
            of shape (texts, positions).
        ids: token ids of a short text.
        pad_id: id of the padding.
        max_length: largest number of tokens that the model takes.
        dtype: precision of the model.
        device: where the model runs.

    Returns:
        Whether the vectors differ by more than rounding.
    """
    length = max(min(_LONGER, max_length or _LONGER), len(ids))
    longer = (list(ids) * _LONGER)[:length]
    padded = torch.tensor([[*ids, *[pad_id] * (length - len(ids))], longer], dtype=torch.long, device=device)
    mask = torch.ones_like(padded, dtype=torch.bool)
    mask[0, len(ids) :] = False
    alone = run(padded[:1, : len(ids)], mask[:1, : len(ids)])
    return not are_same_vectors(alone, run(padded, mask)[:1, : len(ids)], dtype)


def are_same_vectors(first: Tensor, second: Tensor, dtype: torch.dtype) -> bool:
    """Check whether token vectors are equal but for rounding.

    Args:
        first: token vectors, shape (..., width).
        second: others, of the same shape.
        dtype: precision of the model.

    Returns:
        Whether they are; NaN, which some models return for padding, is equal to nothing.
    """
    if first.shape != second.shape:
        return False
    distance = (unit_vectors(first) - unit_vectors(second)).norm(dim=-1).max()
    return float(distance) <= max(_TOLERANCE, _TOLERANCE_IN_EPS * torch.finfo(dtype).eps)


def run_by_length(run: Callable[[Tensor, Tensor], Tensor], inputs: Tensor, mask: Tensor) -> Tensor:
    """Run texts in batches of equal length, without padding.

    Args:
        run: returns vectors, shape (layers, texts, positions, width), of inputs and the mask of real positions.
        inputs: padded inputs, shape (texts, positions, ...).
        mask: real positions, shape (texts, positions), bool; padding follows the text.

    Returns:
        The vectors, 0 at padding, shape (layers, texts, positions, width).

    Example:
        >>> mask = torch.tensor([[True, True], [True, False]])
        >>> run_by_length(lambda inputs, mask: inputs[None].cumsum(2), torch.ones(2, 2, 1), mask).flatten(2)
        tensor([[[1., 2.],
                 [1., 0.]]])
    """
    lengths = mask.sum(-1)
    groups = [(lengths == length, length) for length in sorted(set(lengths.tolist()))]
    parts = [run(inputs[rows, :length], mask[rows, :length]) for rows, length in groups]
    num_layers, *_, width = parts[0].shape
    vectors = parts[0].new_zeros(num_layers, *mask.shape, width)
    for (rows, length), part in zip(groups, parts, strict=True):
        vectors[:, rows, :length] = part
    return vectors


def switches_rope(config: PretrainedConfig, shortest: int, longest: int) -> bool:
    """Check whether a longer text changes the position frequencies of a shorter one in its batch, as LongRoPE does.

    Args:
        config: configuration of the encoder.
        shortest: length of the shorter text in tokens.
        longest: length of the longer one.

    Returns:
        Whether the frequencies of Phi-3 and others switch between these lengths.
    """
    # Before transformers 5, it was rope_scaling.
    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    default = getattr(config, "original_max_position_embeddings", None)
    for settings in (rope, *(value for value in rope.values() if isinstance(value, Mapping))):
        if settings.get("rope_type", settings.get("type")) == "longrope":
            switch = settings.get("original_max_position_embeddings", default)
            return switch is not None and shortest <= int(switch) < longest
    return False
