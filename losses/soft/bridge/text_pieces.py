"""Token ids of many short texts, and texts of single tokens, as fast as the tokenizer allows."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from typing import Any

from transformers import PreTrainedTokenizerBase

__all__ = ["decode_tokens", "tokenize_texts"]


def tokenize_texts(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str]) -> list[list[int]]:
    """Return the token ids of each text by itself, without special tokens and without truncation."""
    if not tokenizer.is_fast:
        encoded: Any = tokenizer(list(texts), add_special_tokens=False, verbose=False) if texts else {"input_ids": []}
        rows: list[list[int]] = encoded["input_ids"]
        return rows
    # The backend itself, as the wrapper of transformers takes longer than tokenization. An earlier call may have left
    # truncation and padding on.
    backend = tokenizer.backend_tokenizer
    truncation, padding = backend.truncation, backend.padding
    backend.no_truncation()
    backend.no_padding()
    try:
        return [encoding.ids for encoding in backend.encode_batch_fast(list(texts), add_special_tokens=False)]
    finally:
        if truncation is not None:
            backend.enable_truncation(**truncation)
        if padding is not None:
            backend.enable_padding(**padding)


def decode_tokens(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> list[str]:
    """Return the text that each token adds to a text, with a space in front where it starts a word."""
    anchor = (tokenize_texts(tokenizer, ["a"])[0] or [0])[-1]
    before, *joined = _decode_rows(tokenizer, [(anchor,), *zip(repeat(anchor), ids)])
    size = len(before)
    # Decoders that clean up spaces may change the anchor.
    return [
        text[size:] if text.startswith(before) else _decode_rows(tokenizer, [(i,)])[0]
        for i, text in zip(ids, joined, strict=True)
    ]


def _decode_rows(tokenizer: PreTrainedTokenizerBase, rows: list[tuple[int, ...]]) -> list[str]:
    if tokenizer.is_fast and not tokenizer.clean_up_tokenization_spaces:
        decoded: list[str] = tokenizer.backend_tokenizer.decode_batch(rows, skip_special_tokens=False)
    else:
        decoded = tokenizer.batch_decode([list(row) for row in rows], skip_special_tokens=False)
    return decoded
