"""Who shares a vector cache: metrics and callbacks, losses and rewards, and copies."""

from __future__ import annotations

import copy
import gc
import io
import pickle
import weakref
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoTokenizer

from bertscore_tm import BERTScore, FrozenEncoder
from bertscore_tm.callbacks import BERTScoreCallback
from bertscore_tm.losses import BERTScoreReward, SoftBERTScoreLoss
from tests.support.cached_texts import (
    BATCHES,
    CPU,
    LATER,
    PREDS,
    TARGET,
    bytes_of,
    candidates_alone,
    epoch,
    ids,
    live_bytes,
    logits_for,
    own_encoder,
    references,
    taken,
)
from tests.support.lightning_modules import chooser, trainer

pytestmark = pytest.mark.usefixtures("one_thread")


def test_metrics_and_callbacks_share_a_cache_by_name(tiny, encoded):
    metric = BERTScore(FrozenEncoder(tiny, num_layers=2))
    epoch(metric)
    encoder = metric.encoder
    others: list[BERTScore] = [
        BERTScore(FrozenEncoder(tiny, num_layers=-2), idf=True),
        BERTScore(FrozenEncoder(tiny + "/", num_layers=2), component="f1"),
        BERTScore(FrozenEncoder(tiny, num_layers=2, batch_size=3), reduction="none"),
        BERTScore(FrozenEncoder(tiny, num_layers=2, long_text="truncate")),
        copy.deepcopy(metric),
        pickle.loads(pickle.dumps(metric)),
    ]
    for other in others:
        encoded.clear()
        epoch(other, LATER)
        assert encoded == candidates_alone(encoder, LATER)
    # A callback scores with copies.
    module = chooser((PREDS, TARGET), count=7)
    run = trainer(Path(tiny), [BERTScoreCallback(BERTScore(FrozenEncoder(tiny, num_layers=2)))], max_epochs=1)
    epoch(metric, [(PREDS[:7], TARGET[:7])])
    encoded.clear()
    run.validate(module, verbose=False)
    assert encoded
    chosen = [(preds, target) for _, preds, target in module.seen]
    # The callback encodes several batches together.
    assert encoded.keys() == candidates_alone(encoder, chosen).keys()


def test_losses_and_rewards_share_a_cache_that_metrics_leave_alone(tiny, encoded):
    epoch(BERTScore(FrozenEncoder(tiny, num_layers=2)))
    encoded.clear()
    loss = SoftBERTScoreLoss(FrozenEncoder(tiny, num_layers=2), cache_bytes=2**20)
    for _ in range(2):
        for _, target in BATCHES:
            loss(logits_for(loss.encoder, len(target)), target)
    assert taken(encoded) == ids(loss.encoder, references(BATCHES))
    for other in (SoftBERTScoreLoss(FrozenEncoder(tiny, num_layers=2), cache_bytes=1), SoftBERTScoreLoss(loss.encoder)):
        for _, target in BATCHES:
            other(logits_for(loss.encoder, len(target)), target).backward()
        assert not encoded
    reward = BERTScoreReward(loss.encoder, cache_bytes=2**20)
    for preds, target in BATCHES:
        reward(completions=preds, references=target)
    assert taken(encoded) == candidates_alone(loss.encoder, BATCHES)
    off = SoftBERTScoreLoss(FrozenEncoder(tiny, num_layers=2), cache_bytes=0)
    for _, target in BATCHES:
        off(logits_for(loss.encoder, len(target)), target)
    assert encoded == sum((ids(loss.encoder, set(target)) for _, target in BATCHES), Counter())


def test_labels_are_encoded_once(tiny, encoded):
    rows = torch.tensor([[50, 60, 3, -100], [51, 61, 71, 3], [50, 60, -100, -100]])
    texts = Counter({(2, 50, 60, 3): 1, (2, 51, 61, 71, 3): 1})
    values = []
    for options, times in (({}, 1), ({"cache_bytes": 0}, 3)):
        loss = SoftBERTScoreLoss(FrozenEncoder(tiny, num_layers=2), **options)
        logits = logits_for(loss.encoder, len(rows))[:, : rows.shape[1]]
        encoded.clear()
        values.append(torch.stack([loss(logits, rows.roll(epoch, 0)) for epoch in range(3)]))
        assert encoded == Counter({text: count * times for text, count in texts.items()})
    torch.testing.assert_close(values[0], values[1], atol=1e-6, rtol=0)


def test_other_settings_have_another_cache(tiny):
    settings: list[dict[str, Any]] = [
        {},
        {"max_length": 12, "long_text": "window", "stride": 3},
        {"num_layers": 1},
        {"num_layers": 3},
        {"all_layers": True},
        {"max_length": 20},
        {"dtype": "float64"},
        {"dtype": "bfloat16"},
        {"long_text": "window", "max_length": 12},
        {"long_text": "window", "max_length": 12, "stride": 2},
        {"long_text": "error"},
        {"prefix_space": True},
        {"exclude_special_tokens": True},
        {"tokenizer": AutoTokenizer.from_pretrained(tiny)},
        {"revision": "main"},
    ]
    encoders = [FrozenEncoder(tiny, **{"num_layers": 2} | options) for options in settings]
    assert len({id(encoder.cache(CPU)) for encoder in encoders}) == len(encoders)
    assert FrozenEncoder(tiny, num_layers=2).cache("cpu") is encoders[0].cache(CPU)


# Training and inference mode.


def gradient(loss: SoftBERTScoreLoss, target: Sequence[str]) -> tuple[Tensor, Tensor]:
    logits = logits_for(loss.encoder, len(target))
    value = loss(logits, target)
    value.backward()
    assert logits.grad is not None
    return value.detach(), logits.grad


def test_a_loss_uses_what_it_has_cached_in_a_validation(tiny, encoded):
    loss, off = (SoftBERTScoreLoss(FrozenEncoder(tiny, num_layers=2), cache_bytes=size) for size in (2**20, 0))
    target = BATCHES[0][1]
    with torch.inference_mode():
        loss(logits_for(loss.encoder, len(target) + 1).detach(), [*target, TARGET[8]])
    encoded.clear()
    # Known and unknown texts, known ones alone, unknown ones alone.
    for texts in ([*target, TARGET[7]], target, [TARGET[8], TARGET[7]], [TARGET[6]]):
        found, expected = gradient(loss, texts), gradient(off, texts)
        assert expected[1].abs().max() > 0
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=1e-5 * other.abs().max().item())
            assert not one.is_inference()
    assert encoded[next(iter(ids(loss.encoder, [TARGET[7]])))] == 1 + 2


# Copies and lifetime.


def test_pickles_copies_and_checkpoints_hold_no_vectors(tiny, only_new):
    metric, loss = (
        BERTScore(FrozenEncoder(tiny, num_layers=2), cache_bytes=0),
        SoftBERTScoreLoss(FrozenEncoder(tiny, num_layers=2)),
    )

    def sizes() -> list[int]:
        epoch(metric)
        gradient(loss, TARGET[:3])
        saved = io.BytesIO()
        module = torch.nn.ModuleDict({"metric": metric, "loss": loss})
        torch.save(module.state_dict(), saved)
        return [len(pickle.dumps(thing)) for thing in (metric, loss, metric.encoder)] + [saved.tell()]

    before = sizes()
    metric.cache_bytes = loss.cache_bytes = 2**30
    after = sizes()
    assert metric.encoder.cache(CPU).num_bytes >= sum(bytes_of(metric.encoder, text) for text in references(BATCHES))
    # A larger number takes a few bytes more.
    assert max(abs(a - b) for a, b in zip(after, before, strict=True)) < 100
    for text in references(BATCHES):
        assert text.encode() not in pickle.dumps(metric)
    memory = live_bytes()
    copies = [metric.clone(), copy.deepcopy(loss), pickle.loads(pickle.dumps(metric))]
    # Each metric has a weight for every token id, and so has the loss.
    assert live_bytes() - memory <= 3 * 8 * metric.encoder.tokenizer.vocab_size
    assert len({id(one.encoder.cache(CPU)) for one in copies}) == 1


@pytest.mark.parametrize("kind", ["name", "ready"])
def test_the_cache_is_dropped_with_the_last_encoder(only_new, tiny, kind):
    if kind == "name":
        first, second = (
            BERTScore(FrozenEncoder(tiny, num_layers=2)),
            SoftBERTScoreLoss(FrozenEncoder(tiny, num_layers=2)),
        )
    else:
        encoder = own_encoder()
        first, second = BERTScore(encoder), SoftBERTScoreLoss(encoder)
        del encoder
    before = live_bytes()
    epoch(first)
    # The latest batch does not keep it either.
    first.update(*BATCHES[0])
    cache = weakref.ref(first.encoder.cache(CPU))
    loss_encoder = second.encoder
    assert loss_encoder.cache(CPU) is cache()
    del first
    gc.collect()
    assert cache() is not None
    kept = live_bytes() - before
    # The metric's token weights are gone.
    assert kept + 8 * loss_encoder.tokenizer.vocab_size >= sum(
        bytes_of(loss_encoder, text) for text in references(BATCHES)
    )
    del second, loss_encoder
    gc.collect()
    assert cache() is None
    assert live_bytes() <= before
