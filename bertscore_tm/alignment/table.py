"""An alignment as tables of text."""

import unicodedata

from bertscore_tm.alignment.data import AlignedText, AlignmentData
from bertscore_tm.utilities.untrusted_text import for_terminal


def format_alignment(alignment: AlignmentData) -> str:
    """Return the scores, and a table of the tokens of each text, with token weights unless all are 1."""
    scores = f"P {alignment.precision:.4f}  R {alignment.recall:.4f}  F1 {alignment.f1:.4f}"
    candidate = _format_tokens(alignment, name="candidate", other_name="reference", score="precision")
    reference = _format_tokens(alignment, name="reference", other_name="candidate", score="recall")
    return f"{scores}\n\n{candidate}\n\n{reference}"


def _format_tokens(alignment: AlignmentData, *, name: str, other_name: str, score: str) -> str:
    """Format one row per token: the token, its best match, their similarity, its weight, and its part of the score."""
    text: AlignedText = getattr(alignment, name)
    tokens = _number_tokens(text)
    # The index of a match with a special token is -1, so it selects the last entry.
    others = [*_number_tokens(getattr(alignment, other_name)), "special token"]
    rows = [[name, f"best match in {other_name}", "similarity", "weight", f"part of {score}"]]
    numbers = zip(text.best.tolist(), text.weights.tolist(), text.shares.tolist(), strict=True)
    for token, match, values in zip(tokens, text.matches.tolist(), numbers, strict=True):
        similarity, weight, share = values
        rows.append([token, others[match], f"{similarity:.4f}", f"{weight:.4f}", f"{share:.4f}"])
    # Leave the row out if its share would be shown as 0.0000.
    if abs(text.special_share) >= 5e-5:
        rows.append(["special tokens", "", "", "", f"{text.special_share:.4f}"])
    if not alignment.is_weighted:
        for row in rows:
            del row[3]  # the weight
    columns = []
    for i, column in enumerate(zip(*rows, strict=True)):
        cells = [for_terminal(cell) for cell in column]
        columns.append(_pad(cells, is_left=i < 2))
    return "\n".join("  ".join(line) for line in zip(*columns, strict=True))


def _number_tokens(text: AlignedText) -> list[str]:
    """Return the tokens with their numbers from 1, padded to the width of the last number."""
    width = len(str(len(text.tokens)))
    return [f"{number:>{width}} {token}" for number, token in enumerate(text.tokens, 1)]


def _pad(cells: list[str], *, is_left: bool) -> list[str]:
    """Pad cells to one width in a terminal, where some characters take two columns or none."""
    widths = [_count_columns(cell) for cell in cells]
    padded = []
    for cell, width in zip(cells, widths, strict=True):
        spaces = " " * (max(widths) - width)
        if is_left:
            padded.append(cell + spaces)
        else:
            padded.append(spaces + cell)
    return padded


def _count_columns(cell: str) -> int:
    """Return the number of columns of a cell in a terminal."""
    width = 0
    for character in cell:
        if unicodedata.category(character) in ("Mn", "Me", "Cf"):
            # Accents and format characters take no column.
            continue
        is_wide = unicodedata.east_asian_width(character) in ("W", "F")
        if is_wide:
            width += 2
        else:
            width += 1
    return width
