"""An alignment as tables of text."""

import unicodedata

from bertscore_tm.alignment.data import AlignedText, AlignmentData
from bertscore_tm.utilities.untrusted_text import for_terminal


def format_alignment(alignment: AlignmentData) -> str:
    """Return the scores, and a table of tokens for each text, with the token weights where they differ."""
    scores = f"P {alignment.precision:.4f}  R {alignment.recall:.4f}  F1 {alignment.f1:.4f}"
    first = _format_tokens(alignment, "candidate", "reference", "precision")
    second = _format_tokens(alignment, "reference", "candidate", "recall")
    return f"{scores}\n\n{first}\n\n{second}"


def _format_tokens(alignment: AlignmentData, name: str, other_name: str, score: str) -> str:
    """Format one row per token: the token, its best match, their similarity, its weight, and its part of the score."""
    text: AlignedText = getattr(alignment, name)
    # Index -1, the match with a special token, takes the last one.
    tokens, others = _number_tokens(text), [*_number_tokens(getattr(alignment, other_name)), "special token"]
    rows = [[name, f"best match in {other_name}", "similarity", "weight", f"part of {score}"]]
    numbers = zip(text.best.tolist(), text.weights.tolist(), text.shares.tolist(), strict=True)
    for token, match, values in zip(tokens, text.matches.tolist(), numbers, strict=True):
        rows.append([token, others[match], *(f"{value:.4f}" for value in values)])
    if abs(text.special_share) >= 5e-5:
        rows.append(["special tokens", "", "", "", f"{text.special_share:.4f}"])
    columns = [_pad(list(map(for_terminal, column)), is_left=i < 2) for i, column in enumerate(zip(*rows, strict=True))]
    if not alignment.is_weighted:
        del columns[3]
    return "\n".join("  ".join(line) for line in zip(*columns, strict=True))


def _number_tokens(text: AlignedText) -> list[str]:
    """Return the tokens with their numbers from 1, padded to the width of the last number."""
    width = len(str(len(text.tokens)))
    return [f"{number:>{width}} {token}" for number, token in enumerate(text.tokens, 1)]


def _pad(cells: list[str], *, is_left: bool) -> list[str]:
    """Pad cells to one width in a terminal, where some characters take two columns or none."""
    shown = [[c for c in cell if unicodedata.category(c) not in ("Mn", "Me", "Cf")] for cell in cells]
    widths = [sum(1 + (unicodedata.east_asian_width(c) in "WF") for c in characters) for characters in shown]
    spaces = [" " * (max(widths) - width) for width in widths]
    return [cell + space if is_left else space + cell for cell, space in zip(cells, spaces, strict=True)]
