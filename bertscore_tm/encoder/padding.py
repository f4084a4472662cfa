"""Whether padding changes the vectors of a model that only a function of the user can run."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from bertscore_tm.core.token_vectors import unit_vectors

__all__ = ["mixes_padding"]

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
    alone = unit_vectors(run(padded[:1, : len(ids)], mask[:1, : len(ids)]))
    next_to_longer = unit_vectors(run(padded, mask))[:1, : len(ids)]
    distance = (alone - next_to_longer).norm(dim=-1).max().item()
    # NaN, which some models return for padding, is reported where the texts themselves are encoded.
    return not distance <= max(_TOLERANCE, _TOLERANCE_IN_EPS * torch.finfo(dtype).eps)
