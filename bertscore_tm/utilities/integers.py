"""Integers among the arguments of users: of any kind, and nothing else."""

from __future__ import annotations

import operator
from typing import SupportsIndex

__all__ = ["as_integer"]


def as_integer(name: str, value: SupportsIndex) -> int:
    """Return an argument that must be a whole number, such as an int, a number of NumPy or a tensor of one element.

    Raises:
        TypeError: it is something else, or a bool.
    """
    if not isinstance(value, bool):
        try:
            return operator.index(value)
        except TypeError:
            pass
    raise TypeError(f"{name} must be an integer, got {value!r}")
