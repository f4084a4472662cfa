"""Locks that are free in the child of a fork, although another thread of the parent held them."""

import functools
import os
import threading
from collections.abc import Callable
from typing import Any, TypeVar
from weakref import WeakSet

T_co = TypeVar("T_co", covariant=True)


class Lock:
    """Reentrant lock that is free in the child of a fork, unless the thread that forked holds it."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        _locks.add(self)

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def renew(self) -> None:
        """Replace the lock if another thread holds it. Call this only if that thread does not exist anymore."""
        if self._lock.acquire(blocking=False):
            self._lock.release()
        else:
            self._lock = threading.RLock()


class cached_property(functools.cached_property[T_co]):  # noqa: N801
    """Cached property with a lock that is free in the child of a fork.

    Before Python 3.12 the base class has a lock too, which a fork may leave locked. Later versions have none.
    """

    def __init__(self, func: Callable[[Any], T_co]) -> None:
        super().__init__(func)
        self.lock = Lock()


_locks: WeakSet[Lock] = WeakSet()


def _renew_locks() -> None:
    """Free the locks in the child of a fork, which only has the thread that forked."""
    for lock in _locks:
        lock.renew()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_renew_locks)
