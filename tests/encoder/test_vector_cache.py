"""The vector cache: which texts are encoded in each epoch, who shares a cache, and which vectors stay in memory."""

from __future__ import annotations

import copy
import gc
import io
import pickle
import random
import sys
import threading
import warnings
import weakref
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils.data import DataLoader
from torchmetrics import MetricCollection
from transformers import AutoTokenizer, BertModel

import bertscore_tm.encoder.vector_cache
from bertscore_tm import BERTScore, FrozenEncoder
from bertscore_tm.callbacks import BERTScoreCallback
from bertscore_tm.core.token_vectors import TokenVectors
from bertscore_tm.encoder.vector_cache import VectorCache
from bertscore_tm.encoder.windows import cut_into_windows
from bertscore_tm.functional import SCORES, bert_score
from bertscore_tm.losses import SoftBERTScoreLoss
from tests.support.lightning_modules import Chooser, chooser, loader, trainer
from tests.support.models import save_tiny_model, tiny_model
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


def flat(target: Iterable[Any]) -> list[str]:
    return [text for given in target for text in ([given] if isinstance(given, str) else given)]


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


def epoch(metric: BERTScore, batches: Iterable[tuple[Any, Any]] = BATCHES) -> dict[str, Tensor]:
    """The scores of an epoch."""
    for batch in batches:
        metric.update(*batch)
    found: dict[str, Tensor] = metric.compute()
    metric.reset()
    return found


def of_function(encoder: FrozenEncoder, *batches: tuple[Any, Any], **options: Any) -> dict[str, Tensor]:
    """The function's scores of all batches together, for each pair."""
    preds = [text for batch in batches for text in batch[0]]
    target = [[given] if isinstance(given, str) else given for batch in batches for given in batch[1]]
    return bert_score(preds, target, encoder, device="cpu", **options)


def assert_close(found: dict[str, Tensor], wanted: dict[str, Tensor], tolerance: float = TOLERANCE) -> None:
    for name in SCORES:
        torch.testing.assert_close(found[name], wanted[name], rtol=0, atol=tolerance)


def assert_same(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> None:
    assert list(found) == list(wanted)
    for name, value in found.items():
        assert torch.equal(value, wanted[name])


def mean(scores: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: scores[name].double().mean(-1).float() for name in SCORES}


@pytest.fixture
def encoded(monkeypatch: pytest.MonkeyPatch) -> Counter[tuple[int, ...]]:
    """Count how often the model gets each text, by its token ids."""
    counts: Counter[tuple[int, ...]] = Counter()
    forward = BertModel.forward

    def counted(model: BertModel, input_ids: Any = None, attention_mask: Any = None, **kwargs: Any) -> Any:
        for row, real in zip(input_ids, attention_mask, strict=True) if input_ids is not None else ():
            counts[tuple(row[real.bool()].tolist())] += 1
        return forward(model, input_ids=input_ids, attention_mask=attention_mask, **kwargs)

    monkeypatch.setattr(BertModel, "forward", counted)
    return counts


def taken(counts: Counter[tuple[int, ...]]) -> Counter[tuple[int, ...]]:
    """Return the counts so far, and reset them."""
    found = Counter(counts)
    counts.clear()
    return found


@pytest.fixture
def model(minilm: str, tmp_path: Path) -> str:
    """The real model in a new folder, whose texts no other test has cached."""
    folder = tmp_path / "minilm"
    folder.mkdir()
    for file in Path(minilm).iterdir():
        (folder / file.name).symlink_to(file)
    return str(folder)


@pytest.fixture
def tiny(tmp_path: Path) -> str:
    """A tiny model in a new folder."""
    return save_tiny_model("bert", tmp_path / "tiny")


def own_encoder(**options: Any) -> FrozenEncoder:
    """An encoder of a tiny model that no other test uses."""
    ready, tokenizer = tiny_model("bert")
    return FrozenEncoder(copy.deepcopy(ready), tokenizer, **{"num_layers": 2} | options)


@pytest.fixture
def only_new() -> Iterator[None]:
    """Let the garbage collector see only objects created from now on, which also makes it fast."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def live_vectors() -> list[TokenVectors]:
    """All token vectors in memory."""
    gc.collect()
    return [thing for thing in gc.get_objects() if type(thing) is TokenVectors]


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


# --- epochs

KINDS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "mean": ({}, {}),
    "per pair": ({}, {"reduction": "none"}),
    "idf": ({}, {"idf": True}),
    "idf per pair": ({}, {"idf": True, "reduction": "none"}),
    "idf of a corpus": ({}, {"idf_sents": TARGET[3:]}),
    "all layers, idf": ({"all_layers": True}, {"idf": True, "reduction": "none"}),
    "a layer of all": ({"all_layers": True}, {"num_layers": 1, "reduction": "none"}),
    "windows": ({"long_text": "window", "max_length": 14}, {"reduction": "none"}),
    "windows, all layers": ({"long_text": "window", "max_length": 10, "stride": 3, "all_layers": True}, {}),
    "small batches": ({"batch_size": 2}, {"reduction": "none"}),
    "confidence": ({}, {"confidence": 0.9}),
}


@pytest.mark.parametrize(
    ("kind", "several"), [(kind, number % 2 > 0) for number, kind in enumerate(KINDS)] + [("mean", True), ("idf", True)]
)
def test_later_epochs_encode_candidates_only_and_score_the_same(model, encoded, kind, several):
    of_encoder, options = KINDS[kind]
    batches = SEVERAL if several else BATCHES
    encoder = FrozenEncoder(model, num_layers=2, **of_encoder)
    metric, off = BERTScore(encoder, **options), BERTScore(encoder, cache_bytes=0, **options)
    first = epoch(metric, batches)
    alone = candidates_alone(encoder, batches)
    assert taken(encoded) == alone + ids(encoder, references(batches))
    for _ in range(2):
        assert_same(epoch(metric, batches), first)
        assert taken(encoded) == alone
    assert_close(epoch(off, batches), first)
    assert taken(encoded) == everything(encoder, batches) != alone
    if not of_encoder.get("all_layers"):
        idf = {name: options[name] for name in ("idf", "idf_sents") if name in options}
        expected = of_function(encoder, *batches, **idf)
        assert_close(first, expected if options.get("reduction") == "none" else mean(expected))


@pytest.mark.parametrize("idf", [False, True])
@pytest.mark.parametrize("how", ["update", "forward"])
def test_new_candidates_of_later_epochs(model, encoded, idf, how):
    metric = BERTScore(model, 2, idf=idf, reduction="none")
    encoder = metric.encoder
    epoch(metric)
    shuffled = [LATER[i] for i in (2, 0, 3, 1)]
    # Other batches of the same references, in another order.
    together = [(shuffled[0][0] + shuffled[1][0], shuffled[0][1] + shuffled[1][1]), *shuffled[2:]]
    for batches in (LATER, shuffled, together):
        expected = of_function(encoder, *batches, idf=idf)
        encoded.clear()
        for batch in batches:
            getattr(metric, how)(*batch)
        assert encoded == candidates_alone(encoder, batches)
        assert_close(metric.compute(), expected)
        metric.reset()


def test_texts_tokenized_alike_are_different_texts(tiny, encoded):
    metric = BERTScore(tiny, 2, reduction="none")
    batch = ([PREDS[0]] * 3, [TARGET[0], f" {TARGET[0]}\n", TARGET[0].upper()])
    assert_same(epoch(metric, [batch]), epoch(metric, [batch]))
    assert_close(epoch(metric, [batch]), of_function(metric.encoder, batch))


@pytest.mark.filterwarnings("ignore:.* candidates? score:UserWarning")
def test_empty_texts(tiny, encoded):
    metric = BERTScore(tiny, 2, reduction="none")
    batches = [(["", PREDS[0], " "], [TARGET[0], "", "\n"]), ([PREDS[1]], [["", TARGET[1]]])]
    expected = of_function(metric.encoder, *batches)
    first = epoch(metric, batches)
    assert_close(first, expected)
    assert_same(epoch(metric, batches), first)


def test_texts_without_any_token():
    """GPT-2's tokenizer adds no special tokens."""
    ready, tokenizer = tiny_model("gpt2")
    metric = BERTScore(FrozenEncoder(copy.deepcopy(ready), tokenizer, num_layers=2), reduction="none")
    batches = [([PREDS[0]], [""]), ([PREDS[0], PREDS[1]], ["", TARGET[1]])]
    with pytest.warns(UserWarning, match="2 candidates scored 0"):
        first = epoch(metric, batches)
    with pytest.warns(UserWarning, match="2 candidates scored 0"):
        assert_same(epoch(metric, batches), first)
    assert first["f1"].tolist() == [0, 0, pytest.approx(bert_score(PREDS[1], TARGET[1], metric.encoder)["f1"].item())]


def test_truncated_references_are_counted_in_every_epoch(tiny):
    metric = BERTScore(tiny, 2, max_length=8)
    said = []
    for _ in range(3):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            epoch(metric)
        said.append([str(warning.message) for warning in caught])
    # Each batch counts its distinct texts.
    tokens = AutoTokenizer.from_pretrained(tiny)
    long = sum(len(tokens(text)["input_ids"]) > 8 for preds, target in BATCHES for text in {*preds, *target})
    assert long > 3
    assert said[0] == said[1] == said[2]
    assert [one.split(",")[0] for one in said[0]] == [
        f"{long} texts are longer than 8 tokens and were truncated; long_text='window' scores whole texts"
    ]


# --- the budget


def bytes_of(encoder: FrozenEncoder, text: str) -> int:
    """Memory of a text's token vectors in float32."""
    return 4 * int(encoder.config.hidden_size) * encoder.num_outputs * len(encoder.tokenizer([text]).ids[0])


@pytest.mark.parametrize(
    ("share", "all_layers", "numbers_per_slab"),
    [(0.003, False, None), (0.35, False, 1_000), (0.35, True, None), (0.999, True, 1_000), (1, False, None)],
)
def test_texts_that_do_not_fit_are_encoded_again(monkeypatch, encoded, share, all_layers, numbers_per_slab):
    if numbers_per_slab is not None:
        monkeypatch.setattr(bertscore_tm.encoder.vector_cache, "_NUMBERS_PER_SLAB", numbers_per_slab)
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
    for batches in (BATCHES, LATER, BATCHES, BATCHES):
        epochs.append(epoch(metric, batches))
        again = {by_ids[row] for row in taken(encoded) - candidates_alone(encoder, batches)}
        kept = sizes.keys() - again
        assert sum(sizes[text] for text in kept) <= bytes_within(cache) <= budget
        # Ids take little, unless they keep those of a whole batch.
        assert bytes_within(cache, integers=True) == 8 * sum(len(rows[text]) for text in kept)
        if numbers_per_slab is None:
            # There is no room left for any of the others.
            assert all(sizes[text] > budget - sum(sizes[one] for one in kept) for text in again)
            assert (again == set()) == (share >= 1)
    assert_close(epochs[0], expected)
    assert_same(epochs[2], epochs[0])
    assert_same(epochs[3], epochs[0])
    assert_close(epochs[1], of_function(encoder, *LATER))


def test_nothing_is_evicted(encoded):
    encoder = own_encoder()
    old, new = BATCHES[:1], BATCHES[1:]
    budget = sum(bytes_of(encoder, text) for text in references(old))
    metric = BERTScore(encoder, cache_bytes=budget)
    for _ in range(3):
        epoch(metric, old)
        epoch(metric, new)
    encoded.clear()
    epoch(metric, old)
    assert taken(encoded) == candidates_alone(encoder, old)
    epoch(metric, new)
    (dropped,) = [set(target) - references(old) for _, target in new[1:2]]
    assert all(encoded[row] for row in ids(encoder, dropped))


def test_a_budget_of_zero_keeps_nothing(only_new, encoded):
    encoder = own_encoder()
    metric = BERTScore(encoder, cache_bytes=0)
    epoch(metric)
    before = live_bytes()
    encoded.clear()
    for _ in range(2):
        epoch(metric, LATER)
        assert taken(encoded) == everything(encoder, LATER)
    assert live_bytes() == before
    # Nor does it read what others keep.
    epoch(BERTScore(encoder))
    encoded.clear()
    epoch(metric)
    assert encoded == everything(encoder, BATCHES)


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
    assert_close(epoch(small, third), mean(of_function(encoder, *third)))
    assert bytes_within(encoder.cache(CPU)) == held


# --- who shares it


def logits_for(encoder: FrozenEncoder, rows: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    size = len(encoder.embedding_table(CPU))
    return torch.randn(rows, 5, size, generator=generator).requires_grad_()


def test_metrics_losses_and_callbacks_share_a_cache_by_name(tiny, encoded):
    metric = BERTScore(tiny, 2)
    epoch(metric)
    encoder = metric.encoder
    others: list[BERTScore] = [
        BERTScore(tiny, 2),
        BERTScore(tiny, -2, idf=True),
        BERTScore(FrozenEncoder(tiny + "/", num_layers=2), score="f1"),
        BERTScore(tiny, 2, batch_size=3, device="cpu", reduction="none"),
        BERTScore(tiny, 2, long_text="truncate"),
        metric.clone(),
        copy.deepcopy(metric),
        pickle.loads(pickle.dumps(metric)),
    ]
    for other in others:
        encoded.clear()
        epoch(other, LATER)
        assert encoded == candidates_alone(encoder, LATER)
    for loss in (SoftBERTScoreLoss(tiny, 2, cache_bytes=2**20), SoftBERTScoreLoss(metric.encoder, cache_bytes=1)):
        encoded.clear()
        for _, target in BATCHES:
            loss(logits_for(encoder, len(target)), target).backward()
        assert not encoded
    # A callback scores with copies.
    module = chooser((PREDS, TARGET), count=7)
    run = trainer(Path(tiny), [BERTScoreCallback(BERTScore(tiny, 2))], max_epochs=1)
    epoch(metric, [(PREDS[:7], TARGET[:7])])
    encoded.clear()
    run.validate(module, verbose=False)
    assert encoded
    chosen = [(preds, target) for _, preds, target in module.seen]
    # The callback encodes several batches together.
    assert encoded.keys() == candidates_alone(encoder, chosen).keys()


def test_losses_fill_the_cache_for_metrics(tiny, encoded):
    loss = SoftBERTScoreLoss(tiny, 2, cache_bytes=2**20)
    for _ in range(2):
        for _, target in BATCHES:
            loss(logits_for(loss.encoder, len(target)), target)
    assert taken(encoded) == ids(loss.encoder, references(BATCHES))
    epoch(BERTScore(tiny, 2))
    assert encoded == candidates_alone(loss.encoder, BATCHES)
    encoded.clear()
    off = SoftBERTScoreLoss(tiny, 2)
    for _, target in BATCHES:
        off(logits_for(loss.encoder, len(target)), target)
    assert encoded == sum((ids(loss.encoder, set(target)) for _, target in BATCHES), Counter())


@pytest.mark.parametrize(
    "options",
    [
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
        {"tokenizer": ...},
        {"revision": "main"},
    ],
    ids=str,
)
def test_other_settings_have_another_cache(tiny, encoded, options):
    # One that differs from another of these in the stride alone.
    held = [BERTScore(tiny, 2), BERTScore(tiny, 2, max_length=12, long_text="window", stride=3)]
    for metric in held:
        epoch(metric)
    if "tokenizer" in options:
        options = {"tokenizer": AutoTokenizer.from_pretrained(tiny)}
    encoder = FrozenEncoder(tiny, **{"num_layers": 2} | options)
    other = BERTScore(encoder, reduction="none")
    encoded.clear()
    first = epoch(other)
    assert taken(encoded) == candidates_alone(encoder, BATCHES) + ids(encoder, references(BATCHES))
    # In bfloat16 a text's neighbours in its batch change the third digit.
    assert_close(first, of_function(encoder, *BATCHES), 2e-3 if options.get("dtype") == "bfloat16" else TOLERANCE)
    for metric in held:
        encoded.clear()
        epoch(metric)
        assert encoded == candidates_alone(metric.encoder, BATCHES)


def test_ready_models_share_a_cache_by_object(encoded):
    """Two models of one class, and a model and its copy, have different caches."""
    ready, tokenizer = tiny_model("bert")
    ready = copy.deepcopy(ready)
    other = copy.deepcopy(ready)
    torch.nn.init.normal_(other.embeddings.word_embeddings.weight, std=0.7)
    metrics = [BERTScore(model=one, user_tokenizer=tokenizer, num_layers=2) for one in (ready, other, ready)]
    scores = []
    for metric, known in zip(metrics, (False, False, True), strict=True):
        encoded.clear()
        scores.append(epoch(metric))
        new = Counter() if known else ids(metric.encoder, references(BATCHES))
        assert encoded == candidates_alone(metric.encoder, BATCHES) + new
    assert_same(scores[0], scores[2])
    assert not torch.allclose(scores[0]["f1"], scores[1]["f1"], atol=1e-3)


def scaled_forward(model: torch.nn.Module, inputs: dict[str, Tensor]) -> Tensor:
    return model(**inputs).last_hidden_state


def other_forward(model: torch.nn.Module, inputs: dict[str, Tensor]) -> Tensor:
    hidden: Tensor = model(**inputs).last_hidden_state
    return hidden.roll(1, dims=-1) + hidden


def test_forward_functions_have_their_own_cache():
    ready, tokenizer = tiny_model("bert")
    scores = []
    for function in (scaled_forward, other_forward, scaled_forward):
        encoder = FrozenEncoder(ready, tokenizer, forward_fn=function)
        scores.append(epoch(BERTScore(encoder, reduction="none")))
        assert_close(scores[-1], of_function(encoder, *BATCHES))
    assert_close(scores[0], scores[2])
    assert not torch.allclose(scores[0]["f1"], scores[1]["f1"], atol=1e-3)


def test_a_collection_encodes_each_batch_once_in_every_epoch(tiny, encoded):
    encoder = FrozenEncoder(tiny, num_layers=3, all_layers=True)
    collection = MetricCollection(
        {
            "plain": BERTScore(encoder, 2),
            "idf": BERTScore(encoder, 2, idf=True),
            "every": BERTScore(encoder),
            "first": BERTScore(encoder, 1, reduction="none"),
            "f1": BERTScore(encoder, 3, score="f1"),
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


# --- training and inference mode


def gradient(loss: SoftBERTScoreLoss, target: Sequence[str]) -> tuple[Tensor, Tensor]:
    logits = logits_for(loss.encoder, len(target))
    value = loss(logits, target)
    value.backward()
    assert logits.grad is not None
    return value.detach(), logits.grad


def test_a_loss_uses_what_a_validation_has_cached(tiny, encoded):
    metric = BERTScore(tiny, 2)
    loss, off = (SoftBERTScoreLoss(tiny, 2, cache_bytes=size) for size in (2**20, 0))
    target = BATCHES[0][1]
    with torch.inference_mode():
        metric.update(*BATCHES[0])
        # The loss of a validation keeps references too.
        loss(logits_for(loss.encoder, 1).detach(), [TARGET[8]])
    encoded.clear()
    # Known and unknown texts, known ones alone, unknown ones alone.
    for texts in ([*target, TARGET[7]], target, [TARGET[8], TARGET[7]], [TARGET[6]]):
        found, expected = gradient(loss, texts), gradient(off, texts)
        assert expected[1].abs().max() > 0
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=1e-5 * other.abs().max().item())
            assert not one.is_inference()
    assert encoded[next(iter(ids(loss.encoder, [TARGET[7]])))] == 1 + 2
    with torch.inference_mode():
        found_again = metric.compute()
    assert_close(found_again, mean(of_function(metric.encoder, BATCHES[0])))


@pytest.mark.parametrize("idf", [False, True])
@pytest.mark.parametrize("filled_in", [False, True])
def test_with_and_without_inference_mode(tiny, encoded, filled_in, idf):
    metric = BERTScore(tiny, 2, idf=idf, reduction="none")
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
    other = BERTScore(tiny, 2, idf=idf, reduction="none")
    with torch.inference_mode(not filled_in):
        other.update(*BATCHES[0])
    assert encoded == candidates_alone(metric.encoder, BATCHES[:1])
    assert_same(other.compute(), metric.compute())


@pytest.mark.parametrize("inference_mode", [True, False])
def test_references_of_all_epochs_of_a_training_are_encoded_once(tiny, tmp_path, encoded, inference_mode):
    module = chooser((PREDS, TARGET), kind=WithLoss, count=9)
    module.loss_fn = SoftBERTScoreLoss(tiny, 2, cache_bytes=2**20)
    callback = BERTScoreCallback(BERTScore(tiny, 2, idf=True))
    run = trainer(tmp_path, [callback], max_epochs=2, num_sanity_val_steps=1, inference_mode=inference_mode)
    run.fit(module)
    assert module.checked_epochs == 2
    run.test(module, verbose=False)
    assert len(module.scored) > 3 * 5
    wanted = ids(module.loss_fn.encoder, TARGET)
    assert all(encoded[row] == 1 for row in wanted)
    # The callback encodes several batches together.
    assert encoded.keys() == (wanted + candidates_alone(module.loss_fn.encoder, module.scored)).keys()
    assert len(callback.metric.encoder.cache(CPU)) == len(TARGET)


class WithLoss(Chooser):
    """Trains with the loss against the same references."""

    loss_fn: SoftBERTScoreLoss
    checked_epochs = 0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.scored: list[tuple[list[str], list[str]]] = []

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        size = len(self.loss_fn.encoder.embedding_table(CPU))
        chosen = self.net(self.inputs[batch])
        logits = torch.nn.functional.pad(chosen, (0, size - chosen.shape[1]))[:, None].expand(-1, 3, -1)
        loss: Tensor = self.loss_fn(logits, [self.references[i] for i in batch.tolist()])
        return loss

    def evaluation_step(self, batch: Tensor, batch_idx: int, dataloader_idx: int = 0) -> dict[str, Any]:
        preds, target = self.choose(batch)
        self.scored.append((preds, target))
        return {"preds": preds, "target": target}

    validation_step = evaluation_step
    test_step = evaluation_step

    def val_dataloader(self) -> list[DataLoader[int]]:
        return [loader(7), loader(4, first=2)]

    test_dataloader = val_dataloader

    def on_train_epoch_end(self) -> None:
        self.checked_epochs += 1


# --- what carries it, and how long it lives


def test_pickles_copies_and_checkpoints_hold_no_vectors(tiny, only_new):
    metric, loss = BERTScore(tiny, 2, cache_bytes=0), SoftBERTScoreLoss(tiny, 2)

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


def test_a_checkpoint_of_a_training_holds_no_vectors(tiny, tmp_path):
    paths = {}
    for name, cache_bytes in (("with", 2**30), ("without", 0)):
        module = chooser((PREDS, TARGET))
        module.metric = BERTScore(tiny, 2, cache_bytes=cache_bytes)
        callback = BERTScoreCallback(module.metric)
        run = trainer(tmp_path, [callback], max_epochs=1)
        run.fit(module)
        paths[name] = tmp_path / f"{name}.ckpt"
        run.save_checkpoint(paths[name])
    assert len(module.metric.encoder.cache(CPU)) > 0
    assert abs(paths["with"].stat().st_size - paths["without"].stat().st_size) < 1000


@pytest.mark.parametrize("kind", ["name", "ready"])
def test_the_cache_is_dropped_with_the_last_encoder(only_new, tiny, kind):
    if kind == "name":
        first, second = BERTScore(tiny, 2), SoftBERTScoreLoss(tiny, 2, cache_bytes=2**20)
    else:
        encoder = own_encoder()
        first, second = BERTScore(encoder), SoftBERTScoreLoss(encoder, cache_bytes=2**20)
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
    assert kept >= sum(bytes_of(loss_encoder, text) for text in references(BATCHES))
    del second, loss_encoder
    gc.collect()
    assert cache() is None
    assert live_bytes() <= before


def test_a_trained_model_has_another_cache(encoded):
    """The vectors of an earlier state of a ready model are dropped with its last encoder."""
    ready, tokenizer = tiny_model("bert")
    ready = copy.deepcopy(ready)
    first = epoch(BERTScore(model=ready, user_tokenizer=tokenizer, num_layers=2))
    gc.collect()
    torch.nn.init.normal_(ready.embeddings.word_embeddings.weight, std=0.7)
    metric = BERTScore(model=ready, user_tokenizer=tokenizer, num_layers=2)
    encoded.clear()
    second = epoch(metric)
    assert encoded == candidates_alone(metric.encoder, BATCHES) + ids(metric.encoder, references(BATCHES))
    assert not torch.allclose(first["f1"], second["f1"], atol=1e-3)


def test_the_function_keeps_no_vectors(only_new, tiny, encoded):
    encoder = FrozenEncoder(tiny, num_layers=2)
    of_function(encoder, *BATCHES)
    before, vectors = live_bytes(), len(live_vectors())
    encoded.clear()
    for options in ({}, {"idf": True}, {"idf_sents": TARGET}):
        of_function(encoder, *BATCHES, **options)
        assert len(live_vectors()) == vectors
        assert live_bytes() == before
    bert_score(*BATCHES[0], tiny, 3, device="cpu")
    assert live_bytes() == before
    # It reads nothing either: its texts go through the model whatever a metric has kept.
    epoch(BERTScore(encoder))
    encoded.clear()
    of_function(encoder, *BATCHES)
    assert encoded == everything(encoder, [(flat(p for p, _ in BATCHES), flat(t for _, t in BATCHES))])


# --- several threads


def run_threads(*functions: Any) -> None:
    """Run functions in threads that switch as often as possible."""
    start, failed = threading.Barrier(len(functions)), []

    def guarded(function: Any) -> None:
        start.wait()
        try:
            function()
        except Exception as error:  # noqa: BLE001
            failed.append(error)

    threads = [threading.Thread(target=guarded, args=(function,)) for function in functions]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert failed == []


@pytest.mark.parametrize("share", [0, 0.5, 2])
def test_threads(tiny, share):
    """Metrics of several threads, with the same references in different batches and orders."""
    encoder = FrozenEncoder(tiny, num_layers=2)
    expected = of_function(encoder, *BATCHES)
    budget = int(share * sum(bytes_of(encoder, text) for text in references(BATCHES)))
    starts = [sum(len(preds) for preds, _ in BATCHES[:i]) for i in range(len(BATCHES))]
    found: list[dict[str, Tensor]] = []

    def score(thread: int) -> None:
        metric = BERTScore(tiny, 2, reduction="none", cache_bytes=budget)
        order = random.Random(thread).sample(range(len(BATCHES)), len(BATCHES))
        for _ in range(3):
            for i in order:
                metric.update(*BATCHES[i], indices=range(starts[i], starts[i] + len(BATCHES[i][0])))
            found.append(metric.compute())
            metric.reset()

    run_threads(*(partial(score, thread) for thread in range(4)))
    assert len(found) == 12
    for scores in found:
        assert_close(scores, expected)
    assert bytes_within(encoder.cache(CPU)) <= budget


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


# --- batches


@pytest.mark.parametrize("cache_bytes", [0, 2**20])
def test_a_metric_keeps_no_vectors(only_new, cache_bytes):
    encoder = own_encoder()
    before = len(live_vectors())
    metric, other = BERTScore(encoder, cache_bytes=cache_bytes), BERTScore(encoder, idf=True, cache_bytes=cache_bytes)
    for one in (metric, other):
        one.update(*BATCHES[0])
        one(*BATCHES[1])
    assert len(live_vectors()) == before
    assert_close(metric.compute(), mean(of_function(encoder, *BATCHES[:2])))


SIMILAR = [
    ([PREDS[0], PREDS[1]], [[TARGET[0], TARGET[1]], [TARGET[2]]]),
    ([PREDS[0], PREDS[1]], [[TARGET[0]], [TARGET[1], TARGET[2]]]),
    ([PREDS[1], PREDS[0]], [[TARGET[0]], [TARGET[1], TARGET[2]]]),
    ([PREDS[0], PREDS[1]], [[TARGET[0]], [TARGET[1]]]),
    ([PREDS[0], PREDS[1]], [TARGET[0], TARGET[1]]),
    ([TARGET[0], TARGET[1]], [PREDS[0], PREDS[1]]),
    ([PREDS[0]], [TARGET[0]]),
    ([PREDS[0] + " "], [TARGET[0]]),
    ([], []),
]


@pytest.fixture(scope="module")
def similar() -> tuple[FrozenEncoder, list[dict[str, Tensor]]]:
    encoder = own_encoder(num_layers=3, all_layers=True)
    return encoder, [of_function(encoder, batch) for batch in SIMILAR]


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    steps=st.lists(
        st.tuples(
            st.integers(0, 3),
            st.integers(0, len(SIMILAR) - 1),
            st.sampled_from(["update", "forward", "update", "compute"]),
        ),
        min_size=4,
        max_size=14,
    ),
    cache_bytes=st.sampled_from([0, 3000, 2**20]),
)
def test_similar_batches_are_never_mixed(similar, steps, cache_bytes):
    encoder, expected = similar
    layers = [None, 1, 3, 1]
    metrics = [BERTScore(encoder, layer, reduction="none", cache_bytes=cache_bytes) for layer in layers]
    seen: list[list[int]] = [[] for _ in metrics]
    with warnings.catch_warnings():
        # Of torchmetrics, when there was no update.
        warnings.simplefilter("ignore")
        for which, batch, how in [*steps, *((which, 0, "compute") for which in range(4))]:
            if how != "compute":
                getattr(metrics[which], how)(*SIMILAR[batch])
                seen[which].append(batch)
                continue
            found = metrics[which].compute()
            for name in SCORES:
                every = torch.cat([torch.zeros(4, 0), *(expected[i][name] for i in seen[which])], dim=-1)
                wanted = every if layers[which] is None else every[layers[which]]
                torch.testing.assert_close(found[name], wanted, rtol=0, atol=TOLERANCE)


def test_lists_changed_by_their_owner(encoded):
    encoder = own_encoder()
    first, second = BERTScore(encoder, reduction="none"), BERTScore(encoder, reduction="none")
    preds, target = [PREDS[0], PREDS[1]], [[TARGET[0]], [TARGET[1]]]
    first.update(preds, target)
    preds[0], target[1][0] = PREDS[2], TARGET[2]
    second.update(preds, target)
    target[0].append(TARGET[3])
    second.update(preds, target)
    assert_close(first.compute(), of_function(encoder, (PREDS[:2], TARGET[:2])))
    changed = (preds, [[TARGET[0]], [TARGET[2]]])
    assert_close(second.compute(), of_function(encoder, changed, (preds, target)))


class FailedError(Exception):
    pass


@pytest.mark.parametrize("at", [1, 3])
@pytest.mark.parametrize("cache_bytes", [0, 2**20])
def test_an_error_while_encoding_leaves_complete_states(monkeypatch, at, cache_bytes):
    """The model fails at one of its forward passes: of references, or of candidates with cached references."""
    encoder = own_encoder(batch_size=2)
    batches = [BATCHES[0], LATER[1]]
    expected = of_function(encoder, *batches)
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


def test_refused_texts_leave_complete_states(encoded):
    long = len(next(iter(ids(own_encoder(), [LONG]))))
    encoder = own_encoder(long_text="error", max_length=long - 1)
    metrics = [BERTScore(encoder, reduction="none") for _ in range(2)]
    good, bad = BATCHES[0], (PREDS[:2], [TARGET[0], LONG])
    metrics[0].update(*good)
    for metric in (*metrics, metrics[0]):
        with pytest.raises(ValueError, match="the limit is"):
            metric.update(*bad)
        with pytest.raises(ValueError, match="equal lengths"):
            metric.update(good[0], good[1][:1])
    encoded.clear()
    metrics[1].update(*good)
    # Its references are cached since the first metric.
    assert encoded == candidates_alone(encoder, [good])
    for metric in metrics:
        assert_close(metric.compute(), of_function(encoder, good))


# --- on a GPU

gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@gpu
def test_on_a_gpu_memory_is_pinned_and_vectors_are_the_same(tiny, encoded):
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
        for one in (found.vectors, found.ids, found.lengths, found.has_content):
            assert one.device == device
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


@gpu
@pytest.mark.parametrize("where", ["moved", "encodes there"])
@pytest.mark.parametrize("idf", [False, True])
def test_on_a_gpu_later_epochs_are_the_same(model, encoded, idf, where):
    options = {"idf": idf, "reduction": "none"}
    metric = (
        BERTScore(model, 2, device="cuda", **options) if where != "moved" else BERTScore(model, 2, **options).cuda()
    )
    first = epoch(metric)
    assert taken(encoded) == candidates_alone(metric.encoder, BATCHES) + ids(metric.encoder, references(BATCHES))
    for _ in range(2):
        assert_same(epoch(metric), first)
        assert taken(encoded) == candidates_alone(metric.encoder, BATCHES)
    on_cpu = epoch(BERTScore(metric.encoder, device="cpu", **options))
    assert_close({name: value.cpu() for name, value in first.items()}, on_cpu, 1e-4)


@gpu
def test_on_a_gpu_streams_read_complete_vectors(tiny):
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


@gpu
def test_on_a_gpu_a_loss_reads_what_a_validation_has_cached(tiny, encoded):
    metric = BERTScore(tiny, 2, device="cuda")
    loss, off = (SoftBERTScoreLoss(tiny, 2, cache_bytes=size) for size in (2**20, 0))
    with torch.inference_mode():
        epoch(metric)
    target = BATCHES[0][1]
    values = []
    for one in (loss, off):
        logits = logits_for(metric.encoder, len(target)).detach().cuda().requires_grad_()
        encoded.clear()
        one(logits, target).backward()
        assert bool(encoded) == (one is off)
        assert logits.grad is not None
        values.append(logits.grad)
    torch.testing.assert_close(*values, rtol=0, atol=1e-3 * values[1].abs().max().item())
