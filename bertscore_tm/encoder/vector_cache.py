"""Token vectors of texts that come again, such as the references of every validation, kept in CPU memory.

One cache serves all metrics and losses of a process whose encoders have the same settings. Nothing is ever evicted: a
validation reads its references in the same order each time, and under such cyclic scans dropping the oldest text for
the newest would leave no text in place until it comes again.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from bertscore_tm.core.token_vectors import TokenVectors, concatenate

__all__ = ["VectorCache", "check_cache_bytes", "shared_cache"]

# Numbers that memory is taken for at a time, 64 MiB in float32. A power of two, to which pinned memory is rounded.
_NUMBERS_PER_SLAB = 2**24


@dataclass(frozen=True)
class _Text:
    """A text in the cache: its vectors, a view of a slab of shape (layers, tokens, width), and facts about it."""

    vectors: Tensor
    ids: Tensor
    has_content: bool
    truncated: bool


class VectorCache:
    """Token vectors by text, on the CPU; in pinned memory where they are for a GPU, so that copies run beside its work.

    Args:
        device: where the vectors are encoded and needed.

    Example:
        >>> cache = VectorCache(torch.device("cpu"))
        >>> def encode(texts):
        ...     print("encodes", texts)
        ...     lengths = torch.tensor([len(text) for text in texts])
        ...     ids, yes = torch.zeros(int(lengths.sum()), dtype=torch.long), torch.ones(len(texts), dtype=torch.bool)
        ...     return TokenVectors(torch.ones(1, len(ids), 4), ids, lengths, yes, ~yes)
        >>> order, vectors = cache.fetch(["a", "bc"], encode, max_bytes=1000)
        encodes ['a', 'bc']
        >>> order, vectors = cache.fetch(["def", "bc"], encode, max_bytes=1000)
        encodes ['def']
        >>> order, vectors.lengths.tolist()
        (['bc', 'def'], [2, 3])
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.num_bytes = 0
        self._texts: dict[str, _Text] = {}
        self._slab = torch.empty(0)
        self._used = 0
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._texts)

    def __contains__(self, text: str) -> bool:
        return text in self._texts

    def fetch(
        self, texts: Sequence[str], encode: Callable[[list[str]], TokenVectors], max_bytes: int
    ) -> tuple[list[str], TokenVectors]:
        """Return the vectors of texts, encoding those that are not there, and keep these while there is room.

        Args:
            texts: distinct texts.
            encode: gives the vectors of texts, on the cache's device.
            max_bytes: how large the cache may grow; what is in it stays even where it is larger already.

        Returns:
            The texts in the order of their vectors, those that were there first; and the vectors, on the cache's
            device.
        """
        # Looked up once, as another thread may add some meanwhile.
        there = {text: kept for text in texts if (kept := self._texts.get(text)) is not None}
        missing = [text for text in texts if text not in there]
        parts = [self._gather(list(there.values()))] if there else []
        if missing or not texts:
            encoded = encode(missing)
            self._keep(missing, encoded, max_bytes)
            parts.append(encoded)
        return [*there, *missing], concatenate(parts)

    def clear(self) -> None:
        """Forget all texts."""
        with self._lock:
            self._texts.clear()
            self._slab, self._used, self.num_bytes = torch.empty(0), 0, 0

    def _gather(self, found: Sequence[_Text]) -> TokenVectors:
        lengths = [len(text.ids) for text in found]
        num_layers, _, width = found[0].vectors.shape
        vectors = torch.empty(num_layers, sum(lengths), width, dtype=found[0].vectors.dtype, device=self.device)
        start = 0
        for text, length in zip(found, lengths, strict=True):
            vectors[:, start : start + length].copy_(text.vectors, non_blocking=True)
            start += length
        return TokenVectors(
            vectors=vectors,
            ids=torch.cat([text.ids for text in found]).to(self.device),
            lengths=torch.tensor(lengths, dtype=torch.long, device=self.device),
            has_content=torch.tensor([text.has_content for text in found], device=self.device),
            truncated=torch.tensor([text.truncated for text in found]),
        )

    def _keep(self, texts: list[str], encoded: TokenVectors, max_bytes: int) -> None:
        lengths, ids = encoded.lengths.tolist(), encoded.ids.cpu()
        has_content, truncated = encoded.has_content.tolist(), encoded.truncated.tolist()
        start = 0
        new: dict[str, _Text] = {}
        with self._lock:
            for number, (text, length) in enumerate(zip(texts, lengths, strict=True)):
                vectors = encoded.vectors[:, start : start + length]
                room = None if text in self._texts else self._room(vectors, max_bytes)
                if room is not None:
                    room.copy_(vectors, non_blocking=True)
                    # The ids are copied too, or a view would hold those of the whole batch.
                    own = ids[start : start + length].clone()
                    new[text] = _Text(room, own, has_content[number], truncated[number])
                start += length
            if self.device.type == "cuda":
                # Before this nobody may read what is written, on whatever stream.
                torch.cuda.current_stream(self.device).synchronize()
            self._texts.update(new)

    def _room(self, vectors: Tensor, max_bytes: int) -> Tensor | None:
        """Memory for the vectors of a text, or ``None`` where the cache is full."""
        size = vectors.numel()
        if self._used + size > len(self._slab) or self._slab.dtype != vectors.dtype:
            left = (max_bytes - self.num_bytes) // vectors.element_size()
            if size > left:
                return None
            # Outside inference mode, or the next training step could not read what a validation has written.
            with torch.inference_mode(False):
                self._slab = torch.empty(
                    min(max(_NUMBERS_PER_SLAB, size), left),
                    dtype=vectors.dtype,
                    pin_memory=self.device.type == "cuda",
                )
            self._used = 0
            self.num_bytes += self._slab.numel() * self._slab.element_size()
        room = self._slab[self._used : self._used + size].view(vectors.shape)
        self._used += math.prod(vectors.shape)
        return room


def check_cache_bytes(cache_bytes: int) -> None:
    """Make sure that a budget is one.

    Args:
        cache_bytes: what the caller has passed.

    Raises:
        TypeError: it is no whole number.
        ValueError: it is negative.

    Example:
        >>> check_cache_bytes(2**30)
    """
    if not isinstance(cache_bytes, int):
        raise TypeError(f"cache_bytes must be a whole number of bytes, got {cache_bytes!r}")
    if cache_bytes < 0:
        raise ValueError(f"cache_bytes must be at least 0, got {cache_bytes}")


_pool: WeakValueDictionary[Hashable, VectorCache] = WeakValueDictionary()
_pool_lock = threading.Lock()


def shared_cache(settings: Hashable, device: torch.device) -> VectorCache:
    """Return the cache of this process for some settings, which lives as long as somebody holds it.

    Args:
        settings: everything that vectors depend on beside the text and the device.
        device: where the vectors are encoded.

    Returns:
        The cache.
    """
    with _pool_lock:
        cache = _pool.get((settings, device))
        if cache is None:
            cache = _pool[settings, device] = VectorCache(device)
        return cache
