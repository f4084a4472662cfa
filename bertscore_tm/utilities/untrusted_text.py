"""Neutralise texts from data before a terminal, a web page or a spreadsheet interprets them."""

import re

# Control characters of both sets, and unpaired surrogates, which no stream can encode.
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
# Embeddings, overrides and isolates, which show a text in another order than it has.
_DIRECTION = re.compile("[\u202a-\u202e\u2066-\u2069]")
# What starts a formula, also after blanks, which some programs remove, and in its full-width form.
_FORMULA = re.compile("[\t\r]|\\s*[=+@\\-\uff0b\uff0d\uff1d\uff20]")


def for_terminal(text: str, keep: str = "") -> str:
    r"""Escape control characters, such as those that clear the screen, except those to keep.

    The escapes are those of JSON, so that a JSON document keeps its meaning.
    """
    return _CONTROL.sub(lambda match: match[0] if match[0] in keep else f"\\u{ord(match[0]):04x}", text)


def for_page(text: str) -> str:
    r"""Escape control characters and those that change the direction of a text, but not markup.

    Line breaks, tabs, and the invisible characters that scripts and emoji need are kept.

    Example:
        >>> print(for_page("user\u202egnp.exe \x00"))
        user\u202egnp.exe \u0000
    """
    return _DIRECTION.sub(lambda match: f"\\u{ord(match[0]):04x}", for_terminal(text, keep="\n\r\t"))


def for_spreadsheet(text: str) -> str:
    """Put an apostrophe before a text that a spreadsheet would compute as a formula; pass numbers as they are."""
    return f"'{text}" if _FORMULA.match(text) else text
