"""Numbers on the command line that have a range."""

from __future__ import annotations

import argparse
from collections.abc import Callable

__all__ = ["at_least", "share"]


def at_least(smallest: int) -> Callable[[str], int]:
    """Return a type for arguments that are integers with a lower bound.

    Args:
        smallest: the bound.

    Returns:
        What reads them.

    Example:
        >>> at_least(1)("7")
        7
    """

    def integer(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = smallest - 1
        if value < smallest:
            raise argparse.ArgumentTypeError(f"{text!r} is no whole number of at least {smallest}")
        return value

    return integer


def share(text: str) -> float:
    """Read a number between 0 and 1, both excluded.

    Args:
        text: the argument.

    Returns:
        The number.

    Raises:
        argparse.ArgumentTypeError: it is none.

    Example:
        >>> share("0.95")
        0.95
    """
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number between 0 and 1, such as 0.95")
    return value
