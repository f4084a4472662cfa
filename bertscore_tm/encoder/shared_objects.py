"""Objects that a process creates once and shares."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar
from weakref import WeakValueDictionary

__all__ = ["SharedObjects"]

V = TypeVar("V")


class SharedObjects(Generic[V]):
    """Objects by key; each is created once, also with several threads, and dropped with its last user.

    Example:
        >>> sets = SharedObjects()
        >>> first = sets.get("key", lambda: {1})
        >>> sets.get("key", lambda: {2}) is first
        True
    """

    def __init__(self) -> None:
        self._objects: WeakValueDictionary[Hashable, V] = WeakValueDictionary()
        # Reentrant, as creating an object may need another one.
        self._lock = threading.RLock()

    def get(self, key: Hashable, create: Callable[[], V]) -> V:
        """Return the object of a key, created if nobody uses one.

        Args:
            key: the key.
            create: returns a new object.

        Returns:
            The object.
        """
        with self._lock:
            found = self._objects.get(key)
            if found is None:
                found = self._objects[key] = create()
            return found
