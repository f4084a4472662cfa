"""The vector cache: which texts are encoded in each epoch, and which vectors stay in memory."""

from __future__ import annotations

import threading
import warnings
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer, BertModel

from bertscore_tm import BERTScore, FrozenEncoder
from bertscore_tm.core.token_vectors import TokenVectors
from bertscore_tm.encoder.vector_cache import VectorCache
from tests.support.cached_texts import (
    BATCHES,
    CPU,
    LATER,
    PREDS,
    SEVERAL,
    TARGET,
    TOLERANCE,
    assert_close,
    assert_same,
    bytes_of,
    bytes_within,
    candidates_alone,
    epoch,
    everything,
    flat,
    ids,
    live_bytes,
    live_vectors,
    mean,
    of_function,
    own_encoder,
    references,
    taken,
)

pytestmark = pytest.mark.usefixtures("one_thread")

# Epochs.

KINDS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "mean": ({}, {}),
    "idf per pair": ({}, {"idf": True, "reduction": "none"}),
    "idf of a corpus": ({}, {"idf": TARGET[3:]}),
    "all layers, idf": ({"all_layers": True}, {"idf": True, "reduction": "none"}),
    "a layer of all": ({"all_layers": True}, {"layer": 1, "reduction": "none"}),
    "windows, all layers": ({"long_text": "window", "max_length": 10, "stride": 3, "all_layers": True}, {}),
    "small batches": ({"batch_size": 2}, {"reduction": "none"}),
    "confidence": ({}, {"confidence": 0.9}),
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
        expected = of_function(encoder, *batches, **idf)
        assert_close(first, expected if options.get("reduction") == "none" else mean(expected))


@pytest.mark.filterwarnings("ignore:.* candidates? score:UserWarning")
@pytest.mark.parametrize(
    "batches",
    [
        [([PREDS[0]] * 3, [TARGET[0], f" {TARGET[0]}\n", TARGET[0].upper()])],
        [(["", PREDS[0], " "], [TARGET[0], "", "\n"]), ([PREDS[1]], [["", TARGET[1]]])],
    ],
)
def test_texts_tokenized_alike_and_empty_texts(tiny, batches):
    metric = BERTScore(FrozenEncoder(tiny, num_layers=2), reduction="none")
    first = epoch(metric, batches)
    assert_close(first, of_function(metric.encoder, *batches))
    assert_same(epoch(metric, batches), first)


def test_truncated_references_are_counted_in_every_epoch(tiny):
    metric = BERTScore(FrozenEncoder(tiny, num_layers=2, max_length=8))
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
    assert_close(epochs[1], of_function(encoder, *LATER))


@pytest.mark.parametrize("user", ["metric", "function", "function with idf", "function with the idf of a corpus"])
def test_a_budget_of_zero_and_the_function_keep_nothing(only_new, encoded, user):
    encoder = own_encoder()
    metric = BERTScore(encoder, cache_bytes=0)
    idf = {"function with idf": True, "function with the idf of a corpus": TARGET}.get(user, False)

    def use() -> None:
        epoch(metric) if user == "metric" else of_function(encoder, *BATCHES, idf=idf)

    together = [(flat(p for p, _ in BATCHES), flat(t for _, t in BATCHES))]
    expected = everything(encoder, BATCHES if user == "metric" else together)
    use()
    before = live_bytes(), len(live_vectors())
    encoded.clear()
    use()
    assert encoded == expected
    assert (live_bytes(), len(live_vectors())) == before
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
    assert_close(epoch(small, third), mean(of_function(encoder, *third)))
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
