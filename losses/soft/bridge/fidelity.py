"""Fidelity of a bridge: how closely scores through it follow the metric's scores of the same texts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from bertscore_tm.core.token_vectors import cosine_similarities
from bertscore_tm.losses.soft.matching import soft_precision_recall_f1
from bertscore_tm.losses.soft.predictions import SoftTokens, encode_soft_tokens
from bertscore_tm.losses.soft.targets import encode_reference_texts
from bertscore_tm.scoring.messages import describe_truncation
from bertscore_tm.scoring.token_weights import token_weights
from bertscore_tm.utilities.user_warnings import warn_user

if TYPE_CHECKING:
    from bertscore_tm.losses.soft.bridge.vocabulary import VocabularyBridge

__all__ = ["FIDELITY_TEXTS", "measure_fidelity", "require_fidelity"]

_TEXTS_PER_BATCH = 32
# Fidelity below which the user is warned.
_WARNED_BELOW = 0.95

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


def measure_fidelity(bridge: VocabularyBridge, texts: Sequence[str]) -> float:
    """Return the mean F1 of texts, as certain predictions of the generator, against themselves."""
    if isinstance(texts, str) or not texts:
        raise ValueError(f"texts must be a list of at least one text, got {texts!r}")
    encoder, device = bridge.encoder, bridge.encoder.device
    weights = token_weights(encoder, device=device).table
    scores, num_truncated = [], 0
    with torch.no_grad():
        for start in range(0, len(texts), _TEXTS_PER_BATCH):
            part = texts[start : start + _TEXTS_PER_BATCH]
            candidate = encode_soft_tokens(_truncate(bridge.embed_texts(part, device), bridge), encoder)
            encoded = encode_reference_texts([[text] for text in part], encoder, weights, device)
            reference, num_truncated = encoded.tokens, num_truncated + encoded.num_truncated
            similarities = cosine_similarities(candidate.vectors, reference.vectors)
            f1 = soft_precision_recall_f1(similarities, candidate.mass, reference.mass, "max")["f1"]
            scores.append(torch.where(candidate.has_content & reference.has_content, f1, 0.0).double().cpu())
    if num_truncated:
        warn_user(describe_truncation(num_truncated, encoder.tokenizer.max_length))
    return float(torch.cat(scores).mean())


def require_fidelity(bridge: VocabularyBridge, texts: Sequence[str] | None) -> None:
    """Warn about a bridge of low fidelity on some texts, by default :data:`FIDELITY_TEXTS`, or refuse it."""
    score = bridge.default_fidelity if texts is None else bridge.fidelity(texts)
    found = (
        f"texts score {score:.3f} against themselves through the bridge from the generator's vocabulary "
        f"(mode={bridge.mode!r})"
    )
    advice = []
    if texts is None:
        advice.append("the texts are a few English sentences: pass your own as fidelity_texts=")
    if bridge.mode != bridge.closest_mode:
        advice.append(f"mode='auto' selects {bridge.closest_mode!r}, which loses less")
    if score < bridge.min_fidelity:
        advice.append("an encoder with the generator's tokenizer or a sequence-level loss needs no bridge")
        raise ValueError(
            f"{found}: below {bridge.min_fidelity} the loss hardly follows the metric. To use it anyway, pass "
            f"VocabularyBridge(tokenizer, encoder, min_fidelity=0) as the tokenizer. Otherwise: {'; '.join(advice)}"
        )
    if score < _WARNED_BELOW:
        warn_user("; ".join([f"{found}, so the loss follows the metric only roughly", *advice]))


def _truncate(tokens: SoftTokens, bridge: VocabularyBridge) -> SoftTokens:
    """Truncate to the encoder's limit, as the metric does."""
    tokenizer = bridge.encoder.tokenizer
    if tokenizer.max_length is None:
        return tokens
    room = tokenizer.max_length - tokenizer.num_special_tokens
    return SoftTokens(tokens.embeddings, tokens.content & (tokens.content.cumsum(1) <= room), tokens.weights)
