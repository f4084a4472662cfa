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
from torch.utils.data import DataLoader
from torchmetrics import MetricCollection
from transformers import AutoTokenizer

from bertscore_tm import BERTScore, FrozenEncoder
from bertscore_tm.callbacks import BERTScoreCallback
from bertscore_tm.functional import SCORES
from bertscore_tm.losses import BERTScoreReward, SoftBERTScoreLoss
from tests.support.cached_texts import (
    BATCHES,
    CPU,
    LATER,
    PREDS,
    TARGET,
    TOLERANCE,
    assert_same,
    bytes_of,
    candidates_alone,
    epoch,
    ids,
    live_bytes,
    logits_for,
    mean,
    of_function,
    own_encoder,
    references,
    taken,
)
from tests.support.lightning_modules import Chooser, chooser, loader, trainer

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


def test_a_collection_encodes_each_batch_once_in_every_epoch(tiny, encoded):
    encoder = FrozenEncoder(tiny, num_layers=3, all_layers=True)
    collection = MetricCollection(
        {
            "plain": BERTScore(encoder, layer=2),
            "idf": BERTScore(encoder, layer=2, idf=True),
            "every": BERTScore(encoder),
            "first": BERTScore(encoder, layer=1, reduction="none"),
            "f1": BERTScore(encoder, layer=3, component="f1"),
        }
    )
    expected = of_function(encoder, *BATCHES)
    weighted = of_function(encoder, *BATCHES, idf=True)
    encoded.clear()
    for number in range(3):
        for batch in BATCHES:
            collection.update(*batch)
        new = ids(encoder, references(BATCHES)) if number == 0 else Counter()
        assert taken(encoded) == candidates_alone(encoder, BATCHES) + new
        found = collection.compute()
        for name in SCORES:
            torch.testing.assert_close(found[f"plain_{name}"], mean(expected)[name][2], rtol=0, atol=TOLERANCE)
            torch.testing.assert_close(found[f"idf_{name}"], mean(weighted)[name][2], rtol=0, atol=TOLERANCE)
            torch.testing.assert_close(found[f"every_{name}"], mean(expected)[name], rtol=0, atol=TOLERANCE)
            torch.testing.assert_close(found[f"first_{name}"], expected[name][1], rtol=0, atol=TOLERANCE)
        torch.testing.assert_close(found["f1"], mean(expected)["f1"][3], rtol=0, atol=TOLERANCE)
        collection.reset()
        assert not encoded


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


@pytest.mark.parametrize(("filled_in", "idf"), [(False, True), (True, False)])
def test_with_and_without_inference_mode(tiny, encoded, filled_in, idf):
    metric = BERTScore(FrozenEncoder(tiny, num_layers=2), idf=idf, reduction="none")
    with torch.inference_mode(filled_in):
        first = epoch(metric)
    encoded.clear()
    for mode in (not filled_in, filled_in):
        with torch.inference_mode(mode):
            assert_same(epoch(metric), first)
        assert taken(encoded) == candidates_alone(metric.encoder, BATCHES)
    # The same batch inside and outside.
    with torch.inference_mode(filled_in):
        metric.update(*BATCHES[0])
    other = BERTScore(FrozenEncoder(tiny, num_layers=2), idf=idf, reduction="none")
    with torch.inference_mode(not filled_in):
        other.update(*BATCHES[0])
    assert encoded == candidates_alone(metric.encoder, BATCHES[:1])
    assert_same(other.compute(), metric.compute())


class WithLoss(Chooser):
    """Trains with the loss against the same references."""

    loss_fn: SoftBERTScoreLoss

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        size = len(self.loss_fn.encoder.embedding_table(CPU))
        chosen = self.net(self.inputs[batch])
        logits = torch.nn.functional.pad(chosen, (0, size - chosen.shape[1]))[:, None].expand(-1, 3, -1)
        loss: Tensor = self.loss_fn(logits, [self.references[i] for i in batch.tolist()])
        return loss

    def val_dataloader(self) -> list[DataLoader[int]]:
        return [loader(7), loader(4, first=2)]

    test_dataloader = val_dataloader

    def on_validation_epoch_start(self) -> None:
        """Keep the texts of all validations."""

    on_test_epoch_start = on_validation_epoch_start


def test_references_of_all_epochs_of_a_training_are_encoded_once(tiny, tmp_path, encoded):
    module = chooser((PREDS, TARGET), kind=WithLoss, count=9)
    module.loss_fn = SoftBERTScoreLoss(FrozenEncoder(tiny, num_layers=2), cache_bytes=2**20)
    callback = BERTScoreCallback(BERTScore(FrozenEncoder(tiny, num_layers=2), idf=True))
    run = trainer(tmp_path, [callback], max_epochs=2, num_sanity_val_steps=1)
    run.fit(module)
    assert run.current_epoch == 2
    run.test(module, verbose=False)
    scored_texts = [(preds, target) for _, preds, target in module.seen]
    assert len(scored_texts) > 3 * 5
    wanted = ids(module.loss_fn.encoder, TARGET)
    scored = ids(module.loss_fn.encoder, {text for _, target in scored_texts for text in target})
    # By the loss, and by the callback.
    assert all(encoded[row] == 1 + scored[row] for row in wanted)
    # The callback encodes several batches together.
    assert encoded.keys() == (wanted + candidates_alone(module.loss_fn.encoder, scored_texts)).keys()


def test_scoring_changes_no_digit_of_a_loss_on_the_same_texts(tmp_path):
    """The last digits of a text's vectors depend on its batch, so a loss must not get those of a validation."""
    weights = []
    for scores in (False, True):
        encoder = own_encoder()
        module = chooser((PREDS, TARGET), kind=WithLoss, count=9)
        module.loss_fn = SoftBERTScoreLoss(encoder)
        callbacks = [BERTScoreCallback(BERTScore(encoder))] if scores else []
        trainer(tmp_path, callbacks, max_epochs=3, num_sanity_val_steps=1).fit(module)
        weights.append([parameter.detach().clone() for parameter in module.parameters()])
    assert all(map(torch.equal, *weights))


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
