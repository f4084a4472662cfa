"""Table of the encoder's pieces of each of a generator's tokens."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum
from functools import cached_property
from typing import Any

import torch
from torch import Tensor


class Context(IntEnum):
    """What precedes a token; a token may have other pieces in each context."""

    TEXT_START = 0
    SPACE = 1
    WORD = 2
    OTHER = 3


@dataclass(frozen=True)
class PieceTable:
    """The encoder's pieces of each of a generator's tokens, in each :class:`Context`; row 4 * token + context."""

    offsets: Tensor  # start of each row in the pieces, and the end, (4 * vocabulary + 1,), int64
    pieces: Tensor  # ids of the encoder, (entries,), int64
    shares: Tensor  # share of each entry in the token's mean, (entries,), float32; those of a token sum to 1
    follows: Tensor  # context that a token makes for the next one, (vocabulary,), int64
    control: Tensor  # tokens that never are text: special tokens and ids without a token, (vocabulary,), bool
    ambiguous: Tensor  # tokens whose pieces depend on all of the text: blanks and parts of characters, likewise
    identity: bool  # whether the tokenizers split texts into the same tokens: each has one piece, of the same name

    @cached_property
    def empty(self) -> Tensor:
        """Tokens without pieces, such as blanks and incomplete characters, shape (vocabulary,), bool."""
        return self.offsets[:: len(Context)].diff() == 0

    def average(self, values: Tensor) -> Tensor:
        """Return the mean of values, shape (encoder's vocabulary, width), over each token's pieces, 0 without any."""
        offsets, pieces, shares = self._mean
        options: dict[str, Any] = {"mode": "sum", "per_sample_weights": shares.to(values.dtype)}
        return torch.nn.functional.embedding_bag(pieces, values, offsets, include_last_offset=True, **options)

    def average_weights(self, weights: Tensor) -> Tensor:
        """Return the mean weight of each token's pieces, 0 without any, shape (vocabulary,)."""
        return self.average(weights[:, None]).squeeze(1)

    @cached_property
    def _mean(self) -> tuple[Tensor, Tensor, Tensor]:
        """Start of each token among the entries with a share, their pieces and their shares."""
        shared = self.shares > 0
        num_before = torch.nn.functional.pad(shared.cumsum(0), (1, 0))
        return num_before[self.offsets[:: len(Context)]], self.pieces[shared], self.shares[shared]

    def to(self, device: torch.device) -> PieceTable:
        """Return the table on a device."""
        if self.offsets.device == device:
            return self
        names = ("offsets", "pieces", "shares", "follows", "control", "ambiguous")
        return replace(self, **{name: getattr(self, name).to(device) for name in names})

    def expand(self, tokens: Tensor, content: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Concatenate the pieces of each row's tokens; positions without content count as spaces.

        Returns ids of the encoder, the position of the token that each comes from, and which of them are not padding,
        shape (batch, pieces) each.
        """
        following = torch.where(content, self.follows[tokens], int(Context.SPACE))
        context = torch.nn.functional.pad(following[:, :-1], (1, 0))
        has_pieces = content & ~self.empty[tokens]  # (batch, positions)
        # Blanks at the start are no part of the text.
        num_before = has_pieces.cumsum(1) - has_pieces.long()
        context = torch.where(num_before == 0, int(Context.TEXT_START), context)
        rows = len(Context) * tokens + context  # (batch, positions)
        counts = torch.where(content, self.offsets[rows + 1] - self.offsets[rows], 0)
        ends = counts.cumsum(1)  # (batch, positions)
        place = torch.arange(max(int(ends[:, -1].max()), 1), device=tokens.device).expand(len(tokens), -1).contiguous()
        is_piece = place < ends[:, -1:]  # (batch, pieces)
        position = torch.searchsorted(ends, place, right=True).clamp(max=tokens.shape[1] - 1)  # (batch, pieces)
        entry = (self.offsets[rows] - ends + counts).gather(1, position) + place
        return self.pieces[torch.where(is_piece, entry, 0)], position, is_piece

    @cached_property
    def single_pieces(self) -> Tensor | None:
        """Each token's piece, 0 without one, shape (vocabulary,); ``None`` if a token has several or other ones."""
        if (self.offsets.diff() > 1).any():
            return None
        first = self.offsets[: -1 : len(Context)].clamp(max=max(len(self.pieces) - 1, 0))
        singles = self.pieces[first]  # (vocabulary,)
        if (self.pieces != singles[~self.empty].repeat_interleave(len(Context))).any():
            return None
        return singles.masked_fill(self.empty, 0)
