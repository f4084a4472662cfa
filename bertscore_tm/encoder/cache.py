"""Cache token vectors by text, such as those of references, for all encoders of the process with equal settings."""

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar
from weakref import WeakValueDictionary

import numpy as np

from bertscore_tm.device.locks import Lock
from bertscore_tm.matching.vectors import TokenVectors

Text = TypeVar("Text", bound=Hashable)
V = TypeVar("V")


class SharedObjects(Generic[V]):
    """Thread-safe dictionary of weak references: one object per key while somebody uses it.

    The last object that was requested with ``keep`` stays in memory without a user, until another one is created.
    """

    def __init__(self) -> None:
        self._objects: WeakValueDictionary[Hashable, V] = WeakValueDictionary()
        # Reentrant, because creating an object may need another one.
        self._lock = Lock()
        self._last: V | None = None

    def get(self, key: Hashable, create: Callable[[], V], *, keep: bool = False) -> V:
        """Return the object of a key, which is created if there is none."""
        with self._lock:
            shared = self._objects.get(key)
            if shared is None:
                # The last object is dropped first, so that both are never in memory.
                self._last = None
                shared = create()
                self._objects[key] = shared
            if keep:
                self._last = shared
            return shared

    def release(self, key: Hashable) -> None:
        """Let the object of a key be dropped with its last user, also if it was requested with ``keep``."""
        with self._lock:
            if self._objects.get(key) is self._last:
                self._last = None


class VectorCache:
    """Token vectors by text, on the device that encoded them; a text is a string, or the tuple of its token ids."""

    # Nothing is evicted: in the cyclic scans of validations, the oldest text is always the next one to be read.
    def __init__(self) -> None:
        self.num_bytes = 0
        self._texts: dict[Hashable, TokenVectors] = {}

    def get(self, texts: Iterable[Text]) -> dict[Text, TokenVectors]:
        """Return the vectors of each of the texts that is cached."""
        cached = {}
        for text in texts:
            # Each text is looked up once, because another thread may clear the cache meanwhile.
            vectors = self._texts.get(text)
            if vectors is not None:
                cached[text] = vectors
        return cached

    def add(self, texts: Sequence[Hashable], vectors: TokenVectors, max_bytes: int) -> None:
        """Cache the vectors of unique texts that are not cached, until the size limit in bytes is reached.

        ``vectors`` are those of these texts, and possibly of further texts after them.
        """
        num_layers, _, width = vectors.vectors.shape
        bytes_per_token = num_layers * width * vectors.vectors.element_size()
        lengths = vectors.texts.lengths[: len(texts)]  # (texts,)
        sizes = np.cumsum(lengths) * bytes_per_token  # of each text with all before it, (texts,)
        count = int((sizes <= max_bytes - self.num_bytes).sum())
        if count == 0:
            return
        if count < len(vectors.texts.lengths):
            # Copy these texts, because views of the batch would keep all of it in memory.
            vectors = vectors.select(np.arange(count))
        self._texts.update(zip(texts[:count], vectors.split(), strict=True))
        self.num_bytes += int(sizes[count - 1])

    def clear(self) -> None:
        """Forget all texts."""
        self._texts = {}
        self.num_bytes = 0


@dataclass(frozen=True)
class ReferenceCache:
    """The cache for the vectors of references that a metric, a reward or a loss reads and fills.

    Args:
        vectors: the cache, which others may share.
        max_bytes: size of the cache from which on no texts are added.
    """

    vectors: VectorCache
    max_bytes: int


# The caches of this process, by everything that vectors depend on besides the text.
shared_caches: SharedObjects[VectorCache] = SharedObjects()
