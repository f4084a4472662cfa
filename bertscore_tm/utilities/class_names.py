"""Names of classes in messages, with their modules: several packages have a class of one name."""

from __future__ import annotations

__all__ = ["full_class_name"]


def full_class_name(value: object) -> str:
    """Return the name of an object's class with that of its package, such as ``torchmetrics.BERTScore``."""
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
