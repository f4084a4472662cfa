"""The latest batch, matched once for all metrics of a ``MetricCollection`` that share an encoder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from weakref import WeakKeyDictionary

import torch

from bertscore_tm.core.matching import MatchedPairs
from bertscore_tm.core.memory import return_freed_memory
from bertscore_tm.encoder import FrozenEncoder
from bertscore_tm.encoder.vector_cache import VectorCache
from bertscore_tm.scoring.corpus import MatchedTexts, encode_steps, match_encoded, plan_steps
from bertscore_tm.scoring.texts import TextPairs

__all__ = ["forget_batch", "match_batch"]

# The latest batch of each encoder and device with all layers of its matches, from which each metric takes its layer.
# Only `match_batch` writes to it; it ends with its encoder or at `forget_batch`.
_latest: WeakKeyDictionary[VectorCache, tuple[TextPairs, MatchedTexts]] = WeakKeyDictionary()


def match_batch(
    texts: TextPairs,
    encoder: FrozenEncoder,
    device: torch.device,
    layer: int | None = None,
    cache_bytes: int = 0,
) -> MatchedTexts:
    """Match the texts of an update, unless another metric has just matched the same.

    Args:
        texts: candidates and references, at least one pair.
        encoder: the encoder.
        device: device to compute on.
        layer: layer to match, of an encoder with all layers; ``None`` matches all layers of the encoder.
        cache_bytes: CPU memory for token vectors of references, which are kept for the next epoch.

    Returns:
        The matched tokens, from which scores are computed.
    """
    owner = encoder.cache(device)
    latest = _latest.get(owner)
    if latest is None or latest[0] != texts:
        forget_batch(encoder, device)
        latest = _latest[owner] = texts, _match_in_steps(texts, encoder, device, cache_bytes)
    matched = latest[1]
    return matched if layer is None else _layer_of(matched, layer)


def forget_batch(encoder: FrozenEncoder, device: torch.device) -> None:
    """Free the memory of the latest batch.

    Args:
        encoder: the encoder.
        device: device that it computed on.
    """
    _latest.pop(encoder.cache(device), None)


def _match_in_steps(texts: TextPairs, encoder: FrozenEncoder, device: torch.device, cache_bytes: int) -> MatchedTexts:
    steps = plan_steps(texts, encoder, device, keep_order=True)
    several = [texts.select(step) for step in steps]
    parts = []
    encoded = encode_steps(several, encoder, device, cache_bytes)
    for part in several:
        parts.append(match_encoded(part, next(encoded)))
        if len(steps) > 1:
            return_freed_memory()
    return parts[0] if len(parts) == 1 else _concatenate(parts)


def _concatenate(parts: Sequence[MatchedTexts]) -> MatchedTexts:
    pairs = {one.name: torch.cat([getattr(part.pairs, one.name) for part in parts]) for one in fields(MatchedPairs)}
    counts = torch.cat([part.counts for part in parts])
    return MatchedTexts(MatchedPairs(**pairs), counts, sum(part.num_truncated for part in parts))


def _layer_of(matched: MatchedTexts, layer: int) -> MatchedTexts:
    pairs = matched.pairs
    # Copies, or states would hold the memory of all layers.
    sides = {name: getattr(pairs, name)[:, layer : layer + 1].clone() for name in ("candidate_best", "reference_best")}
    return replace(matched, pairs=replace(pairs, **sides))
