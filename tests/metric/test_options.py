"""What the metric's options change: given weights, picked layers, single scores, intervals, sums."""

from __future__ import annotations

import copy
import math
import pickle
import warnings
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import pairwise
from typing import Any

import bert_score as oracle
import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from bert_score.utils import get_idf_dict, get_tokenizer
from hypothesis import HealthCheck, given, settings
from torch import Tensor

from bertscore_tm import BERTScore, FrozenEncoder
from bertscore_tm.functional import SCORES, bert_score
from bertscore_tm.losses import SoftBERTScoreLoss
from bertscore_tm.metric.states import mean_of_sums, sums_of_scores
from bertscore_tm.plotting.alignment import compute_alignment
from bertscore_tm.scoring.token_weights import token_weights
from bertscore_tm.statistics import mean_interval
from tests.support.models import tiny_model
from tests.support.ranks import run_ranks
from tests.support.texts import real_pairs, several_references

pytestmark = pytest.mark.usefixtures("one_thread")

TOLERANCE = 1e-6
LAYERS = 2
VOCABULARY = 30522
COUNT = 8
# Real texts, cut short.
PREDS, TARGET = ([" ".join(text.split()[:9]) for text in side] for side in real_pairs(COUNT))
SEVERAL = several_references(TARGET)
# A corpus that is not the references, with documents that come twice.
CORPUS = [*PREDS[:5], *TARGET[4:], *TARGET[4:6]]
INTERVAL = ("f1_low", "f1_high")
# One pair at a time, since the reference package lets padding take part in the matching.
ONE = {"batch_size": 1, "nthreads": 0, "device": "cpu"}


@pytest.fixture(scope="module")
def encoder(minilm: str) -> FrozenEncoder:
    """The real encoder, two layers of it."""
    return FrozenEncoder(minilm, num_layers=LAYERS)


@pytest.fixture(scope="module")
def every(minilm: str) -> FrozenEncoder:
    """All layers of the real encoder."""
    return FrozenEncoder(minilm, num_layers=6, all_layers=True)


@cache
def weights() -> dict[int, float]:
    """Weights that no corpus gives, for every id, special ones too; many are 0."""
    return {token: (token * 37 % 11) / 4 for token in range(VOCABULARY)}


def updated(metric: BERTScore, preds: Sequence[str] = PREDS, target: Sequence[Any] = TARGET) -> BERTScore:
    """A metric with pairs in batches of three."""
    for start in range(0, len(preds), 3):
        metric.update(preds[start : start + 3], target[start : start + 3])
    return metric


def stacked(found: Mapping[str, Tensor]) -> Tensor:
    return torch.stack([found[name] for name in SCORES])


def assert_close(found: Tensor, wanted: Tensor, tolerance: float = TOLERANCE) -> None:
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, wanted.float(), rtol=0, atol=tolerance)


def mean(scores: Tensor) -> Tensor:
    return scores.double().mean(-1).float()


def baseline(folder: Any) -> str:
    """A table in which all numbers differ."""
    path = folder / "table.csv"
    rows = [f"{layer},{0.1 + layer / 20},{0.2 + layer / 25},{0.15 + layer / 30}" for layer in range(7)]
    path.write_text("\n".join(["LAYER,P,R,F", *rows]))
    return str(path)


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


# --- intervals


@pytest.mark.parametrize(
    ("kind", "reduction", "confidence"),
    [
        ("plain", "mean", 0.5),
        ("idf", "none", 0.95),
        ("corpus", "mean", 0.95),
        ("all layers", "none", 0.5),
        ("picked", "mean", 0.95),
        ("rescaled", "none", 0.95),
        ("all layers, rescaled", "mean", 0.5),
    ],
)
def test_an_interval_is_that_of_the_pairs(minilm, every, tmp_path, kind, reduction, confidence):
    options: dict[str, Any] = {}
    if "rescaled" in kind:
        options |= {"rescale_with_baseline": True, "baseline_path": baseline(tmp_path)}
    if kind in ("idf", "corpus"):
        options |= {"idf": True} if kind == "idf" else {"idf_sents": CORPUS}
    encoder = every if "layers" in kind or kind == "picked" else FrozenEncoder(minilm, num_layers=LAYERS)
    metric = BERTScore(encoder, 4 if kind == "picked" else None, reduction=reduction, confidence=confidence, **options)
    found = updated(metric).compute()
    f1 = bert_score(PREDS, TARGET, encoder, **options)["f1"]
    f1 = f1[4] if kind == "picked" else f1
    assert list(found) == [*SCORES, *INTERVAL]
    layers = f1.shape[:-1]
    for name, end in zip(INTERVAL, mean_interval(f1, confidence), strict=True):
        assert found[name].shape == layers
        assert_close(found[name], end)
    assert_close(found["f1"], f1 if reduction == "none" else mean(f1))
    average = mean(f1)
    assert (found["f1_low"] < average).all()
    assert (average < found["f1_high"]).all()
    # The resampling is seeded.
    again = metric.compute()
    assert all(torch.equal(again[name], found[name]) for name in found)


def test_an_interval_contains_the_mean(encoder):
    """Even the narrowest one of few pairs, and however the pairs are split."""
    for count in range(1, COUNT + 1):
        found = updated(BERTScore(encoder, confidence=0.8), PREDS[:count], TARGET[:count]).compute()
        assert found["f1_low"] <= found["f1"] <= found["f1_high"]
        assert (found["f1_low"] < found["f1_high"]) == (count > 1)
    joined = BERTScore(encoder, confidence=0.8)
    for part in (slice(0, 3), slice(3, 8)):
        joined.merge_state(updated(BERTScore(encoder, confidence=0.8), PREDS[part], TARGET[part]))
    for name, value in joined.compute().items():
        assert_close(value, found[name])


@pytest.mark.parametrize("rescaled", [False, True])
def test_the_interval_of_one_pair_is_its_f1(every, tmp_path, rescaled):
    options: dict[str, Any] = {"rescale_with_baseline": True, "baseline_path": baseline(tmp_path)} if rescaled else {}
    for i in range(COUNT):
        metric = BERTScore(every, confidence=0.95, **options)
        metric.update(PREDS[i], TARGET[i])
        found = metric.compute()
        for name in INTERVAL:
            assert_close(found[name], found["f1"])


def test_the_interval_of_no_pair_is_zero(minilm, encoder):
    for metric, shape in (
        (BERTScore(encoder, confidence=0.95), ()),
        (BERTScore(encoder, confidence=0.95, idf=True, reduction="none"), ()),
        (BERTScore(minilm, LAYERS, True, confidence=0.95), (LAYERS + 1,)),
    ):
        with pytest.warns(UserWarning, match="before the ``update``"):
            found = metric.compute()
        assert all(torch.equal(found[name], torch.zeros(shape)) for name in INTERVAL)


def test_an_interval_of_every_step(encoder):
    metric = BERTScore(encoder, confidence=0.9, return_hash=True)
    for start in range(0, COUNT, 4):
        step = metric(PREDS[start : start + 4], TARGET[start : start + 4])
        low, high = mean_interval(bert_score(PREDS[start : start + 4], TARGET[start : start + 4], encoder)["f1"], 0.9)
        assert_close(step["f1_low"], low)
        assert_close(step["f1_high"], high)
    assert list(metric.compute()) == [*SCORES, *INTERVAL, "hash"]


def test_repeated_pairs_are_not_resampled_twice(encoder):
    metric = BERTScore(encoder, confidence=0.9)
    for numbers in ([3, 1], [1, 3, 0], [2]):
        metric.update([PREDS[i] for i in numbers], [TARGET[i] for i in numbers], indices=numbers)
    found = metric.compute()
    for name, end in zip(INTERVAL, mean_interval(bert_score(PREDS[:4], TARGET[:4], encoder)["f1"], 0.9), strict=True):
        assert_close(found[name], end)


@pytest.mark.parametrize("confidence", [0, 1, 0.0, 1.0, -0.1, 1.5, 95, math.nan, math.inf])
def test_impossible_confidence(encoder, confidence):
    with pytest.raises(ValueError, match="confidence must be between 0 and 1, got"):
        BERTScore(encoder, confidence=confidence)


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


# --- exact sums


def parts_of(count: int) -> st.SearchStrategy[list[list[int]]]:
    """Numbers in any order, cut anywhere."""

    def cut(drawn: tuple[list[int], list[int]]) -> list[list[int]]:
        order, cuts = drawn
        return [order[start:stop] for start, stop in pairwise([0, *sorted(cuts), count])]

    return st.tuples(st.permutations(range(count)), st.lists(st.integers(0, count), max_size=6)).map(cut)


@settings(max_examples=60, deadline=None)
@given(
    parts=parts_of(60),
    seed=st.integers(0, 2**32),
    scale=st.sampled_from([1.0, 0.01, 1e-6]),
    layers=st.integers(1, 3),
    order=st.randoms(use_true_random=False),
)
def test_sums_do_not_depend_on_split_and_order(parts, seed, scale, layers, order):
    scores = np.random.default_rng(seed).uniform(-scale, scale, (3, layers, 60)).astype(np.float32)
    whole = sums_of_scores(torch.from_numpy(scores))
    sums = [sums_of_scores(torch.from_numpy(scores[..., part])) for part in parts]
    order.shuffle(sums)
    # Added up as a tree, which no order of ranks does.
    while len(sums) > 1:
        sums = [sum(pair) for pair in zip(sums[::2], sums[1::2], strict=False)] + sums[len(sums) // 2 * 2 :]
    assert torch.equal(sums[0], whole)
    exact = np.array([[math.fsum(row) / 60 for row in layer] for layer in scores])
    assert np.abs(mean_of_sums(whole).numpy() - exact).max() <= 2**-32
    # Sums of floats do depend on the order, or there would be nothing to test.
    floats = {np.float32(sum(map(np.float32, np.roll(scores[0, 0], k)))) for k in range(60)}
    assert len(floats) > 1


@pytest.fixture(scope="module")
def single(minilm: str) -> list[BERTScore]:
    """A metric for each pair."""
    encoder = FrozenEncoder(minilm, num_layers=LAYERS)
    metrics = [BERTScore(encoder, idf_sents=CORPUS) for _ in range(COUNT)]
    for metric, pred, target in zip(metrics, PREDS, TARGET, strict=True):
        metric.update(pred, target)
    return metrics


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(parts=parts_of(COUNT), whole=st.booleans())
def test_a_mean_does_not_depend_on_split_and_order(single, parts, whole):
    """Metrics that saw the same pairs, one at a time, and were added up in any way, agree in every bit."""
    expected = merged([single])
    found = merged([[single[i] for i in part] for part in parts], whole)
    assert all(torch.equal(found[name], expected[name]) for name in SCORES)
    exact = math.fsum(metric.compute()["f1"].item() for metric in single) / COUNT
    assert found["f1"].item() == pytest.approx(exact, abs=2**-24)


def merged(parts: list[list[BERTScore]], state_only: bool = False) -> dict[str, Tensor]:
    first = parts[0][0] if parts[0] else next(part[0] for part in parts if part)
    total = first.clone()
    total.reset()
    for part in parts:
        rank = total.clone()
        rank.reset()
        for metric in part:
            rank.merge_state(metric.metric_state if state_only else metric)
        total.merge_state(rank)
    found: dict[str, Tensor] = total.compute()
    return found


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(order=st.permutations(range(COUNT)), how=st.lists(st.sampled_from(["update", "forward"]), min_size=COUNT))
def test_pairs_may_come_in_any_order(single, order, how):
    metric = single[0].clone()
    metric.reset()
    for i, one in zip(order, how, strict=False):
        getattr(metric, one)(PREDS[i], TARGET[i])
    expected = merged([single])
    assert all(torch.equal(metric.compute()[name], expected[name]) for name in SCORES)


@pytest.mark.parametrize("sign", [1, -1])
def test_two_billion_pairs_fit(encoder, sign):
    """Scores of 1 have the largest sums; a state merged into itself 31 times has 2**31 pairs."""
    metric = BERTScore(encoder)
    metric.update("a cat", "a cat")
    extreme = torch.full((3, 1, 1), float(sign))
    metric.totals = sums_of_scores(extreme)
    for doubled in range(1, 32):
        metric.merge_state(dict(metric.metric_state))
        assert metric.totals[0] == 2**doubled
        # Without a warning of candidates that score 0.
        assert {name: value.item() for name, value in metric.compute().items()} == dict.fromkeys(SCORES, float(sign))


def test_many_pairs_keep_every_digit(encoder):
    """A billion times the same pairs have the same mean, where sums of float32 would have lost them."""
    metric = updated(BERTScore(encoder))
    expected = metric.compute()
    for _ in range(27):
        metric.merge_state(dict(metric.metric_state))
    assert metric.totals[0] == COUNT * 2**27
    found = metric.compute()
    assert all(torch.equal(found[name], expected[name]) for name in SCORES)


@pytest.mark.parametrize("wrong", [torch.tensor([[101, 1037, 102]]), torch.tensor(5), torch.zeros(1, 3)], ids=str)
def test_tensors_are_refused(encoder, wrong):
    metric = updated(BERTScore(encoder))
    before = metric.compute()
    for preds, target, name in ((wrong, ["a"], "preds"), (["a"], wrong, "target"), (["a"], [wrong], r"target\[0\]")):
        with pytest.raises(TypeError, match=f"{name} must be texts.*batch_decode"):
            metric.update(preds, target)
    assert torch.equal(stacked(metric.compute()), stacked(before))


# --- weights, pairs and alignments of a metric


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
    expected = BERTScore(encoder, idf_sents=TARGET)
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
        {"score": "f1"},
        {"confidence": 0.9},
        {"reduction": "none"},
        {"return_hash": True},
        {"idf_sents": ["the cat", "a dog sat"]},
    ],
    ids=lambda options: next(iter(options), "defaults"),
)
def test_a_metric_of_the_same_settings_gives_pairs(encoder, pairs, options):
    metric = BERTScore(encoder, **options)
    metric.update(pairs[0][:4], pairs[1][:4])
    twin = metric.per_pair()
    twin.update(pairs[0][:6], pairs[1][:6])
    known = {name: value for name, value in options.items() if name in ("idf", "idf_sents")}
    wanted = bert_score(pairs[0][:6], pairs[1][:6], encoder, **known)
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
    one = BERTScore(layers, num_layers=5, idf_sents=sents).align(*texts)
    other = compute_alignment(*texts, encoder, token_weights(encoder, idf_sents=sents))
    assert one.candidate.tokens == other.candidate.tokens
    assert torch.allclose(one.similarity, other.similarity, atol=1e-6)
    assert torch.allclose(one.candidate.shares, other.candidate.shares, atol=1e-6)
    metric = BERTScore(layers, num_layers=5, idf=True)
    with pytest.raises(ValueError, match="there are none yet: call update first"):
        metric.align(*texts)
    metric.update(["x"] * 3, sents)
    scores = bert_score([texts[0]], [texts[1]], encoder, idf_sents=sents)
    assert metric.align(*texts).f1 == pytest.approx(scores["f1"].item(), abs=1e-6)
    drawn = [text.get_text() for text in metric.plot_alignment(*texts).axes[0].texts]
    assert any(text.endswith("layer 5, idf of 3 texts") for text in drawn)
    with pytest.raises(ValueError, match="an alignment needs a single layer"):
        BERTScore(layers).align(*texts)
