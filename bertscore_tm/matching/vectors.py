"""Batches of texts as flat arrays: concatenated token ids, lengths and facts of each text, and token vectors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bertscore_tm.device.memory import send
from bertscore_tm.device.precision import exact_products

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class TokenizedTexts:
    """Token ids of several texts, one text after the other, and what is known of each text.

    All are arrays on the CPU, so that a program need not wait for an accelerator to learn how many tokens there are.

    Args:
        ids: token ids, shape (tokens,), int64.
        lengths: tokens per text, shape (texts,), int64; special tokens included, unless the encoder excludes them.
        has_content: texts with a token that is not special and carries weight, shape (texts,), bool.
        truncated: texts that were cut at the length limit, shape (texts,), bool.
        text_sizes: characters per text except white space, or tokens if the tokenizer has no offsets, shape (texts,),
            int64; special tokens and what was truncated are not counted.
        unknown_sizes: the part of ``text_sizes`` that is unknown to the vocabulary, shape (texts,), int64.
    """

    ids: Ints
    lengths: Ints
    has_content: Bools
    truncated: Bools
    text_sizes: Ints
    unknown_sizes: Ints

    @classmethod
    def concatenate(cls, parts: Sequence[TokenizedTexts]) -> TokenizedTexts:
        """Return the texts of at least one part, one part after the other."""
        joined = {}
        for field in fields(cls):
            joined[field.name] = np.concatenate([getattr(part, field.name) for part in parts])
        return cls(**joined)

    @cached_property
    def starts(self) -> Ints:
        """Place of each text's first token among all tokens, shape (texts,)."""
        return self.lengths.cumsum() - self.lengths

    @property
    def num_truncated(self) -> int:
        """Number of texts that were cut at the length limit."""
        return int(self.truncated.sum())

    def rows(self) -> list[list[int]]:
        """Return the token ids of each text."""
        ends = self.starts + self.lengths  # (texts,)
        return [self.ids[start:end].tolist() for start, end in zip(self.starts, ends, strict=True)]

    def places(self, indices: Ints) -> Ints:
        """Return the places of the tokens of the texts with these indices, text by text, shape (selected tokens,)."""
        return places_of(self.starts[indices], self.lengths[indices])

    def select(self, indices: Ints) -> TokenizedTexts:
        """Return the texts with these indices, shape (selected texts,), in the given order."""
        return TokenizedTexts(
            ids=self.ids[self.places(indices)],
            lengths=self.lengths[indices],
            has_content=self.has_content[indices],
            truncated=self.truncated[indices],
            text_sizes=self.text_sizes[indices],
            unknown_sizes=self.unknown_sizes[indices],
        )

    def trim(self, before: int, after: int) -> tuple[TokenizedTexts, Bools]:
        """Remove tokens at the start and at the end of each text.

        Args:
            before: number of tokens to remove at the start of each text.
            after: number of tokens to remove at the end of each text.

        Returns:
            The texts, and a mask of all tokens that is true for the remaining ones, shape (tokens,).
        """
        lengths = self.lengths - before - after  # (texts,)
        remains = np.zeros(len(self.ids), np.bool_)  # (tokens,)
        remains[places_of(self.starts + before, lengths)] = True
        return replace(self, ids=self.ids[remains], lengths=lengths), remains

    def locate(self, indices: Ints) -> tuple[Ints, Bools]:
        """Return the places of some texts' tokens, and which are real, as padded batches, shape (batch, longest).

        Padding has the place of the text's last token, or any valid place if the text has no token. There is at least
        one column, also if no text has a token.
        """
        starts = self.starts[indices][:, None]  # (batch, 1)
        lengths = self.lengths[indices][:, None]  # (batch, 1)
        # At least one column, because the maximum over no positions is undefined.
        steps = np.arange(max(int(lengths.max()), 1))  # (longest,)
        is_real = steps < lengths  # (batch, longest)
        places = starts + np.minimum(steps, lengths - 1)  # (batch, longest)
        # A text without tokens has the place before its start, which is -1 for the first text of all.
        return np.maximum(places, 0), is_real


@dataclass(frozen=True, eq=False)
class TokenVectors:
    """Several texts, and the unit vectors of their tokens, stored without padding.

    Args:
        texts: the texts, in the order of their vectors.
        vectors: shape (layers, tokens, width), float32 or wider, each of L2 norm 1, on the encoder's device.
    """

    texts: TokenizedTexts
    vectors: Tensor

    def select(self, indices: Ints) -> TokenVectors:
        """Return the texts with these indices, shape (selected texts,), in the given order."""
        tokens = send(self.texts.places(indices), self.vectors.device)  # (selected tokens,)
        return TokenVectors(self.texts.select(indices), self.vectors.index_select(1, tokens))

    def split(self) -> list[TokenVectors]:
        """Return each text alone, as views of the vectors."""
        parts = torch.split(self.vectors, self.texts.lengths.tolist(), dim=1)  # (layers, tokens of the text, width)
        texts = [self.texts.select(np.array([i])) for i in range(len(parts))]
        return [TokenVectors(text, part) for text, part in zip(texts, parts, strict=True)]

    def gather(self, index: Ints, mask: Tensor | None, memory: Tensor | None = None) -> Tensor:
        """Return the vectors of tokens, as a padded batch, shape (layers, batch, longest, width).

        Args:
            index: places of the tokens from :meth:`TokenizedTexts.locate`, shape (batch, longest). Padding indexes any
                valid token.
            mask: true for real tokens, shape (batch, longest), on the vectors' device; vectors of padding become zero.
                Default: padding has the vectors of the tokens that it indexes.
            memory: flat buffer that holds the result if it is large enough. Default: a new tensor.
        """
        layers, num_tokens, width = self.vectors.shape
        if num_tokens == 0:
            # All positions are padding, and there is no token that it could index.
            return self.vectors.new_zeros(layers, *index.shape, width)
        size = layers * index.size * width
        if memory is None or len(memory) < size:
            memory = self.vectors.new_empty(size)
        padded = memory[:size].view(layers, -1, width)  # (layers, batch * longest, width)
        torch.index_select(self.vectors, 1, send(index.reshape(-1), self.vectors.device), out=padded)
        padded = padded.view(layers, *index.shape, width)  # (layers, batch, longest, width)
        if mask is None:
            return padded
        return padded.masked_fill_(~mask[..., None], 0.0)


def places_of(starts: Ints, lengths: Ints) -> Ints:
    """Return the places of the tokens of texts that start at some places, text by text, shape (tokens,).

    Example:
        >>> places_of(np.array([5, 0]), np.array([2, 3]))
        array([5, 6, 0, 1, 2])
    """
    # In the result, the tokens have the positions 0, 1, 2, ..., and a text starts at lengths.cumsum() - lengths. The
    # place of a token is its position in the result plus its text's shift: `starts` minus this start.
    places: Ints = (starts + lengths - lengths.cumsum()).repeat(lengths)  # shift of each token, (tokens,)
    places += np.arange(len(places))
    return places


def concatenate(parts: Sequence[TokenVectors]) -> TokenVectors:
    """Concatenate the texts of at least one part, with equal numbers of layers, on one device."""
    # Copy a part from a validation in inference mode, because a training step could not save it for backward.
    if len(parts) == 1 and not parts[0].vectors.is_inference():
        return parts[0]
    texts = TokenizedTexts.concatenate([part.texts for part in parts])
    return TokenVectors(texts, torch.cat([part.vectors for part in parts], dim=1))  # (layers, tokens, width)


def token_batches(lengths: Sequence[int], budget: int) -> Iterator[list[int]]:
    """Cut items into batches of similar length whose padded size stays within a budget.

    An item larger than the budget is a batch alone. Longest items come first, equal lengths in their given order.

    Example:
        >>> list(token_batches([3, 9, 4, 3], budget=10))
        [[1], [2, 0], [3]]
    """
    batch: list[int] = []
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        # All items of a batch are padded to its first item, which is the longest.
        if batch and (len(batch) + 1) * lengths[batch[0]] > budget:
            yield batch
            batch = []
        batch.append(i)
    if batch:
        yield batch


def unit_vectors(vectors: Tensor) -> Tensor:
    """Divide vectors, shape (..., width), by their L2 norm, in float32 or wider; zero vectors stay zero."""
    # Norms in half precision are too imprecise for scores.
    wide = vectors.to(torch.promote_types(torch.float32, vectors.dtype))
    return nn.functional.normalize(wide, dim=-1, eps=1e-12)


def cosine_similarities(candidate: Tensor, reference: Tensor) -> Tensor:
    """Return the cosine similarities of unit vectors, in float32 without TF32, or in float64.

    Their shapes are (..., m, width) and (..., n, width); that of the similarities is (..., m, n).
    """
    dtype = torch.promote_types(torch.float32, candidate.dtype)
    device_type = candidate.device.type
    # Enter only contexts that change something, because a matching calls this for each of its steps.
    without_tf32: AbstractContextManager[Any] = nullcontext()
    if device_type == "cuda":
        without_tf32 = exact_products.turned()
    without_autocast: AbstractContextManager[Any] = nullcontext()
    if torch.is_autocast_enabled(device_type):
        without_autocast = torch.autocast(device_type, enabled=False)
    with without_autocast, without_tf32:
        return candidate.to(dtype) @ reference.to(dtype).transpose(-1, -2)
