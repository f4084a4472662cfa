"""Warnings about scores, with counts."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from torch import Tensor

from bertscore_tm.encoder.tokenizer import TextTokenizer
from bertscore_tm.matching.vectors import TokenizedTexts
from bertscore_tm.utilities.warnings import warn_user

if TYPE_CHECKING:
    from bertscore_tm.scoring.settings import ScoreSettings

# Patterns of the messages about a corpus, with any count.
CORPUS_WARNINGS = (
    r"\d+ candidates? scored 0 (before rescaling )?because ",
    r"\d+ texts? (is|are) longer than \d+ tokens ",
    r"\d+ candidates? contains? special tokens such as ",
    r"\d+% of the (characters|tokens) are unknown ",
)
# Special tokens of common tokenizers. Within a text they may be markup.
_SPECIAL = r"<s>|</s>|<pad>|<eos>|<bos>|\[CLS\]|\[SEP\]|\[PAD\]"
# Around the thoughts of reasoning models.
_THOUGHT = r"</?think(?:ing)?>"
# These are never text: sentinels, marks of turns, line breaks and sentences as data sets of summaries spell them, and
# parts of words and spaces as subword-nmt, sentencepiece and byte-level vocabularies do. The capital Ġ of Maltese does
# not follow a small letter, and starts texts with other letters of Maltese.
_MARKS = rf"{_THOUGHT}|<extra_id_\d+>|<\|[^|<>\n]+\|>|<(?:start|end)_of_turn>|\[/?INST\]|<([nq])>(?!.*</\1>)"
_MARKS += r"|(?<=\w)@@ (?=\w)|▁(?=\w)|(?<=\w)▁|^Ġ(?!.*[ċġħż])(?=\w)|(?<=[a-z0-9])Ġ"
# Each mark has one of these, and so have special tokens of common tokenizers.
_SIGNS = ("<", "[", "@@ ", "▁", "Ġ")


@dataclass
class UnknownText:
    """How much of the texts the encoder's vocabulary lacks, with one warning if it is more than a tenth.

    The unit is that of :attr:`TextTokenizer.size_unit`: characters except white space, or tokens.
    """

    unknown_size: int = 0
    size: int = 0
    unit: str = "characters"
    has_warned: bool = False

    def count(self, texts: TokenizedTexts, tokenizer: TextTokenizer) -> None:
        """Add texts that are compared."""
        self.add(UnknownText(int(texts.unknown_sizes.sum()), int(texts.text_sizes.sum()), tokenizer.size_unit))

    def add(self, other: UnknownText) -> None:
        """Add the sizes of other texts of the same encoder."""
        self.unknown_size += other.unknown_size
        self.size += other.size
        self.unit = other.unit

    def warn(self) -> None:
        """Warn if the share is large, and only once."""
        has_many_unknown = self.unknown_size > self.size / 10
        if has_many_unknown and not self.has_warned:
            self.has_warned = True
            warn_user(
                f"{self.unknown_size / self.size:.0%} of the {self.unit} are unknown to the encoder, and match each "
                f"other whatever the text. Use an encoder for the language of the texts"
            )


@cache
def warn_unused(name: str, reason: str) -> None:
    """Warn, once per process, that an argument of another package has no effect here, and why."""
    warn_user(f"{name} has no effect: {reason}")


def describe_truncation(num_truncated: int, max_length: int | None, kind: str = "text", source: str = "") -> str:
    """Return the warning that at least one text, or what it is called, of an argument was truncated."""
    origin = f" of {source}" if source else ""
    if num_truncated == 1:
        return f"1 {kind}{origin} is longer than {max_length} tokens and was truncated"
    return f"{num_truncated} {kind}s{origin} are longer than {max_length} tokens and were truncated"


def warn_about_scores(scores: Tensor, num_truncated: int, settings: ScoreSettings) -> None:
    """Warn about candidates with F1 0 at all layers, from scores before rescaling, and about truncated texts."""
    # Real texts have positive similarities, so that an F1 of exactly 0 has one of these reasons.
    warn_of_zeros(int((scores[2] == 0).all(0).sum()), settings)
    warn_of_truncation(num_truncated, settings.encoder.tokenizer.max_length)


def warn_of_zeros(num_zero: int, settings: ScoreSettings) -> None:
    """Warn about candidates that scored exactly 0 before rescaling, if there are any."""
    if num_zero:
        noun = "candidate" if num_zero == 1 else "candidates"
        score = "0" if settings.baseline is None else "0 before rescaling"
        reason = "the text or each of its references is empty"
        if not settings.weights.is_uniform:
            reason += ", or a text has only tokens of weight 0, such as the idf of tokens that occur in every reference"
        warn_user(f"{num_zero} {noun} scored {score} because {reason}")


def warn_of_leftovers(candidates: Sequence[str], tokenizer: TextTokenizer) -> bool:
    """Warn about candidates with tokens that decoding should have removed, and return whether there are any.

    They begin or end with a special token of the encoder's tokenizer or of a common one, or have a mark that no text
    has, such as ``<extra_id_0>``, ``<|im_end|>``, ``<think>`` or ``Ġ``.
    """
    # Look for the signs first, because the pattern is slower.
    other_tokens = [token for token in tokenizer.special_tokens if not token.startswith(_SIGNS)]
    signs = [*_SIGNS, *other_tokens]
    candidates = [text for text in candidates if any(sign in text for sign in signs)]
    if not candidates:
        return False
    own_tokens = [re.escape(token) for token in tokenizer.special_tokens]
    special = "|".join([_SPECIAL, *own_tokens])
    pattern = re.compile(rf"^\s*(?:{special})|(?:{special})\s*$|{_MARKS}")
    leftovers = []
    for text in candidates:
        match = pattern.search(text)
        if match is not None:
            leftovers.append(match[0].strip())
    if not leftovers:
        return False
    subject = "1 candidate contains" if len(leftovers) == 1 else f"{len(leftovers)} candidates contain"
    remedy = "decode with batch_decode and skip_special_tokens=True"
    if any(re.fullmatch(_THOUGHT, leftover) for leftover in leftovers):
        remedy += ", and remove thoughts with bertscore_tm.strip_thoughts (--strip-thoughts)"
    warn_user(f"{subject} special tokens such as {leftovers[0]}, which are scored as text: {remedy}")
    return True


def warn_of_truncation(num_truncated: int, max_length: int | None) -> None:
    """Warn about truncated texts, if there are any."""
    if num_truncated:
        remedy = "Set the encoder's long_text (--long-text) to 'window' to score whole texts"
        warn_user(f"{describe_truncation(num_truncated, max_length)}. {remedy}")
