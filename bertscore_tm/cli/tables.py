"""Tables for people: columns of equal width."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["aligned"]


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Return the rows of a table as lines.

    Args:
        rows: cells, equally many per row.

    Returns:
        Lines, the first column to the left and all others to the right.

    Example:
        >>> print(aligned([["layer", "F1"], ["3", "0.4150"]]), end="")
        layer      F1
        3      0.4150
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [row[0].ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        lines.append("  ".join(cells) + "\n")
    return "".join(lines)
