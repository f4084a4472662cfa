"""The batch that several metrics get one after the other: encoded and matched once for all who share an encoder."""

from __future__ import annotations

from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

import torch

from bertscore_tm.cache import VectorCache
from bertscore_tm.corpus import Encoded, Matched, encode_texts, match_encoded
from bertscore_tm.encoder import FrozenEncoder
from bertscore_tm.texts import TextPairs

__all__ = ["forget_batch", "match_batch"]


@dataclass(frozen=True)
class _Batch:
    texts: TextPairs
    encoded: Encoded
    matched: dict[int | None, Matched] = field(default_factory=dict)


# The latest batch of each encoder and device. Its vectors stay until the next batch, or until somebody forgets them.
_latest: WeakKeyDictionary[VectorCache, _Batch] = WeakKeyDictionary()


def match_batch(
    texts: TextPairs,
    encoder: FrozenEncoder,
    device: torch.device,
    layer: int | None = None,
    cache_bytes: int = 0,
) -> Matched:
    """Match the texts of a batch, unless another metric has just done so.

    Args:
        texts: candidates and references.
        encoder: the encoder.
        device: where to compute.
        layer: which of the encoder's layers to match; ``None`` matches all.
        cache_bytes: how much CPU memory the references' vectors may take that are kept for the next epoch.

    Returns:
        Everything that scores are computed from.
    """
    owner = encoder.cache(device)
    batch = _latest.get(owner)
    if batch is None or batch.texts != texts:
        # Before new vectors are made, so that there is memory for one batch only.
        batch = None
        _latest.pop(owner, None)
        batch = _latest[owner] = _Batch(texts, encode_texts(texts, encoder, device, cache_bytes))
    if layer not in batch.matched:
        batch.matched[layer] = match_encoded(texts, batch.encoded, layer)
    return batch.matched[layer]


def forget_batch(encoder: FrozenEncoder, device: torch.device) -> None:
    """Let the vectors of the latest batch go, so that training has their memory.

    Args:
        encoder: the encoder.
        device: where it has encoded.
    """
    _latest.pop(encoder.cache(device), None)
