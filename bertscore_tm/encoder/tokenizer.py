"""Token ids of texts: special tokens, prefix space, truncation or windows, and ids without weight."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Any, Literal, NamedTuple

import numpy as np
from tokenizers.models import WordPiece
from transformers import PretrainedConfig, PreTrainedTokenizerBase

from bertscore_tm.device.locks import cached_property
from bertscore_tm.encoder.families import Family
from bertscore_tm.encoder.probe import family_of
from bertscore_tm.matching.vectors import Bools, Ints, TokenizedTexts, places_of
from bertscore_tm.utilities.warnings import warn_user

LongText = Literal["truncate", "window", "error"]

# transformers gives tokenizers without a limit a far larger one than this.
_NO_LIMIT = 10**9
# Below this number, texts are tokenized one by one.
_FEW = 16
# If the tokenizer's class overrides one of these methods, the tokenizer is called instead of its Rust backend.
_METHODS = ("__call__", "_encode_plus", "_batch_encode_plus")


class TextTokenizer:
    """Turn texts into the token ids that BERTScore compares, with the model's special tokens.

    The tokenizers of some families (RoBERTa, GPT-2) get a space before each text, like in all published scores. It is
    put into the text, because transformers 5 ignores ``add_prefix_space`` at call time.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        config: PretrainedConfig,
        family: Family | None = None,
        *,
        max_length: int | None = None,
        long_text: LongText = "truncate",
        prefix_space: bool | None = None,
        exclude_special_tokens: bool = False,
    ) -> None:
        if family is None:
            family = family_of(config)
        self.tokenizer = tokenizer
        self._has_warned = False
        self.long_text = long_text
        self.exclude_special_tokens = exclude_special_tokens
        self.prefix_space = family.prefix_space if prefix_space is None else prefix_space
        self.max_length = self._resolve_limit(max_length, family.max_positions(config))
        # Tokens from the start of one window to the next: half a window. None without windows.
        self.stride: int | None = None
        if self.long_text == "window" and self.max_length is not None:
            self.stride = max((self.max_length - self.num_special_tokens) // 2, 1)
        # The model may lack embeddings of tokens of the tokenizer, such as added ones.
        self._num_embeddings = int(getattr(config, "vocab_size", 0))
        self.vocab_size = max(len(tokenizer), self._num_embeddings)

    def _resolve_limit(self, max_length: int | None, positions: int | None) -> int | None:
        """Return the maximum number of tokens per text: the given one, or that of the tokenizer and the model."""
        if max_length is not None:
            limit = f"max_length (--max-length) {max_length}"
            if max_length <= self.num_special_tokens:
                raise ValueError(
                    f"{limit} leaves no room for text next to the {self.num_special_tokens} special tokens"
                )
            if positions is not None and max_length > positions:
                raise ValueError(f"{limit} exceeds the {positions} positions of the encoder")
            return max_length
        limits = [limit for limit in (self.tokenizer.model_max_length, positions) if limit is not None]
        shortest = min(limits, default=_NO_LIMIT)
        if shortest >= _NO_LIMIT:
            return None
        if shortest <= self.num_special_tokens:
            raise ValueError(
                f"the limit of {shortest} tokens (the tokenizer's model_max_length or the encoder's positions) leaves "
                f"no room next to the {self.num_special_tokens} special tokens. Pass max_length= (--max-length)"
            )
        return int(shortest)

    @cached_property
    def special_affixes(self) -> tuple[list[int], list[int]]:
        """Ids of the special tokens that the tokenizer adds before and after a text."""
        encoded = self.tokenizer("a", return_special_tokens_mask=True, verbose=False)
        if 0 not in encoded["special_tokens_mask"]:
            # The vocabulary has neither "a" nor an unknown token: find any token that is not special.
            for token in self.vocabulary.values():
                encoded = self.tokenizer(self.tokenizer.decode(token), return_special_tokens_mask=True)
                if 0 in encoded["special_tokens_mask"]:
                    break
        mask = encoded["special_tokens_mask"]
        # [1, 0, 0, 1] marks two tokens of content, from 1 to 3.
        first = mask.index(0)
        end = len(mask) - mask[::-1].index(0)
        ids = list(encoded["input_ids"])
        return ids[:first], ids[end:]

    @cached_property
    def special_tokens(self) -> list[str]:
        """Special tokens and added tokens that are special, such as the sentinels of T5."""
        added = self.tokenizer.added_tokens_decoder.values()
        special = [token.content for token in added if token.special and token.content.strip()]
        return list(dict.fromkeys([*self.tokenizer.all_special_tokens, *special]))

    @property
    def vocabulary(self) -> dict[str, int]:
        """Token strings and their ids."""
        return dict(self.tokenizer.get_vocab())

    @cached_property
    def num_special_tokens(self) -> int:
        """Number of special tokens that the tokenizer adds to a text."""
        return sum(self.num_affixes)

    @cached_property
    def num_affixes(self) -> tuple[int, int]:
        """Number of special tokens that the tokenizer adds before and after a text."""
        before, after = self.special_affixes
        return len(before), len(after)

    @cached_property
    def num_excluded(self) -> tuple[int, int]:
        """Number of special tokens before and after a text that are encoded but not compared."""
        if not self.exclude_special_tokens:
            return 0, 0
        return self.num_affixes

    @cached_property
    def unweighted_ids(self) -> list[int]:
        """Ids that carry weight 0 without idf: the tokenizer's cls and sep tokens, no others."""
        return _sort_known([self.tokenizer.cls_token_id, self.tokenizer.sep_token_id])

    @cached_property
    def control_ids(self) -> list[int]:
        """Ids that do not count as text when a generator predicts them: all special ones except unknown and mask."""
        tokenizer = self.tokenizer
        ids = {*tokenizer.all_special_ids} - {tokenizer.unk_token_id, tokenizer.mask_token_id}
        # The unknown token stays in if it has one of these roles too.
        for role in ("bos", "eos", "pad", "cls", "sep"):
            ids.add(getattr(tokenizer, f"{role}_token_id"))
        return _sort_known(ids)

    @cached_property
    def unknown_id(self) -> int:
        """Id of the unknown token, or -1. OPT declares its BOS token as unknown token, which does not count."""
        unknown = self.tokenizer.unk_token_id
        before, after = self.special_affixes
        if unknown is None or unknown in before + after:
            return -1
        return int(unknown)

    @cached_property
    def end_ids(self) -> list[int]:
        """Ids that end a text: the eos token, and the sep token if it does not start texts too."""
        tokenizer = self.tokenizer
        ends = {tokenizer.eos_token_id, tokenizer.sep_token_id}
        starts = {tokenizer.bos_token_id, tokenizer.cls_token_id}
        return _sort_known(ends - starts)

    def __call__(self, texts: Iterable[str]) -> TokenizedTexts:
        """Tokenize texts, whose tokens must have embeddings, and whose length must be allowed by ``long_text``."""
        if not isinstance(texts, str | Mapping):
            texts = list(texts)  # checking an iterator would consume it
        if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
            raise TypeError(f"texts must be a list of strings, got {texts!r:.80}. Pass a single text as [text]")
        prepared = self.prepare(texts)
        ids, full_lengths, is_special = self._encode(prepared)
        if self.long_text == "error" and self.max_length is not None:
            self._refuse_long_text(texts, full_lengths, self.max_length)
        places, lengths = self.truncate(full_lengths)
        ids = ids[places]  # (tokens,)
        # A configuration without vocab_size leaves the number of embeddings at 0, which is unknown.
        may_lack_embeddings = 0 < self._num_embeddings < self.vocab_size
        if may_lack_embeddings:
            self._require_embeddings(ids)
        # A "[CLS]" written in a text carries no weight either.
        is_content = ~is_special[places]  # (tokens,)
        for token in self.unweighted_ids:
            is_content &= ids != token
        num_unknown = _count_in_texts(ids == self.unknown_id, lengths)  # (texts,)
        text_sizes, unknown_sizes = self._measure(prepared, full_lengths, lengths, num_unknown)
        return TokenizedTexts(
            ids=ids,
            lengths=lengths,
            has_content=_count_in_texts(is_content, lengths) > 0,
            truncated=lengths < full_lengths,
            text_sizes=text_sizes,
            unknown_sizes=unknown_sizes,
        )

    def _refuse_long_text(self, texts: list[str], lengths: Ints, limit: int) -> None:
        """Raise an error about the first text over the length limit, if there is one."""
        is_long = lengths > limit  # (texts,)
        if not is_long.any():
            return
        index = int(np.argmax(is_long))
        # The index is not named, because callers tokenize unique texts only, so that users could not look it up.
        raise ValueError(
            f"the text {texts[index][:40]!r}... has {lengths[index]} tokens, the limit is {limit}. Set the encoder's "
            f"long_text (--long-text) to 'window' or 'truncate' (truncation=True in compat.torchmetrics)"
        )

    def _require_embeddings(self, ids: Ints) -> None:
        """Raise an error about the first token for which the model has no embedding, if there is one."""
        lacks_embedding = ids >= self._num_embeddings
        if not lacks_embedding.any():
            return
        token = int(ids[np.argmax(lacks_embedding)])
        raise ValueError(
            f"token {token} ({self.tokens([token])[0]!r}) has no embedding, because the tokenizer has "
            f"{len(self.tokenizer)} tokens and the model embeddings of {self._num_embeddings}. Use the tokenizer that "
            f"the model was trained with, or train the model after resize_token_embeddings(len(tokenizer))"
        )

    @cached_property
    def _max_word_length(self) -> int | None:
        """Number of letters above which a word is one unknown token; ``None`` for algorithms other than WordPiece."""
        model = getattr(getattr(self.tokenizer, "backend_tokenizer", None), "model", None)
        if isinstance(model, WordPiece):
            return int(model.max_input_chars_per_word)
        return None

    @cached_property
    def size_unit(self) -> str:
        """What the sizes of texts count: characters except white space, or tokens."""
        # Tokenizers in Python have no offsets, so that the characters of an unknown token cannot be counted.
        return "characters" if self.tokenizer.is_fast else "tokens"

    def _measure(self, texts: list[str], full_lengths: Ints, lengths: Ints, num_unknown: Ints) -> tuple[Ints, Ints]:
        """Return the sizes of prepared texts and of their unknown parts, without what is truncated.

        Args:
            texts: prepared texts.
            full_lengths: tokens of each text before truncation, shape (texts,).
            lengths: tokens of each text, shape (texts,).
            num_unknown: unknown tokens of each text, shape (texts,).

        Returns:
            ``text_sizes`` and ``unknown_sizes`` of :class:`TokenizedTexts`.
        """
        num_content = lengths - self.num_special_tokens  # (texts,)
        if self.size_unit == "tokens":
            return num_content, num_unknown
        sizes = np.fromiter(map(_count_characters, texts), np.int64, len(texts))
        unknown_sizes = np.zeros_like(sizes)
        # The part of a truncated text is estimated from its tokens, because offsets need a second tokenization.
        is_cut = lengths < full_lengths  # (texts,)
        full_content = full_lengths[is_cut] - self.num_special_tokens  # (truncated texts,)
        sizes[is_cut] = sizes[is_cut] * num_content[is_cut] // full_content
        with_unknown = np.flatnonzero(num_unknown).tolist()
        if not with_unknown:
            return sizes, unknown_sizes
        encoded = self.encode_whole([texts[i] for i in with_unknown], offsets=True)
        first = np.full_like(lengths, self.num_affixes[0])  # first content token that is not truncated, (texts,)
        if self.tokenizer.truncation_side == "left":
            first += full_lengths - lengths
        for i, ids, spans in zip(with_unknown, encoded["input_ids"], encoded["offset_mapping"], strict=True):
            content = slice(first[i], first[i] + num_content[i])
            unknown = self._read_unknown(texts[i], ids[content], spans[content])
            unknown_sizes[i] = _count_characters(unknown)
            if is_cut[i]:
                start, _ = spans[content][0]
                _, end = spans[content][-1]
                sizes[i] = _count_characters(texts[i][start:end])
        return sizes, unknown_sizes

    def _read_unknown(self, text: str, ids: list[int], spans: list[tuple[int, int]]) -> str:
        """Return the parts of a text that are unknown tokens, and warn about words that are one due to their length."""
        parts = []
        last = 0
        for token, (start, end) in zip(ids, spans, strict=True):
            if token == self.unknown_id:
                self._warn_of_long_word(text[start:end])
                # Two tokens can share a character.
                parts.append(text[max(start, last) : end])
                last = end
        return "".join(parts)

    def _warn_of_long_word(self, word: str) -> None:
        """Warn, once per encoder, about a word that is one unknown token because of its length."""
        limit = self._max_word_length
        if self._has_warned or limit is None or len(word) <= limit:
            return
        self._has_warned = True
        warn_user(
            f"the word {word[:20]!r}... has {len(word)} letters, and words of more than {limit} are one unknown token, "
            f"which matches all others. Separate the words with spaces, or use an encoder without this limit"
        )

    def _encode(self, texts: list[str]) -> tuple[Ints, Ints, Bools]:
        """Encode prepared texts.

        Returns:
            Token ids of all texts, shape (tokens,); number of tokens of each text, shape (texts,); and which tokens are
            special, shape (tokens,).
        """
        if texts and not self._has_usual_backend:
            encoded = self.encode_whole(texts)
            ids, lengths = _flatten(encoded["input_ids"])
            marks, _ = _flatten(encoded["special_tokens_mask"])
            return ids, lengths, marks.astype(np.bool_)
        # Without texts, all arrays are empty, and the tokenizer is not called.
        rows: list[list[int]] = []
        if texts:
            backend: Any = self.tokenizer.backend_tokenizer
            # An earlier call of the tokenizer may have left truncation or padding on.
            if backend.truncation or backend.padding:
                backend.no_truncation()
                backend.no_padding()
            if len(texts) < _FEW:
                # Starting the threads of a batch would take longer.
                rows = [backend.encode(text).ids for text in texts]
            else:
                rows = [encoding.ids for encoding in backend.encode_batch_fast(texts)]
        ids, lengths = _flatten(rows)
        before, after = self.num_affixes
        # The tokenizer adds special tokens before and after each text only. Mark all tokens as special, and then unmark
        # the content: [CLS] a cat sat [SEP] gives 1, 0, 0, 0, 1. An empty text has no content.
        starts = np.cumsum(lengths) - lengths  # number of tokens before each text, (texts,)
        num_content = lengths - before - after  # (texts,)
        is_special = np.ones(len(ids), np.bool_)
        is_special[places_of(starts + before, num_content)] = False
        return ids, lengths, is_special

    @cached_property
    def _has_usual_backend(self) -> bool:
        """Whether the tokenizer is fast and gives the ids of its backend as they are."""
        tokenizer: Any = self.tokenizer
        if not tokenizer.is_fast:
            return False
        for name in _METHODS:
            method = getattr(type(tokenizer), name, None)
            if method is not None and not method.__module__.startswith("transformers."):
                return False
        backend = tokenizer.backend_tokenizer
        backend.encode_special_tokens = tokenizer.split_special_tokens
        texts = ["a", "", " ".join(["\u00c9 1", *self.special_tokens, "b\n"])]
        before, after = self.num_affixes
        expected_ids = []
        expected_mask = []
        for encoding in backend.encode_batch_fast(texts):
            num_content = len(encoding.ids) - before - after
            expected_ids.append(encoding.ids)
            expected_mask.append([1] * before + [0] * num_content + [1] * after)
        return self.encode_whole(texts) == {"input_ids": expected_ids, "special_tokens_mask": expected_mask}

    def prepare(self, texts: Sequence[str]) -> list[str]:
        """Return texts stripped, with U+FFFD for lone surrogates and a leading space if the family needs one."""
        try:
            "".join(texts).encode()
        except UnicodeEncodeError:  # tokenizers cannot encode half of a surrogate pair
            texts = [text.encode("utf-16", "surrogatepass").decode("utf-16", "replace") for text in texts]
        stripped = [text.strip() for text in texts]
        if not self.prefix_space:
            return stripped
        prefixed = []
        for text in stripped:
            # An empty text stays empty, because a space would be a token.
            prefixed.append(f" {text}" if text else "")
        return prefixed

    def signature_fields(self) -> dict[str, object]:
        """Return the settings that change a score, by the names that a signature has for them."""
        space = "yes" if self.prefix_space else "no"
        special = "excluded" if self.exclude_special_tokens else None
        long_text: str = self.long_text
        if self.stride is not None:
            long_text += f"/{self.stride}"
        return {
            "space": space,
            "limit": self.max_length or "none",
            "long": long_text,
            "special": special,
        }

    def tokens(self, ids: Sequence[int]) -> list[str]:
        """Return the token strings of ids."""
        return list(self.tokenizer.convert_ids_to_tokens(list(ids)))

    def encode_whole(self, texts: list[str], *, offsets: bool = False) -> dict[str, list[Any]]:
        """Return ids, marks of special tokens and optionally offsets of prepared texts, which may exceed the limit."""
        encoded = self.tokenizer(
            texts,
            add_special_tokens=True,
            padding=False,
            truncation=False,
            return_attention_mask=False,
            return_token_type_ids=False,
            return_special_tokens_mask=True,
            return_offsets_mapping=offsets,
            verbose=False,
        )
        keys = ["input_ids", "special_tokens_mask"]
        if offsets:
            keys.append("offset_mapping")
        # ByT5's mask has an end token too many where a text has its own, to which the tokenizer adds none.
        lengths = [len(ids) for ids in encoded["input_ids"]]
        return {key: [row[:length] for row, length in zip(encoded[key], lengths, strict=True)] for key in keys}

    def truncate(self, lengths: Ints) -> tuple[Ints, Ints]:
        """Return the places of the tokens of texts cut at the limit, and the number of tokens of each."""
        if self.max_length is None or self.long_text != "truncate":
            return np.arange(lengths.sum()), lengths
        kept = np.minimum(lengths, self.max_length)  # (texts,)
        starts = np.cumsum(lengths) - lengths  # number of tokens before each text, (texts,)
        # The special tokens on both sides are kept, and the end of the content is dropped, or its start if the
        # tokenizer truncates on the left.
        first_dropped = starts + self.num_affixes[0]  # (texts,)
        if self.tokenizer.truncation_side == "right":
            first_dropped += kept - self.num_special_tokens
        is_kept = np.ones(lengths.sum(), np.bool_)
        is_kept[places_of(first_dropped, lengths - kept)] = False
        return np.flatnonzero(is_kept), kept


def _sort_known(ids: Iterable[int | None]) -> list[int]:
    """Return distinct ids in order, without the ``None`` of special tokens that a tokenizer lacks."""
    return sorted({i for i in ids if i is not None})


def _count_characters(text: str) -> int:
    """Return the number of characters except white space."""
    return sum(map(len, text.split()))


def _count_in_texts(marks: Bools, lengths: Ints) -> Ints:
    """Return the number of marked tokens of each text, shape (texts,)."""
    ends = np.cumsum(lengths)  # (texts,)
    before = np.concatenate([[0], np.cumsum(marks)])  # marked tokens before each token, (tokens + 1,)
    counts: Ints = before[ends] - before[ends - lengths]
    return counts


def _flatten(rows: Sequence[Sequence[int]]) -> tuple[Ints, Ints]:
    """Return the numbers of all rows, one row after the other, and the length of each row."""
    lengths = np.fromiter(map(len, rows), np.int64, len(rows))
    return np.fromiter(chain.from_iterable(rows), np.int64, int(lengths.sum())), lengths


class Window(NamedTuple):
    """A part of a long text that is encoded with all special tokens of the text."""

    places: Ints  # places of the window's tokens in the text, (length limit,)
    is_used: Bools  # tokens whose vectors are taken from this window, (length limit,)


@dataclass(frozen=True)
class Windows:
    """The parts of texts that are encoded, longest first: the windows of long texts, and all other texts as they are.

    Args:
        lengths: tokens per part, shape (parts,).
        tokens: places of the parts' tokens among all tokens of the texts, shape (tokens in parts,).
        is_used: tokens whose vectors are used, shape (tokens in parts,). The others are context in overlapping windows:
            the vector of a token is taken from the window in which its distance to the nearer end is largest, from the
            earlier of two.
    """

    lengths: Ints
    tokens: Ints
    is_used: Bools

    @classmethod
    def of(cls, texts: TokenizedTexts, tokenizer: TextTokenizer) -> Windows:
        """Cut long texts into windows, where the tokenizer does. Texts without tokens have no part."""
        limit = tokenizer.max_length
        is_whole = texts.lengths > 0  # (texts,)
        lengths: list[int] = []
        tokens: list[Ints] = []
        is_used: list[Bools] = []
        if limit is not None and tokenizer.stride is not None:
            is_long = texts.lengths > limit  # (texts,)
            is_whole &= ~is_long
            for start, length in zip(texts.starts[is_long].tolist(), texts.lengths[is_long].tolist(), strict=True):
                for window in _cut(length, limit, tokenizer.stride, tokenizer.num_affixes):
                    lengths.append(limit)
                    tokens.append(start + window.places)
                    is_used.append(window.is_used)

        whole = np.flatnonzero(is_whole)  # (whole texts,)
        order = np.argsort(-texts.lengths[whole], kind="stable")  # longest first
        whole = whole[order]
        whole_tokens = texts.places(whole)
        # The windows come first, because they are as long as the limit.
        return cls(
            lengths=np.concatenate([np.array(lengths, np.int64), texts.lengths[whole]]),
            tokens=np.concatenate([*tokens, whole_tokens]),
            is_used=np.concatenate([*is_used, np.ones(len(whole_tokens), np.bool_)]),
        )


def _cut(length: int, limit: int, stride: int, num_affixes: tuple[int, int]) -> Iterator[Window]:
    """Yield the windows of a text, each of which has half of its content in common with the next one."""
    before, after = num_affixes
    size = limit - before - after  # content tokens per window
    last = length - limit  # content tokens before the last window
    # The first content token of each window, counted without special tokens: 0, 4, 8, 9 for a stride of 4.
    starts = [*range(0, last, stride), last]
    # Vectors are taken up to the middle of the overlap with the next window.
    borders = [0]
    for start, next_start in pairwise(starts):
        overlap_end = start + size
        borders.append(before + (next_start + overlap_end + 1) // 2)
    borders.append(length)
    special_before = np.arange(before)
    special_after = np.arange(length - after, length)
    # Window i gives the vectors of the tokens from border i to border i + 1.
    for start, (low, high) in zip(starts, pairwise(borders), strict=True):
        content = before + start + np.arange(size)
        places = np.concatenate([special_before, content, special_after])  # (length limit,)
        yield Window(places, is_used=(places >= low) & (places < high))
