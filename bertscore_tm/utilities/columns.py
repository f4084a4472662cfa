"""Tables of text."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

from bertscore_tm.utilities.untrusted_text import for_terminal

__all__ = ["align_columns"]


def align_columns(rows: Sequence[Sequence[str]], num_left: int = 1) -> str:
    """Format the rows of a table as lines with columns of equal width, the first ones aligned on the left."""
    rows = [[for_terminal(cell) for cell in row] for row in rows]
    widths = [max(map(_terminal_width, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        padding = [" " * (width - _terminal_width(cell)) for cell, width in zip(row, widths, strict=True)]
        cells = [
            cell + space if i < num_left else space + cell
            for i, (cell, space) in enumerate(zip(row, padding, strict=True))
        ]
        lines.append("  ".join(cells) + "\n")
    return "".join(lines)


def _terminal_width(text: str) -> int:
    """Return the number of terminal columns that a text takes."""
    return sum(
        0 if unicodedata.category(c) in ("Mn", "Me", "Cf") else 1 + (unicodedata.east_asian_width(c) in "WF")
        for c in text
    )
