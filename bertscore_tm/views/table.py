"""An alignment as tables of text."""

from __future__ import annotations

from collections.abc import Sequence

from bertscore_tm.scoring.alignment import AlignedText, AlignmentData
from bertscore_tm.utilities.columns import align_columns

__all__ = ["format_alignment"]


def format_alignment(alignment: AlignmentData) -> str:
    """Format an alignment as text.

    Args:
        alignment: the alignment.

    Returns:
        The scores, and a table of tokens for each text, with the token weights where they differ.
    """
    weighted = alignment.is_weighted
    candidate, reference = alignment.candidate, alignment.reference
    return "\n".join(
        (
            f"P {alignment.precision:.4f}  R {alignment.recall:.4f}  F1 {alignment.f1:.4f}\n",
            _format_tokens("candidate", candidate, "reference", reference, "precision", weighted),
            _format_tokens("reference", reference, "candidate", candidate, "recall", weighted),
        )
    )


def _format_tokens(
    name: str, text: AlignedText, other_name: str, other: AlignedText, score: str, weighted: bool
) -> str:
    """Format one row per token: the token, its best match, their similarity, and its part of the score."""
    rows = [[name, f"best match in {other_name}", "similarity", *(["weight"] if weighted else []), f"part of {score}"]]
    columns = (text.matches.tolist(), text.best.tolist(), text.weights.tolist(), text.shares.tolist())
    for number, (match, best, weight, share) in enumerate(zip(*columns, strict=True)):
        matched = "special token" if match < 0 else _number_token(match, other.tokens)
        cells = [_number_token(number, text.tokens), matched, f"{best:.4f}"]
        rows.append([*cells, *([f"{weight:.4f}"] if weighted else []), f"{share:.4f}"])
    if abs(text.special_share) >= 5e-5:
        rows.append(["special tokens", "", "", *([""] if weighted else []), f"{text.special_share:.4f}"])
    return align_columns(rows, num_left=2)


def _number_token(index: int, tokens: Sequence[str]) -> str:
    """Return a token with its number from 1, padded to the width of the last number."""
    return f"{index + 1:>{len(str(len(tokens)))}} {tokens[index]}"
