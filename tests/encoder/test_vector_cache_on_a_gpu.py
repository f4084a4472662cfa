"""The vector cache on a GPU: pinned memory, streams, and the same vectors."""

from __future__ import annotations

import random
from functools import partial

import pytest
import torch

from bertscore_tm import BERTScore, FrozenEncoder
from bertscore_tm.core.token_vectors import TokenVectors
from bertscore_tm.encoder.vector_cache import VectorCache
from bertscore_tm.losses import SoftBERTScoreLoss
from tests.support.cached_texts import (
    BATCHES,
    CPU,
    assert_close,
    assert_same,
    candidates_alone,
    epoch,
    ids,
    logits_for,
    references,
    run_threads,
    taken,
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


@pytest.mark.parametrize(("where", "idf"), [("moved", False), ("encodes there", True)])
def test_later_epochs_are_the_same(tiny, encoded, where, idf):
    options = {"idf": idf, "reduction": "none"}
    metric = (
        BERTScore(FrozenEncoder(tiny, num_layers=2), device="cuda", **options)
        if where != "moved"
        else BERTScore(FrozenEncoder(tiny, num_layers=2), **options).cuda()
    )
    first = epoch(metric)
    assert taken(encoded) == candidates_alone(metric.encoder, BATCHES) + ids(metric.encoder, references(BATCHES))
    for _ in range(2):
        assert_same(epoch(metric), first)
        assert taken(encoded) == candidates_alone(metric.encoder, BATCHES)
    on_cpu = epoch(BERTScore(metric.encoder, device="cpu", **options))
    assert_close({name: value.cpu() for name, value in first.items()}, on_cpu, 1e-4)


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


def test_a_loss_reads_what_it_has_cached_in_a_validation(tiny, encoded):
    loss, off = (SoftBERTScoreLoss(FrozenEncoder(tiny, num_layers=2), cache_bytes=size) for size in (2**20, 0))
    target = BATCHES[0][1]
    with torch.inference_mode():
        loss(logits_for(loss.encoder, len(target)).detach().cuda(), target)
    values = []
    for one in (loss, off):
        logits = logits_for(loss.encoder, len(target)).detach().cuda().requires_grad_()
        encoded.clear()
        one(logits, target).backward()
        assert bool(encoded) == (one is off)
        assert logits.grad is not None
        values.append(logits.grad)
    torch.testing.assert_close(*values, rtol=0, atol=1e-3 * values[1].abs().max().item())
