"""Escape texts from data, so that a terminal, a web page or a spreadsheet does not interpret them."""

import re

# Control characters (C0 and C1), and unpaired surrogates, which no stream can encode.
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
# Embeddings, overrides and isolates, which change the order in which a text is shown.
_DIRECTION = re.compile("[\u202a-\u202e\u2066-\u2069]")
# The start of a formula, which may also be full-width. Some programs remove blanks before it.
_FORMULA = re.compile("[\t\r]|\\s*[=+@\\-\uff0b\uff0d\uff1d\uff20]")


def for_terminal(text: str, keep: str = "") -> str:
    r"""Escape control characters, such as those that clear the screen, except those to keep.

    The escapes are those of JSON, so that an escaped JSON document has the same content.
    """

    def escape(match: re.Match[str]) -> str:
        character = match[0]
        if character in keep:
            return character
        return _escape(character)

    return _CONTROL.sub(escape, text)


def for_page(text: str) -> str:
    r"""Escape control characters and those that change the direction of a text.

    Line breaks, tabs, and the invisible characters that scripts and emoji need are kept. Markup is not escaped.

    Example:
        >>> print(for_page("user\u202egnp.exe \x00"))
        user\u202egnp.exe \u0000
    """
    printable = for_terminal(text, keep="\n\r\t")
    return _DIRECTION.sub(lambda match: _escape(match[0]), printable)


def for_spreadsheet(text: str) -> str:
    """Add a leading apostrophe to a text that a spreadsheet would compute as a formula.

    Do not call this for numbers, because a leading minus sign counts as a formula too.
    """
    if _FORMULA.match(text):
        return f"'{text}"
    return text


def _escape(character: str) -> str:
    return f"\\u{ord(character):04x}"
