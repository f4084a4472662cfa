"""What a page shows of an alignment: its texts, tokens and numbers."""

import unicodedata
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from bertscore_tm.alignment.data import AlignedText, AlignmentData
from bertscore_tm.pages.render import render_page
from bertscore_tm.utilities.score_names import SCORE_NAMES


def write_alignment(alignment: AlignmentData) -> str:
    """Return the page of an alignment: the scores, and both texts with each token shaded by its best similarity."""
    described = describe_alignments({0: alignment}, 1)
    data = {
        "settings": alignment.settings,
        "scores": described["scores"][0],
        "candidate": alignment.candidate.text,
        "reference": alignment.reference.text,
        "alignment": described,
    }
    return render_page("pair.jinja", data, "pair.js")


def describe_alignments(alignments: Mapping[int, AlignmentData], num_references: int) -> dict[str, Any]:
    """Return a candidate's best alignment, by F1, and the scores of all by reference, for a page's script."""
    best = max(alignments, key=lambda number: alignments[number].f1)
    scores: list[dict[str, float] | None] = [None] * num_references
    for number, alignment in alignments.items():
        scores[number] = {name: round(getattr(alignment, name), 4) for name in SCORE_NAMES}
    return {"reference": best, "scores": scores, "sides": describe_sides(alignments[best])}


def describe_sides(alignment: AlignmentData) -> dict[str, dict[str, Any]]:
    """Return the tokens of the candidate and of the reference, and their numbers, for a page's script."""
    return {
        "candidate": _describe_side(alignment.candidate, alignment.is_weighted),
        "reference": _describe_side(alignment.reference, alignment.is_weighted),
    }


def _describe_side(side: AlignedText, is_weighted: bool) -> dict[str, Any]:
    tokens, gaps = _cut_text(side)
    weights = None
    if is_weighted:
        weights = round_numbers(side.weights, 3)
    return {
        "tokens": tokens,
        "gaps": gaps,
        "best": round_numbers(side.best, 3),
        "matches": side.matches.tolist(),
        "shares": round_numbers(side.shares),
        "special": round(side.special_share, 4),
        "weights": weights,
    }


def _cut_text(side: AlignedText) -> tuple[list[str], list[str] | None]:
    """Return the tokens of a text, and what is before, between and after them; ``None`` without their places.

    A token that shares its characters with the one before has its number, a token of no character its symbol.
    """
    tokens = []
    if side.spans is None:
        for token, is_joined in zip(side.tokens, side.joined, strict=True):
            tokens.append(token if is_joined else f" {token}")
        return tokens, None
    gaps = []
    reached = 0
    starts_of_next = [start for start, _ in side.spans[1:]]
    limits = [*starts_of_next, len(side.text)]
    for token, (start, end), limit in zip(side.tokens, side.spans, limits, strict=True):
        gaps.append(side.text[reached:start])
        # Signs that a tokenizer drops, such as accents, belong to the letter before them.
        while start < end < limit and unicodedata.category(side.text[end])[0] == "M":
            end += 1
        tokens.append(side.text[max(start, reached) : end] or token[-1])
        reached = max(reached, end)
    gaps.append(side.text[reached:])
    return tokens, gaps


def round_numbers(values: Tensor, digits: int = 4) -> Any:
    """Return a tensor as lists of rounded numbers."""
    return values.double().round(decimals=digits).tolist()
