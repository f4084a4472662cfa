"""Table with the encoder's pieces of each of a generator's tokens, built for any two tokenizers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from bertscore_tm.encoder.tokenizer import TextTokenizer


class Context(IntEnum):
    """What precedes a token. A token may have other pieces in each context."""

    TEXT_START = 0
    SPACE = 1
    WORD = 2
    OTHER = 3


@dataclass(frozen=True)
class PieceTable:
    """The encoder's pieces of each of a generator's tokens, in each :class:`Context`.

    The table is ragged: row ``4 * token + context`` is ``pieces[offsets[row] : offsets[row + 1]]``.
    """

    offsets: Tensor  # start of each row in the pieces, and the end of the last one, (4 * vocabulary + 1,), int64
    pieces: Tensor  # ids of the encoder, (entries,), int64
    shares: Tensor  # share of each entry in the token's mean, (entries,), float32; the shares of a token sum to 1
    follows: Tensor  # context of a token that follows this one, (vocabulary,), int64
    control: Tensor  # tokens that never are text: special tokens and ids without a token, (vocabulary,), bool
    ambiguous: Tensor  # blanks and parts of characters: their pieces depend on the whole text, (vocabulary,), bool
    identity: bool  # whether both tokenizers split texts into the same tokens: each has one piece, of the same name

    @cached_property
    def empty(self) -> Tensor:
        """Tokens without pieces, such as blanks and incomplete characters, shape (vocabulary,), bool."""
        return self.offsets[:: len(Context)].diff() == 0

    @property
    def pieceless(self) -> Tensor:
        """Tokens that are text but have no pieces, shape (vocabulary,), bool. Control tokens are not among them."""
        return self.empty & ~self.control

    def average(self, values: Tensor) -> Tensor:
        """Return the mean of values over each token's pieces, 0 for a token without pieces, shape (vocabulary, width).

        Args:
            values: values of the encoder's tokens, such as embeddings, shape (encoder's vocabulary, width).
        """
        offsets, pieces, shares = self._entries_of_mean
        return torch.nn.functional.embedding_bag(
            pieces, values, offsets, mode="sum", per_sample_weights=shares.to(values.dtype), include_last_offset=True
        )

    def average_weights(self, weights: Tensor) -> Tensor:
        """Return the mean weight of each token's pieces, 0 for a token without pieces, shape (vocabulary,)."""
        return self.average(weights[:, None]).squeeze(1)

    @cached_property
    def _entries_of_mean(self) -> tuple[Tensor, Tensor, Tensor]:
        """Entries with a share in a mean: the start of each token's entries, and the pieces and shares of all."""
        has_share = self.shares > 0  # (entries,)
        # For shares above 0 at the entries 0 1 1, the numbers before each entry and before the end are 0 0 1 2.
        num_before = torch.nn.functional.pad(has_share.cumsum(0), (1, 0))  # (entries + 1,)
        first_rows = self.offsets[:: len(Context)]  # start of the entries of each token, (vocabulary + 1,)
        starts = num_before[first_rows]  # (vocabulary + 1,)
        return starts, self.pieces[has_share], self.shares[has_share]

    def to(self, device: torch.device) -> PieceTable:
        """Return the table on a device."""
        if self.offsets.device == device:
            return self
        names = ("offsets", "pieces", "shares", "follows", "control", "ambiguous")
        return replace(self, **{name: getattr(self, name).to(device) for name in names})

    def expand(self, tokens: Tensor, content: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Concatenate the pieces of each row's tokens. Positions without content count as spaces.

        Args:
            tokens: ids of the generator, shape (batch, positions).
            content: positions with content, shape (batch, positions), bool.

        Returns:
            Ids of the pieces, the position of the token from which each piece comes, and which pieces are not padding,
            shape (batch, pieces) each.
        """
        # The context of a token is what follows the token before it.
        following = torch.where(content, self.follows[tokens], int(Context.SPACE))  # (batch, positions)
        context = torch.nn.functional.pad(following[:, :-1], (1, 0))  # (batch, positions)
        has_pieces = content & ~self.empty[tokens]  # (batch, positions)
        # Blanks at the start are not part of the text, so a token is at the start if only blanks precede it.
        num_before = has_pieces.cumsum(1) - has_pieces.long()  # earlier tokens with pieces, (batch, positions)
        context = torch.where(num_before == 0, int(Context.TEXT_START), context)
        rows = len(Context) * tokens + context  # (batch, positions)
        # In the example of these comments, a row has three tokens with 2, 0 and 1 pieces: counts 2 0 1, ends 2 2 3.
        counts = torch.where(content, self.offsets[rows + 1] - self.offsets[rows], 0)  # (batch, positions)
        ends = counts.cumsum(1)  # (batch, positions)
        # At least one, so that a batch without pieces has positions of padding.
        num_pieces = max(int(ends[:, -1].max()), 1)
        # Number of each piece in its row: 0 1 2.
        place = torch.arange(num_pieces, device=tokens.device).expand(len(tokens), -1).contiguous()  # (batch, pieces)
        is_piece = place < ends[:, -1:]  # (batch, pieces)
        # The token of a piece is the first one whose pieces end after it: 0 0 2. Padding gets the last position.
        position = torch.searchsorted(ends, place, right=True).clamp(max=tokens.shape[1] - 1)  # (batch, pieces)
        # Place of each token's first piece: 0 2 2. The n-th piece of a token is the n-th entry of its row of the table.
        starts = ends - counts  # (batch, positions)
        entry = (self.offsets[rows] - starts).gather(1, position) + place  # (batch, pieces)
        return self.pieces[torch.where(is_piece, entry, 0)], position, is_piece

    @cached_property
    def single_pieces(self) -> Tensor | None:
        """Piece of each token, 0 for a token without one, shape (vocabulary,).

        ``None`` if a token has several pieces, or not the same piece in all contexts.
        """
        if (self.offsets.diff() > 1).any():
            return None
        last_entry = max(len(self.pieces) - 1, 0)
        # The offset of an empty last token is after the last entry.
        first_entries = self.offsets[: -1 : len(Context)].clamp(max=last_entry)
        singles = self.pieces[first_entries]  # (vocabulary,)
        same_in_all_contexts = singles[~self.empty].repeat_interleave(len(Context))  # (entries,)
        if (self.pieces != same_in_all_contexts).any():
            return None
        return singles.masked_fill(self.empty, 0)


# Replacement character, to which incomplete characters are decoded.
_INCOMPLETE = "\ufffd"
# Settings of a tokenizer's model that are not compared as rules: they are compared separately, or do not matter.
_OTHER_SETTINGS = {"vocab", "merges", "unk_id"}
# Beginnings of a text that put the next token into a context. They are rare, so that they seldom merge with it.
_STEMS = {
    Context.SPACE: ("a ", "of "),
    Context.WORD: ("q7", "x3", "qx", "zj", "vq"),
    Context.OTHER: ('"', "(", "%", "]", "~"),
}


def build_piece_table(generator: PreTrainedTokenizerBase, encoder: TextTokenizer) -> PieceTable:
    """Find the encoder's pieces of every token of a generator.

    If both tokenizers have the same rules, the piece of a token is the encoder's token of the same name. Otherwise, and
    for tokens that were added to the generator, the encoder's tokenizer splits the text of the token.
    """
    ids = sorted({*generator.get_vocab().values()})
    # Count ids and not tokens, because the ids may have gaps.
    vocab_size = ids[-1] + 1
    texts = [""] * vocab_size
    is_ambiguous = torch.zeros(vocab_size, dtype=torch.bool, device="cpu")
    for i, text in zip(ids, decode_tokens(generator, ids), strict=True):
        texts[i] = text.replace(_INCOMPLETE, "")
        is_ambiguous[i] = _INCOMPLETE in text or not text.strip()
    special_ids = {*generator.all_special_ids}
    is_control = torch.ones(vocab_size, dtype=torch.bool, device="cpu")
    is_control[[i for i in ids if i not in special_ids]] = False
    named_ids, identity = _find_named_pieces(generator, encoder, texts)
    # Tokens of the encoder with the same name need no splitting, which is exact and saves most of the time.
    rows: list[list[list[int]]] = []  # pieces by token and context
    split_ids = []  # tokens without a piece of their name
    for i, piece in enumerate(named_ids):
        pieces = []
        if piece >= 0:
            pieces.append(piece)
        # Tokens with the encoder's names have one piece in all contexts.
        rows.append([pieces] * len(Context))
        is_text = i not in special_ids and texts[i].strip() != ""
        if piece < 0 and is_text:
            split_ids.append(i)
    split_rows = _split_in_contexts([texts[i] for i in split_ids], encoder)
    for i, row in zip(split_ids, split_rows, strict=True):
        rows[i] = row
    flat_rows = list(chain.from_iterable(rows))
    counts = torch.tensor([len(pieces) for pieces in flat_rows], device="cpu")  # (4 * vocabulary,)
    # The pieces in the usual context have equal shares in the mean, all other entries have none.
    shares = _usual_contexts(texts).flatten().float() / counts
    return PieceTable(
        offsets=torch.cat([counts.new_zeros(1), counts.cumsum(0)]),
        pieces=torch.tensor(list(chain.from_iterable(flat_rows)), dtype=torch.long, device="cpu"),
        shares=shares.repeat_interleave(counts),
        follows=_following_contexts(texts),
        control=is_control,
        ambiguous=is_ambiguous,
        identity=identity,
    )


def _find_named_pieces(
    generator: PreTrainedTokenizerBase, encoder: TextTokenizer, texts: Sequence[str]
) -> tuple[list[int], bool]:
    """Find the encoder's tokens that have the names of the generator's tokens.

    Names of special tokens may differ, a generator's vocabulary may be a part of the encoder's, and tokens may have
    been added to either.

    Returns:
        The encoder's id of each of the generator's tokens, -1 for a token without the same name, and whether both
        tokenizers split texts into the same tokens. All ids are -1 if the rules differ, or if the encoder lacks a token
        that was not added.
    """
    # Equal names mean equal pieces only under the same rules: "##ing" continues a word in WordPiece, and in no other.
    none = [-1] * len(texts)
    rules, model = _read_rules(generator)
    encoder_rules, encoder_model = _read_rules(encoder.tokenizer)
    if rules != encoder_rules:
        return none, False
    ids = list(none)
    encoder_vocabulary = encoder.vocabulary
    for name, i in generator.get_vocab().items():
        ids[i] = encoder_vocabulary.get(name, -1)
    special_names = {*generator.all_special_tokens, *encoder.tokenizer.all_special_tokens}
    special_ids = {*generator.all_special_ids}
    has_equal_model = _have_equal_models(model, encoder_model, special_names)
    if not has_equal_model:
        for i, text in enumerate(texts):
            is_text = i not in special_ids and text.strip() != ""
            if is_text and ids[i] < 0:
                return none, False
    added = {*generator.get_added_vocab()} - special_names
    encoder_added = {*encoder.tokenizer.get_added_vocab()} - special_names
    return ids, has_equal_model and added == encoder_added


def _read_rules(tokenizer: PreTrainedTokenizerBase) -> tuple[Any, dict[str, Any]]:
    """Return the rules by which a tokenizer splits texts, and its model, which has the vocabulary."""
    if not tokenizer.is_fast:
        # Such tokenizers are Python code, so compare their classes and settings.
        rules = (type(tokenizer).__name__, tokenizer.init_kwargs)
        return rules, {"vocab": tokenizer.get_vocab()}
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
    """Return whether two models have the same merges or, without merges, the same tokens except special ones."""
    if "merges" in generator:
        # The merges of byte-pair encoding determine how a word is split, also if special tokens have other names.
        return bool(generator["merges"] == encoder["merges"])
    return _list_entries(generator, specials) == _list_entries(encoder, specials)


def _list_entries(model: dict[str, Any], specials: set[str]) -> set[Any]:
    """Return the tokens of a model except special ones, with their log-probabilities in a Unigram model."""
    vocabulary = model["vocab"]
    if isinstance(vocabulary, list):
        # Unigram models have a list of pairs [token, log-probability].
        return {tuple(entry) for entry in vocabulary if entry[0] not in specials}
    return {name for name in vocabulary if name not in specials}


def _split_in_contexts(texts: Sequence[str], encoder: TextTokenizer) -> list[list[list[int]]]:
    """Return the pieces of each text in each context.

    A text that begins with a space is always split as after a space, except at the start of a text.
    """
    words = [text.strip() for text in texts]
    # All texts are split in one call per context, because a call per token of a vocabulary would be slow.
    start_rows = _tokenize(encoder.tokenizer, encoder.prepare(texts))
    space_rows = _split_after(Context.SPACE, words, encoder)
    rows = []
    for at_start, after_space in zip(start_rows, space_rows, strict=True):
        # An empty row means that every stem merged with the word.
        after_space = after_space or at_start
        rows.append([at_start, after_space, after_space, after_space])
    # Tokens that begin with a space are never attached to a word.
    attached = [i for i, text in enumerate(texts) if not text[0].isspace()]
    attached_words = [words[i] for i in attached]
    for context in (Context.WORD, Context.OTHER):
        for i, pieces in zip(attached, _split_after(context, attached_words, encoder), strict=True):
            rows[i][context] = pieces or start_rows[i]
    for i, row in enumerate(rows):
        # Treat a text that vanishes in one context, such as a hard space, as a text without pieces in all of them.
        if not all(row):
            rows[i] = [[]] * len(Context)
    return rows


def _split_after(context: Context, words: Sequence[str], encoder: TextTokenizer) -> list[list[int]]:
    """Return the pieces of each word after a stem of the context, empty if every stem merges with the word."""
    pieces: list[list[int]] = [[] for _ in words]
    remaining = list(range(len(words)))
    for stem in _STEMS[context]:
        texts = [stem + words[i] for i in remaining]
        stem_pieces, *rows = _tokenize(encoder.tokenizer, encoder.prepare([stem, *texts]))
        for i, row in zip(remaining, rows, strict=True):
            is_separate = row[: len(stem_pieces)] == stem_pieces
            if is_separate:
                pieces[i] = row[len(stem_pieces) :]
        # Try the next stem with the words that merged with this one.
        remaining = [i for i in remaining if not pieces[i]]
    return pieces


def _tokenize(tokenizer: PreTrainedTokenizerBase, texts: list[str]) -> list[list[int]]:
    """Return the token ids of each text, without special tokens and without truncation."""
    if not texts:
        return []
    if not tokenizer.is_fast:
        rows: list[list[int]] = tokenizer(texts, add_special_tokens=False, verbose=False)["input_ids"]
        return rows
    # Call the backend, because the wrapper of transformers sets truncation and padding at each call, which takes longer
    # than the tokenization itself.
    backend = tokenizer.backend_tokenizer
    backend.no_truncation()
    backend.no_padding()
    return [encoding.ids for encoding in backend.encode_batch_fast(texts, add_special_tokens=False)]


def decode_tokens(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> list[str]:
    """Return the text that each token adds to a text, with a space in front if the token starts a word."""
    # Decode each token after another one, the anchor, because decoders drop a space at the start of a text.
    anchor_ids = _tokenize(tokenizer, ["a"])[0]
    if not anchor_ids:
        # The vocabulary lacks the letter. Any token can be the anchor, and each vocabulary has the id 0.
        anchor_ids = [0]
    anchor = anchor_ids[-1]
    pairs = [[anchor, i] for i in ids]
    anchor_text, *pair_texts = tokenizer.batch_decode([[anchor], *pairs], skip_special_tokens=False)
    texts = []
    for i, pair_text in zip(ids, pair_texts, strict=True):
        if pair_text.startswith(anchor_text):
            texts.append(pair_text[len(anchor_text) :])
        else:
            # Decoders that clean up spaces may change the anchor, so it cannot be removed from the text. Decode the
            # token alone, although this may drop its leading space.
            texts.append(str(tokenizer.decode([i])))
    return texts


def split_decoded(
    ids: Sequence[int], generator: PreTrainedTokenizerBase, encoder: TextTokenizer
) -> tuple[list[int], list[int]]:
    """Return the encoder's pieces of the text of a generator's tokens, and the index of the token that ends each piece.

    The encoder's tokenizer must be fast.
    """
    # For each token find where its text ends, for example 2 and 5 for "a " and "cat". A character of several bytes
    # belongs to the token with its last byte, because a prefix without it ends with replacement characters.
    prefix_ids = [list(ids[: i + 1]) for i in range(len(ids))]
    prefixes = generator.batch_decode(prefix_ids, skip_special_tokens=False)
    text = prefixes[-1]
    ends = [len(prefix.rstrip(_INCOMPLETE)) for prefix in prefixes[:-1]]
    ends.append(len(text))
    # Decoders that clean up spaces may shorten a text, so let no end precede an earlier one.
    token_ends = np.maximum.accumulate(ends)  # (tokens,)
    (prepared,) = encoder.prepare([text])
    encoding = encoder.encode_whole([prepared], offsets=True)
    # Prepared texts are stripped, and may have an added space in front. So characters have other places in them: for
    # the text " cat" and the prepared text "cat" the shift is 1, for "cat" and " cat" it is -1.
    num_stripped = len(text) - len(text.lstrip())
    num_added = len(prepared) - len(text.strip())
    shift = num_stripped - num_added
    pieces = []
    owners = []
    for piece, is_special, (_, end) in zip(*(encoding[key][0] for key in encoding), strict=True):
        if not is_special:
            # The token that ends a piece is the first one whose text does not end before the piece does.
            owner = int(np.searchsorted(token_ends, end + shift))
            pieces.append(piece)
            # For a piece that ends after the last token, searchsorted returns the number of tokens.
            owners.append(min(owner, len(ids) - 1))
    return pieces, owners


def _usual_contexts(texts: Sequence[str]) -> Tensor:
    """Return 1 for the context in which each text usually occurs and 0 for the others, shape (tokens, contexts)."""
    spaced_texts = {text.lower() for text in texts if text[:1].isspace()}
    contexts = []
    for text in texts:
        starts_with_space = text[:1].strip() == ""  # an empty text counts as a space
        # If a text is also a token with a space in front, it seldom follows a letter: it would have merged with it.
        has_spaced_form = f" {text.lower()}" in spaced_texts
        if starts_with_space:
            contexts.append(Context.SPACE)
        elif has_spaced_form:
            contexts.append(Context.TEXT_START)
        else:
            contexts.append(Context.WORD)
    return torch.nn.functional.one_hot(torch.tensor(contexts, device="cpu"), len(Context))


def _following_contexts(texts: Sequence[str]) -> Tensor:
    """Return the context of a token that follows each text, shape (tokens,). An empty text counts as a space."""
    contexts = []
    for text in texts:
        last_character = text[-1:]  # empty for an empty text
        ends_with_space = last_character.strip() == ""
        if ends_with_space:
            contexts.append(Context.SPACE)
        elif last_character.isalnum():
            contexts.append(Context.WORD)
        else:
            contexts.append(Context.OTHER)
    # Name the CPU, because torch.set_default_device may have set another device, and a table is built on the CPU.
    return torch.tensor(contexts, device="cpu")
