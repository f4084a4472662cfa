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
    mean,
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
    each, average = (updated(BERTScore(encoder, reduction=how, **ours), PREDS, target) for how in ("none", "mean"))
    assert_close(stacked(each.compute()), expected)
    assert_close(stacked(average.compute()), mean(expected))
    assert_close(stacked(each(PREDS[:2], target[:2])), expected[..., :2])
    # The references themselves give other weights.
    assert not torch.allclose(expected, stacked(bert_score(PREDS, target, encoder, idf=True)), atol=1e-3)


def test_idf_of_a_corpus_does_not_depend_on_the_references(encoder):
    first = updated(BERTScore(encoder, idf=CORPUS, reduction="none"))
    second = BERTScore(encoder, idf=tuple(reversed(CORPUS)), reduction="none")
    second.update(PREDS[:1], TARGET[:1])
    assert_close(stacked(second.compute())[:, 0], stacked(first.compute())[:, 0])
    # Documents that come twice count twice.
    other = BERTScore(encoder, idf=list(dict.fromkeys(CORPUS)), reduction="none")
    other.update(PREDS[:1], TARGET[:1])
    assert not torch.allclose(stacked(other.compute()), stacked(second.compute()), atol=1e-5)


def test_idf_of_the_references_as_a_corpus_is_idf(encoder):
    expected = updated(BERTScore(encoder, idf=True, reduction="none")).compute()
    assert_close(stacked(updated(BERTScore(encoder, idf=TARGET, reduction="none")).compute()), stacked(expected))


@pytest.mark.parametrize("how", ["update", "forward"])
@pytest.mark.parametrize("side", [0, 1])
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


def test_weights_of_special_tokens_count(encoder):
    """Without idf the cls and sep tokens weigh nothing; a mapping can give them weight, and 0 to all others."""
    special = {token: float(token in (101, 102)) for token in range(VOCABULARY)}
    found = updated(BERTScore(encoder, idf=special, reduction="none")).compute()
    expected = oracle.score(PREDS, TARGET, model_type=encoder.name, num_layers=LAYERS, idf=special, **ONE)
    assert_close(stacked(found), torch.stack(expected))
    plain = {token: float(token not in (101, 102)) for token in range(VOCABULARY)}
    found = updated(BERTScore(encoder, idf=plain, reduction="none")).compute()
    assert_close(stacked(found), stacked(bert_score(PREDS, TARGET, encoder)))


@pytest.mark.filterwarnings("ignore:.* candidates? scored:UserWarning")
def test_weights_of_zero_give_zero(encoder):
    metric = updated(BERTScore(encoder, idf=dict.fromkeys(range(VOCABULARY), 0.0), reduction="none"))
    assert stacked(metric.compute()).abs().max() == 0


def test_warns_about_a_truncated_corpus(minilm):
    sents = ["word " * 20, "short", "other " * 9, "other " * 9]
    with pytest.warns(UserWarning, match="3 texts of idf are longer than 8 tokens and were truncated") as caught:
        metric = BERTScore(FrozenEncoder(minilm, num_layers=LAYERS, max_length=8), idf=sents)
    assert len(caught) == 1
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # Their number is nothing of the pairs'.
        metric.update("short", "short")
        metric.compute()
        BERTScore(FrozenEncoder(minilm, num_layers=LAYERS), idf=sents)
        BERTScore(FrozenEncoder(minilm, num_layers=LAYERS, max_length=8, long_text="window"), idf=sents)
    with pytest.raises(ValueError, match="the limit is 8"):
        BERTScore(FrozenEncoder(minilm, num_layers=LAYERS, max_length=8, long_text="error"), idf=sents)


def test_states_of_other_weights_do_not_fit(encoder):
    options = ({}, {"idf": True}, {"idf": CORPUS}, {"idf": [*CORPUS[:-1], "something else"]}, {"idf": weights()})
    made = [updated(BERTScore(encoder, **one)) for one in options]
    for metric in (made[0], made[1], made[3], made[4]):
        with pytest.raises(ValueError, match="differ"):
            made[2].merge_state(metric)
    made[2].merge_state(updated(BERTScore(encoder, idf=tuple(CORPUS))))
