"""The batch that several metrics get one after the other: encoded and matched once for all who share an encoder.

A batch is what a metric encodes together: the texts of one update, or of several small ones.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import chain
from weakref import WeakKeyDictionary, WeakSet

import torch
from torch import Tensor

from bertscore_tm.encoder import FrozenEncoder
from bertscore_tm.encoder.vector_cache import VectorCache
from bertscore_tm.scoring.corpus import Encoded, Matched, encode_texts, match_encoded
from bertscore_tm.texts import TextPairs

__all__ = ["Waiting", "expect_batch", "forget_batch", "match_batch"]


@dataclass(eq=False)
class Waiting:
    """Texts that a metric has got and not encoded yet, in the order of their arrival.

    Args:
        texts: the texts.
        indices: the pairs' numbers in the data set, a tensor per update; none where pairs have no numbers.
        num_characters: how long the texts are together.
        layer: which of the encoder's layers to match; ``None`` matches all.
        matched: the matched texts, once another metric has encoded the same.
    """

    texts: TextPairs = field(default_factory=lambda: TextPairs([], []))
    indices: tuple[Tensor, ...] = ()
    num_characters: int = 0
    layer: int | None = None
    matched: Matched | None = None

    def followed_by(self, texts: TextPairs, indices: Tensor | None, layer: int | None) -> Waiting:
        """Return these texts and others behind them."""
        return Waiting(
            TextPairs(self.texts.candidates + texts.candidates, self.texts.references + texts.references),
            self.indices if indices is None else (*self.indices, indices),
            self.num_characters + sum(map(len, chain(texts.candidates, *texts.references))),
            layer,
        )


@dataclass(frozen=True)
class _Batch:
    texts: TextPairs
    encoded: Encoded
    matched: dict[int | None, Matched] = field(default_factory=dict)

    def of_layer(self, layer: int | None) -> Matched:
        if layer not in self.matched:
            self.matched[layer] = match_encoded(self.texts, self.encoded, layer)
        return self.matched[layer]


# The latest batch of each encoder and device. Its vectors stay until the next batch, or until somebody forgets them.
_latest: WeakKeyDictionary[VectorCache, _Batch] = WeakKeyDictionary()
# What else will be encoded by each encoder on each device, as long as its metric holds it.
_expected: WeakKeyDictionary[VectorCache, WeakSet[Waiting]] = WeakKeyDictionary()


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
        for waiting in list(_expected.get(owner, ())):
            if waiting.texts == texts:
                waiting.matched = batch.of_layer(waiting.layer)
    return batch.of_layer(layer)


def expect_batch(waiting: Waiting, encoder: FrozenEncoder, device: torch.device) -> None:
    """Have waiting texts matched as soon as another metric encodes the same, now if it has just done so.

    Args:
        waiting: the texts; expected as long as somebody holds this object.
        encoder: the encoder.
        device: where it will encode.
    """
    owner = encoder.cache(device)
    batch = _latest.get(owner)
    if batch is not None and batch.texts == waiting.texts:
        waiting.matched = batch.of_layer(waiting.layer)
    else:
        _expected.setdefault(owner, WeakSet()).add(waiting)


def forget_batch(encoder: FrozenEncoder, device: torch.device) -> None:
    """Let the vectors of the latest batch go, so that training has their memory.

    Args:
        encoder: the encoder.
        device: where it has encoded.
    """
    _latest.pop(encoder.cache(device), None)
