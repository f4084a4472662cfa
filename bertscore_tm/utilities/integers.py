"""Integers among the arguments of users: of any kind, and nothing else."""

from __future__ import annotations

import operator
from typing import SupportsIndex

__all__ = ["as_integer"]


def as_integer(name: str, value: SupportsIndex) -> int:
    """Return an integer of any kind, such as one of NumPy, as an ``int``.

    Args:
        name: the argument, for the error message.
        value: the integer.

    Returns:
        The same number.

    Raises:
        TypeError: it is not an integer; a bool is not one either.

    Example:
        >>> import numpy as np
        >>> as_integer("num_layers", np.int64(3))
        3
    """
    if not isinstance(value, bool):
        try:
            return operator.index(value)
        except TypeError:
            pass
    raise TypeError(f"{name} must be an integer, got {value!r}")
