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
    """Objects by key; each is created once, also with several threads, and dropped with its last user.

    The last one got with ``keep`` outlives its users, until another one is created.
    """

    def __init__(self) -> None:
        self._objects: WeakValueDictionary[Hashable, V] = WeakValueDictionary()
        # Reentrant, as creating an object may need another one.
        self._lock = Lock()
        self._last: V | None = None

    def get(self, key: Hashable, create: Callable[[], V], *, keep: bool = False) -> V:
        """Return the object of a key, created if nobody uses one."""
        with self._lock:
            shared = self._objects.get(key)
            if shared is None:
                self._last = None  # first, so that both are never in memory
                shared = self._objects[key] = create()
            if keep:
                self._last = shared
            return shared

    def release(self, key: Hashable) -> None:
        """Drop the object of a key, if it is the last one, with its last user."""
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
        # Looked up once, as another thread may add texts meanwhile.
        return {text: vectors for text in texts if (vectors := self._texts.get(text)) is not None}

    def add(self, texts: Sequence[Hashable], vectors: TokenVectors, max_bytes: int) -> None:
        """Cache the vectors of unique texts that are not cached, until the size limit in bytes is reached."""
        num_layers, _, width = vectors.vectors.shape
        sizes = np.cumsum(vectors.texts.lengths) * (num_layers * width * vectors.vectors.element_size())  # (texts,)
        count = int((sizes <= max_bytes - self.num_bytes).sum())
        if count == 0:
            return
        if count < len(texts):
            # A copy, as parts of the batch would keep the whole of it in memory.
            vectors = vectors.select(np.arange(count))
        self._texts.update(zip(texts[:count], vectors.split(), strict=True))
        self.num_bytes += int(sizes[count - 1])

    def clear(self) -> None:
        """Forget all texts."""
        self._texts, self.num_bytes = {}, 0


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
