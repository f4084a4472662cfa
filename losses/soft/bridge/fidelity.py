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

__all__ = ["measure_fidelity", "require_fidelity"]

_TEXTS_PER_BATCH = 32
# Fidelity below which the user is warned.
_WARNED_BELOW = 0.95


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
    """Warn about a bridge of low fidelity on some texts, or of unknown fidelity without any, or refuse it."""
    if texts is None:
        if bridge.min_fidelity > 0:
            warn_user(
                f"the bridge from the generator's vocabulary (mode={bridge.mode!r}) is not checked: pass some of the "
                f"training texts as fidelity_texts="
            )
        return
    score = bridge.fidelity(texts)
    measured = (
        f"texts score {score:.3f} against themselves through the bridge from the generator's vocabulary "
        f"(mode={bridge.mode!r})"
    )
    advice = ["an encoder with the generator's tokenizer or a sequence-level loss needs no bridge"]
    if bridge.mode != bridge.closest_mode:
        advice.insert(0, f"mode='auto' selects {bridge.closest_mode!r}, which loses less")
    if score < bridge.min_fidelity:
        raise ValueError(
            f"{measured}: below {bridge.min_fidelity} the loss hardly follows the metric. To use it anyway, pass "
            f"VocabularyBridge(tokenizer, encoder, min_fidelity=0) as the tokenizer. Otherwise: {'; '.join(advice)}"
        )
    if score < _WARNED_BELOW:
        warn_user("; ".join([f"{measured}, so the loss follows the metric only roughly", *advice]))


def _truncate(tokens: SoftTokens, bridge: VocabularyBridge) -> SoftTokens:
    """Truncate to the encoder's limit, as the metric does."""
    tokenizer = bridge.encoder.tokenizer
    if tokenizer.max_length is None:
        return tokens
    limit = tokenizer.max_length - tokenizer.num_special_tokens
    return SoftTokens(tokens.embeddings, tokens.content & (tokens.content.cumsum(1) <= limit), tokens.weights)
