"""Checks of settings that several losses share."""

from __future__ import annotations

from typing import Any, get_args

__all__ = ["require_choice", "require_positive"]


def require_choice(name: str, value: object, allowed: Any) -> None:
    """Raise an error unless a setting is one of the allowed strings.

    Args:
        name: name of the setting.
        value: its value.
        allowed: the allowed strings, as a ``Literal``.

    Raises:
        ValueError: the value is not one of them.

    Example:
        >>> from typing import Literal
        >>> require_choice("reduction", "mean", Literal["mean", "sum"])
    """
    choices = get_args(allowed)
    if value not in choices:
        raise ValueError(f"{name}={value!r} is not one of {', '.join(map(repr, choices))}")


def require_positive(name: str, value: float) -> None:
    """Raise an error unless a setting is above 0.

    Args:
        name: name of the setting.
        value: its value.

    Raises:
        ValueError: the value is 0, negative or NaN.

    Example:
        >>> require_positive("temperature", 0.1)
    """
    if not value > 0:
        raise ValueError(f"{name} must be above 0, got {value}")
