"""How near the score of a generator's predictions, seen through a bridge, comes to that of their text."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from bertscore_tm.core.idf import special_token_weights
from bertscore_tm.core.matching import cosine_similarities
from bertscore_tm.encoder import default_device
from bertscore_tm.functional import bert_score
from bertscore_tm.losses.soft_matching import soft_precision_recall_f1
from bertscore_tm.losses.soft_tokens import EncodedTokens, SoftTokens, encode_soft_tokens

if TYPE_CHECKING:
    from bertscore_tm.losses.bridge.vocabulary import VocabularyBridge

__all__ = ["Fidelity", "corrupt", "measure_fidelity"]

_TEXTS_PER_BATCH = 32
# Shares of the words that are replaced, in turn.
_STRENGTHS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8)


@dataclass(frozen=True)
class Fidelity:
    """How near a bridge comes to the metric.

    Args:
        self_score: mean F1 of texts, as sure predictions of the generator, against themselves; 1 at best.
        correlation: Pearson's, over pairs of texts, of the F1 through the bridge with the metric's; 1 at best. NaN
            where all pairs have the same score.
    """

    self_score: float
    correlation: float


def measure_fidelity(
    bridge: VocabularyBridge, texts: Sequence[str], references: Sequence[str] | None = None
) -> Fidelity:
    """Score texts through a bridge and as the metric does.

    Args:
        bridge: the bridge.
        texts: what the generator is to write.
        references: one per text. Default: the texts, which are then scored with words replaced, see :func:`corrupt`.

    Returns:
        The self-score and the correlation.

    Raises:
        ValueError: there is no text, or another number of references.
    """
    if isinstance(texts, str) or not texts:
        raise ValueError(f"texts must be a list of at least one text, got {texts!r}")
    if references is not None and len(references) != len(texts):
        raise ValueError(f"references must be {len(texts)}, one per text, got {len(references)}")
    candidates = corrupt(texts) if references is None else list(texts)
    references = list(texts) if references is None else list(references)
    bridged = _bridged_f1(bridge, candidates, references)
    scored = bert_score(candidates, references, bridge.encoder)["f1"]
    itself = _bridged_f1(bridge, texts, texts)
    correlation = torch.corrcoef(torch.stack([bridged, scored]).double())[0, 1] if len(texts) > 1 else torch.nan
    return Fidelity(float(itself.double().mean()), float(correlation))


def corrupt(texts: Sequence[str]) -> list[str]:
    """Replace words of texts by words of others: of the first text a tenth, of the second two tenths, up to eight.

    Args:
        texts: the texts.

    Returns:
        As many texts, always the same ones.

    Example:
        >>> corrupt(["a cat sat on the mat"] * 8)[-1]
        'a cat on on the sat'
    """
    chosen = random.Random(0)
    pool = [word for text in texts for word in text.split()]
    corrupted = []
    for number, text in enumerate(texts):
        strength = _STRENGTHS[number % len(_STRENGTHS)]
        corrupted.append(" ".join(chosen.choice(pool) if chosen.random() < strength else w for w in text.split()))
    return corrupted


def _bridged_f1(bridge: VocabularyBridge, candidates: Sequence[str], references: Sequence[str]) -> Tensor:
    """F1 of pairs, the candidate as the generator's tokens; shape (pairs,)."""
    device = default_device()
    step = _TEXTS_PER_BATCH
    batches = (slice(start, start + step) for start in range(0, len(candidates), step))
    with torch.no_grad():
        parts = [_batch_f1(bridge, candidates[part], references[part], device) for part in batches]
    return torch.cat(parts).cpu()


def _batch_f1(
    bridge: VocabularyBridge, candidates: Sequence[str], references: Sequence[str], device: torch.device
) -> Tensor:
    encoder = bridge.encoder
    soft = _within_limit(bridge.soft_tokens(candidates, device), bridge)
    candidate = encode_soft_tokens(soft, encoder)
    vectors = encoder.encode(list(references), device)
    padded, keys = vectors.pad(torch.arange(len(references), device=device))
    weights = special_token_weights(encoder.tokenizer.unweighted_ids, encoder.tokenizer.vocab_size, device)
    of_tokens = keys.to(padded.dtype)
    of_tokens[keys] = weights[vectors.ids].to(padded.dtype)
    reference = EncodedTokens(padded[0], keys, of_tokens, vectors.has_content)
    similarities = cosine_similarities(candidate.vectors, reference.vectors)
    f1 = soft_precision_recall_f1(similarities, candidate.mass, reference.mass, "max")["f1"]
    return torch.where(candidate.has_content & reference.has_content, f1, 0.0)


def _within_limit(tokens: SoftTokens, bridge: VocabularyBridge) -> SoftTokens:
    """Cut what is too long for the encoder, as the metric does."""
    tokenizer = bridge.encoder.tokenizer
    if tokenizer.max_length is None:
        return tokens
    room = tokenizer.max_length - tokenizer.num_special_tokens
    return SoftTokens(tokens.embeddings, tokens.content & (tokens.content.cumsum(1) <= room), tokens.weights)
