"""Checks of settings and inputs that several losses share."""

from __future__ import annotations

from typing import Any, get_args

from torch import Tensor

__all__ = ["require_batch", "require_choice", "require_floating_point", "require_positive"]


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


def require_floating_point(name: str, value: object) -> None:
    """Raise an error unless an input is a floating-point tensor.

    Args:
        name: name of the argument.
        value: its value.

    Raises:
        TypeError: the value is not a tensor, or holds integers.

    Example:
        >>> import torch
        >>> require_floating_point("logits", torch.zeros(1, 3, 30522))
    """
    if not isinstance(value, Tensor):
        hint = f": pass its {name}" if hasattr(value, name) else ""
        raise TypeError(f"{name} must be a floating-point tensor, got a {type(value).__name__}{hint}")
    if not value.is_floating_point():
        raise TypeError(f"{name} must be a floating-point tensor, got {value.dtype}")


def require_batch(name: str, value: object, last: str) -> None:
    """Raise an error unless an input is a floating-point tensor of a batch of positions.

    Args:
        name: name of the argument.
        value: its value.
        last: name of its last dimension.

    Raises:
        TypeError: the value is not a tensor, or holds integers.
        ValueError: it does not have three dimensions, or the batch is empty.

    Example:
        >>> import torch
        >>> require_batch("logits", torch.zeros(1, 3, 30522), "vocabulary")
    """
    require_floating_point(name, value)
    assert isinstance(value, Tensor)
    if value.ndim != 3 or len(value) == 0:
        raise ValueError(
            f"{name} must have shape (batch, positions, {last}) and at least one row, got {tuple(value.shape)}"
        )


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
