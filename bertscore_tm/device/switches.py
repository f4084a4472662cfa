"""Global settings of the process that several threads may change at the same time."""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from bertscore_tm.device.locks import Lock


class ProcessSwitch:
    """A setting of the process that blocks of code change to a value. The last block to end restores it.

    ``read`` returns the setting, and ``write`` changes it.
    """

    def __init__(self, read: Callable[[], Any], write: Callable[[Any], Any], value: Any) -> None:
        self._read = read
        self._write = write
        self._value = value
        self._before: Any = None  # the setting outside all blocks
        # Identifiers of the threads in a block, repeated for nested blocks.
        self._threads: list[int] = []
        self._lock = Lock()
        if hasattr(os, "register_at_fork"):  # not on Windows
            os.register_at_fork(after_in_child=self._forget_other_threads)

    @contextmanager
    def turned(self) -> Iterator[None]:
        """Change the setting in a block, and restore it when no thread is in such a block anymore."""
        thread = threading.get_ident()
        with self._lock:
            if not self._threads:
                self._before = self._read()
            # Add the thread before the setting is changed, so that a fork in between restores it in the child.
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
        """Restore the setting in the child of a fork, unless the thread that forked is in a block."""
        own_threads = [thread for thread in self._threads if thread == threading.get_ident()]
        if self._threads and not own_threads:
            self._write(self._before)
        self._threads = own_threads
