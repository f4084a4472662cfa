"""Memory that has been freed and that the C library keeps for later."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from functools import cache
from typing import cast

__all__ = ["return_freed_memory"]


def return_freed_memory() -> None:
    """Give freed memory back to the system, where the C library would keep it: glibc, on Linux.

    Large tensors of ever different sizes leave holes between small ones that stay. Without this, a corpus of many steps
    takes several times the memory of one step, and not the same from run to run.

    Example:
        >>> return_freed_memory()
    """
    trim = _trim()
    if trim is not None:
        trim(0)


@cache
def _trim() -> Callable[[int], int] | None:
    if sys.platform != "linux":
        return None
    # Other C libraries, such as musl, have no such function.
    return cast("Callable[[int], int] | None", getattr(ctypes.CDLL(None), "malloc_trim", None))
