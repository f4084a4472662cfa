"""Records of benchmark figures, and plain tables of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

__all__ = ["Record", "table"]

Record = dict[str, str | int | float | bool | None]


def table(records: Sequence[Record], columns: Mapping[str, str]) -> str:
    """Return a table of some columns of records, the first left-aligned and the others right-aligned.

    Args:
        records: the rows.
        columns: keys to show, with the format of their values.

    Returns:
        The lines, heading first. ``None`` is shown as a dash, ``bool`` as yes and no.

    Example:
        >>> print(table([{"kind": "one", "bytes": 5000}, {"kind": "two", "bytes": None}], {"kind": "", "bytes": ","}))
        kind  bytes
        one   5,000
        two       -
    """
    heading = [key.replace("_", " ") for key in columns]
    rows = [heading, *([_shown(record[key], spec) for key, spec in columns.items()] for record in records)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    sides = ["<", *(">" for _ in widths[1:])]
    return "\n".join(
        "  ".join(f"{cell:{side}{width}}" for cell, side, width in zip(row, sides, widths, strict=True)) for row in rows
    )


def _shown(value: str | int | float | bool | None, spec: str) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return format(value, spec)
