"""Switches of the process that several threads may turn at once."""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from bertscore_tm.device.locks import Lock


class ProcessSwitch:
    """A setting of the process that is changed to a value for a while; the last thread to leave restores it.

    ``read`` returns the setting, and ``write`` changes it.
    """

    def __init__(self, read: Callable[[], Any], write: Callable[[Any], Any], value: Any) -> None:
        self._read, self._write, self._value = read, write, value
        self._before: Any = None
        # Each thread once per block that it is in.
        self._threads: list[int] = []
        self._lock = Lock()
        if hasattr(os, "register_at_fork"):  # not on Windows
            os.register_at_fork(after_in_child=self._forget_other_threads)

    @contextmanager
    def turned(self) -> Iterator[None]:
        """Write the setting, and restore it once no thread is within such a block."""
        thread = threading.get_ident()
        with self._lock:
            if not self._threads:
                self._before = self._read()
            # First, so that a fork in between restores the setting in the child.
            self._threads.append(thread)
            self._write(self._value)
        try:
            yield
        finally:
            with self._lock:
                if len(self._threads) == 1:
                    self._write(self._before)
                self._threads.remove(thread)

    def _forget_other_threads(self) -> None:
        """Restore the setting in the child of a fork if only threads of the parent were within a block."""
        threads = [thread for thread in self._threads if thread == threading.get_ident()]
        if self._threads and not threads:
            self._write(self._before)
        self._threads = threads
