"""Show tokens as pieces of the text instead of in the tokenizer's spelling."""

import unicodedata
from collections.abc import Sequence
from itertools import compress
from typing import Any, NamedTuple

import numpy as np

from bertscore_tm.encoder.tokenizer import TextTokenizer

_SUBSCRIPTS = str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉")
# Spelling of a space in byte-level and sentencepiece vocabularies, and of a continued word in WordPiece.
_SPACES = "Ġ▁ "
_PIECE_PREFIX = "##"
# Zero-width joiners are kept. Other format characters are removed: they are invisible, or change the text direction.
_JOINERS = "\u200c\u200d"
# Variation selectors choose a form of the preceding character.
_SELECTORS = "".join(map(chr, range(0xFE00, 0xFE10)))


class DisplayTokens(NamedTuple):
    """Tokens of a text as pieces of the text."""

    is_content: list[bool]  # whether each token belongs to the text, in the order of all tokens with special ones
    tokens: list[str]  # the piece of the text of each content token
    joined: list[bool]  # whether each content token follows the one before without a space
    spans: list[tuple[int, int]] | None  # start and end in the text, equal for a token without a character


def split_for_display(text: str, tokenizer: TextTokenizer) -> DisplayTokens:
    """Split a text into its tokens, spelled as in the text.

    If the tokenizer has offsets, tokens are substrings of the text, with accents, other scripts and emoji intact.
    Tokens that share a character, such as the bytes of an emoji, have subscript numbers. A token of white space is
    shown as a symbol, and the unknown token follows its word.
    """
    hf_tokenizer = tokenizer.tokenizer
    (prepared,) = tokenizer.prepare([text])
    whole = tokenizer.encode_whole([prepared], offsets=hf_tokenizer.is_fast)
    kept, _ = tokenizer.truncate(np.array([len(whole["input_ids"][0])]))
    encoded = {key: [values[i] for i in kept.tolist()] for key, (values,) in whole.items()}
    is_content = [not is_special for is_special in encoded["special_tokens_mask"]]
    ids = list(compress(encoded["input_ids"], is_content))
    spellings = tokenizer.tokens(ids)
    spans_in_text = None
    if hf_tokenizer.is_fast:
        spans = list(compress(encoded["offset_mapping"], is_content))
        tokens, joined, spans = _from_offsets(prepared, spans, spellings)
        # prepare strips white space at the start of the text, and may add a space there.
        num_stripped = len(text) - len(text.lstrip())
        num_added = len(prepared) - len(prepared.lstrip())
        shift = num_stripped - num_added
        spans_in_text = [(max(start + shift, 0), max(end + shift, 0)) for start, end in spans]
    else:
        tokens, joined = _from_spelling(hf_tokenizer, spellings)
    for i, token_id in enumerate(ids):
        is_unknown = token_id == hf_tokenizer.unk_token_id
        if is_unknown and tokens[i] != hf_tokenizer.unk_token:
            tokens[i] = f"{tokens[i]} {hf_tokenizer.unk_token}"
    return DisplayTokens(is_content, tokens, joined, spans_in_text)


def _from_offsets(
    text: str, spans: Sequence[tuple[int, int]], spellings: list[str]
) -> tuple[list[str], list[bool], list[tuple[int, int]]]:
    """Take the tokens from the text by their spans, the start and end of each token.

    Returns:
        The tokens, whether each follows the one before without a space, and their spans without white space.
    """
    tokens = [_visible(text[start:end]) for start, end in spans]
    joined = [False] * len(spans)
    bare_spans = list(spans)
    words = []  # tokens with characters that are not white space: index, and start and end of these characters
    for i, (start, end) in enumerate(spans):
        piece = text[start:end]
        is_space = not spellings[i].strip(_SPACES)
        if is_space:
            # A space that sentencepiece adds has the offsets of the next character, so give it an empty span.
            tokens[i] = _visible(" ")
            bare_spans[i] = (start, start)
        elif not piece:
            tokens[i] = _visible(_bare(spellings[i]))
        elif not piece.isspace():
            words.append((i, end - len(piece.lstrip()), start + len(piece.rstrip())))
    parts = _number_parts([(start, end) for _, start, end in words])
    reached = 0  # end of the tokens so far
    for (i, start, end), part in zip(words, parts, strict=True):
        if part > 0:
            tokens[i] += str(part).translate(_SUBSCRIPTS)
        # A character belongs to the first of the tokens that share it.
        bare_spans[i] = (max(start, reached), max(end, reached))
        shares_with_previous = start < reached
        follows_character = start > 0 and not text[start - 1].isspace()
        joined[i] = shares_with_previous or follows_character
        reached = max(reached, end)
    return tokens, joined, bare_spans


def _number_parts(spans: Sequence[tuple[int, int]]) -> list[int]:
    """Return the number of each token among those that share a character, from 1, or 0 for one that shares none.

    Example:
        >>> _number_parts([(0, 3), (4, 5), (4, 5), (4, 6)])
        [0, 1, 2, 3]
    """
    parts = []
    part = 0
    reached = 0  # end of the tokens so far
    for index, (start, end) in enumerate(spans):
        following = spans[index + 1 : index + 2]  # the next token, or none after the last one
        shares_with_previous = start < reached
        shares_with_next = bool(following) and following[0][0] < end
        if shares_with_previous:
            part += 1
        elif shares_with_next:
            part = 1
        else:
            part = 0
        parts.append(part)
        reached = max(reached, end)
    return parts


def _from_spelling(hf_tokenizer: Any, spellings: list[str]) -> tuple[list[str], list[bool]]:
    """Let the tokenizer convert each token to text, alone and together with the one before.

    Two tokens are joined if their common text is the same as both texts without a space.
    """
    decoded = [_bare(hf_tokenizer.convert_tokens_to_string([spelling])) for spelling in spellings]
    joined = [False] * len(spellings)
    for i in range(1, len(spellings)):
        both = hf_tokenizer.convert_tokens_to_string(spellings[i - 1 : i + 1]).strip()
        joined[i] = both == decoded[i - 1] + decoded[i]
    return [_visible(token) for token in decoded], joined


def _bare(spelling: str) -> str:
    """Remove the marks of spaces and word pieces."""
    if len(spelling) > len(_PIECE_PREFIX):
        spelling = spelling.removeprefix(_PIECE_PREFIX)
    return spelling.removesuffix("</w>").strip(_SPACES)


def _visible(text: str) -> str:
    """Make white space and lone accents visible, and remove invisible characters."""
    if not text.strip():
        if "\n" in text:
            return "↵"
        if "\t" in text:
            return "⇥"
        return "␣"
    characters = []
    for character in text:
        is_invisible = unicodedata.category(character) in ("Cc", "Cf")
        if character in _JOINERS or character.isspace() or not is_invisible:
            characters.append(character)
    visible = " ".join("".join(characters).split())
    if not visible.strip(_JOINERS + _SELECTORS):
        return " ".join(f"U+{ord(character):04X}" for character in text)
    starts_with_mark = unicodedata.category(visible[0]).startswith("M")
    if starts_with_mark:
        # Put an accent on a dotted circle, because it would combine with the character before.
        return f"◌{visible}"
    return visible
