"""Names of classes in messages, with their modules: several packages have a class of one name."""

from __future__ import annotations

__all__ = ["full_class_name"]


def full_class_name(value: object) -> str:
    """Return the name of a value's class with its module.

    Args:
        value: any object.

    Returns:
        The name; without the module for built-in classes.

    Example:
        >>> from collections import Counter
        >>> full_class_name(Counter()), full_class_name("a")
        ('collections.Counter', 'str')
    """
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
