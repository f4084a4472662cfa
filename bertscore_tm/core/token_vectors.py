"""Packed token vectors of texts of different lengths, and batches of similar lengths."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, fields

import torch
from torch import Tensor, nn

from bertscore_tm.core.memory import send
from bertscore_tm.core.precision import exact_products


@dataclass(frozen=True)
class TokenVectors:
    """Unit vectors of the tokens of several texts, stored without padding.

    Only the vectors are on the encoder's device. All else is on the CPU, so that a program need not wait for an
    accelerator to learn how many tokens there are.

    Args:
        vectors: shape (layers, tokens, width), float32 or wider, each of L2 norm 1.
        ids: token ids, shape (tokens,), int64.
        lengths: tokens per text, shape (texts,), int64; special tokens included, unless the encoder excludes them.
        has_content: texts with a token that is not special and carries weight, shape (texts,), bool.
        truncated: texts that were cut at the length limit, shape (texts,), bool.
    """

    vectors: Tensor
    ids: Tensor
    lengths: Tensor
    has_content: Tensor
    truncated: Tensor

    @property
    def num_truncated(self) -> int:
        """Number of texts that were cut at the length limit."""
        return int(self.truncated.sum())

    def select(self, texts: Tensor) -> TokenVectors:
        """Return the vectors of the texts with these indices, shape (texts,), on the CPU, in the given order."""
        tokens = positions_of(self.lengths, texts)
        vectors = self.vectors.index_select(1, send(tokens, self.vectors.device))  # (layers, tokens, width)
        lengths, has_content = self.lengths[texts], self.has_content[texts]
        return TokenVectors(vectors, self.ids[tokens], lengths, has_content, self.truncated[texts])

    def split(self) -> list[TokenVectors]:
        """Return each text's vectors, in the same memory."""
        lengths = self.lengths.tolist()
        facts = (torch.split(values, 1) for values in (self.lengths, self.has_content, self.truncated))
        texts = zip(torch.split(self.vectors, lengths, dim=1), torch.split(self.ids, lengths), *facts, strict=True)
        return [
            TokenVectors(vectors, ids, length, has_content, truncated)
            for vectors, ids, length, has_content, truncated in texts
        ]

    def locate(self, texts: Tensor) -> tuple[Tensor, Tensor]:
        """Return where the tokens of some texts, given by their indices, are among all tokens, as a padded batch.

        Positions, 0 for padding, and the mask of real tokens have the shape (batch, longest), on the CPU; they have at
        least one column, also where no text has a token.
        """
        lengths = self.lengths[texts]
        # A maximum over no positions would be undefined.
        steps = torch.arange(max(int(lengths.max()), 1), device="cpu")
        mask = steps < lengths[:, None]  # (batch, longest)
        starts = (self.lengths.cumsum(0) - self.lengths)[texts]  # (batch,)
        return torch.where(mask, starts[:, None] + steps, 0), mask

    def gather(self, index: Tensor, mask: Tensor | None, memory: Tensor | None = None) -> Tensor:
        """Return the vectors at positions among all tokens, as a padded batch, shape (layers, batch, longest, width).

        ``index`` and ``mask`` are those of :meth:`locate`, the mask on the vectors' device; without it, padding has
        other vectors than zero. ``memory`` is a buffer for the vectors, used if they fit.
        """
        layers, num_tokens, width = self.vectors.shape
        if not num_tokens:
            return self.vectors.new_zeros(layers, *index.shape, width)
        size = layers * index.numel() * width
        if memory is None or len(memory) < size:
            memory = self.vectors.new_empty(size)
        padded = memory[:size].view(layers, -1, width)
        torch.index_select(self.vectors, 1, send(index.flatten(), self.vectors.device), out=padded)
        padded = padded.view(layers, *index.shape, width)  # (layers, batch, longest, width)
        return padded if mask is None else padded.masked_fill_(~mask[..., None], 0.0)


def positions_of(lengths: Tensor, texts: Tensor) -> Tensor:
    """Return where the tokens of some of the packed texts with these lengths are, shape (tokens,), on the CPU."""
    chosen = lengths[texts]
    starts = (lengths.cumsum(0) - lengths)[texts] - (chosen.cumsum(0) - chosen)  # (texts,)
    return starts.repeat_interleave(chosen) + torch.arange(int(chosen.sum()), device="cpu")


def concatenate(parts: Sequence[TokenVectors]) -> TokenVectors:
    """Concatenate the texts of at least one part, with equal numbers of layers, on one device."""
    # A part from a validation in inference mode is copied, since a training step could not save it for backward.
    if len(parts) == 1 and not parts[0].vectors.is_inference():
        return parts[0]
    joined = {
        field.name: torch.cat([getattr(part, field.name) for part in parts], dim=1 if field.name == "vectors" else 0)
        for field in fields(TokenVectors)
    }
    return TokenVectors(**joined)


def token_batches(lengths: Sequence[int], budget: int) -> Iterator[list[int]]:
    """Cut items into batches of similar length whose padded size stays within a budget.

    An item larger than that becomes a batch alone. Longest items come first, equal lengths in their given order.

    Example:
        >>> list(token_batches([3, 9, 4, 3], budget=10))
        [[1], [2, 0], [3]]
    """
    batch: list[int] = []
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        if batch and (len(batch) + 1) * lengths[batch[0]] > budget:
            yield batch
            batch = []
        batch.append(i)
    if batch:
        yield batch


def unit_vectors(vectors: Tensor) -> Tensor:
    """Divide vectors, shape (..., width), by their L2 norm, in float32 or wider; zero vectors stay zero."""
    wide = vectors.to(torch.promote_types(torch.float32, vectors.dtype))
    return nn.functional.normalize(wide, dim=-1, eps=1e-12)


def cosine_similarities(candidate: Tensor, reference: Tensor) -> Tensor:
    """Return the cosine similarities of unit vectors, in float32 without TF32, or in float64.

    Their shapes are (..., m, width) and (..., n, width); that of the similarities is (..., m, n).
    """
    dtype = torch.promote_types(torch.float32, candidate.dtype)
    device_type = candidate.device.type
    exact = exact_products.turned() if device_type == "cuda" else nullcontext()
    with torch.autocast(device_type=device_type, enabled=False), exact:
        return candidate.to(dtype) @ reference.to(dtype).transpose(-1, -2)
