"""Data of an alignment for a page: its texts, tokens and numbers."""

import unicodedata
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from bertscore_tm.alignment.data import AlignedText, AlignmentData
from bertscore_tm.pages.render import render_page


def write_alignment(alignment: AlignmentData) -> str:
    """Return the page of an alignment: the scores, and both texts with each token shaded by its best similarity."""
    described = describe_alignments(alignments={0: alignment}, num_references=1)
    data = {
        "settings": alignment.settings,
        "scores": described["scores"][0],
        "candidate": alignment.candidate.text,
        "reference": alignment.reference.text,
        "alignment": described,
    }
    return render_page("pair.jinja", data, "pair.js")


def describe_alignments(alignments: Mapping[int, AlignmentData], num_references: int) -> dict[str, Any]:
    """Return a candidate's alignment with the largest F1, and the scores with all references, for a page's script.

    Args:
        alignments: the candidate's alignments by the index of the reference.
        num_references: number of references, of which those without tokens have no alignment and no scores.
    """
    best = max(alignments, key=lambda number: alignments[number].f1)
    scores: list[dict[str, float] | None] = [None] * num_references
    for number, alignment in alignments.items():
        scores[number] = {
            "precision": round(alignment.precision, 4),
            "recall": round(alignment.recall, 4),
            "f1": round(alignment.f1, 4),
        }
    return {"reference": best, "scores": scores, "sides": describe_sides(alignments[best])}


def describe_sides(alignment: AlignmentData) -> dict[str, dict[str, Any]]:
    """Return the tokens of the candidate and of the reference, and their numbers, for a page's script."""
    return {
        "candidate": _describe_side(alignment.candidate, alignment.is_weighted),
        "reference": _describe_side(alignment.reference, alignment.is_weighted),
    }


def _describe_side(side: AlignedText, is_weighted: bool) -> dict[str, Any]:
    """Return the tokens of one text, and their numbers."""
    tokens, gaps = _cut_text(side)
    weights = None
    if is_weighted:
        weights = round_numbers(side.weights, digits=3)
    return {
        "tokens": tokens,
        "gaps": gaps,
        "best": round_numbers(side.best, digits=3),
        "matches": side.matches.tolist(),
        "shares": round_numbers(side.shares),
        "special": round(side.special_share, 4),
        "weights": weights,
    }


def _cut_text(side: AlignedText) -> tuple[list[str], list[str] | None]:
    """Return the tokens of a text, and the text before, between and after them, or ``None`` without spans.

    Tokens and gaps together are the text: gap, token, gap, token, gap. There are two exceptions. A token that shares
    its characters with the one before is shown as its number, a token without a character as its symbol.
    """
    if side.spans is None:
        return _separate_tokens(side), None
    tokens = []
    gaps = []
    reached = 0  # end of the tokens so far
    next_starts = [start for start, _ in side.spans[1:]]
    limits = [*next_starts, len(side.text)]
    for token, (start, end), limit in zip(side.tokens, side.spans, limits, strict=True):
        gaps.append(side.text[reached:start])
        end_with_marks = _include_marks(side.text, start=start, end=end, limit=limit)
        own_characters = side.text[max(start, reached) : end_with_marks]
        if own_characters:
            tokens.append(own_characters)
        else:
            # The last character of the spelling is the token's number or symbol.
            tokens.append(token[-1])
        reached = max(reached, end_with_marks)
    gaps.append(side.text[reached:])
    return tokens, gaps


def _separate_tokens(side: AlignedText) -> list[str]:
    """Return the tokens with a space before each that does not follow the one before directly."""
    tokens = []
    for token, is_joined in zip(side.tokens, side.joined, strict=True):
        if is_joined:
            tokens.append(token)
        else:
            tokens.append(f" {token}")
    return tokens


def _include_marks(text: str, start: int, end: int, limit: int) -> int:
    """Return the end of a token with the marks after it, up to a limit.

    Some tokenizers drop marks such as accents. They belong to the letter before them.
    """
    is_empty = start == end
    if is_empty:
        return end
    while end < limit and unicodedata.category(text[end])[0] == "M":
        end += 1
    return end


def round_numbers(values: Tensor, digits: int = 4) -> Any:
    """Return a tensor as lists of rounded numbers."""
    return values.double().round(decimals=digits).tolist()
