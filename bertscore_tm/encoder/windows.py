"""Windows of long texts, and padded batches of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from bertscore_tm.encoder.tokenization import TextTokenizer, TokenizedTexts

__all__ = ["PackedWindows", "Window", "cut_into_windows"]


@dataclass(frozen=True)
class Window:
    """A part of a text that fits the encoder, and the range of its tokens whose vectors are used.

    Args:
        ids: token ids, special tokens included.
        first: position in the window of the first token whose vector is used.
        last: position in the window after the last such token.
        start: position of the first such token among the compared tokens of the whole text.
    """

    ids: list[int]
    first: int
    last: int
    start: int


def cut_into_windows(ids: list[int], tokenizer: TextTokenizer) -> list[Window]:
    """Cut a text into overlapping windows that fit the encoder.

    The vector of each compared token is taken from the window in which its distance to the nearer end is largest; from
    the earlier window if two are equal.

    Args:
        ids: token ids of the text, special tokens included.
        tokenizer: the tokenizer that they come from, with its length limit and stride.

    Returns:
        The windows in order; a single one for a text that fits.
    """
    skipped, excluded_after = tokenizer.num_excluded
    end = len(ids) - excluded_after
    if tokenizer.max_length is None or tokenizer.stride is None or len(ids) <= tokenizer.max_length:
        return [Window(ids, skipped, end, 0)]
    before, after = (len(affix) for affix in tokenizer.special_affixes)
    content = ids[before : len(ids) - after]
    room = tokenizer.max_length - before - after
    starts = [*range(0, len(content) - room, tokenizer.stride), len(content) - room]
    # The border between two windows is the middle of their overlap.
    borders = [skipped, *(before + (a + b + room + 1) // 2 for a, b in pairwise(starts)), end]
    windows = []
    for start, (low, high) in zip(starts, pairwise(borders), strict=True):
        window = ids[:before] + content[start : start + room] + ids[len(ids) - after :]
        windows.append(Window(window, low - start, high - start, low - skipped))
    return windows


@dataclass(frozen=True)
class PackedWindows:
    """The windows of several texts in packed tensors, on the CPU, from which padded batches are built quickly.

    Args:
        sizes: tokens of each window.
        num_tokens: compared tokens of all texts.
        ids: token ids of all windows, shape (tokens of windows,).
        offsets: position of each window in ``ids``, shape (windows,).
        lengths: ``sizes`` as a tensor.
        first: position in each window of the first token whose vector is used, shape (windows,).
        last: position in each window after the last such token, shape (windows,).
        starts: position of the first such token among the compared tokens of all texts, shape (windows,).
    """

    sizes: Sequence[int]
    num_tokens: int
    ids: Tensor
    offsets: Tensor
    lengths: Tensor
    first: Tensor
    last: Tensor
    starts: Tensor

    @classmethod
    def of(cls, tokenized: TokenizedTexts, tokenizer: TextTokenizer) -> PackedWindows:
        """Cut texts into windows and pack them.

        Args:
            tokenized: the texts.
            tokenizer: the tokenizer that they come from.

        Returns:
            The windows of all texts that have tokens.
        """
        windows, rows, start = [], [], 0
        for ids, compared in zip(tokenized.ids, tokenized.compared_ids, strict=True):
            for window in cut_into_windows(ids, tokenizer) if ids else ():
                windows.append(window)
                rows.append((len(window.ids), window.first, window.last, start + window.start))
            start += len(compared)
        lengths, first, last, starts = torch.tensor(rows, dtype=torch.long, device="cpu").view(-1, 4).unbind(1)
        return cls(
            sizes=lengths.tolist(),
            num_tokens=start,
            ids=torch.tensor([i for window in windows for i in window.ids], dtype=torch.long, device="cpu"),
            offsets=lengths.cumsum(0) - lengths,
            lengths=lengths,
            first=first,
            last=last,
            starts=starts,
        )

    def pad(self, batch: Sequence[int], pad_id: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Build a padded batch.

        Args:
            batch: numbers of the windows.
            pad_id: the padding id.

        Returns:
            Token ids and the mask of real tokens, both of shape (batch, longest); the positions of the used vectors in
            the flattened batch, and their positions among the compared tokens of all texts, both of shape (used
            vectors,).
        """
        rows = torch.tensor(batch, device="cpu")[:, None]
        position = torch.arange(int(self.lengths[rows].max()), device="cpu")
        mask = position < self.lengths[rows]
        ids = torch.full(mask.shape, pad_id, dtype=torch.long, device="cpu")
        ids[mask] = self.ids[(self.offsets[rows] + position)[mask]]
        used = (position >= self.first[rows]) & (position < self.last[rows])
        positions = (self.starts[rows] - self.first[rows] + position)[used]
        return ids, mask, used.flatten().nonzero().squeeze(1), positions
