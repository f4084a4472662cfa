"""Weights for a loss, scores of pairs and alignments with a metric's own settings."""

from __future__ import annotations

import math

import pytest
import torch

from bertscore_tm import BERTScore, FrozenEncoder
from bertscore_tm.functional import bert_score
from bertscore_tm.scoring.alignment import compute_alignment
from bertscore_tm.scoring.token_weights import token_weights
from tests.support.ranks import run_ranks
from tests.support.short_pairs import (
    COUNT,
    LAYERS,
    PREDS,
    TARGET,
    weights,
)

pytestmark = pytest.mark.usefixtures("one_thread")


def weights_on_a_rank(rank, folder):
    metric = BERTScore(FrozenEncoder(folder, num_layers=LAYERS), idf=True)
    # The last pair on both ranks, as a sampler would repeat it; the second rank has nothing else.
    numbers = list(range(COUNT)) if rank == 0 else [COUNT - 1]
    metric.update([PREDS[i] for i in numbers], [TARGET[i] for i in numbers], indices=numbers)
    weights = metric.token_weights()
    return weights.table, weights.source, metric.compute()["f1"]


@pytest.mark.distributed
def test_weights_for_a_loss_are_those_of_all_ranks(minilm):
    encoder = FrozenEncoder(minilm, num_layers=LAYERS)
    expected = BERTScore(encoder, idf=TARGET)
    expected.update(PREDS, TARGET)
    for table, source, f1 in run_ranks(weights_on_a_rank, 2, str(minilm)):
        assert torch.equal(table, expected.token_weights().table)
        assert source == expected.token_weights().source
        assert f1.item() == pytest.approx(expected.compute()["f1"].item(), abs=1e-6)


def test_weights_for_a_loss(encoder):
    metric = BERTScore(encoder, idf=True)
    with pytest.raises(ValueError, match="there are none yet: call update first"):
        metric.token_weights()
    metric.update(PREDS, TARGET)
    before = {name: score.item() for name, score in metric.compute().items()}
    table = metric.token_weights().table
    references = encoder.tokenizer(TARGET).ids
    for token in {i for row in references for i in row}:
        count = sum(token in row for row in references)
        assert table[token].item() == pytest.approx(math.log((COUNT + 1) / (count + 1)))
    assert {name: score.item() for name, score in metric.compute().items()} == before
    given = BERTScore(encoder, idf=weights()).token_weights().table
    assert all(given[token].item() == pytest.approx(weight) for token, weight in weights().items())


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"idf": True},
        {"component": "f1"},
        {"confidence": 0.9},
        {"reduction": "none"},
        {"idf": ["the cat", "a dog sat"]},
    ],
    ids=str,
)
def test_a_metric_of_the_same_settings_gives_pairs(encoder, pairs, options):
    metric = BERTScore(encoder, **options)
    metric.update(pairs[0][:4], pairs[1][:4])
    twin = metric.per_pair()
    twin.update(pairs[0][:6], pairs[1][:6])
    wanted = bert_score(pairs[0][:6], pairs[1][:6], encoder, idf=options.get("idf", False))
    found = twin.compute()
    assert found.keys() == {"precision", "recall", "f1"}
    for name, values in found.items():
        assert torch.allclose(values, wanted[name], atol=1e-6)
    assert metric.update_count == 1  # its pairs are its own


def test_a_metric_aligns_with_its_own_settings(minilm):
    texts = "a cat sleeps", "the kitten is sleeping"
    encoder = FrozenEncoder(minilm, num_layers=5)
    layers = FrozenEncoder(minilm, num_layers=6, all_layers=True)
    sents = ["a cat", "the kitten", "the dog is sleeping"]
    one = BERTScore(layers, layer=5, idf=sents).align(*texts)
    other = compute_alignment(*texts, encoder, token_weights(encoder, sents))
    assert one.candidate.tokens == other.candidate.tokens
    assert torch.allclose(one.similarity, other.similarity, atol=1e-6)
    assert torch.allclose(one.candidate.shares, other.candidate.shares, atol=1e-6)
    metric = BERTScore(layers, layer=5, idf=True)
    with pytest.raises(ValueError, match="there are none yet: call update first"):
        metric.align(*texts)
    metric.update(["x"] * 3, sents)
    scores = bert_score([texts[0]], [texts[1]], encoder, idf=sents)
    assert metric.align(*texts).f1 == pytest.approx(scores["f1"].item(), abs=1e-6)
    assert metric.align(*texts).settings.endswith("layer 5, idf of 3 texts")
    with pytest.raises(ValueError, match="an alignment needs a single layer"):
        BERTScore(layers).align(*texts)
