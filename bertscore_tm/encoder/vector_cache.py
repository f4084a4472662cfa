"""Cache token vectors in CPU memory, for texts that are encoded repeatedly, such as the references of a validation.

One cache serves all metrics and losses of a process whose encoders have the same settings. Nothing is ever evicted:
each validation reads its references in the same order, and evicting the oldest text in such a cyclic scan would evict
every text before it is read again.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Generic, SupportsIndex, TypeVar
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from bertscore_tm.core.token_vectors import TokenVectors, concatenate
from bertscore_tm.utilities.integers import as_integer
from bertscore_tm.utilities.settings import require_at_least

__all__ = ["SharedObjects", "VectorCache", "as_cache_bytes", "shared_cache"]

Text = TypeVar("Text", bound=Hashable)
V = TypeVar("V")


class SharedObjects(Generic[V]):
    """Objects by key; each is created once, also with several threads, and dropped with its last user."""

    def __init__(self) -> None:
        self._objects: WeakValueDictionary[Hashable, V] = WeakValueDictionary()
        # Reentrant, as creating an object may need another one.
        self._lock = threading.RLock()

    def get(self, key: Hashable, create: Callable[[], V]) -> V:
        """Return the object of a key, created if nobody uses one."""
        with self._lock:
            found = self._objects.get(key)
            if found is None:
                found = self._objects[key] = create()
            return found


@dataclass(frozen=True)
class _CachedText:
    """A text in the cache; on a GPU with the event after which its vectors, (layers, tokens, width), are there."""

    vectors: Tensor
    ids: Tensor
    has_content: bool
    truncated: bool
    written: torch.cuda.Event | None


class VectorCache:
    """Token vectors by text, in CPU memory; pinned for a GPU, so that it copies them while it computes.

    A text is a string, or the tuple of its token ids. Vectors are encoded and used on the cache's device.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.num_bytes = 0
        self._texts: dict[Hashable, _CachedText] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._texts)

    def fetch(
        self, texts: Sequence[Text], encode: Callable[[list[Text]], TokenVectors], max_bytes: int
    ) -> tuple[list[Text], TokenVectors]:
        """Return unique texts, cached ones first, and their vectors, encoded and cached if they are missing."""
        cached, vectors = self.look_up(texts)
        parts = [] if vectors is None else [vectors]
        missing = [text for text in texts if text not in cached]
        if missing or not texts:
            encoded = encode(missing)
            self.add(missing, encoded, max_bytes)
            parts.append(encoded)
        return [*cached, *missing], concatenate(parts)

    def look_up(self, texts: Sequence[Text]) -> tuple[dict[Text, int], TokenVectors | None]:
        """Return the index of each of the unique texts that is cached, and their vectors, if any."""
        # Looked up once, as another thread may add texts meanwhile.
        cached = {text: entry for text in texts if (entry := self._texts.get(text)) is not None}
        vectors = self._gather(list(cached.values())) if cached else None
        return {text: i for i, text in enumerate(cached)}, vectors

    def _gather(self, entries: Sequence[_CachedText]) -> TokenVectors:
        for event in {entry.written for entry in entries if entry.written is not None}:
            torch.cuda.current_stream(self.device).wait_event(event)
        # Copies, which a training step can use where those in the cache are of a validation in inference mode.
        return TokenVectors(
            vectors=torch.cat([entry.vectors.to(self.device, non_blocking=True) for entry in entries], dim=1),
            ids=torch.cat([entry.ids for entry in entries]),
            lengths=torch.tensor([len(entry.ids) for entry in entries], dtype=torch.long, device="cpu"),
            has_content=torch.tensor([entry.has_content for entry in entries], device="cpu"),
            truncated=torch.tensor([entry.truncated for entry in entries], device="cpu"),
        )

    def add(self, texts: Sequence[Hashable], encoded: TokenVectors, max_bytes: int) -> None:
        """Cache the vectors of unique texts that are not cached, until the size limit in bytes is reached."""
        offsets = [*encoded.offsets.tolist(), len(encoded.ids)]
        has_content, truncated = encoded.has_content.tolist(), encoded.truncated.tolist()
        num_layers, _, width = encoded.vectors.shape
        bytes_per_token = num_layers * width * encoded.vectors.element_size()
        is_cuda = self.device.type == "cuda"
        with self._lock:
            count = bisect_right(offsets, (max_bytes - self.num_bytes) // bytes_per_token) - 1
            if count < 1:
                return
            # One block per call.
            shape = num_layers, offsets[count], width
            block = torch.empty(shape, dtype=encoded.vectors.dtype, device="cpu", pin_memory=is_cuda)
            block.copy_(encoded.vectors[:, : offsets[count]], non_blocking=is_cuda)
            # The program only waits where no event can tell when a copy is complete.
            written = torch.cuda.Event() if is_cuda else None  # type: ignore[no-untyped-call]
            if written is not None:
                written.record(torch.cuda.current_stream(self.device))
            for number in range(count):
                own = slice(offsets[number], offsets[number + 1])
                # The ids are copied, as a view would keep those of the whole batch in memory.
                ids, content, cut = encoded.ids[own].clone(), has_content[number], truncated[number]
                self._texts[texts[number]] = _CachedText(block[:, own], ids, content, cut, written)
            self.num_bytes += offsets[count] * bytes_per_token


def as_cache_bytes(cache_bytes: SupportsIndex) -> int:
    """Return the size of a cache in bytes as passed by a user, an integer of at least 0, which turns it off."""
    size = as_integer("cache_bytes", cache_bytes)
    require_at_least("cache_bytes", size, 0)
    return size


_caches: SharedObjects[VectorCache] = SharedObjects()


def shared_cache(settings: Hashable, device: torch.device) -> VectorCache:
    """Return the cache of this process for everything that vectors depend on, besides the text and the device."""
    return _caches.get((settings, device), lambda: VectorCache(device))
