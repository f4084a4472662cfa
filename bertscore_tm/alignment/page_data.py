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
    return render_page("pair.jinja", data, ["pair.js"])


def describe_alignments(alignments: Mapping[int, AlignmentData], num_references: int) -> dict[str, Any]:
    """Return a candidate's best alignment, by F1, and the scores of all by reference, for a page's script."""
    best = max(alignments, key=lambda number: alignments[number].f1)
    scores = [
        [round(getattr(alignments[number], name), 4) for name in SCORE_NAMES] if number in alignments else None
        for number in range(num_references)
    ]
    return {"reference": best, "scores": scores, "sides": describe_sides(alignments[best])}


def describe_sides(alignment: AlignmentData) -> list[dict[str, Any]]:
    """Return the tokens of the candidate and of the reference, and their numbers, for a page's script."""
    return [_describe_side(side, alignment.is_weighted) for side in (alignment.candidate, alignment.reference)]


def _describe_side(side: AlignedText, is_weighted: bool) -> dict[str, Any]:
    tokens, gaps = _cut_text(side)
    return {
        "tokens": tokens,
        "gaps": gaps,
        "best": round_numbers(side.best, 3),
        "matches": side.matches.tolist(),
        "shares": round_numbers(side.shares),
        "special": round(side.special_share, 4),
        "weights": round_numbers(side.weights, 3) if is_weighted else None,
    }


def _cut_text(side: AlignedText) -> tuple[list[str], list[str] | None]:
    """Return the tokens of a text, and what is before, between and after them; ``None`` without their places.

    A token that shares its characters with the one before has its number, a token of no character its symbol.
    """
    if side.spans is None:
        return [token if joined else f" {token}" for joined, token in zip(side.joined, side.tokens, strict=True)], None
    tokens, gaps, reached = [], [], 0
    limits = [*(start for start, _ in side.spans[1:]), len(side.text)]
    for token, (start, end), limit in zip(side.tokens, side.spans, limits, strict=True):
        gaps.append(side.text[reached:start])
        # Signs that a tokenizer drops, such as accents, belong to the letter before them.
        while start < end < limit and unicodedata.category(side.text[end])[0] == "M":
            end += 1
        tokens.append(side.text[max(start, reached) : end] or token[-1])
        reached = max(reached, end)
    return tokens, [*gaps, side.text[reached:]]


def round_numbers(values: Tensor, digits: int = 4) -> Any:
    """Return a tensor as lists of rounded numbers."""
    return values.double().round(decimals=digits).tolist()
