"""Fidelity of a bridge: how closely scores through it follow the metric's scores of the same texts."""

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
from bertscore_tm.losses.soft_matching import soft_precision_recall_f1
from bertscore_tm.losses.soft_tokens import EncodedTokens, SoftTokens, encode_soft_tokens
from bertscore_tm.scoring.corpus import score_corpus
from bertscore_tm.scoring.messages import count_zero, list_warnings
from bertscore_tm.scoring.texts import TextPairs
from bertscore_tm.scoring.token_weights import token_weights
from bertscore_tm.utilities.user_warnings import warn_user

if TYPE_CHECKING:
    from bertscore_tm.losses.bridge.vocabulary import VocabularyBridge

__all__ = ["FIDELITY_TEXTS", "Fidelity", "measure_fidelity", "replace_words", "require_fidelity"]

_TEXTS_PER_BATCH = 32
# Shares of replaced words, text by text.
_REPLACED_SHARES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8)
# Self-scores below which a bridge is refused, and below which the user is warned.
_REFUSED_BELOW, _WARNED_BELOW = 0.85, 0.95

# Sentences on which a bridge is measured where the caller gives none.
FIDELITY_TEXTS = (
    "The committee postponed its decision until the end of September.",
    "Heavy rain flooded several streets in the north of the city on Tuesday.",
    "She doesn't remember where she left her grandmother's keys.",
    "Prices rose by 3.4% last year, twice as fast as economists had expected.",
    "The function returns an empty list if the file cannot be opened.",
    "Researchers found that the vaccine protects children for at least five years.",
    "After the interview, the goalkeeper thanked his coach and left without a word.",
    "Mr. O'Neill bought 12 acres of farmland near Springfield in 1987.",
    "A small fire broke out in the kitchen, but nobody was injured.",
    "The new railway line will connect the airport with the old harbour.",
    "Turn off the power before you remove the cover of the machine.",
    "Both parties accused each other of breaking the ceasefire agreement.",
    "Biologists discovered an unknown species of butterfly in the rainforest.",
    "Why would anyone photograph such an uninteresting building?",
    "The unemployment rate fell slightly, according to the statistics office.",
    "He had been reading quietly by the window when the telephone rang.",
)


@dataclass(frozen=True)
class Fidelity:
    """Agreement of scores through a bridge with the metric.

    Args:
        self_score: mean F1 of texts, as certain predictions of the generator, against themselves; at most 1.
        correlation: Pearson correlation, over pairs of texts, of the F1 through the bridge with the metric's; NaN where
            all pairs have the same score.
    """

    self_score: float
    correlation: float


def measure_fidelity(
    bridge: VocabularyBridge, texts: Sequence[str], references: Sequence[str] | None = None
) -> Fidelity:
    """Score texts through a bridge and with the metric.

    Args:
        bridge: the bridge.
        texts: texts like the generator's.
        references: one per text. Default: the texts, scored against copies with replaced words, see
            :func:`replace_words`.

    Returns:
        The self-score and the correlation.

    Raises:
        ValueError: ``texts`` is empty, or there is another number of references.
    """
    if isinstance(texts, str) or not texts:
        raise ValueError(f"texts must be a list of at least one text, got {texts!r}")
    if references is not None and len(references) != len(texts):
        raise ValueError(f"references must be {len(texts)}, one per text, got {len(references)}")
    candidates = replace_words(texts) if references is None else list(texts)
    references = list(texts) if references is None else list(references)
    bridged = _bridged_f1(bridge, candidates, references)
    pairs = TextPairs(candidates, [[text] for text in references])
    scored = score_corpus(pairs, bridge.encoder, token_weights(bridge.encoder), default_device())
    max_length, num_zero = bridge.encoder.tokenizer.max_length, int(count_zero(scored.scores))
    for message in list_warnings(num_zero, scored.num_truncated, idf=False, max_length=max_length):
        warn_user(message)
    f1 = scored.scores[2, 0]
    itself = _bridged_f1(bridge, texts, texts)
    correlation = torch.corrcoef(torch.stack([bridged, f1]).double())[0, 1] if len(texts) > 1 else torch.nan
    return Fidelity(float(itself.double().mean()), float(correlation))


def require_fidelity(bridge: VocabularyBridge, texts: Sequence[str] | None, allow_low_fidelity: bool) -> None:
    """Warn about a bridge of low fidelity, or refuse it.

    Args:
        bridge: the bridge.
        texts: texts to measure it on. Default: :data:`FIDELITY_TEXTS`.
        allow_low_fidelity: never refuse.

    Raises:
        ValueError: texts score below 0.85 against themselves, and ``allow_low_fidelity`` is false.
    """
    measured = bridge.default_fidelity if texts is None else bridge.fidelity(texts)
    score = measured.self_score
    found = (
        f"texts score {score:.3f} against themselves through the bridge from the generator's vocabulary "
        f"(bridge={bridge.mode!r})"
    )
    advice = []
    if texts is None:
        advice.append("the texts are a few English sentences: pass your own as fidelity_texts=")
    if bridge.mode != bridge.closest_mode:
        advice.append(f"bridge='auto' selects {bridge.closest_mode!r}, which loses less")
    if score < _REFUSED_BELOW and not allow_low_fidelity:
        advice.append("an encoder with the generator's tokenizer or a sequence-level loss needs no bridge")
        raise ValueError(
            f"{found}: below {_REFUSED_BELOW} the loss hardly follows the metric. To use it anyway, pass "
            f"allow_low_fidelity=True. Otherwise: {'; '.join(advice)}"
        )
    if score < _WARNED_BELOW:
        warn_user("; ".join([f"{found}, so the loss follows the metric only roughly", *advice]))


def replace_words(texts: Sequence[str]) -> list[str]:
    """Replace words of texts by words of all texts, a tenth of the first text's words up to eight tenths.

    Args:
        texts: the texts.

    Returns:
        As many texts; deterministic.

    Example:
        >>> replace_words(["a cat sat on the mat"] * 8)[-1]
        'a cat on on the sat'
    """
    chosen = random.Random(0)
    pool = [word for text in texts for word in text.split()]
    corrupted = []
    for number, text in enumerate(texts):
        strength = _REPLACED_SHARES[number % len(_REPLACED_SHARES)]
        corrupted.append(" ".join(chosen.choice(pool) if chosen.random() < strength else w for w in text.split()))
    return corrupted


def _bridged_f1(bridge: VocabularyBridge, candidates: Sequence[str], references: Sequence[str]) -> Tensor:
    """Return the F1 of pairs through the bridge, shape (pairs,)."""
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
    soft = _truncate(bridge.embed_texts(candidates, device), bridge)
    candidate = encode_soft_tokens(soft, encoder)
    vectors = encoder.encode(list(references), device)
    padded, keys = vectors.pad(torch.arange(len(references), device="cpu"))
    weights = special_token_weights(encoder.tokenizer.unweighted_ids, encoder.tokenizer.vocab_size, device)
    token_weights = keys.to(padded.dtype)
    token_weights[keys] = weights[vectors.ids.to(device)].to(padded.dtype)
    reference = EncodedTokens(padded[0], keys, token_weights, vectors.has_content.to(device))
    similarities = cosine_similarities(candidate.vectors, reference.vectors)
    f1 = soft_precision_recall_f1(similarities, candidate.mass, reference.mass, "max")["f1"]
    return torch.where(candidate.has_content & reference.has_content, f1, 0.0)


def _truncate(tokens: SoftTokens, bridge: VocabularyBridge) -> SoftTokens:
    """Truncate to the encoder's limit, as the metric does."""
    tokenizer = bridge.encoder.tokenizer
    if tokenizer.max_length is None:
        return tokens
    room = tokenizer.max_length - tokenizer.num_special_tokens
    return SoftTokens(tokens.embeddings, tokens.content & (tokens.content.cumsum(1) <= room), tokens.weights)
