"""Builds piece tables from what tokenizers do with texts.

Names of classes play no role, so word pieces, byte-level and sentencepiece tokenizers and whole words all work.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from bertscore_tm.encoder.tokenization import TextTokenizer
from bertscore_tm.losses.soft.bridge.piece_table import Context, PieceTable
from bertscore_tm.losses.soft.bridge.shared_tokens import find_named_pieces

# What incomplete characters decode to.
_INCOMPLETE = "\ufffd"
# Beginnings that put a token into each context; rare ones, so that they seldom merge with it.
_STEMS = {
    Context.SPACE: ("a ", "of "),
    Context.WORD: ("q7", "x3", "qx", "zj", "vq"),
    Context.OTHER: ('"', "(", "%", "]", "~"),
}


def build_piece_table(generator: PreTrainedTokenizerBase, encoder: TextTokenizer) -> PieceTable:
    """Find the encoder's pieces of every token of a generator.

    Where both tokenizers follow the same rules, a token's piece is that of the same name. Otherwise, and for tokens
    that were added to the generator, its pieces are those into which the encoder's tokenizer, with its normalizer,
    splits its text.
    """
    vocabulary = generator.get_vocab()
    ids = sorted({*vocabulary.values()})
    # Ids may have gaps, so that there are more of them than tokens.
    vocab_size = ids[-1] + 1
    texts = [""] * vocab_size
    for i, text in zip(ids, decode_tokens(generator, ids), strict=True):
        texts[i] = text.replace(_INCOMPLETE, "")
    special = set(generator.all_special_ids)
    control = torch.ones(vocab_size, dtype=torch.bool, device="cpu")
    control[torch.tensor(ids, dtype=torch.long, device="cpu")] = False
    control[[i for i in special if i < vocab_size]] = True

    named_ids, identity = find_named_pieces(generator, encoder, texts)
    rows = [[[] if piece < 0 else [piece]] * len(Context) for piece in named_ids]
    others = [i for i, piece in enumerate(named_ids) if piece < 0 and i not in special and texts[i].strip()]
    for i, split in zip(others, _split_in_contexts([texts[i] for i in others], encoder), strict=True):
        rows[i] = split
    counts = torch.tensor([len(pieces) for contexts in rows for pieces in contexts], device="cpu")
    ids_of_pieces = [piece for contexts in rows for pieces in contexts for piece in pieces]
    return PieceTable(
        offsets=torch.cat([counts.new_zeros(1), counts.cumsum(0)]),
        pieces=torch.tensor(ids_of_pieces, dtype=torch.long, device="cpu"),
        shares=(_usual_context(texts).flatten().float() / counts).repeat_interleave(counts),
        follows=_following_contexts(texts),
        control=control,
        identity=identity,
    )


def _split_in_contexts(texts: Sequence[str], encoder: TextTokenizer) -> list[list[list[int]]]:
    """Split each text in each context; one that brings a space with it as after a space, except at the start."""
    start = _tokenize(encoder.tokenizer, [encoder.prepare(text) for text in texts])
    words = [text.strip() for text in texts]
    attached = [i for i, text in enumerate(texts) if not text[0].isspace()]
    spaced = _split_after(Context.SPACE, words, encoder)
    word, other = (
        dict(zip(attached, _split_after(context, [words[i] for i in attached], encoder), strict=True))
        for context in (Context.WORD, Context.OTHER)
    )
    rows = []
    for i, alone in enumerate(start):
        after = spaced[i], word.get(i, spaced[i]), other.get(i, spaced[i])
        pieces = [alone, *(split or alone for split in after)]
        # A text that vanishes in a context, such as a hard space, would have no position there.
        rows.append(pieces if all(pieces) else [[]] * len(Context))
    return rows


def _split_after(context: Context, words: Sequence[str], encoder: TextTokenizer) -> list[list[int]]:
    """Split words that are attached to a stem; a row is empty where every stem merges with the word."""
    pieces: list[list[int]] = [[] for _ in words]
    left = list(range(len(words)))
    for stem in _STEMS[context]:
        prepared = [encoder.prepare(stem + words[i]) for i in left]
        before, *rows = _tokenize(encoder.tokenizer, [encoder.prepare(stem), *prepared])
        for i, row in zip(left, rows, strict=True):
            if row[: len(before)] == before:
                pieces[i] = row[len(before) :]
        left = [i for i in left if not pieces[i]]
    return pieces


def _tokenize(tokenizer: PreTrainedTokenizerBase, texts: list[str]) -> list[list[int]]:
    """Return the token ids of each text by itself, without special tokens and without truncation."""
    if not tokenizer.is_fast:
        encoded: Any = tokenizer(texts, add_special_tokens=False, verbose=False) if texts else {"input_ids": []}
        rows: list[list[int]] = encoded["input_ids"]
        return rows
    # The backend itself, as the wrapper of transformers, which sets truncation and padding anew at each call, takes
    # longer than tokenization.
    backend = tokenizer.backend_tokenizer
    backend.no_truncation()
    backend.no_padding()
    return [encoding.ids for encoding in backend.encode_batch_fast(texts, add_special_tokens=False)]


def decode_tokens(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> list[str]:
    """Return the text that each token adds to a text, with a space in front where it starts a word."""
    anchor = (_tokenize(tokenizer, ["a"])[0] or [0])[-1]
    before, *joined = tokenizer.batch_decode([[anchor], *([anchor, i] for i in ids)], skip_special_tokens=False)
    # Decoders that clean up spaces may change the anchor.
    return [
        text[len(before) :] if text.startswith(before) else str(tokenizer.decode([i]))
        for i, text in zip(ids, joined, strict=True)
    ]


def _usual_context(texts: Sequence[str]) -> Tensor:
    """Return 1 for the context in which each text mostly occurs, for the mean, shape (tokens, contexts)."""
    spaced = {text.lower() for text in texts if text[:1].isspace()}
    usual = []
    for text in texts:
        if not text or text[0].isspace():
            usual.append(Context.SPACE)
        else:
            # A text that is a token with a space too is seldom a part of a word: it would have merged with the rest.
            usual.append(Context.TEXT_START if f" {text.lower()}" in spaced else Context.WORD)
    return torch.nn.functional.one_hot(torch.tensor(usual, device="cpu"), len(Context))


def _following_contexts(texts: Sequence[str]) -> Tensor:
    """Return the context that each text makes for the next token, shape (tokens,)."""
    last = [text[-1:] for text in texts]
    contexts = [
        Context.SPACE if not character.strip() else Context.WORD if character.isalnum() else Context.OTHER
        for character in last
    ]
    return torch.tensor(contexts, device="cpu")
