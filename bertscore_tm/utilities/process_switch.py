"""Switches of the process that several threads may turn at once."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


class ProcessSwitch:
    """A setting of the process that is changed to a value for a while; the last thread to leave restores it.

    ``read`` returns the setting, and ``write`` changes it.
    """

    def __init__(self, read: Callable[[], Any], write: Callable[[Any], Any], value: Any) -> None:
        self._read, self._write, self._value = read, write, value
        self._lock, self._entered, self._before = threading.Lock(), 0, None

    @contextmanager
    def turned(self) -> Iterator[None]:
        """Write the setting, and restore it once no thread is within such a block."""
        with self._lock:
            if self._entered == 0:
                self._before = self._read()
                self._write(self._value)
            self._entered += 1
        try:
            yield
        finally:
            with self._lock:
                self._entered -= 1
                if self._entered == 0:
                    self._write(self._before)
