"""Tokens as pieces of the text, instead of in the tokenizer's spelling."""

import unicodedata
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from bertscore_tm.encoder.tokenizer import TextTokenizer

_SUBSCRIPTS = str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉")
# Spelling of a space in byte-level and sentencepiece vocabularies, and of a continued word in WordPiece.
_SPACES = "Ġ▁ "
_PIECE_PREFIX = "##"
# They join adjacent characters; other format characters are invisible or change the direction of the text.
_JOINERS = "\u200c\u200d"
# Variation selectors choose a form of the preceding character.
_SELECTORS = "".join(map(chr, range(0xFE00, 0xFE10)))


class DisplayTokens(NamedTuple):
    """Tokens of a text as pieces of the text."""

    is_content: list[bool]  # whether each token, special ones included, belongs to the text
    tokens: list[str]  # the piece of the text of each token that does
    joined: list[bool]  # whether it follows the one before without a space
    spans: list[tuple[int, int]] | None  # start and end, equal where a token has no character of its own


def split_for_display(text: str, tokenizer: TextTokenizer) -> DisplayTokens:
    """Split a text into its tokens, spelled as in the text.

    If the tokenizer has offsets, tokens are substrings of the text, with accents, other scripts and emoji intact.
    Tokens that share a character, such as the bytes of an emoji, have subscript numbers. A token of white space is
    shown as a symbol, and the unknown token follows its word.
    """
    hf_tokenizer, given = tokenizer.tokenizer, text
    (text,) = tokenizer.prepare([text])
    whole = tokenizer.encode_whole([text], offsets=hf_tokenizer.is_fast)
    kept, _ = tokenizer.truncate(np.array([len(whole["input_ids"][0])]))
    encoded = {key: [values[place] for place in kept.tolist()] for key, (values,) in whole.items()}
    is_content = [not special for special in encoded["special_tokens_mask"]]
    ids = [i for i, content in zip(encoded["input_ids"], is_content, strict=True) if content]
    spelled, places = tokenizer.tokens(ids), None
    if hf_tokenizer.is_fast:
        spans = [span for span, content in zip(encoded["offset_mapping"], is_content, strict=True) if content]
        tokens, joined, spans = _from_offsets(text, spans, spelled)
        # The prepared text lacks white space at its start, and may have a space there.
        shift = len(given) - len(given.lstrip()) - (len(text) - len(text.lstrip()))
        places = [(max(start + shift, 0), max(end + shift, 0)) for start, end in spans]
    else:
        tokens, joined = _from_spelling(hf_tokenizer, spelled)
    unknown = hf_tokenizer.unk_token_id
    for place, i in enumerate(ids):
        if i == unknown and tokens[place] != hf_tokenizer.unk_token:
            tokens[place] = f"{tokens[place]} {hf_tokenizer.unk_token}"
    return DisplayTokens(is_content, tokens, joined, places)


def _from_offsets(
    text: str, spans: Sequence[tuple[int, int]], spelled: list[str]
) -> tuple[list[str], list[bool], list[tuple[int, int]]]:
    """Take the tokens from the text; ``spans`` are their start and end, which are returned without spaces around."""
    tokens = [_visible(text[start:end]) for start, end in spans]
    joined, places = [False] * len(spans), [*spans]
    pieces = []
    for place, (start, end) in enumerate(spans):
        piece = text[start:end]
        if not spelled[place].strip(_SPACES):
            # The offsets of a space that sentencepiece adds are those of the next character.
            tokens[place], places[place] = _visible(" "), (start, start)
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
        places[place] = max(start, reached), max(end, reached)
        joined[place] = start < reached or (start > 0 and not text[start - 1].isspace())
        reached = max(reached, end)
    return tokens, joined, places


def _from_spelling(hf_tokenizer: Any, spelled: list[str]) -> tuple[list[str], list[bool]]:
    """Let the tokenizer convert each token, alone and with the one before."""
    decoded = [_bare(hf_tokenizer.convert_tokens_to_string([spelling])) for spelling in spelled]
    joined = [False] * len(spelled)
    for place in range(1, len(spelled)):
        both = hf_tokenizer.convert_tokens_to_string(spelled[place - 1 : place + 1]).strip()
        joined[place] = both == decoded[place - 1] + decoded[place]
    return [_visible(token) for token in decoded], joined


def _bare(spelling: str) -> str:
    """Remove the marks of spaces and word pieces."""
    if len(spelling) > len(_PIECE_PREFIX):
        spelling = spelling.removeprefix(_PIECE_PREFIX)
    return spelling.removesuffix("</w>").strip(_SPACES)


def _visible(text: str) -> str:
    """Make white space and lone accents visible, and remove invisible characters."""
    if not text.strip():
        return "↵" if "\n" in text else "⇥" if "\t" in text else "␣"
    seen = "".join(c for c in text if c in _JOINERS or unicodedata.category(c) not in ("Cc", "Cf") or c.isspace())
    seen = " ".join(seen.split())
    if not seen.strip(_JOINERS + _SELECTORS):
        return " ".join(f"U+{ord(c):04X}" for c in text)
    return f"◌{seen}" if unicodedata.category(seen[0]).startswith("M") else seen
