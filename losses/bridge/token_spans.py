"""Which characters of a text each token covers, and so how the tokens of two tokenizers share a text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise

import torch
from torch import Tensor

__all__ = ["Span", "contiguous", "overlap_shares", "spread", "token_spans"]

# Start and end of a token in a text, in characters.
Span = tuple[int, int]


def token_spans(
    ids: Sequence[int], text: str, token_texts: Sequence[str], decode: Callable[[list[int]], str]
) -> list[Span]:
    """Find the characters of each token in the text that its ids decode to.

    Args:
        ids: token ids.
        text: what they decode to, at least one character.
        token_texts: what each of them adds to a text.
        decode: decodes ids.

    Returns:
        Where each token starts and ends; at least one character each, all characters together. Tokens that are a part
        of a character share it.

    Example:
        >>> token_spans([7, 8], "a cat", [" a", " cat"], lambda ids: "")
        [(0, 1), (1, 5)]
        >>> token_spans([1, 2], "\u00e9", ["\ufffd", "\ufffd"], lambda ids: "\ufffd" if len(ids) < 2 else "\u00e9")
        [(0, 1), (0, 1)]
    """
    joined = "".join(token_texts)
    removed = len(joined) - len(text)
    if removed >= 0 and joined.endswith(text) and not joined[:removed].strip():
        # All but the blanks that tokenizers take away from the start of a text.
        ends = [max(end - removed, 0) for end in accumulate(map(len, token_texts))]
        begun = ends
    else:
        parts = [decode(list(ids[:number])) for number in range(1, len(ids))]
        ends = [*accumulate((_common(part, text) for part in parts), max), len(text)]
        # A part that goes on differently has the first bytes of the next character.
        begun = [end + (len(part) > end) for part, end in zip([*parts, text], ends, strict=True)]
    starts = [0, *ends[:-1]]
    return [_at_least_one(start, end, len(text)) for start, end in zip(starts, begun, strict=True)]


def contiguous(spans: Sequence[Span], length: int) -> list[Span]:
    """Extend tokens over the characters between them, such as spaces: each from where the one before it ends.

    Args:
        spans: start and end of each token, from left to right; tokens of a part of a character share it.
        length: of the text, at least one character.

    Returns:
        Spans of at least one character each, that cover the text.

    Example:
        >>> contiguous([(1, 4), (5, 8), (5, 8)], 9)
        [(0, 4), (4, 8), (5, 9)]
    """
    extended, before = [], 0
    for start, end in spans:
        extended.append(_at_least_one(min(start, before), end, length))
        before = max(before, end)
    if extended:
        extended[-1] = (extended[-1][0], length)
    return extended


def overlap_shares(pieces: Sequence[Sequence[Span]], tokens: Sequence[Sequence[Span]], device: torch.device) -> Tensor:
    r"""Return which share of a piece's characters belongs to each token.

    .. math:: c_{it} = \frac{|\mathrm{piece}_i \cap \mathrm{token}_t|}{\sum_u |\mathrm{piece}_i \cap \mathrm{token}_u|}

    Args:
        pieces: spans of the pieces of each text.
        tokens: spans of the tokens of each text; ``(0, 0)`` for positions without a token.
        device: where to leave the result.

    Returns:
        Shape (texts, pieces, tokens), float32; 0 for padding. Rows of pieces sum to 1.

    Example:
        >>> overlap_shares([[(0, 4), (4, 6)]], [[(0, 1), (1, 6), (0, 0)]], torch.device("cpu"))
        tensor([[[0.2500, 0.7500, 0.0000],
                 [0.0000, 1.0000, 0.0000]]])
    """
    first, second = _padded(pieces), _padded(tokens)
    starts = torch.maximum(first[..., 0, None], second[..., None, :, 0])
    ends = torch.minimum(first[..., 1, None], second[..., None, :, 1])
    overlap = (ends - starts).clamp(min=0).float()
    return (overlap / overlap.sum(-1, keepdim=True).clamp(min=1)).to(device)


def spread(tokens: Sequence[str], length: int) -> list[Span]:
    """Guess the characters of tokens from how long their names are, for tokenizers that do not tell.

    Args:
        tokens: names of the tokens.
        length: of the text.

    Returns:
        Where each starts and ends.

    Example:
        >>> spread(["ab", "cd", "efgh"], 4)
        [(0, 1), (1, 2), (2, 4)]
    """
    total = max(sum(map(len, tokens)), 1)
    ends = [round(end * length / total) for end in accumulate(map(len, tokens))]
    return list(pairwise([0, *ends]))


def _padded(rows: Sequence[Sequence[Span]]) -> Tensor:
    longest = max(1, *map(len, rows))
    return torch.tensor([[*row, *[(0, 0)] * (longest - len(row))] for row in rows])


def _common(a: str, b: str) -> int:
    """Length of the common beginning."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def _at_least_one(start: int, end: int, length: int) -> Span:
    start = min(start, length - 1)
    return start, max(end, start + 1)
