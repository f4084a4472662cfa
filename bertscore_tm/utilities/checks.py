"""Names of the scores, and checks of settings with the same errors in all folders."""

import operator
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Literal, SupportsIndex, TypeVar, get_args

# Score tensors have their rows in this order.
SCORE_NAMES = ("precision", "recall", "f1")
# The score by which candidates are ranked or selected, or a model is trained.
Component = Literal["precision", "recall", "f1"]

Function = TypeVar("Function", bound=Callable[..., Any])


def require_choice(name: str, value: object, allowed: Any) -> None:
    """Raise a ValueError unless a setting is one of the strings of the ``Literal`` type ``allowed``."""
    choices = get_args(allowed)
    if value not in choices:
        listed = ", ".join(map(repr, choices))
        raise ValueError(f"{name}={value!r} is not one of {listed}")


def resolve_callable(name: str, value: str | Function, named: Mapping[str, Function]) -> Function:
    """Return the callable of a name, or a given callable itself. Raise a ValueError if the name is unknown."""
    if callable(value):
        return value
    if value not in named:
        listed = ", ".join(map(repr, named))
        raise ValueError(f"{name}={value!r} is not a callable or one of {listed}")
    return named[value]


def require_at_least(name: str, value: float, least: float) -> None:
    """Raise a ValueError if a setting is below the least allowed value."""
    if value < least:
        raise ValueError(f"{name} must be at least {least}, got {value}")


def require_positive(name: str, value: float) -> None:
    """Raise a ValueError unless a setting is above 0."""
    # The condition is not "value <= 0", because NaN has to fail as well.
    if not value > 0:
        raise ValueError(f"{name} must be above 0, got {value}")


def as_integer(name: str, value: SupportsIndex) -> int:
    """Return an int from a number of Python or NumPy, or a tensor of one element. Raise a TypeError otherwise."""
    # True and False are integers in Python, but not as a setting.
    if not isinstance(value, bool):
        with suppress(TypeError):
            return operator.index(value)
    raise TypeError(f"{name} must be an integer, got {value!r}")


def full_class_name(value: object) -> str:
    """Return the name of an object's class with its module, because several packages have a class ``BERTScore``."""
    kind = type(value)
    if kind.__module__ == "builtins":
        return kind.__qualname__
    return f"{kind.__module__}.{kind.__qualname__}"


def shorten(names: Sequence[str]) -> str:
    """Return the first three of some names as text, followed by an ellipsis if there are more."""
    shown = list(names[:3])
    if len(names) > 3:
        shown.append("...")
    return ", ".join(shown)
