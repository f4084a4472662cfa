"""The vector cache: which texts are encoded again, which vectors stay in memory, and who shares them."""

import copy
import gc
import pickle
import weakref
from collections import Counter

import pytest
import torch
from transformers import AutoTokenizer

from bertscore_tm import BERTScore, FrozenEncoder
from bertscore_tm.encoder.cache import VectorCache
from bertscore_tm.losses import BERTScoreReward, SoftBERTScoreLoss
from tests.support.metrics import assert_equal, mean, per_pair
from tests.support.models import counted_texts, save_tiny_model, tiny_model, windows_of
from tests.support.oracle import flat
from tests.support.texts import real_pairs

CPU = torch.device("cpu")
COUNT = 9

# Real texts, cut short, as they are encoded many times.
PREDS, TARGET = real_pairs(COUNT, words=9)
LONG = " ".join(TARGET[:2])

# Some texts come twice in a batch or in two; some candidates equal a reference of their own batch, or of one before or
# after it.
BATCHES = [
    ([PREDS[0], PREDS[1], PREDS[0]], [TARGET[0], TARGET[1], TARGET[1]]),
    ([TARGET[2], PREDS[2], TARGET[0]], [TARGET[2], TARGET[3], TARGET[4]]),
    ([TARGET[5], PREDS[4]], [TARGET[6], TARGET[0]]),
    ([PREDS[1], PREDS[5]], [TARGET[5], LONG]),
]

MULTIPLE = [
    (preds, [[text, TARGET[i]] if i % 2 else [text] for i, text in enumerate(target)]) for preds, target in BATCHES
]

# Other candidates for the same references.
LATER = [([PREDS[(i + k + 3) % COUNT] for k in range(len(target))], target) for i, (_, target) in enumerate(BATCHES)]


def token_ids(encoder, *groups):
    """Ids that the model gets when each group's distinct texts are encoded: of whole texts, or of their windows."""
    windows = (windows_of(encoder.tokenizer([*{*group}]), encoder.tokenizer) for group in groups)
    return Counter(tuple(ids) for of_group in windows for ids, _ in of_group)


def candidates_alone(encoder, batches):
    """Token ids that the model gets when all references are cached."""
    return token_ids(encoder, *({*preds} - {*flat(target)} for preds, target in batches))


def references(batches):
    return {text for _, target in batches for text in flat(target)}


def taken(counts):
    """Return the counts so far, and reset them."""
    so_far = Counter(counts)
    counts.clear()
    return so_far


def epoch(metric, batches=BATCHES):
    """The scores of an epoch."""
    for preds, target in batches:
        metric.update(preds, target)
    scores = metric.compute()
    metric.reset()
    return scores


def own_encoder(**options):
    """An encoder of a tiny model that no other test uses."""
    return FrozenEncoder(*copy.deepcopy(tiny_model("bert")), **{"num_layers": 2} | options)


def logits_for(encoder, rows):
    generator = torch.Generator().manual_seed(0)
    return torch.randn(rows, 5, encoder.config.vocab_size, generator=generator).requires_grad_()


def bytes_of(encoder, text):
    """Memory of a text's token vectors in float32."""
    return 4 * int(encoder.config.hidden_size) * encoder.num_outputs * len(encoder.tokenizer([text]).rows()[0])


@pytest.fixture
def encoded():
    """Count how often the model gets each text, by its token ids."""
    with counted_texts() as counts:
        yield counts


@pytest.fixture
def tiny(tmp_path):
    """A tiny model in a new folder."""
    return save_tiny_model("bert", tmp_path / "tiny")


KINDS = {
    "mean": ({}, {}),
    "idf per pair": ({}, {"idf": True, "reduction": "none"}),
    "idf of a corpus": ({}, {"idf": TARGET[3:]}),
    "a layer of all": ({"all_layers": True}, {"layer": 1, "reduction": "none"}),
    "windows, all layers": ({"long_text": "window", "max_length": 8, "all_layers": True}, {}),
}


@pytest.mark.parametrize(
    ("kind", "has_multiple"), [(kind, number % 2 > 0) for number, kind in enumerate(KINDS)] + [("mean", True)]
)
def test_later_epochs_encode_candidates_only_and_score_the_same(tiny, encoded, kind, has_multiple):
    of_encoder, options = KINDS[kind]
    batches = MULTIPLE if has_multiple else BATCHES
    encoder = FrozenEncoder(tiny, num_layers=2, **of_encoder)
    metric = BERTScore(encoder, **options)
    off = BERTScore(encoder, cache_bytes=0, **options)
    first = epoch(metric, batches)
    alone = candidates_alone(encoder, batches)

    assert taken(encoded) == alone + token_ids(encoder, references(batches))
    assert_equal(epoch(metric, batches), first, 0)
    assert taken(encoded) == alone
    assert_equal(epoch(off, batches), first)
    # Each batch's distinct texts, when nothing is cached.
    assert taken(encoded) == token_ids(encoder, *([*preds, *flat(target)] for preds, target in batches)) != alone
    if not of_encoder.get("all_layers"):
        expected = per_pair(encoder, *batches, idf=options.get("idf", False))
        assert_equal(first, expected if options.get("reduction") == "none" else mean(expected))


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


@pytest.mark.parametrize(("share", "all_layers"), [(0.003, False), (0.35, False), (0.999, True), (1, False)])
def test_texts_that_do_not_fit_are_encoded_again(encoded, share, all_layers):
    encoder = own_encoder(all_layers=all_layers)
    expected = epoch(BERTScore(encoder, cache_bytes=0, reduction="none"))
    sizes = {text: bytes_of(encoder, text) for text in references(BATCHES)}
    rows = {next(iter(token_ids(encoder, [text]))): text for text in sizes}
    budget = int(share * sum(sizes.values()))
    metric = BERTScore(encoder, cache_bytes=budget, reduction="none")
    cache = encoder.cache(CPU)

    assert_equal(epoch(metric), expected)
    encoded.clear()
    for batches in (BATCHES, LATER):
        scores = epoch(metric, batches)
        again = {rows[row] for row in taken(encoded) - candidates_alone(encoder, batches)}
        assert sum(size for text, size in sizes.items() if text not in again) <= cache.num_bytes <= budget
        assert (again == set()) == (share == 1)
        assert_equal(scores, per_pair(encoder, *batches) if not all_layers else epoch(metric, batches))
        encoded.clear()


def test_a_part_of_a_batch_keeps_no_memory_of_the_whole():
    encoder = own_encoder()
    vectors = encoder.encode(TARGET)
    cache = VectorCache()
    cache.add(TARGET, vectors, bytes_of(encoder, TARGET[0]))
    (entry,) = cache.get(TARGET).values()

    assert entry.vectors.untyped_storage().nbytes() == cache.num_bytes == bytes_of(encoder, TARGET[0])
    assert torch.equal(entry.vectors, vectors.vectors[:, : len(entry.texts.ids)])
    # Texts that follow those to be cached are part of the batch only.
    cache = VectorCache()
    cache.add(TARGET[:2], vectors, max_bytes=2**20)
    cached = cache.get(TARGET)
    assert list(cached) == TARGET[:2]
    num_tokens = vectors.texts.lengths[:2].sum()
    assert torch.equal(torch.cat([part.vectors for part in cached.values()], 1), vectors.vectors[:, :num_tokens])
    assert cached[TARGET[0]].vectors.untyped_storage().nbytes() == cache.num_bytes


def test_the_function_neither_keeps_nor_reads(encoded):
    encoder = own_encoder()
    expected = token_ids(encoder, flat(side for batch in BATCHES for side in batch))

    for _ in range(2):
        encoded.clear()
        per_pair(encoder, *BATCHES)
        assert encoded == expected
        # What others keep is not read the second time.
        epoch(BERTScore(encoder))


def test_metrics_share_a_cache_by_name(tiny, encoded):
    metric = BERTScore(FrozenEncoder(tiny, num_layers=2))
    epoch(metric)
    unpickled = pickle.loads(pickle.dumps(metric))

    assert not unpickled.encoder._caches  # pickles hold no vectors
    for other in (BERTScore(FrozenEncoder(tiny, num_layers=-2), idf=True), copy.deepcopy(metric), unpickled):
        encoded.clear()
        epoch(other, LATER)
        assert encoded == candidates_alone(metric.encoder, LATER)


def test_losses_and_rewards_share_a_cache_without_metrics(tiny, encoded):
    epoch(BERTScore(FrozenEncoder(tiny, num_layers=2)))
    encoded.clear()
    loss = SoftBERTScoreLoss(FrozenEncoder(tiny, num_layers=2), cache_bytes=2**20)
    for _ in range(2):
        for _, target in BATCHES:
            loss(logits_for(loss.encoder, len(target)), target)

    assert taken(encoded) == token_ids(loss.encoder, references(BATCHES))
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
    assert encoded == token_ids(loss.encoder, *(target for _, target in BATCHES))


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
    settings = [
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


def gradient(loss, target):
    logits = logits_for(loss.encoder, len(target))
    value = loss(logits, target)
    return value.detach(), *torch.autograd.grad(value, logits)


def test_a_loss_uses_what_it_has_cached_in_a_validation(tiny, encoded):
    target = BATCHES[0][1]
    off = SoftBERTScoreLoss(FrozenEncoder(tiny, num_layers=2), cache_bytes=0)
    with torch.inference_mode():
        loss = SoftBERTScoreLoss(FrozenEncoder(tiny, num_layers=2), cache_bytes=2**20)
        loss(logits_for(loss.encoder, len(target) + 1).detach(), [*target, TARGET[8]])
    encoded.clear()

    # Known and unknown texts, known ones alone, unknown ones alone.
    for texts in ([*target, TARGET[7]], target, [TARGET[8], TARGET[7]], [TARGET[6]]):
        results = gradient(loss, texts)
        expected = gradient(off, texts)
        assert expected[1].abs().max() > 0
        for result, wanted in zip(results, expected, strict=True):
            torch.testing.assert_close(result, wanted, rtol=0, atol=1e-5 * wanted.abs().max().item())
            assert not result.is_inference()

    assert encoded[next(iter(token_ids(loss.encoder, [TARGET[7]])))] == 1 + 2


@pytest.mark.parametrize("kind", ["name", "ready"])
def test_the_cache_is_dropped_with_the_last_encoder(tiny, kind):
    if kind == "name":
        encoders = [FrozenEncoder(tiny, num_layers=2) for _ in range(2)]
    else:
        encoders = [own_encoder()] * 2
    first = BERTScore(encoders[0])
    second = SoftBERTScoreLoss(encoders[1])
    del encoders
    epoch(first)
    # The latest batch does not keep it either.
    first.update(BATCHES[0][0], BATCHES[0][1])
    cache = weakref.ref(first.encoder.cache(CPU))

    assert second.encoder.cache(CPU) is cache()
    del first
    gc.collect()
    assert cache() is not None
    del second
    gc.collect()
    assert cache() is None
