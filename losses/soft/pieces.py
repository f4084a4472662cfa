"""The encoder's pieces of each of a generator's tokens: a table, and how to build it for any two tokenizers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from bertscore_tm.encoder.tokenizer import TextTokenizer


class Context(IntEnum):
    """What precedes a token; a token may have other pieces in each context."""

    TEXT_START = 0
    SPACE = 1
    WORD = 2
    OTHER = 3


@dataclass(frozen=True)
class PieceTable:
    """The encoder's pieces of each of a generator's tokens, in each :class:`Context`; row 4 * token + context."""

    offsets: Tensor  # start of each row in the pieces, and the end, (4 * vocabulary + 1,), int64
    pieces: Tensor  # ids of the encoder, (entries,), int64
    shares: Tensor  # share of each entry in the token's mean, (entries,), float32; those of a token sum to 1
    follows: Tensor  # context that a token makes for the next one, (vocabulary,), int64
    control: Tensor  # tokens that never are text: special tokens and ids without a token, (vocabulary,), bool
    ambiguous: Tensor  # tokens whose pieces depend on all of the text: blanks and parts of characters, likewise
    identity: bool  # whether the tokenizers split texts into the same tokens: each has one piece, of the same name

    @cached_property
    def empty(self) -> Tensor:
        """Tokens without pieces, such as blanks and incomplete characters, shape (vocabulary,), bool."""
        return self.offsets[:: len(Context)].diff() == 0

    def average(self, values: Tensor) -> Tensor:
        """Return the mean of values, shape (encoder's vocabulary, width), over each token's pieces, 0 without any."""
        offsets, pieces, shares = self._mean
        options: dict[str, Any] = {"mode": "sum", "per_sample_weights": shares.to(values.dtype)}
        return torch.nn.functional.embedding_bag(pieces, values, offsets, include_last_offset=True, **options)

    def average_weights(self, weights: Tensor) -> Tensor:
        """Return the mean weight of each token's pieces, 0 without any, shape (vocabulary,)."""
        return self.average(weights[:, None]).squeeze(1)

    @cached_property
    def _mean(self) -> tuple[Tensor, Tensor, Tensor]:
        """Start of each token among the entries with a share, their pieces and their shares."""
        shared = self.shares > 0
        num_before = torch.nn.functional.pad(shared.cumsum(0), (1, 0))
        return num_before[self.offsets[:: len(Context)]], self.pieces[shared], self.shares[shared]

    def to(self, device: torch.device) -> PieceTable:
        """Return the table on a device."""
        if self.offsets.device == device:
            return self
        names = ("offsets", "pieces", "shares", "follows", "control", "ambiguous")
        return replace(self, **{name: getattr(self, name).to(device) for name in names})

    def expand(self, tokens: Tensor, content: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Concatenate the pieces of each row's tokens; positions without content count as spaces.

        Returns ids of the encoder, the position of the token that each comes from, and which of them are not padding,
        shape (batch, pieces) each.
        """
        following = torch.where(content, self.follows[tokens], int(Context.SPACE))
        context = torch.nn.functional.pad(following[:, :-1], (1, 0))
        has_pieces = content & ~self.empty[tokens]  # (batch, positions)
        # Blanks at the start are no part of the text.
        num_before = has_pieces.cumsum(1) - has_pieces.long()
        context = torch.where(num_before == 0, int(Context.TEXT_START), context)
        rows = len(Context) * tokens + context  # (batch, positions)
        counts = torch.where(content, self.offsets[rows + 1] - self.offsets[rows], 0)
        ends = counts.cumsum(1)  # (batch, positions)
        place = torch.arange(max(int(ends[:, -1].max()), 1), device=tokens.device).expand(len(tokens), -1).contiguous()
        is_piece = place < ends[:, -1:]  # (batch, pieces)
        position = torch.searchsorted(ends, place, right=True).clamp(max=tokens.shape[1] - 1)  # (batch, pieces)
        entry = (self.offsets[rows] - ends + counts).gather(1, position) + place
        return self.pieces[torch.where(is_piece, entry, 0)], position, is_piece

    @cached_property
    def single_pieces(self) -> Tensor | None:
        """Each token's piece, 0 without one, shape (vocabulary,); ``None`` if a token has several or other ones."""
        if (self.offsets.diff() > 1).any():
            return None
        first = self.offsets[: -1 : len(Context)].clamp(max=max(len(self.pieces) - 1, 0))
        singles = self.pieces[first]  # (vocabulary,)
        if (self.pieces != singles[~self.empty].repeat_interleave(len(Context))).any():
            return None
        return singles.masked_fill(self.empty, 0)


# What incomplete characters decode to.
_INCOMPLETE = "\ufffd"
# Settings of a tokenizer's model that differ although texts are split alike, or that are compared apart.
_OTHER_SETTINGS = {"vocab", "merges", "unk_id"}
# Beginnings that put a token into each context; rare ones, so that they seldom merge with it.
_STEMS = {
    Context.SPACE: ("a ", "of "),
    Context.WORD: ("q7", "x3", "qx", "zj", "vq"),
    Context.OTHER: ('"', "(", "%", "]", "~"),
}


def build_piece_table(generator: PreTrainedTokenizerBase, encoder: TextTokenizer) -> PieceTable:
    """Find the encoder's pieces of every token of a generator.

    Where both tokenizers follow the same rules, a token's piece is that of the same name; otherwise, and for tokens
    that were added to the generator, those into which the encoder's tokenizer splits its text.
    """
    ids = sorted({*generator.get_vocab().values()})
    # Ids may have gaps, so that there are more of them than tokens.
    vocab_size = ids[-1] + 1
    texts = [""] * vocab_size
    ambiguous = torch.zeros(vocab_size, dtype=torch.bool, device="cpu")
    for i, text in zip(ids, decode_tokens(generator, ids), strict=True):
        texts[i] = text.replace(_INCOMPLETE, "")
        ambiguous[i] = _INCOMPLETE in text or not text.strip()
    special = {*generator.all_special_ids}
    words = {*ids} - special
    named_ids, identity = _find_named_pieces(generator, encoder, texts)
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
        control=torch.tensor([i not in words for i in range(vocab_size)], device="cpu"),
        ambiguous=ambiguous,
        identity=identity,
    )


def _find_named_pieces(
    generator: PreTrainedTokenizerBase, encoder: TextTokenizer, texts: Sequence[str]
) -> tuple[list[int], bool]:
    """Return the encoder's token of the name of each of a generator's tokens, and whether both split texts alike.

    The ids are -1 without one of the name, and all -1 where rules differ or the encoder lacks a token that was not
    added. Names of special tokens may differ, a generator's vocabulary may be a part of the encoder's, and tokens may
    have been added to either.
    """
    ids = [-1] * len(texts)
    (rules, model), (encoder_rules, encoder_model) = map(_read_rules, (generator, encoder.tokenizer))
    if rules != encoder_rules:
        return ids, False
    encoder_vocabulary = encoder.vocabulary
    for name, i in generator.get_vocab().items():
        ids[i] = encoder_vocabulary.get(name, -1)
    specials = {*generator.all_special_tokens, *encoder.tokenizer.all_special_tokens}
    special_ids = {*generator.all_special_ids}
    is_missing = any(ids[i] < 0 and i not in special_ids and text.strip() for i, text in enumerate(texts))
    agree = _have_equal_models(model, encoder_model, specials)
    if is_missing and not agree:
        return [-1] * len(texts), False
    added = [{*tokenizer.get_added_vocab()} - specials for tokenizer in (generator, encoder.tokenizer)]
    return ids, agree and added[0] == added[1]


def _read_rules(tokenizer: PreTrainedTokenizerBase) -> tuple[Any, dict[str, Any]]:
    """Return the rules by which a tokenizer splits texts, and the model with its vocabulary."""
    if not tokenizer.is_fast:
        return (type(tokenizer).__name__, tokenizer.init_kwargs), {"vocab": tokenizer.get_vocab()}
    content = json.loads(tokenizer.backend_tokenizer.to_str())
    settings = {name: value for name, value in content["model"].items() if name not in _OTHER_SETTINGS}
    return (content["normalizer"], content["pre_tokenizer"], settings), content["model"]


def have_same_rules(tokenizer: TextTokenizer, other: TextTokenizer) -> bool:
    """Return whether two tokenizers of encoders turn texts into the same ids."""
    if tokenizer.vocabulary != other.vocabulary or tokenizer.prefix_space != other.prefix_space:
        return False
    rules, model = _read_rules(tokenizer.tokenizer)
    other_rules, other_model = _read_rules(other.tokenizer)
    return bool(rules == other_rules and model == other_model)


def _have_equal_models(generator: dict[str, Any], encoder: dict[str, Any], specials: set[str]) -> bool:
    """Compare merges, or else the names of tokens, with their probabilities where they have any."""
    if "merges" in generator:
        return bool(generator["merges"] == encoder["merges"])
    vocabularies = []
    for model in (generator, encoder):
        entries = map(tuple, model["vocab"]) if isinstance(model["vocab"], list) else zip(model["vocab"])
        vocabularies.append({entry for entry in entries if entry[0] not in specials})
    return vocabularies[0] == vocabularies[1]


def _split_in_contexts(texts: Sequence[str], encoder: TextTokenizer) -> list[list[list[int]]]:
    """Split each text in each context; one that brings a space with it as after a space, except at the start."""
    words = [text.strip() for text in texts]
    start = _tokenize(encoder.tokenizer, encoder.prepare(texts))
    spaced = _split_after(Context.SPACE, words, encoder)
    rows = [[alone] + 3 * [split or alone] for alone, split in zip(start, spaced, strict=True)]
    attached = [i for i, text in enumerate(texts) if not text[0].isspace()]
    for context in (Context.WORD, Context.OTHER):
        for i, split in zip(attached, _split_after(context, [words[i] for i in attached], encoder), strict=True):
            rows[i][context] = split or start[i]
    # A text that vanishes in a context, such as a hard space, would have no position there.
    return [row if all(row) else [[]] * len(Context) for row in rows]


def _split_after(context: Context, words: Sequence[str], encoder: TextTokenizer) -> list[list[int]]:
    """Split words that are attached to a stem; a row is empty where every stem merges with the word."""
    pieces: list[list[int]] = [[] for _ in words]
    left = list(range(len(words)))
    for stem in _STEMS[context]:
        prepared = encoder.prepare([stem, *(stem + words[i] for i in left)])
        before, *rows = _tokenize(encoder.tokenizer, prepared)
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


def split_decoded(
    ids: Sequence[int], generator: PreTrainedTokenizerBase, encoder: TextTokenizer
) -> tuple[list[int], list[int]]:
    """Return the encoder's pieces of the text of a generator's tokens, and the index of the token that ends each.

    The encoder's tokenizer must be fast.
    """
    # One text more at each token; a character counts at its last byte.
    prefixes = generator.batch_decode([list(ids[: i + 1]) for i in range(len(ids))], skip_special_tokens=False)
    text = prefixes[-1]
    ends = np.maximum.accumulate([len(prefix.rstrip(_INCOMPLETE)) for prefix in prefixes[:-1]] + [len(text)])
    (prepared,) = encoder.prepare([text])
    encoding = encoder.encode_whole([prepared], offsets=True)
    # Position of the first character of the prepared text in the text.
    shift = len(text) - len(text.lstrip()) - (len(prepared) - len(text.strip()))
    pieces, owners = [], []
    for piece, is_special, (_, end) in zip(*(encoding[key][0] for key in encoding), strict=True):
        if not is_special:
            pieces.append(piece)
            owners.append(min(int(np.searchsorted(ends, end + shift)), len(ids) - 1))
    return pieces, owners


def _usual_context(texts: Sequence[str]) -> Tensor:
    """Return 1 for the context in which each text mostly occurs, for the mean, shape (tokens, contexts)."""
    spaced = {text.lower() for text in texts if text[:1].isspace()}
    # A text that is a token with a space too is seldom a part of a word: it would have merged with the rest.
    attached = [Context.TEXT_START if f" {text.lower()}" in spaced else Context.WORD for text in texts]
    usual = [context if text[:1].strip() else Context.SPACE for text, context in zip(texts, attached, strict=True)]
    return torch.nn.functional.one_hot(torch.tensor(usual, device="cpu"), len(Context))


def _following_contexts(texts: Sequence[str]) -> Tensor:
    """Return the context that each text makes for the next token, shape (tokens,)."""
    contexts = [
        Context.SPACE if not character.strip() else Context.WORD if character.isalnum() else Context.OTHER
        for character in (text[-1:] for text in texts)
    ]
    return torch.tensor(contexts, device="cpu")
