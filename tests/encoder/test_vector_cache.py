"""The vector cache: which texts are encoded again, which vectors stay in memory, and who shares them."""

from __future__ import annotations

import copy
import gc
import io
import pickle
import random
import threading
import weakref
from collections import Counter
from collections.abc import Generator, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoTokenizer, BertModel

from bertscore_tm import BERTScore, FrozenEncoder
from bertscore_tm.callbacks import BERTScoreCallback
from bertscore_tm.core.token_vectors import TokenVectors
from bertscore_tm.encoder.tokenization import cut_into_windows
from bertscore_tm.encoder.vector_cache import VectorCache
from bertscore_tm.functional import SCORES
from bertscore_tm.losses import BERTScoreReward, SoftBERTScoreLoss
from tests.support.lightning_modules import chooser, trainer
from tests.support.metric_batches import mean, per_pair
from tests.support.metric_kinds import flat
from tests.support.models import counted_texts, save_tiny_model, tiny_model
from tests.support.texts import real_pairs

pytestmark = pytest.mark.usefixtures("one_thread")

CPU = torch.device("cpu")
TOLERANCE = 1e-6
COUNT = 9

# Real texts, cut short, as they are encoded many times.
PREDS, TARGET = ([" ".join(text.split()[:9]) for text in side] for side in real_pairs(COUNT))
LONG = " ".join(TARGET[:2])

# Some texts come twice in a batch or in two; some candidates equal a reference of their own batch, or of one before or
# after it.
BATCHES = [
    ([PREDS[0], PREDS[1], PREDS[0]], [TARGET[0], TARGET[1], TARGET[1]]),
    ([TARGET[2], PREDS[2], TARGET[0]], [TARGET[2], TARGET[3], TARGET[4]]),
    ([TARGET[5], PREDS[4]], [TARGET[6], TARGET[0]]),
    ([PREDS[1], PREDS[5]], [TARGET[5], LONG]),
]

SEVERAL = [(preds, [[one, TARGET[i]] if i % 2 else [one] for i, one in enumerate(target)]) for preds, target in BATCHES]

# Other candidates for the same references.
LATER = [([PREDS[(i + k + 3) % COUNT] for k in range(len(target))], target) for i, (_, target) in enumerate(BATCHES)]


def ids(encoder: FrozenEncoder, texts: Iterable[str]) -> Counter[tuple[int, ...]]:
    """Token ids that the model gets when each of these texts is encoded: of whole texts, or of their windows."""
    rows = encoder.tokenizer(list(texts)).ids
    return Counter(tuple(window.ids) for row in rows for window in cut_into_windows(row, encoder.tokenizer))


def candidates_alone(encoder: FrozenEncoder, batches: Iterable[tuple[Any, Any]]) -> Counter[tuple[int, ...]]:
    """Token ids that the model gets when all references are cached: each batch's unique candidates."""
    return sum((ids(encoder, set(preds) - set(flat(target))) for preds, target in batches), Counter())


def everything(encoder: FrozenEncoder, batches: Iterable[tuple[Any, Any]]) -> Counter[tuple[int, ...]]:
    """Token ids that the model gets when nothing is cached: each batch's unique texts."""
    return sum((ids(encoder, {*preds, *flat(target)}) for preds, target in batches), Counter())


def references(batches: Iterable[tuple[Any, Any]]) -> set[str]:
    return {text for _, target in batches for text in flat(target)}


def taken(counts: Counter[tuple[int, ...]]) -> Counter[tuple[int, ...]]:
    """Return the counts so far, and reset them."""
    found = Counter(counts)
    counts.clear()
    return found


def epoch(metric: BERTScore, batches: Iterable[tuple[Any, Any]] = BATCHES) -> dict[str, Tensor]:
    """The scores of an epoch."""
    for batch in batches:
        metric.update(*batch)
    found: dict[str, Tensor] = metric.compute()
    metric.reset()
    return found


def assert_close(found: dict[str, Tensor], wanted: dict[str, Tensor], tolerance: float = TOLERANCE) -> None:
    for name in SCORES:
        torch.testing.assert_close(found[name], wanted[name], rtol=0, atol=tolerance)


def assert_same(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> None:
    assert list(found) == list(wanted)
    for name, value in found.items():
        assert torch.equal(value, wanted[name])


def own_encoder(**options: Any) -> FrozenEncoder:
    """An encoder of a tiny model that no other test uses."""
    ready, tokenizer = tiny_model("bert")
    return FrozenEncoder(copy.deepcopy(ready), tokenizer, **{"num_layers": 2} | options)


def logits_for(encoder: FrozenEncoder, rows: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    size = len(encoder.embedding_table(CPU))
    return torch.randn(rows, 5, size, generator=generator).requires_grad_()


def bytes_of_tensors(things: Iterable[Any], integers: bool = False) -> int:
    # Packed weights lie outside of torch's storages.
    tensors = [thing for thing in things if issubclass(type(thing), Tensor) and not thing.is_mkldnn]
    storages = [tensor.untyped_storage() for tensor in tensors if tensor.is_floating_point() != integers]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


def live_bytes() -> int:
    """Memory of all floating point tensors."""
    gc.collect()
    return bytes_of_tensors(gc.get_objects())


def bytes_within(root: Any, integers: bool = False) -> int:
    """Memory of all floating point, or other, tensors that an object holds."""
    found, things = {id(root): root}, [root]
    while things:
        for thing in gc.get_referents(things.pop()):
            if id(thing) not in found and not isinstance(thing, type | ModuleType):
                found[id(thing)] = thing
                things.append(thing)
    return bytes_of_tensors(found.values(), integers)


def bytes_of(encoder: FrozenEncoder, text: str) -> int:
    """Memory of a text's token vectors in float32."""
    return 4 * int(encoder.config.hidden_size) * encoder.num_outputs * len(encoder.tokenizer([text]).ids[0])


@pytest.fixture
def encoded() -> Generator[Counter[tuple[int, ...]], None, None]:
    """Count how often the model gets each text, by its token ids."""
    with counted_texts() as counts:
        yield counts


@pytest.fixture
def tiny(tmp_path: Path) -> str:
    """A tiny model in a new folder."""
    return save_tiny_model("bert", tmp_path / "tiny")


@pytest.fixture
def only_new() -> None:
    """Let the garbage collector see only objects created from now on, which also makes it fast."""
    gc.collect()
    gc.freeze()


# Epochs.

KINDS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "mean": ({}, {}),
    "idf per pair": ({}, {"idf": True, "reduction": "none"}),
    "idf of a corpus": ({}, {"idf": TARGET[3:]}),
    "all layers, idf": ({"all_layers": True}, {"idf": True, "reduction": "none"}),
    "a layer of all": ({"all_layers": True}, {"layer": 1, "reduction": "none"}),
    "windows, all layers": ({"long_text": "window", "max_length": 8, "all_layers": True}, {}),
    "small batches": ({"batch_size": 2}, {"reduction": "none"}),
}


@pytest.mark.parametrize(
    ("kind", "several"), [(kind, number % 2 > 0) for number, kind in enumerate(KINDS)] + [("mean", True)]
)
def test_later_epochs_encode_candidates_only_and_score_the_same(tiny, encoded, kind, several):
    of_encoder, options = KINDS[kind]
    batches = SEVERAL if several else BATCHES
    encoder = FrozenEncoder(tiny, num_layers=2, **of_encoder)
    metric, off = BERTScore(encoder, **options), BERTScore(encoder, cache_bytes=0, **options)
    first = epoch(metric, batches)
    alone = candidates_alone(encoder, batches)
    assert taken(encoded) == alone + ids(encoder, references(batches))
    assert_same(epoch(metric, batches), first)
    assert taken(encoded) == alone
    assert_close(epoch(off, batches), first)
    assert taken(encoded) == everything(encoder, batches) != alone
    if not of_encoder.get("all_layers"):
        idf = {name: options[name] for name in ("idf",) if name in options}
        expected = per_pair(encoder, *batches, **idf)
        assert_close(first, expected if options.get("reduction") == "none" else mean(expected))


def test_truncated_references_are_counted_in_every_epoch(tiny):
    metric = BERTScore(FrozenEncoder(tiny, num_layers=2, max_length=8))
    # Each batch counts its distinct texts.
    tokens = AutoTokenizer.from_pretrained(tiny)
    long = sum(len(tokens(text)["input_ids"]) > 8 for preds, target in BATCHES for text in {*preds, *target})
    assert long > 3
    for _ in range(3):
        with pytest.warns(UserWarning, match=f"^{long} texts are longer than 8 tokens and were truncated") as caught:
            epoch(metric)
        assert len(caught) == 1


# Budgets.


@pytest.mark.parametrize(
    ("share", "all_layers"), [(0.003, False), (0.35, False), (0.35, True), (0.999, True), (1, False)]
)
def test_texts_that_do_not_fit_are_encoded_again(encoded, share, all_layers):
    encoder = own_encoder(all_layers=all_layers)
    off = BERTScore(encoder, cache_bytes=0, reduction="none")
    expected = epoch(off)
    sizes = {text: bytes_of(encoder, text) for text in references(BATCHES)}
    by_ids = {next(iter(ids(encoder, [text]))): text for text in sizes}
    rows = {text: row for row, text in by_ids.items()}
    budget = int(share * sum(sizes.values()))
    cache = encoder.cache(CPU)
    metric = BERTScore(encoder, cache_bytes=budget, reduction="none")
    assert_close(epoch(metric), expected)
    encoded.clear()
    epochs = []
    for batches in (BATCHES, LATER, BATCHES):
        epochs.append(epoch(metric, batches))
        again = {by_ids[row] for row in taken(encoded) - candidates_alone(encoder, batches)}
        kept = sizes.keys() - again
        assert sum(sizes[text] for text in kept) <= bytes_within(cache) <= budget
        # Ids take little, unless they keep those of a whole batch.
        assert bytes_within(cache, integers=True) == 8 * sum(len(rows[text]) for text in kept)
        assert (again == set()) == (share >= 1)
    assert_close(epochs[0], expected)
    assert_same(epochs[2], epochs[0])
    assert_close(epochs[1], per_pair(encoder, *LATER))


@pytest.mark.parametrize("user", ["metric", "function", "function with idf", "function with the idf of a corpus"])
def test_a_budget_of_zero_and_the_function_keep_nothing(only_new, encoded, user):
    encoder = own_encoder()
    metric = BERTScore(encoder, cache_bytes=0)
    idf = {"function with idf": True, "function with the idf of a corpus": TARGET}.get(user, False)

    def use() -> None:
        epoch(metric) if user == "metric" else per_pair(encoder, *BATCHES, idf=idf)

    together = [(flat(p for p, _ in BATCHES), flat(t for _, t in BATCHES))]
    expected = everything(encoder, BATCHES if user == "metric" else together)
    use()
    before = live_bytes()
    encoded.clear()
    use()
    assert encoded == expected
    assert live_bytes() == before
    # Nor do they read what others keep.
    epoch(BERTScore(encoder))
    encoded.clear()
    use()
    assert encoded == expected


def test_metrics_with_different_budgets(encoded):
    """The metric with the larger budget adds texts; the other reads all of them and adds none."""
    encoder = own_encoder()
    first, second, third = BATCHES[:1], BATCHES[1:2], BATCHES[2:3]
    budget = sum(bytes_of(encoder, text) for text in references(first))
    small, large = BERTScore(encoder, cache_bytes=budget), BERTScore(encoder)
    epoch(small, first)
    for _ in range(2):
        encoded.clear()
        epoch(small, second)
        assert taken(encoded) == everything(encoder, second)
    assert bytes_within(encoder.cache(CPU)) == budget
    epoch(large, second)
    assert taken(encoded) == everything(encoder, second)
    held = bytes_within(encoder.cache(CPU))
    assert held > budget
    for batches in (second, first):
        epoch(small, batches)
        assert taken(encoded) == candidates_alone(encoder, batches)
    assert_close(epoch(small, third), mean(per_pair(encoder, *third)))
    assert bytes_within(encoder.cache(CPU)) == held


# Threads.


class Held(str):
    """A text that calls a function when it is first looked up."""

    __slots__ = ("happens",)

    def __hash__(self) -> int:
        happens, self.happens = getattr(self, "happens", None), None
        if happens is not None:
            happens()
        return super().__hash__()

    def __eq__(self, other: object) -> bool:
        return super().__eq__(other)


def test_a_text_added_by_another_thread_is_not_lost():
    encoder = own_encoder()
    cache = VectorCache(CPU)

    def fetch(texts: list[str]) -> tuple[list[str], TokenVectors]:
        return cache.fetch(texts, lambda missing: encoder.encode(missing, CPU), 2**20)

    def elsewhere() -> None:
        thread = threading.Thread(target=fetch, args=([TARGET[0]],))
        thread.start()
        # It has to wait where looking up excludes others.
        thread.join(1)

    last = Held(TARGET[1])
    last.happens = elsewhere
    order, vectors = fetch([TARGET[0], last])
    assert sorted(order) == sorted(TARGET[:2])
    assert vectors.lengths.tolist() == [len(encoder.tokenizer([text]).ids[0]) for text in order]
    expected = encoder.encode(order, CPU)
    torch.testing.assert_close(vectors.vectors, expected.vectors, rtol=0, atol=TOLERANCE)


# Errors.


class FailedError(Exception):
    pass


@pytest.mark.parametrize(("at", "cache_bytes"), [(1, 0), (3, 2**20)])
def test_an_error_while_encoding_leaves_complete_states(monkeypatch, at, cache_bytes):
    """The model fails at one of its forward passes: of references, or of candidates with cached references."""
    encoder = own_encoder(batch_size=2)
    batches = [BATCHES[0], LATER[1]]
    expected = per_pair(encoder, *batches)
    metrics = [BERTScore(encoder, reduction="none", cache_bytes=cache_bytes) for _ in range(2)]
    metrics[0].update(*batches[0])
    left, forward = [0], BertModel.forward

    def fails(model: BertModel, *args: Any, **kwargs: Any) -> Any:
        left[0] -= 1
        if left[0] == 0:
            raise FailedError
        return forward(model, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(BertModel, "forward", fails)
        # When the first has kept the references, the second has candidates left.
        for metric, number in zip(metrics, (at, 1), strict=True):
            left[0] = number
            with pytest.raises(FailedError):
                metric.update(*batches[1])
    # Nobody has scores of a batch that was not there, nor of the one before it in its place.
    metrics[1].update(*batches[0])
    for metric in metrics:
        metric.update(*batches[1])
        assert_close(metric.compute(), expected)


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
        {"max_length": 10, "long_text": "window"},
        {"num_layers": 1},
        {"num_layers": 3},
        {"all_layers": True},
        {"max_length": 20},
        {"dtype": "float64"},
        {"dtype": "bfloat16"},
        {"long_text": "window", "max_length": 12},
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
    target = BATCHES[0][1]
    off = SoftBERTScoreLoss(FrozenEncoder(tiny, num_layers=2), cache_bytes=0)
    with torch.inference_mode():
        loss = SoftBERTScoreLoss(FrozenEncoder(tiny, num_layers=2), cache_bytes=2**20)
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
    metric = BERTScore(FrozenEncoder(tiny, num_layers=2), cache_bytes=0)
    loss = SoftBERTScoreLoss(FrozenEncoder(tiny, num_layers=2))

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
    encoders = [FrozenEncoder(tiny, num_layers=2) for _ in range(2)] if kind == "name" else [own_encoder()] * 2
    first, second = BERTScore(encoders[0]), SoftBERTScoreLoss(encoders[1])
    del encoders
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


# On a GPU: pinned memory, streams, and the same vectors.

on_a_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@on_a_gpu
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


@on_a_gpu
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
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(partial(fetch, cache), range(4)))
