"""Texts from data, made safe to show on a page."""

from __future__ import annotations

import re

from bertscore_tm.utilities.untrusted_text import for_terminal

__all__ = ["visible"]

# Embeddings, overrides and isolates, which show a text in another order than it has.
_DIRECTION = re.compile("[\u202a-\u202e\u2066-\u2069]")


def visible(text: str) -> str:
    r"""Show control characters and those that change the direction of a text as their escapes.

    Args:
        text: any text.

    Returns:
        The text, with line breaks, tabs, and the invisible characters that scripts and emoji need.

    Example:
        >>> print(visible("user\u202egnp.exe \x00"))
        user\u202egnp.exe \u0000
    """
    return _DIRECTION.sub(lambda match: f"\\u{ord(match[0]):04x}", for_terminal(text, keep="\n\r\t"))
