"""A corpus is divided into steps of bounded memory, in which each distinct text is encoded once."""

from itertools import chain
from threading import Event

import bert_score as oracle
import pytest
import torch

from bertscore_tm import BERTScore, FrozenEncoder, bert_score
from bertscore_tm.encoder.cache import VectorCache
from bertscore_tm.scoring import corpus
from bertscore_tm.scoring.corpus import plan_steps
from bertscore_tm.scoring.inputs import TextPairs
from tests.support.models import counted_texts
from tests.support.texts import count_rows, real_pairs

CANDIDATES = ["aaaa", "bbbb", "cccc", "dddd"]
LAYER = 5
TOLERANCE = 1e-6
CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("references", "sizes"), [(["eeee", "ffff", "gggg", "hhhh"], [2, 2]), (["eeee", "eeee", "eeee", "eeee"], [3, 1])]
)
def test_steps_are_full(encoder, monkeypatch, references, sizes):
    # A text counts as two tokens for its characters and two special ones, and equal references as one text.
    monkeypatch.setattr(corpus, "_ELEMENTS_PER_STEP", 4 * 4 * encoder.config.hidden_size)
    texts = TextPairs(CANDIDATES, [[reference] for reference in references])

    steps = plan_steps(texts, encoder)

    assert [len(step) for step in steps] == sizes


@pytest.fixture
def repeated(monkeypatch, encoder):
    """Pairs of a few texts, in an order in which most texts come again in other steps."""
    monkeypatch.setattr(corpus, "_ELEMENTS_PER_STEP", 384 * 100)
    texts = list(chain(*real_pairs(8, words=6)))
    candidates = [texts[i * 5 % 16] for i in range(80)]
    references = [[texts[(i * 7 + i // 16) % 16]] for i in range(80)]
    references[3] = [texts[0], texts[4], texts[0]]
    assert len(plan_steps(TextPairs(candidates, references), encoder)) > 5
    return candidates, references


def test_the_next_step_is_tokenized_while_one_is_encoded(encoder, repeated):
    """A thread tokenizes it, and the token ids are those that the texts have."""
    texts = TextPairs(*repeated)
    parts = [texts.select(step) for step in plan_steps(texts, encoder)]
    waiting = [Event() for _ in parts]
    begun = list(waiting)
    encoded_rows = []

    def tokenize(batch):
        waiting.pop(0).set()
        return encoder.tokenizer(batch)

    def encode(tokenized, device):
        encoded_rows.extend(tokenized.rows())
        return encoder.encode(tokenized, device)

    def encode_part(part, encode_step):
        """Encode a part, of whose texts no vectors are cached."""
        encoder.cache("cpu").clear()
        return corpus.encode_texts(part, encode_step, CPU, encoder.reference_cache("cpu", 2**20))

    steps = corpus._tokenize_ahead(parts, tokenize, encode)
    for number, (part, encode_step) in enumerate(zip(parts, steps, strict=True)):
        # While this loop works on a step, the thread tokenizes the next one.
        is_last = number + 1 == len(parts)
        assert is_last or begun[number + 1].wait(60)
        expected = encode_part(part, encoder.encode)
        encoded_rows.clear()

        encoded = encode_part(part, encode_step)

        assert encoded_rows == encoder.tokenizer(list(encoded.indices)).rows()
        assert encoded.indices == expected.indices
        assert torch.equal(encoded.vectors.vectors, expected.vectors.vectors)

    encoder.cache("cpu").clear()


def test_each_distinct_text_is_encoded_once_per_call(encoder, minilm, repeated):
    expected = oracle.score(*repeated, model_type=minilm, num_layers=LAYER)

    with counted_texts() as encoded:
        result = bert_score(*repeated, encoder)

    assert encoded == count_rows(encoder, *repeated)
    torch.testing.assert_close(tuple(result.values()), expected, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("cache_bytes", [0, 2**28])
def test_each_distinct_text_is_encoded_once_per_update(encoder, minilm, repeated, cache_bytes):
    uncached = FrozenEncoder(minilm, num_layers=LAYER, max_length=500)  # has a cache that no other test fills
    metric = BERTScore(uncached, reduction="none", cache_bytes=cache_bytes)

    with counted_texts() as encoded:
        metric.update(*repeated)

    assert encoded == count_rows(encoder, *repeated)
    torch.testing.assert_close(metric.compute(), bert_score(*repeated, encoder), atol=TOLERANCE, rtol=0)


@pytest.mark.usefixtures("repeated")  # has short steps
def test_the_next_update_encodes_no_cached_reference(encoder, minilm):
    candidates, texts = real_pairs(80, words=6)
    references = [[texts[i % 8]] for i in range(80)]
    uncached = FrozenEncoder(minilm, num_layers=LAYER, max_length=499)  # has a cache that no other test fills
    metric = BERTScore(uncached, reduction="none", cache_bytes=2**28)
    metric.update(candidates, references)

    # The same batch again would not even be matched again.
    with counted_texts() as encoded:
        metric.update(candidates[::-1], references[::-1])

    assert encoded == count_rows(encoder, candidates, [])


def test_vectors_of_repeated_texts_take_bounded_memory(encoder, repeated, monkeypatch):
    expected = bert_score(*repeated, encoder)["f1"]
    limit = 384 * 4 * 30
    sizes = []
    add = VectorCache.add

    def watched(cache, *args):
        add(cache, *args)
        sizes.append(cache.num_bytes)

    monkeypatch.setattr(corpus, "_BYTES_OF_REPEATED_TEXTS", limit)
    monkeypatch.setattr(VectorCache, "add", watched)

    with counted_texts() as encoded:
        result = bert_score(*repeated, encoder)["f1"]

    assert 0 < max(sizes) <= limit
    # Some texts are kept, the others are encoded in each of their steps.
    assert min(encoded.values()) == 1 < max(encoded.values())
    torch.testing.assert_close(result, expected, atol=TOLERANCE, rtol=0)


def test_without_repeated_texts_nothing_is_kept(encoder, monkeypatch):
    monkeypatch.setattr(corpus, "_ELEMENTS_PER_STEP", 384 * 100)
    monkeypatch.setattr(VectorCache, "add", lambda *args: pytest.fail("vectors were kept"))
    candidates, references = real_pairs(8)
    texts = TextPairs(candidates, [[reference] for reference in references])
    assert len(plan_steps(texts, encoder)) > 1

    scores = bert_score(candidates, references, encoder)

    assert scores["f1"].shape == (8,)
