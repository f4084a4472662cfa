"""Fidelity of a bridge: how closely scores through it follow the metric's scores of the same texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedTokenizerBase

from bertscore_tm.core.token_vectors import cosine_similarities
from bertscore_tm.losses.soft.matching import soft_precision_recall_f1
from bertscore_tm.losses.soft.predictions import (
    GeneratorVocabulary,
    OutputVocabulary,
    SoftTokens,
    encode_soft_tokens,
    expand_to_pieces,
)
from bertscore_tm.losses.soft.targets import encode_reference_texts
from bertscore_tm.scoring.token_weights import token_weights
from bertscore_tm.utilities.user_warnings import warn_user

if TYPE_CHECKING:
    from bertscore_tm.losses.soft.bridge.vocabulary import VocabularyBridge

_TEXTS_PER_BATCH = 32
# Fidelity below which the user is warned.
_WARNED_BELOW = 0.95


def measure_fidelity(bridge: VocabularyBridge, texts: Sequence[str]) -> float:
    """Return the mean F1 of texts, as certain predictions of the generator, against themselves."""
    if isinstance(texts, str) or not texts:
        raise ValueError(f"texts must be a list of at least one text, got {texts!r}")
    encoder, limit = bridge.encoder, bridge.encoder.tokenizer.max_length
    vocabulary = GeneratorVocabulary(encoder, bridge, token_weights(encoder)).load(encoder.device)
    weights = vocabulary.encoder_weights
    scores = []
    with torch.no_grad():
        for start in range(0, len(texts), _TEXTS_PER_BATCH):
            part = texts[start : start + _TEXTS_PER_BATCH]
            tokens = embed_texts(part, bridge.generator_tokenizer, vocabulary)
            if limit is not None:
                # Truncated as by the metric.
                fits = tokens.content.cumsum(1) <= limit - encoder.tokenizer.num_special_tokens
                tokens = replace(tokens, content=tokens.content & fits)
            candidate = encode_soft_tokens(tokens, encoder, weights)
            reference = encode_reference_texts([[text] for text in part], encoder, weights, encoder.device).tokens
            similarities = cosine_similarities(candidate.vectors, reference.vectors)
            f1 = soft_precision_recall_f1(similarities, candidate.mass, reference.mass, "max")["f1"]
            scores.append(torch.where(candidate.has_content & reference.has_content, f1, 0.0).double().cpu())
    return float(torch.cat(scores).mean())


def embed_texts(texts: Sequence[str], tokenizer: PreTrainedTokenizerBase, vocabulary: OutputVocabulary) -> SoftTokens:
    """Return the soft tokens of texts, as if the generator had predicted them with certainty."""
    rows = tokenizer(list(texts), add_special_tokens=False, padding=False, truncation=False, verbose=False)["input_ids"]
    device = vocabulary.table.device
    ids = pad_sequence(
        [torch.tensor(row, dtype=torch.long, device=device) for row in rows], batch_first=True, padding_value=-1
    )
    content = (ids >= 0) & ~torch.isin(ids, torch.tensor(vocabulary.excluded_ids, device=device))
    ids = ids.clamp(min=0)  # (texts, tokens)
    tokens = SoftTokens(vocabulary.table[ids], content)
    return tokens if vocabulary.pieces is None else expand_to_pieces(tokens, ids, vocabulary.pieces, vocabulary)


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
    advice = "an encoder with the generator's tokenizer or a sequence-level loss needs no bridge"
    if bridge.mode == "mean" and bridge.pieces.single_pieces is None:
        advice = f"mode='auto' selects 'expand', which loses less; {advice}"
    if score < bridge.min_fidelity:
        raise ValueError(
            f"{measured}: below {bridge.min_fidelity} the loss hardly follows the metric. To use it anyway, pass "
            f"VocabularyBridge(tokenizer, encoder, min_fidelity=0) as the tokenizer. Otherwise: {advice}"
        )
    if score < _WARNED_BELOW:
        warn_user(f"{measured}, so the loss follows the metric only roughly; {advice}")
