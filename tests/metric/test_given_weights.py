"""Weights of a corpus, and given weights."""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import bert_score as oracle
import pytest
import torch
from bert_score.utils import get_idf_dict, get_tokenizer
from torch import Tensor

from bertscore_tm import BERTScore, FrozenEncoder
from bertscore_tm.functional import bert_score
from tests.support.short_pairs import (
    CORPUS,
    LAYERS,
    ONE,
    PREDS,
    SEVERAL,
    TARGET,
    VOCABULARY,
    assert_close,
    stacked,
    updated,
    weights,
)

pytestmark = pytest.mark.usefixtures("one_thread")


def kinds_of_weights(model: str) -> dict[str, tuple[dict[str, Any], dict[str, Any]]]:
    """Arguments of ours, and those of the reference package."""
    default = get_idf_dict(CORPUS, get_tokenizer(model), nthreads=0)
    plain = {token: default.get(token, default.default_factory()) for token in range(VOCABULARY)}
    return {
        "corpus": ({"idf": CORPUS}, {"idf": True, "idf_sents": CORPUS}),
        "mapping": ({"idf": weights()}, {"idf": weights()}),
        "mapping with a default": ({"idf": default}, {"idf": plain}),
    }


def of_oracle(model: str, target: Sequence[Any], layers: Sequence[int], options: dict[str, Any]) -> Tensor:
    """The reference package's scores, layer by layer: with several layers and references its shapes are wrong."""
    found = []
    for layer in layers:
        if "idf_sents" in options:
            scorer = oracle.BERTScorer(model, num_layers=layer, nthreads=0, device="cpu", **options)
            found.append(torch.stack(scorer.score(PREDS, list(target), batch_size=1)))
        else:
            scores = oracle.score(PREDS, list(target), model_type=model, num_layers=layer, **options, **ONE)
            found.append(torch.stack(scores))
    return torch.stack(found, dim=1)


@pytest.mark.parametrize(
    ("kind", "several", "all_layers"),
    [
        ("corpus", False, False),
        ("corpus", True, True),
        ("mapping", True, False),
        ("mapping with a default", False, True),
    ],
)
def test_weights_equal_those_of_the_reference_package(minilm, kind, several, all_layers):
    ours, theirs = kinds_of_weights(minilm)[kind]
    target = SEVERAL if several else TARGET
    encoder = FrozenEncoder(minilm, num_layers=LAYERS, all_layers=all_layers)
    expected = of_oracle(minilm, target, range(LAYERS + 1) if all_layers else [LAYERS], theirs)
    expected = expected if all_layers else expected[:, 0]
    assert_close(stacked(bert_score(PREDS, target, encoder, **ours)), expected)
    each = updated(BERTScore(encoder, reduction="none", **ours), PREDS, target)
    assert_close(stacked(each.compute()), expected)
    assert_close(stacked(each(PREDS[:2], target[:2])), expected[..., :2])
    # The references themselves give other weights.
    assert not torch.allclose(expected, stacked(bert_score(PREDS, target, encoder, idf=True)), atol=1e-3)


@pytest.mark.parametrize(("how", "side"), [("update", 0), ("forward", 1)])
def test_a_token_without_a_weight_loses_nothing(encoder, how, side):
    known = encoder.tokenizer([*PREDS, *TARGET]).ids
    mapping = {token: 1 + token % 3 for row in known for token in row}
    metric = updated(BERTScore(encoder, idf=mapping, reduction="none"))
    assert_close(stacked(metric.compute()), stacked(bert_score(PREDS, TARGET, encoder, idf=mapping)))
    before, count = metric.compute(), len(metric.scores)
    bad = [[PREDS[0], PREDS[1]], [TARGET[0], TARGET[1]]]
    bad[side][0] = "zebra"
    with pytest.raises(ValueError, match=r"no weight for token id \d+ \('zebra'\).*pass texts"):
        getattr(metric, how)(*bad)
    assert len(metric.scores) == count
    assert torch.equal(stacked(metric.compute()), stacked(before))
    metric.update(PREDS[:1], TARGET[:1])
    assert_close(metric.compute()["f1"][-1:], before["f1"][:1])


def test_a_mapping_is_read_once_and_not_changed(encoder):
    mapping = defaultdict(lambda: 0.5, {token: float(token % 5) for token in range(1000, 4000)})
    wanted, size = dict(mapping) | {0: 0.5}, len(mapping)
    metric = BERTScore(encoder, idf=mapping, reduction="none")
    updated(metric)
    assert len(mapping) == size
    mapping.clear()
    updated(metric)
    expected = bert_score(PREDS * 2, TARGET * 2, encoder, idf=defaultdict(lambda: 0.5, wanted))
    assert_close(stacked(metric.compute()), stacked(expected))


def test_warns_about_a_truncated_corpus(minilm):
    sents = ["word " * 20, "short", "other " * 9, "other " * 9]
    with pytest.warns(UserWarning, match="3 texts of idf are longer than 8 tokens and were truncated") as caught:
        metric = BERTScore(FrozenEncoder(minilm, num_layers=LAYERS, max_length=8), idf=sents)
    assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # Their number is nothing of the pairs'.
        metric.update("short", "short")
        metric.compute()
        BERTScore(FrozenEncoder(minilm, num_layers=LAYERS), idf=sents)
        BERTScore(FrozenEncoder(minilm, num_layers=LAYERS, max_length=8, long_text="window"), idf=sents)
    with pytest.raises(ValueError, match="the limit is 8"):
        BERTScore(FrozenEncoder(minilm, num_layers=LAYERS, max_length=8, long_text="error"), idf=sents)
