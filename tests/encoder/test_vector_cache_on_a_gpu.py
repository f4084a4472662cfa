"""The vector cache on a GPU: pinned memory, streams, and the same vectors."""

from __future__ import annotations

import random
from functools import partial

import pytest
import torch

from bertscore_tm import FrozenEncoder
from bertscore_tm.core.token_vectors import TokenVectors
from bertscore_tm.encoder.vector_cache import VectorCache
from tests.support.cached_texts import (
    BATCHES,
    CPU,
    references,
    run_threads,
)

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]


def test_memory_is_pinned_and_vectors_are_the_same(tiny, encoded):
    device = torch.device("cuda", torch.cuda.current_device())
    encoder = FrozenEncoder(tiny, num_layers=2)
    cache = VectorCache(device)
    texts = sorted(references(BATCHES))

    def fetch(some: list[str], max_bytes: int = 2**20) -> tuple[list[str], TokenVectors]:
        return cache.fetch(some, lambda missing: encoder.encode(missing, device), max_bytes)

    direct = encoder.encode(texts, device)
    fetch(texts[:3])
    for order, found in (fetch(texts), fetch(texts)):
        assert order == texts
        assert found.vectors.device == device
        # The program reads these without waiting for the GPU.
        assert {one.device for one in (found.ids, found.lengths, found.has_content)} == {CPU}
        torch.testing.assert_close(found.vectors, direct.vectors, rtol=0, atol=1e-5)
        assert torch.equal(found.ids, direct.ids)
        assert torch.equal(found.lengths, direct.lengths)
    assert torch.equal(fetch(texts)[1].vectors, fetch(texts)[1].vectors)
    slabs = [text.vectors for text in cache._texts.values()]
    assert len(slabs) == len(texts)
    assert all(slab.is_pinned() and slab.device == CPU for slab in slabs)
    # What is kept on one device is nothing to the other.
    assert encoder.cache("cuda") is encoder.cache(device)
    assert encoder.cache("cuda") is not encoder.cache("cpu")


def test_streams_read_complete_vectors(tiny):
    """Threads with separate streams read what the others write."""
    encoder = FrozenEncoder(tiny, num_layers=2)
    device = torch.device("cuda", torch.cuda.current_device())
    texts = sorted(references(BATCHES))
    on_cpu = encoder.encode(texts)
    expected = dict(zip(texts, on_cpu.vectors.split(on_cpu.lengths.tolist(), dim=1), strict=True))
    encoder.encode(texts, device)

    def fetch(cache: VectorCache, thread: int) -> None:
        mine = random.Random(thread).sample(texts, len(texts) - thread)
        with torch.cuda.stream(torch.cuda.Stream()):
            order, found = cache.fetch(mine, lambda missing: encoder.encode(missing, device), 2**20)
            vectors = found.vectors.cpu().split(found.lengths.tolist(), dim=1)
        for text, one in zip(order, vectors, strict=True):
            torch.testing.assert_close(one, expected[text], rtol=0, atol=1e-4)

    for _ in range(20):
        cache = VectorCache(device)
        run_threads(*(partial(fetch, cache, thread) for thread in range(4)))
