"""Checks of settings that several folders share."""

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, SupportsIndex, TypeVar, get_args

Function = TypeVar("Function", bound=Callable[..., Any])


def require_choice(name: str, value: object, allowed: Any) -> None:
    """Raise a ValueError unless a setting is one of the strings of a ``Literal``."""
    choices = get_args(allowed)
    if value not in choices:
        raise ValueError(f"{name}={value!r} is not one of {', '.join(map(repr, choices))}")


def resolve_callable(name: str, value: str | Function, named: Mapping[str, Function]) -> Function:
    """Return the callable of a name, or the given callable; a ValueError if the name is unknown."""
    if callable(value):
        return value
    if value not in named:
        raise ValueError(f"{name}={value!r} is not a callable or one of {', '.join(map(repr, named))}")
    return named[value]


def require_at_least(name: str, value: float, least: float) -> None:
    """Raise a ValueError if a setting is below the least allowed value."""
    if value < least:
        raise ValueError(f"{name} must be at least {least}, got {value}")


def require_positive(name: str, value: float) -> None:
    """Raise a ValueError unless a setting is above 0."""
    if not value > 0:
        raise ValueError(f"{name} must be above 0, got {value}")


def as_integer(name: str, value: SupportsIndex) -> int:
    """Return a whole number, such as an int, a number of NumPy or a tensor of one element; a TypeError if it is not."""
    if not isinstance(value, bool):
        try:
            return operator.index(value)
        except TypeError:
            pass
    raise TypeError(f"{name} must be an integer, got {value!r}")


def full_class_name(value: object) -> str:
    """Return the name of an object's class with its module: several packages have a class ``BERTScore``."""
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def shorten(names: Sequence[str]) -> str:
    """Return the first three of some names as text."""
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
