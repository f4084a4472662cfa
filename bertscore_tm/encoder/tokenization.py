"""Token ids of texts: special tokens, prefix space, truncation or windows, ids without weight, and packed texts."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, pairwise
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor
from transformers import PretrainedConfig, PreTrainedTokenizerBase

from bertscore_tm.encoder.families import Family, family_of
from bertscore_tm.encoder_options import LongText
from bertscore_tm.utilities.option_names import name_long_text, name_option

Token = TypeVar("Token")

# Of tokenizers that cannot be copied.
_shared_lock = threading.Lock()
# transformers gives tokenizers without a limit a far larger one than this.
_NO_LIMIT = 10**9


@dataclass(frozen=True)
class TokenizedTexts:
    """Token ids of several texts, special tokens included.

    ``has_content``: whether a text has a token that is not special and carries weight; ``truncated``: whether it was
    cut; ``num_excluded``: tokens at the start and at the end of each text that are encoded but not compared.
    """

    ids: list[list[int]]
    has_content: list[bool]
    truncated: list[bool]
    num_excluded: tuple[int, int] = (0, 0)

    @property
    def compared_ids(self) -> list[list[int]]:
        """Token ids of each text that have a vector: all, or those without the excluded ones."""
        before, after = self.num_excluded
        return [ids[before : len(ids) - after] for ids in self.ids] if before or after else self.ids

    def pack(self) -> dict[str, Tensor]:
        """Return ids, lengths, ``has_content`` and ``truncated`` of the compared tokens, as tensors on the CPU.

        Example:
            >>> texts = TokenizedTexts([[2, 7, 8, 3], [2, 3]], [True, False], [False, False], num_excluded=(1, 1))
            >>> packed = texts.pack()
            >>> packed["ids"], packed["lengths"]
            (tensor([7, 8]), tensor([2, 0]))
        """
        compared = self.compared_ids
        return {
            "ids": torch.tensor(list(chain.from_iterable(compared)), dtype=torch.long, device="cpu"),
            "lengths": torch.tensor([len(ids) for ids in compared], dtype=torch.long, device="cpu"),
            "has_content": torch.tensor(self.has_content, dtype=torch.bool, device="cpu"),
            "truncated": torch.tensor(self.truncated, dtype=torch.bool, device="cpu"),
        }

    def select(self, texts: Sequence[int]) -> TokenizedTexts:
        """Return the texts with these indices."""
        return TokenizedTexts(
            [self.ids[i] for i in texts],
            [self.has_content[i] for i in texts],
            [self.truncated[i] for i in texts],
            self.num_excluded,
        )

    @property
    def num_truncated(self) -> int:
        """Number of texts that were cut at the length limit."""
        return sum(self.truncated)


class TextTokenizer:
    """Turn texts into the token ids that BERTScore compares, with the model's special tokens.

    The tokenizers of some families (RoBERTa, GPT-2) get a space before each text, as in all published scores; it is put
    into the text, as transformers 5 ignores ``add_prefix_space`` at call time. ``is_shared``: others use the tokenizer.
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
        is_shared: bool = False,
    ) -> None:
        family = family_of(config) if family is None else family
        self.tokenizer = tokenizer
        self._is_shared = is_shared and tokenizer.is_fast
        self.long_text = long_text
        self.exclude_special_tokens = exclude_special_tokens
        self.prefix_space = family.prefix_space if prefix_space is None else prefix_space
        positions = family.max_positions(config)
        declared = tokenizer.model_max_length if tokenizer.model_max_length < _NO_LIMIT else None
        limits = [limit for limit in (declared, positions) if limit is not None]
        self.max_length: int | None = min(limits) if limits else None
        if max_length is not None:
            if max_length <= self.num_special_tokens:
                raise ValueError(
                    f"{name_option('max_length', max_length)} leaves no room for text next to the "
                    f"{self.num_special_tokens} special tokens"
                )
            if positions is not None and max_length > positions:
                limit = name_option("max_length", max_length)
                raise ValueError(f"{limit} exceeds the {positions} positions of the encoder")
            self.max_length = max_length
        # Tokens from the start of one window to the next: half a window.
        self.stride: int | None = None
        if self.long_text == "window" and self.max_length is not None:
            self.stride = max((self.max_length - self.num_special_tokens) // 2, 1)
        # Tokens of the tokenizer may be missing in the model, such as added ones.
        self._num_embeddings = int(getattr(config, "vocab_size", 0))
        self.vocab_size = max(len(tokenizer), self._num_embeddings)

    @cached_property
    def special_affixes(self) -> tuple[list[int], list[int]]:
        """Ids of the special tokens that the tokenizer adds before and after a text."""
        probe = self.tokenizer("a", return_special_tokens_mask=True)
        if 0 not in probe["special_tokens_mask"]:  # it has neither "a" nor an unknown token
            texts = map(self.tokenizer.decode, self.vocabulary.values())
            probes = (self.tokenizer(text, return_special_tokens_mask=True) for text in texts)
            probe = next(encoded for encoded in probes if 0 in encoded["special_tokens_mask"])
        ids, mask = probe["input_ids"], probe["special_tokens_mask"]
        first = mask.index(0)
        last = len(mask) - mask[::-1].index(0)
        return list(ids[:first]), list(ids[last:])

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
        before, after = self.special_affixes
        return len(before) + len(after)

    @cached_property
    def num_excluded(self) -> tuple[int, int]:
        """Number of special tokens before and after a text that are encoded but not compared."""
        before, after = self.special_affixes if self.exclude_special_tokens else ([], [])
        return len(before), len(after)

    @cached_property
    def unweighted_ids(self) -> list[int]:
        """Ids that carry weight 0 without idf: the tokenizer's cls and sep tokens, no others."""
        ids = (self.tokenizer.cls_token_id, self.tokenizer.sep_token_id)
        return sorted({i for i in ids if i is not None})

    @cached_property
    def control_ids(self) -> list[int]:
        """Ids that do not count as text when a generator predicts them: all special ones except unknown and mask."""
        tokenizer = self.tokenizer
        ids = {*tokenizer.all_special_ids} - {tokenizer.unk_token_id, tokenizer.mask_token_id}
        # One of these may be the unknown token too.
        ids |= {getattr(tokenizer, f"{role}_token_id") for role in ("bos", "eos", "pad", "cls", "sep")}
        return sorted(i for i in ids if i is not None)

    @cached_property
    def end_ids(self) -> list[int]:
        """Ids that end a text: the eos token, and the sep token if it does not start texts too."""
        tokenizer = self.tokenizer
        ends = {tokenizer.eos_token_id, tokenizer.sep_token_id} - {tokenizer.bos_token_id, tokenizer.cls_token_id}
        return sorted(i for i in ends if i is not None)

    def __call__(self, texts: Sequence[str]) -> TokenizedTexts:
        """Tokenize texts, whose tokens must have embeddings, and whose length must be allowed by ``long_text``."""
        if isinstance(texts, str) or not all(isinstance(text, str) for text in texts):
            raise TypeError(f"texts must be a list of strings, got {texts!r:.80}: pass a single text as [text]")
        if not texts:
            return TokenizedTexts([], [], [], self.num_excluded)
        prepared = [self.prepare(text) for text in texts]
        encoded = self.encode_whole(prepared)
        limit = math.inf if self.max_length is None else self.max_length
        long = [i for i, ids in enumerate(encoded["input_ids"]) if len(ids) > limit]
        if long and self.long_text == "error":
            # Without its index: callers tokenize unique texts only, so users could not look it up.
            raise ValueError(
                f"the text {texts[long[0]][:40]!r}... has {len(encoded['input_ids'][long[0]])} tokens, the limit is "
                f"{self.max_length}; {name_long_text('truncate')} cuts such texts, "
                f"{name_long_text('window')} encodes them in parts"
            )
        truncated = [False] * len(texts)
        if long and self.long_text == "truncate":
            for i in long:
                truncated[i] = True
                for values in encoded.values():
                    values[i] = self.truncate(values[i])
        if 0 < self._num_embeddings < self.vocab_size:
            for token in chain.from_iterable(encoded["input_ids"]):
                if token >= self._num_embeddings:
                    raise ValueError(
                        f"the tokenizer has {len(self.tokenizer)} tokens and the model embeddings of "
                        f"{self._num_embeddings}: token {token}, {self.tokens([token])[0]!r}, has none. Use the "
                        f"tokenizer that the model was trained with, or train the model after "
                        f"resize_token_embeddings(len(tokenizer))"
                    )
        # A "[CLS]" written in a text carries no weight either.
        unweighted = set(self.unweighted_ids)
        has_content = [
            any(not special and token not in unweighted for token, special in zip(ids, mask, strict=True))
            for ids, mask in zip(encoded["input_ids"], encoded["special_tokens_mask"], strict=True)
        ]
        return TokenizedTexts([list(ids) for ids in encoded["input_ids"]], has_content, truncated, self.num_excluded)

    def prepare(self, text: str) -> str:
        """Return a text stripped, with U+FFFD for lone surrogates and a leading space if the family needs one."""
        # Tokenizers cannot encode half of a surrogate pair.
        text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").strip()
        return f" {text}" if text and self.prefix_space else text

    def signature_fields(self) -> dict[str, object]:
        """Return the settings that change a score, by the names that a signature has for them."""
        return {
            "space": "yes" if self.prefix_space else "no",
            "limit": self.max_length or "none",
            "long": self.long_text + (f"/{self.stride}" if self.stride is not None else ""),
            "special": "excluded" if self.exclude_special_tokens else None,
        }

    def tokens(self, ids: Sequence[int]) -> list[str]:
        """Return the token strings of ids."""
        return list(self.tokenizer.convert_ids_to_tokens(list(ids)))

    def encode_whole(self, texts: list[str], *, offsets: bool = False) -> dict[str, list[Any]]:
        """Return ids, marks of special tokens and optionally offsets of prepared texts, which may exceed the limit."""
        with _undisturbed(self.tokenizer) if self._is_shared else nullcontext():
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
        keys = ("input_ids", "special_tokens_mask", *(("offset_mapping",) if offsets else ()))
        # ByT5's mask has an end token too many where a text has its own, to which the tokenizer adds none.
        lengths = [len(ids) for ids in encoded["input_ids"]]
        return {key: [row[:length] for row, length in zip(encoded[key], lengths, strict=True)] for key in keys}

    def truncate(self, tokens: Sequence[Token]) -> Sequence[Token]:
        """Cut a text's tokens, or other values per token, at the limit, on the tokenizer's ``truncation_side``."""
        if self.max_length is None or len(tokens) <= self.max_length or self.long_text != "truncate":
            return tokens
        room = self.max_length - self.num_special_tokens
        start = len(tokens) - self.max_length if self.tokenizer.truncation_side == "left" else 0
        return self.slice_content(tokens, start, start + room)

    def slice_content(self, tokens: Sequence[Token], start: int, end: int) -> list[Token]:
        """Return a part of a text's tokens, or of other values per token, between its special tokens."""
        before, after = (len(affix) for affix in self.special_affixes)
        last = len(tokens) - after
        return [*tokens[:before], *tokens[before:last][start:end], *tokens[last:]]


@contextmanager
def _undisturbed(tokenizer: Any) -> Iterator[None]:
    """Keep other threads of this package away from a fast tokenizer, and leave its truncation and padding on."""
    backend = tokenizer.backend_tokenizer
    with _shared_lock:
        truncation, padding = backend.truncation, backend.padding
        try:
            yield
        finally:
            if truncation:
                backend.enable_truncation(**truncation)
            if padding:
                backend.enable_padding(**padding)


class Window(NamedTuple):
    """A part of a text; the vectors of its tokens from ``first`` to ``last`` are those from ``start`` of the whole."""

    ids: list[int]
    first: int
    last: int
    start: int


def cut_into_windows(ids: list[int], tokenizer: TextTokenizer) -> list[Window]:
    """Cut a text, given by its token ids, into overlapping windows that fit the encoder; one if it fits.

    The vector of each compared token is taken from the window in which its distance to the nearer end is largest; from
    the earlier window if two are equal.
    """
    skipped, excluded_after = tokenizer.num_excluded
    end = len(ids) - excluded_after
    if tokenizer.max_length is None or tokenizer.stride is None or len(ids) <= tokenizer.max_length:
        return [Window(ids, skipped, end, 0)]
    before, after = (len(affix) for affix in tokenizer.special_affixes)
    room = tokenizer.max_length - before - after
    last = len(ids) - tokenizer.max_length
    starts = [*range(0, last, tokenizer.stride), last]
    # The border between two windows is the middle of their overlap.
    borders = [skipped, *(before + (a + b + room + 1) // 2 for a, b in pairwise(starts)), end]
    windows = []
    for start, (low, high) in zip(starts, pairwise(borders), strict=True):
        window = tokenizer.slice_content(ids, start, start + room)
        windows.append(Window(window, low - start, high - start, low - skipped))
    return windows


@dataclass(frozen=True)
class PackedWindows:
    """The windows of several texts, longest first and one after the other, on the CPU.

    ``places`` are those of each token among the ``num_tokens`` compared tokens of all texts; -1 for context only.
    """

    lengths: list[int]
    ids: Tensor
    places: Tensor
    num_tokens: int

    @classmethod
    def of(cls, tokenized: TokenizedTexts, tokenizer: TextTokenizer) -> PackedWindows:
        """Cut texts into windows and pack them; texts without tokens have none."""
        rows, start = [], 0
        for ids, compared in zip(tokenized.ids, tokenized.compared_ids, strict=True):
            rows += [(window, start) for window in (cut_into_windows(ids, tokenizer) if ids else ())]
            start += len(compared)
        rows.sort(key=lambda row: -len(row[0].ids))
        numbers = [(len(window.ids), window.first, window.last, before + window.start) for window, before in rows]
        table = torch.tensor(numbers, dtype=torch.long, device="cpu").view(-1, 4)  # (windows, 4)
        lengths = table[:, 0]
        _, first, last, starts = table.repeat_interleave(lengths, 0).unbind(1)  # (tokens,) each
        steps = torch.arange(len(first), device="cpu") - (lengths.cumsum(0) - lengths).repeat_interleave(lengths)
        places = torch.where((steps >= first) & (steps < last), starts - first + steps, -1)
        packed = list(chain.from_iterable(window.ids for window, _ in rows))
        return cls(lengths.tolist(), torch.tensor(packed, dtype=torch.long, device="cpu"), places, start)
