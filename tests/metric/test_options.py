"""What the metric's options change: given weights, picked layers, single scores, read-only settings."""

from __future__ import annotations

import copy
import math
import pickle
import warnings
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import bert_score as oracle
import numpy as np
import pytest
import torch
from bert_score.utils import get_idf_dict, get_tokenizer
from torch import Tensor

from bertscore_tm import BERTScore, FrozenEncoder
from bertscore_tm.functional import SCORES, bert_score
from bertscore_tm.losses import SoftBERTScoreLoss
from tests.support.models import tiny_model
from tests.support.short_pairs import (
    CORPUS,
    COUNT,
    LAYERS,
    ONE,
    PREDS,
    SEVERAL,
    TARGET,
    VOCABULARY,
    assert_close,
    baseline,
    mean,
    stacked,
    updated,
    weights,
)

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def encoder(minilm: str) -> FrozenEncoder:
    """The real encoder, two layers of it."""
    return FrozenEncoder(minilm, num_layers=LAYERS)


@pytest.fixture(scope="module")
def every(minilm: str) -> FrozenEncoder:
    """All layers of the real encoder."""
    return FrozenEncoder(minilm, num_layers=6, all_layers=True)


# --- weights of a corpus, and given weights


def kinds_of_weights(model: str) -> dict[str, tuple[dict[str, Any], dict[str, Any]]]:
    """Arguments of ours, and those of the reference package."""
    default = get_idf_dict(CORPUS, get_tokenizer(model), nthreads=0)
    plain = {token: default.get(token, default.default_factory()) for token in range(VOCABULARY)}
    return {
        "corpus": ({"idf_sents": CORPUS}, {"idf": True, "idf_sents": CORPUS}),
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
    assert_close(stacked(bert_score(PREDS, target, encoder, device="cpu", **ours)), expected)
    each, average = (updated(BERTScore(encoder, reduction=how, **ours), PREDS, target) for how in ("none", "mean"))
    assert_close(stacked(each.compute()), expected)
    assert_close(stacked(average.compute()), mean(expected))
    assert_close(stacked(each(PREDS[:2], target[:2])), expected[..., :2])
    # The references themselves give other weights.
    assert not torch.allclose(expected, stacked(bert_score(PREDS, target, encoder, idf=True)), atol=1e-3)


@pytest.mark.parametrize(
    ("options", "all_layers"),
    [({"idf_sents": CORPUS}, True), ({"idf": weights()}, False), ({}, False)],
    ids=["corpus", "mapping", "none"],
)
def test_known_weights_keep_only_sums(minilm, options, all_layers):
    """However many pairs there are, the state has the same size."""
    metric = BERTScore(FrozenEncoder(minilm, num_layers=LAYERS, all_layers=all_layers), **options)
    sizes = set()
    for _ in range(4):
        updated(metric)
        state = metric.metric_state
        lists = {name: value for name, value in state.items() if isinstance(value, list)}
        assert all(value == [] for value in lists.values())
        assert not any("ids" in name or "best" in name for name in lists)
        sizes.add(sum(value.untyped_storage().nbytes() for value in state.values() if isinstance(value, Tensor)))
    assert len(sizes) == 1
    assert sizes.pop() <= 8 * (2 + 3 * metric._num_layers) + 8 + 8 * 9
    assert metric.totals.dtype == torch.int64
    assert metric.totals[0] == 4 * COUNT
    assert_close(stacked(metric.compute()), mean(stacked(bert_score(PREDS, TARGET, metric.encoder, **options))))


@pytest.mark.parametrize(
    "options",
    [{"reduction": "none"}, {"confidence": 0.9}, {"reduction": "none", "idf_sents": CORPUS}, {"idf": True}],
    ids=str,
)
def test_others_keep_pairs(encoder, options):
    metric = updated(BERTScore(encoder, **options))
    if "idf" in options:
        # A similarity and, as the vocabulary is small, an id of two bytes per matched token, and a count per text.
        pairs = bert_score(PREDS, TARGET, encoder)
        tokens = sum(len(row) for row in encoder.tokenizer([*PREDS, *TARGET]).ids)
        kept = [part for name in metric._list_dtypes for part in getattr(metric, name)]
        assert sum(part.untyped_storage().nbytes() for part in kept) == (4 + 2) * tokens + 3 * 4 * COUNT
        assert len(pairs["f1"]) == COUNT
    else:
        assert sum(len(part) for part in metric.scores) == 3 * COUNT
        assert sum(part.untyped_storage().nbytes() for part in metric.scores) == 3 * 4 * COUNT
    assert metric.totals[0] == 0


def test_idf_of_a_corpus_does_not_depend_on_the_references(encoder):
    first = updated(BERTScore(encoder, idf_sents=CORPUS, reduction="none"))
    # The flag changes nothing where there is a corpus.
    second = BERTScore(encoder, idf=True, idf_sents=tuple(reversed(CORPUS)), reduction="none")
    second.update(PREDS[:1], TARGET[:1])
    assert_close(stacked(second.compute())[:, 0], stacked(first.compute())[:, 0])
    # Documents that come twice count twice.
    other = BERTScore(encoder, idf_sents=list(dict.fromkeys(CORPUS)), reduction="none")
    other.update(PREDS[:1], TARGET[:1])
    assert not torch.allclose(stacked(other.compute()), stacked(second.compute()), atol=1e-5)


def test_idf_of_the_references_as_a_corpus_is_idf(encoder):
    expected = updated(BERTScore(encoder, idf=True, reduction="none")).compute()
    assert_close(stacked(updated(BERTScore(encoder, idf_sents=TARGET, reduction="none")).compute()), stacked(expected))


def test_invalid_weights(encoder):
    with pytest.raises(ValueError, match="idf= is already a mapping of weights: remove idf_sents="):
        BERTScore(encoder, idf=weights(), idf_sents=CORPUS)
    for wrong in ("yes", 1, 0, None, [1.0], 0.5):
        with pytest.raises(TypeError, match="idf must be True, False or a mapping"):
            BERTScore(encoder, idf=wrong)
    for wrong in ("a cat", [None], [["a"]], 3, b"a", {"a": 1}):
        with pytest.raises(TypeError, match="idf_sents"):
            BERTScore(encoder, idf_sents=wrong)
    for wrong, message in (
        ({-1: 1.0}, "has the key -1"),
        ({VOCABULARY: 1.0}, f"has the key {VOCABULARY}, but keys must be token ids from 0 to {VOCABULARY - 1}"),
        ({"cat": 1.0}, "has the key 'cat'"),
        ({5: -0.1}, r"idf\[5\]=-0.1 is invalid"),
        ({5: math.inf}, r"idf\[5\]=inf is invalid"),
        ({5: math.nan}, r"idf\[5\]=nan is invalid"),
    ):
        with pytest.raises(ValueError, match=message):
            BERTScore(encoder, idf=wrong)


@pytest.mark.parametrize("how", ["update", "forward"])
@pytest.mark.parametrize("side", [0, 1])
def test_a_token_without_a_weight_loses_nothing(encoder, how, side):
    known = encoder.tokenizer([*PREDS, *TARGET]).ids
    mapping = {token: 1 + token % 3 for row in known for token in row}
    metric = updated(BERTScore(encoder, idf=mapping, reduction="none"))
    assert_close(stacked(metric.compute()), stacked(bert_score(PREDS, TARGET, encoder, idf=mapping)))
    before, state = metric.compute(), metric.totals.clone()
    bad = [[PREDS[0], PREDS[1]], [TARGET[0], TARGET[1]]]
    bad[side][0] = "zebra"
    with pytest.raises(ValueError, match=r"no weight for token id \d+ \('zebra'\).*idf_sents="):
        getattr(metric, how)(*bad)
    assert torch.equal(metric.totals, state)
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


@pytest.mark.filterwarnings("ignore:.* candidates? score:UserWarning")
def test_weights_of_zero_give_zero(encoder):
    metric = updated(BERTScore(encoder, idf=dict.fromkeys(range(VOCABULARY), 0.0), reduction="none"))
    assert stacked(metric.compute()).abs().max() == 0


def test_warns_about_a_truncated_corpus(minilm):
    sents = ["word " * 20, "short", "other " * 9, "other " * 9]
    with pytest.warns(UserWarning, match="3 texts of idf_sents are longer than 8 tokens and were truncated") as caught:
        metric = BERTScore(minilm, LAYERS, max_length=8, idf_sents=sents)
    assert len(caught) == 1
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # Their number is nothing of the pairs'.
        metric.update("short", "short")
        metric.compute()
        BERTScore(minilm, LAYERS, idf_sents=sents)
        BERTScore(minilm, LAYERS, max_length=8, long_text="window", idf_sents=sents)
    with pytest.raises(ValueError, match="the limit is 8"):
        BERTScore(minilm, LAYERS, max_length=8, truncation=False, idf_sents=sents)


def test_signatures_differ_by_weights(encoder):
    other = [*CORPUS[:-1], "something else"]
    made = [
        BERTScore(encoder, **options, return_hash=True)
        for options in (
            {},
            {"idf": True},
            {"idf_sents": CORPUS},
            {"idf_sents": other},
            {"idf": weights()},
            {"idf": {**weights(), 5: 9.0}},
        )
    ]
    assert len({updated(metric).compute()["hash"] for metric in made}) == len(made)
    again = BERTScore(encoder, idf_sents=list(CORPUS)), BERTScore(encoder, idf=dict(weights()))
    assert [metric.signature() for metric in again] == [made[2].signature(), made[4].signature()]
    function = bert_score(PREDS, TARGET, encoder, idf_sents=CORPUS, return_hash=True)
    assert function["hash"] == made[2].signature()
    # States of other weights do not fit.
    for metric in (made[0], made[1], made[3], made[4]):
        with pytest.raises(ValueError, match="differ"):
            made[2].merge_state(metric)


# --- a layer of all


@pytest.mark.parametrize(("layer", "idf"), [(0, True), (3, False), (-1, False), (-5, True)])
def test_a_picked_layer(minilm, every, layer, idf):
    number = layer if layer >= 0 else 7 + layer
    picked = updated(BERTScore(every, layer, idf=idf, reduction="none"), PREDS, SEVERAL)
    average = updated(BERTScore(every, layer, idf=idf), PREDS, SEVERAL)
    found, averaged = picked.compute(), average.compute()
    row = stacked(bert_score(PREDS, SEVERAL, every, idf=idf))[:, number]
    assert_close(stacked(found), row)
    assert_close(stacked(averaged), mean(row))
    # What it gives out has no dimension of layers.
    assert {value.shape for value in found.values()} == {(COUNT,)}
    assert {value.shape for value in averaged.values()} == {()}
    # BERT has no norm after its last layer, so that a model cut there gives the same.
    assert_close(stacked(bert_score(PREDS, SEVERAL, minilm, layer, idf=idf)), row)
    theirs = oracle.score(PREDS, SEVERAL, model_type=minilm, num_layers=number, idf=idf, **ONE)
    assert_close(stacked(found), torch.stack(theirs))


@pytest.mark.parametrize("family", ["gpt2", "modernbert"])
def test_a_picked_layer_of_a_model_with_a_final_norm(family):
    """Every layer comes with the norm, as that of a model that is cut there."""
    ready, tokenizer = tiny_model(family)
    every = FrozenEncoder(ready, tokenizer, all_layers=True)
    for layer in range(every.num_layers + 1):
        picked = BERTScore(every, layer, reduction="none")
        cut = FrozenEncoder(ready, tokenizer, num_layers=layer)
        assert_close(stacked(updated(picked).compute()), stacked(bert_score(PREDS, TARGET, cut)))
        assert picked.encoder.signature(layer) == cut.signature()


def test_negative_numbers_count_from_the_models_last_layer(minilm):
    """Not from the last one that comes out."""
    some = FrozenEncoder(minilm, num_layers=4, all_layers=True)
    found = updated(BERTScore(some, -4, reduction="none")).compute()
    assert_close(found["f1"], bert_score(PREDS, TARGET, minilm, 3)["f1"])
    for layer in (5, 6, 7, -1, -2, -8, 100):
        with pytest.raises(ValueError, match=f"num_layers={layer} is not one of the layers 0 to 4"):
            BERTScore(some, layer)


def test_picked_layer_excludes_other_settings(encoder, every):
    with pytest.raises(ValueError, match="num_layers"):
        BERTScore(encoder, 1)
    for options in ({"max_length": 9}, {"dtype": "bfloat16"}, {"batch_size": 3}):
        with pytest.raises(ValueError, match=f"contradicts {next(iter(options))}="):
            BERTScore(every, 3, **options)
    with pytest.raises(ValueError, match="contradicts num_layers=3"):
        BERTScore(every, 3, all_layers=True)
    assert BERTScore(every, every.num_layers, all_layers=True, max_length=every.tokenizer.max_length).all_layers


def test_rescaling_of_a_picked_layer(every, tmp_path):
    table = baseline(tmp_path)
    for layer in (0, 2, 5, -1):
        number = layer % 7
        options: dict[str, Any] = {"rescale_with_baseline": True, "baseline_path": table}
        raw = stacked(updated(BERTScore(every, layer, reduction="none")).compute())
        row = torch.tensor([0.1 + number / 20, 0.2 + number / 25, 0.15 + number / 30])[:, None]
        for reduction in ("none", "mean"):
            found = stacked(updated(BERTScore(every, layer, reduction=reduction, **options)).compute())
            expected = (raw - row) / (1 - row)
            assert_close(found, expected if reduction == "none" else mean(expected), 2e-6)
        rows = stacked(updated(BERTScore(every, reduction="none", **options)).compute())
        assert_close(rows[:, number], (raw - row) / (1 - row), 2e-6)


def test_signatures_and_states_differ_by_picked_layer(minilm, every):
    table = [BERTScore(every, 2), BERTScore(every, 3), BERTScore(every)]
    assert len({metric.signature() for metric in table}) == len(table)
    for metric in table[1:]:
        with pytest.raises(ValueError, match="layer"):
            table[0].merge_state(updated(metric))
    # A layer has the same vectors in every encoder.
    shallower = FrozenEncoder(minilm, num_layers=4, all_layers=True)
    for metric in (BERTScore(every, -5), BERTScore(minilm, 2), BERTScore(shallower, 2)):
        assert metric.signature() == table[0].signature()
    same = updated(BERTScore(every, -5))
    table[0].merge_state(same)
    assert torch.equal(stacked(table[0].compute()), stacked(same.compute()))
    for other in (copy.deepcopy(same), same.clone(), pickle.loads(pickle.dumps(same))):
        assert other.signature() == same.signature()
        assert torch.equal(stacked(updated(other).compute()), stacked(updated(same.clone()).compute()))


# --- one score alone


@pytest.mark.parametrize(
    ("score", "reduction", "all_layers", "idf"),
    [
        ("precision", "mean", False, True),
        ("precision", "none", True, False),
        ("recall", "none", False, True),
        ("recall", "mean", True, True),
        ("f1", "mean", False, False),
        ("f1", "none", True, True),
    ],
)
def test_one_score(minilm, every, score, reduction, all_layers, idf):
    encoder = FrozenEncoder(minilm, num_layers=LAYERS, all_layers=all_layers)
    metric = updated(BERTScore(encoder, idf=idf, score=score, reduction=reduction))
    expected = bert_score(PREDS, TARGET, encoder, idf=idf)[score]
    layers = (LAYERS + 1,) if all_layers else ()
    found = metric.compute()
    assert isinstance(found, Tensor)
    assert found.shape == ((*layers, COUNT) if reduction == "none" else layers)
    assert_close(found, expected if reduction == "none" else mean(expected))
    assert torch.equal(found, updated(BERTScore(encoder, idf=idf, reduction=reduction)).compute()[score])
    one = metric(PREDS[0], TARGET[0])
    assert one.shape == ((*layers, 1) if reduction == "none" else layers)
    assert metric.compute().shape == ((*layers, COUNT + 1) if reduction == "none" else layers)


def test_one_score_of_a_picked_layer_rescaled(every, tmp_path):
    options: dict[str, Any] = {"rescale_with_baseline": True, "baseline_path": baseline(tmp_path)}
    expected = updated(BERTScore(every, 4, **options)).compute()
    for score in SCORES:
        assert torch.equal(updated(BERTScore(every, 4, score=score, **options)).compute(), expected[score])


def test_one_score_without_pairs(encoder):
    for score in SCORES:
        for reduction, shape in (("mean", ()), ("none", (0,))):
            with pytest.warns(UserWarning, match="before the ``update``"):
                found = BERTScore(encoder, score=score, reduction=reduction).compute()
            assert torch.equal(found, torch.zeros(shape))


def test_one_score_excludes_other_settings(encoder):
    for score in ("F1", "f2", "hash", "", 1, ["f1"], True):
        with pytest.raises(ValueError, match=r"score=.* is not one of 'precision', 'recall', 'f1'"):
            BERTScore(encoder, score=score)
    with pytest.raises(ValueError, match=r"score='f1' computes a single tensor.*return_hash=True: remove one"):
        BERTScore(encoder, score="f1", return_hash=True)
    with pytest.raises(ValueError, match=r"score='recall' computes a single tensor.*confidence=0.9: remove one"):
        BERTScore(encoder, score="recall", confidence=0.9)


# --- other settings


def test_impossible_cache_bytes(encoder):
    for make in (BERTScore, SoftBERTScoreLoss):
        for negative in (-1, -(2**30)):
            with pytest.raises(ValueError, match=f"cache_bytes must be at least 0, got {negative}"):
                make(encoder, cache_bytes=negative)
        # Refused at once, as otherwise some of them fail only when a cache fills up.
        for wrong in (1e6, 0.5, "1GB", None, True):
            with pytest.raises(TypeError, match=f"cache_bytes must be an integer, got {wrong!r}"):
                make(encoder, cache_bytes=wrong)
        made = make(encoder, cache_bytes=np.int64(5))
        assert (type(made.cache_bytes), made.cache_bytes) == (int, 5)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("reduction", "none"),
        ("confidence", 0.9),
        ("score", "f1"),
        ("return_hash", True),
        ("all_layers", True),
        ("idf", True),
        ("encoder", None),
        ("encoding_device", None),
    ],
)
def test_settings_cannot_be_changed(encoder, name, value):
    metric = BERTScore(encoder)
    metric.update(PREDS[:2], TARGET[:2])
    for changed in (metric, metric.clone(), pickle.loads(pickle.dumps(metric)), metric.per_pair()):
        before = vars(changed)[name]
        with pytest.raises(AttributeError, match=f"{name} of a BERTScore cannot be changed: create another"):
            setattr(changed, name, value)
        assert vars(changed)[name] is before
    assert metric.compute().keys() == {"precision", "recall", "f1"}


def test_eight_ranks_cache_at_most_two_gibibytes_by_default(encoder):
    assert 8 * BERTScore(encoder).cache_bytes <= 2 * 2**30


def test_the_size_of_the_cache_can_be_changed(encoder):
    metric = BERTScore(encoder)
    metric.cache_bytes = np.int64(7)
    assert metric.cache_bytes == 7
    with pytest.raises(TypeError, match="cache_bytes must be an integer, got '7'"):
        metric.cache_bytes = "7"
    assert metric.cache_bytes == 7


@pytest.mark.parametrize(
    ("options", "reduction"),
    [({}, "mean"), ({"idf": True}, "none"), ({"idf_sents": CORPUS}, "none"), ({"confidence": 0.9}, "mean")],
    ids=str,
)
def test_states_on_the_cpu(encoder, options, reduction):
    metrics = [BERTScore(encoder, compute_on_cpu=flag, reduction=reduction, **options) for flag in (False, True)]
    for metric in metrics:
        metric(PREDS[:3], TARGET[:3])
        updated(metric, PREDS[3:], TARGET[3:])
        for name in metric._list_dtypes:
            assert all(part.device.type == "cpu" for part in getattr(metric, name))
    found = [metric.compute() for metric in metrics]
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])
    assert_close(found[1]["f1"], (mean if reduction == "mean" else torch.clone)(wanted_f1(encoder, options)))


def wanted_f1(encoder: FrozenEncoder, options: dict[str, Any]) -> Tensor:
    chosen = {name: value for name, value in options.items() if name != "confidence"}
    f1: Tensor = bert_score(PREDS, TARGET, encoder, **chosen)["f1"]
    return f1
