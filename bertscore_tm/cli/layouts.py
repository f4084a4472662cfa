"""Tables as aligned text, Markdown or LaTeX."""

from __future__ import annotations

import re
from collections.abc import Sequence

from bertscore_tm.utilities.columns import align_columns
from bertscore_tm.utilities.untrusted_text import for_terminal

__all__ = ["format_rows"]

_LATEX = {
    **{character: f"\\{character}" for character in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
}
_MINUS = re.compile(r"(?<![\w.])-(?=\d)")
_MARKDOWN = {character: f"\\{character}" for character in "\\`*_<>|"}


def format_rows(rows: Sequence[Sequence[str]], suffix: str = ".txt") -> str:
    r"""Format the rows of a table; the first column is left-aligned, the others are right-aligned.

    Args:
        rows: the cells, equally many per row; the first row is the header. Control characters are escaped.
        suffix: ``".txt"``, ``".md"`` or ``".tex"``, which needs the package booktabs.

    Returns:
        The table, with a line end.

    Example:
        >>> print(format_rows([["system", "F1"], ["a_b", "0.41"]], ".md"), end="")
        | system | F1 |
        |---|---:|
        | a\_b | 0.41 |
    """
    if suffix == ".txt":
        return align_columns(rows)
    rows = [[for_terminal(cell) for cell in row] for row in rows]
    if suffix == ".md":
        lines = ["| " + " | ".join(_escape(cell, _MARKDOWN) for cell in row) + " |" for row in rows]
        lines.insert(1, "|---" + "|---:" * (len(rows[0]) - 1) + "|")
        return "\n".join(lines) + "\n"
    lines = [" & ".join(_MINUS.sub("$-$", _escape(cell, _LATEX)) for cell in row) + r" \\" for row in rows]
    # LaTeX takes a bracket after the end of a line for a length.
    lines = [f"{{}}{line}" if line.startswith("[") else line for line in lines]
    columns = "l" + "r" * (len(rows[0]) - 1)
    parts = [rf"\begin{{tabular}}{{{columns}}}", r"\toprule", lines[0], r"\midrule", *lines[1:]]
    return "\n".join([*parts, r"\bottomrule", r"\end{tabular}"]) + "\n"


def _escape(cell: str, table: dict[str, str]) -> str:
    return "".join(table.get(character, character) for character in cell)
