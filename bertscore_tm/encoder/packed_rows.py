"""Rows of packed texts: the lengths of the texts in the current one, and attention within each text."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TypeVar, cast

import torch
from torch import Tensor, nn

from bertscore_tm.core.memory import send

T = TypeVar("T")


@dataclass(eq=False)
class Row:
    """A packed row, and what the attention of several layers needs to know of it, which the first of them makes.

    ``groups`` are the lengths of its texts, longest first: each length with the number of texts.
    """

    groups: Sequence[tuple[int, int]]
    has_kernel: bool = False
    _made: dict[Hashable, object] = field(default_factory=dict, init=False)

    @property
    def longest(self) -> int:
        """Tokens of the longest text."""
        return self.groups[0][0]

    def once(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return what a function makes, called for the first layer."""
        if key not in self._made:
            self._made[key] = make()
        return cast(T, self._made[key])


# The packed row that a model runs on, if it does.
row: ContextVar[Row | None] = ContextVar("row", default=None)

# Attends as :func:`dot_product`, given queries, keys and values, shape (texts, heads, length, size), and a mask.
Attend = Callable[..., Tensor]

# Texts of so many tokens do not fill the blocks of torch's kernel.
_SHORT = 128


def current_row() -> Row | None:
    """Return the packed row that a model runs on, if it does."""
    return None if torch.compiler.is_compiling() else row.get()


def lengths_of(groups: Sequence[tuple[int, int]]) -> list[int]:
    """Return the length of each text in a row."""
    return [length for length, count in groups for _ in range(count)]


def real_positions(lengths: Sequence[int]) -> Tensor:
    """Return which positions of padded texts, longest first, hold a token, shape (texts, longest), on the CPU."""
    return torch.arange(lengths[0], device="cpu") < torch.tensor(lengths, dtype=torch.long, device="cpu")[:, None]


def pad(packed: Tensor, places: Tensor, shape: Sequence[int], value: int = 0) -> Tensor:
    """Put tokens, shape (tokens, ...), at their places in a padded batch of a shape (texts, longest)."""
    padded = packed.new_full((math.prod(shape), *packed.shape[1:]), value).index_copy(0, places, packed)
    return padded.view(*shape, *packed.shape[1:])


def dot_product(
    batch: Sequence[Tensor], mask: Tensor | None, *, is_causal: bool = False, scale: float | None = None
) -> Tensor:
    """Attend, shape (texts, heads, length, size), with a mask or a bias of the scores."""
    query, key, value = batch
    is_plain = query.shape[1] == key.shape[1] and not is_causal and (mask is None or mask.is_floating_point())
    is_short = query.device.type == "cpu" and query.shape[2] <= _SHORT
    # Plain products are 1.3 to 2 times faster for these, except for the gradient in float32.
    if is_plain and is_short and (query.dtype == torch.bfloat16 or not query.requires_grad):
        query, key, wide = (state.to(torch.promote_types(state.dtype, torch.float32)) for state in batch)
        scores = (query * (query.shape[-1] ** -0.5 if scale is None else scale)) @ key.transpose(-1, -2)
        return ((scores if mask is None else scores + mask).softmax(-1) @ wide).to(value.dtype)
    return nn.functional.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, is_causal=is_causal, scale=scale, enable_gqa=query.shape[1] != key.shape[1]
    )


def attend_by_length(
    states: Sequence[Tensor],
    row: Row,
    mask: Tensor | None = None,
    *,
    is_causal: bool = False,
    scale: float | None = None,
    attend: Attend = dot_product,
) -> Tensor:
    """Attend within each text of a packed row, in one step per length, which needs no padding.

    Takes queries, keys and values, shape (tokens, heads, size) each, and a mask or bias of the longest text or of a
    longer one, shape (..., longest, longest); its corner is that of a shorter text.
    """
    parts = []
    sizes = [length * count for length, count in row.groups]
    for (length, count), *parts_of_states in zip(row.groups, *(torch.split(x, sizes) for x in states), strict=True):
        # (texts, heads, length, size) each
        batch = [part.reshape(count, length, *part.shape[1:]).transpose(1, 2) for part in parts_of_states]
        corner = None if mask is None else mask[..., :length, :length]
        attended = attend(batch, corner, is_causal=is_causal, scale=scale)
        parts.append(attended.transpose(1, 2).flatten(0, 1))
    return torch.cat(parts)


def attend_padded(
    states: Sequence[Tensor],
    row: Row,
    mask: Tensor | None = None,
    *,
    is_causal: bool = False,
    scale: float | None = None,
    attend: Attend = dot_product,
) -> Tensor:
    """Attend as :func:`attend_by_length`, in one step with padding inside of attention, for accelerators."""
    device, longest = states[0].device, row.longest

    def make() -> tuple[Tensor, Tensor, torch.Size]:
        real = real_positions(lengths_of(row.groups))
        places = send(real.flatten().nonzero().squeeze(1), device)  # (tokens,)
        sent = send(real, device)
        # Padding attends to all, as a softmax over nothing is NaN.
        allowed = sent[:, None, None, :] | ~sent[:, None, :, None]  # (texts, 1, longest, longest)
        if is_causal:
            allowed = allowed & torch.ones(longest, longest, dtype=torch.bool, device=device).tril()
        if mask is None:
            return allowed, places, real.shape
        corner = mask[..., :longest, :longest]
        combined = corner.masked_fill(~allowed, -math.inf) if mask.is_floating_point() else allowed & corner
        return combined, places, real.shape

    # Alternating layers have several masks, which the caller keeps.
    allowed, places, shape = row.once(("padded", is_causal, id(mask)), make)
    batch = [pad(state, places, shape).transpose(1, 2) for state in states]  # (texts, heads, longest, size) each
    attended = attend(batch, allowed, is_causal=False, scale=scale)
    return attended.transpose(1, 2).flatten(0, 1).index_select(0, places)
