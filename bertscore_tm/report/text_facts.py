"""Facts about the texts of a report: which have tokens, are truncated, or contain what the encoder does not know."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from bertscore_tm.encoder.loading import quiet_transformers
from bertscore_tm.encoder.tokenizer import TextTokenizer

# Largest share of unknown characters in a text that is not reported; of unknown tokens if the tokenizer counts tokens.
_MAX_UNKNOWN_SHARE = 0.1


@dataclass(frozen=True)
class TextFacts:
    """Facts about texts, by the text.

    Args:
        with_content: the texts that have tokens; without a tokenizer those that are not blank.
        truncations: where texts are truncated. ``None`` without a tokenizer.
        unknown: how much of a text the tokenizer does not know, if more than a tenth. ``None`` without a tokenizer.
    """

    with_content: set[str]
    truncations: dict[str, str] | None = None
    unknown: dict[str, str] | None = None

    @classmethod
    def read(cls, texts: Iterable[str], tokenizer: TextTokenizer | None) -> TextFacts:
        """Return the facts about texts, which may repeat, by the tokenizer of the scores if it is given."""
        # Systems share references and often texts, so each text is tokenized once.
        distinct = list(dict.fromkeys(texts))
        if tokenizer is None:
            return cls({text for text in distinct if text.strip()})
        tokenized = tokenizer(distinct)
        with_content = set()
        truncations = {}
        unknown = {}
        for i, text in enumerate(distinct):
            if tokenized.has_content[i]:
                with_content.add(text)
            size = int(tokenized.text_sizes[i])
            unknown_size = int(tokenized.unknown_sizes[i])
            # Single unknown characters, such as an emoji, hardly change a score.
            if unknown_size > _MAX_UNKNOWN_SHARE * size:
                unknown[text] = f"has {unknown_size:,} unknown of {size:,} {tokenizer.size_unit}"
            if tokenized.truncated[i]:
                num_kept = int(tokenized.lengths[i]) - tokenizer.num_special_tokens
                num_tokens = _count_tokens(text, tokenizer)
                truncations[text] = f"cut after {num_kept:,} of {num_tokens:,} tokens"
        return cls(with_content, truncations, unknown)

    def find_empty(self, candidates: Sequence[str] | None, references: Sequence[Collection[str]]) -> list[int]:
        """Return the rows without a text or references; none of a system whose texts are not kept."""
        empty: list[int] = []
        if candidates is None:
            return empty
        for row, candidate in enumerate(candidates):
            has_reference = not self.with_content.isdisjoint(references[row])
            if candidate not in self.with_content or not has_reference:
                empty.append(row)
        return empty


def _count_tokens(text: str, tokenizer: TextTokenizer) -> int:
    """Return the number of tokens of a whole text, without special tokens."""
    # transformers warns of texts that are longer than the model's limit.
    with quiet_transformers.turned():
        return len(tokenizer.tokenizer(text, add_special_tokens=False)["input_ids"])


def describe_rows(
    facts: dict[str, str] | None, candidates: Sequence[str] | None, references: Sequence[Sequence[str]]
) -> dict[int, str]:
    """Return the facts about the texts of each row of a system in words, for rows that have some.

    For example ``"candidate cut after 4 of 8 tokens; reference 2 cut after 4 of 7 tokens"``.
    """
    described: dict[int, str] = {}
    if facts is None:
        return described
    for row, texts in enumerate(references):
        parts = []
        if candidates is not None and candidates[row] in facts:
            parts.append(f"candidate {facts[candidates[row]]}")
        for number, text in enumerate(texts, start=1):
            if text in facts:
                parts.append(f"reference {number} {facts[text]}")
        if parts:
            described[row] = "; ".join(parts)
    return described
