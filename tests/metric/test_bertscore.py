"""The metric in one process: the same numbers as the function, however the data comes in."""

from __future__ import annotations

import copy
import pickle
import warnings
from itertools import pairwise
from unittest.mock import Mock

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from torch import Tensor, nn
from torchmetrics import MetricCollection
from torchmetrics.utilities.exceptions import TorchMetricsUserError

from bertscore_tm import BERTScore, FrozenEncoder
from bertscore_tm.functional import SCORES, bert_score
from bertscore_tm.metric.shared_batch import forget_batch
from tests.support.models import tiny_model
from tests.support.texts import several_references

TOLERANCE = 1e-6
FIRST = (["a cat sat on the mat", "good morning"], ["the cat sat on a mat", "hello there"])
SECOND = (["it rains in Paris"], ["rain falls on the capital of France"])
THIRD = (["the train was late", "nobody came"], [["the train came late", "a delayed train"], ["no one showed up"]])


@pytest.fixture(scope="module")
def encoder(minilm) -> FrozenEncoder:
    """The real encoder, two layers of it: most of these tests are about what happens around it."""
    return FrozenEncoder(minilm, num_layers=2)


@pytest.fixture(scope="module")
def texts(pairs) -> tuple[list[str], list[str]]:
    """9 real candidates and references, cut short."""
    preds, target = ([" ".join(text.split()[:9]) for text in side[:9]] for side in pairs)
    return preds, target


def assert_equal(found: dict[str, Tensor], expected: dict[str, Tensor], tolerance: float = TOLERANCE) -> None:
    assert found.keys() == expected.keys()
    for name in SCORES:
        assert found[name].shape == expected[name].shape
        torch.testing.assert_close(found[name], expected[name], rtol=0, atol=tolerance)


def mean(scores: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: value.double().mean(-1).float() for name, value in scores.items()}


def updated(metric: BERTScore, *batches: tuple) -> BERTScore:
    for batch in batches:
        metric.update(*batch)
    return metric


def per_pair(encoder: FrozenEncoder, *batches: tuple, **settings) -> dict[str, Tensor]:
    """The function's scores of all batches together."""
    preds = [text for batch in batches for text in batch[0]]
    target = [[several] if isinstance(several, str) else several for batch in batches for several in batch[1]]
    return bert_score(preds, target, encoder, **settings)


# --- numbers


@pytest.mark.parametrize(
    ("idf", "several", "all_layers"),
    [(False, False, False), (True, True, False), (True, False, True), (False, True, True)],
)
def test_equals_the_function(minilm, texts, idf, several, all_layers):
    preds, target = texts
    target = several_references(target) if several else target
    encoder = FrozenEncoder(minilm, num_layers=2, all_layers=all_layers)
    expected = bert_score(preds, target, encoder, idf=idf)
    each, average = (BERTScore(encoder, idf=idf, reduction=how) for how in ("none", "mean"))
    for start, stop in ((0, 4), (4, 5), (5, 9)):
        each.update(preds[start:stop], target[start:stop])
    average.merge_state(each)
    assert_equal(each.compute(), expected)
    assert_equal(average.compute(), mean(expected))


@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cuts=st.lists(st.integers(0, 9), max_size=4), numbers=st.permutations(range(9)), idf=st.booleans())
def test_any_split_and_order(encoder, texts, cuts, numbers, idf):
    edges = [0, *sorted(cuts), 9]
    metric = BERTScore(encoder, idf=idf, reduction="none")
    for start, stop in pairwise(edges):
        chosen = numbers[start:stop]
        metric.update([texts[0][i] for i in chosen], [texts[1][i] for i in chosen], indices=chosen)
    assert_equal(metric.compute(), bert_score(*texts, encoder, idf=idf))


def test_rescaling_with_a_table(encoder, tmp_path):
    table = tmp_path / "table.csv"
    rows = [f"{layer},{0.1 * layer:.1f},{0.1 * layer + 0.05:.2f},0.4" for layer in range(7)]
    table.write_text("\n".join(["LAYER,P,R,F", *rows]))
    raw = updated(BERTScore(encoder), FIRST, THIRD).compute()
    found = updated(BERTScore(encoder, rescale_with_baseline=True, baseline_path=table), FIRST, THIRD).compute()
    for name, b in zip(SCORES, (0.2, 0.25, 0.4), strict=True):
        assert found[name].item() == pytest.approx((raw[name].item() - b) / (1 - b), abs=TOLERANCE)


@pytest.mark.parametrize("all_layers", [False, True])
def test_one_pair_keeps_its_dimension(minilm, all_layers):
    for layers in (0, 2):
        metric = BERTScore(minilm, layers, all_layers, reduction="none")
        metric.update("a cat", "the cat")
        shape = (layers + 1, 1) if all_layers else (1,)
        assert all(value.shape == shape for value in metric.compute().values())
        assert all(value.shape == shape for value in metric("a cat", "the cat").values())


def test_hash_names_every_setting(encoder):
    plain = BERTScore(encoder, return_hash=True)
    shown = updated(plain, FIRST).compute()["hash"]
    assert shown == plain.signature()
    others = [BERTScore(encoder, idf=True), BERTScore(encoder.name, 4), BERTScore(encoder.name, 2, max_length=64)]
    assert len({shown, *(other.signature() for other in others)}) == 4


# --- indices


@pytest.mark.parametrize("idf", [False, True])
def test_repeated_indices_count_once_in_scores_and_frequencies(encoder, idf):
    metric = BERTScore(encoder, idf=idf, reduction="none")
    preds, target = FIRST[0] + SECOND[0], FIRST[1] + SECOND[1]
    metric.update([preds[2], preds[0], preds[2]], [target[2], target[0], target[2]], indices=[7, 3, 7])
    metric.update([preds[1], preds[0]], [target[1], target[0]], indices=torch.tensor([5, 3], dtype=torch.int32))
    expected = bert_score(preds, target, encoder, idf=idf)
    assert_equal(metric.compute(), expected)
    # Without indices the repeated references do change the frequencies, so that the test above means something.
    twice = bert_score(preds * 2, target * 2, encoder, idf=idf)["f1"][:3]
    assert torch.allclose(twice, expected["f1"], atol=1e-4) != idf


@pytest.mark.parametrize(
    ("how", "first", "second"),
    [("update", [0, 1], None), ("forward", None, [0]), ("merge_state", [0, 1], None), ("merge_state", None, [0])],
)
def test_indices_come_always_or_never(encoder, how, first, second):
    metric = BERTScore(encoder)
    metric.update(*FIRST, indices=first)
    before = metric.compute()
    other = BERTScore(encoder)
    other.update(*SECOND, indices=second)
    arguments = (other,) if how == "merge_state" else (*SECOND, second)
    with pytest.raises(ValueError, match="indices"):
        getattr(metric, how)(*arguments)
    assert_equal(metric.compute(), before, 0)


@pytest.mark.parametrize("indices", [[0], [0, 1, 2], [[0, 1]], [0.0, 1.0], [True, False], 3])
def test_malformed_indices(encoder, indices):
    metric = BERTScore(encoder)
    with pytest.raises(ValueError, match="2 integers"):
        metric.update(*FIRST, indices=indices)
    assert metric.metric_state["scores"] == []


# --- what goes wrong


@pytest.mark.parametrize(("idf", "how"), [(False, "forward"), (True, "update")])
@pytest.mark.parametrize(
    ("bad", "error"),
    [
        ((["one"], ["one", "two"]), ValueError),
        ((["one", None], ["one", "two"]), TypeError),
        ((["one"], [[]]), ValueError),
        (("one", ["one"]), TypeError),
        ((["word " * 600], ["one"]), ValueError),
    ],
)
def test_bad_input_loses_nothing(minilm, idf, how, bad, error):
    metric = updated(BERTScore(minilm, 2, idf=idf, truncation=False, reduction="none"), FIRST)
    before = metric.compute()
    with pytest.raises(error):
        getattr(metric, how)(*bad)
    assert_equal(metric.compute(), before, 0)
    metric.update(*SECOND)
    assert_equal(metric.compute(), per_pair(metric.encoder, FIRST, SECOND, idf=idf))


@pytest.mark.parametrize("idf", [False, True])
def test_empty_update_changes_nothing(encoder, idf):
    metric = BERTScore(encoder, idf=idf, reduction="none")
    updated(metric, ([], []), FIRST, ([], []))
    metric.update([], [], indices=[])
    assert_equal(metric.compute(), per_pair(encoder, FIRST, idf=idf))
    assert all(value.shape == (0,) for value in metric([], []).values())


@pytest.mark.parametrize("idf", [False, True])
def test_compute_before_update_warns_and_gives_zero(encoder, idf):
    with pytest.warns(UserWarning, match="before the ``update``"):
        result = BERTScore(encoder, idf=idf).compute()
    assert {name: value.item() for name, value in result.items()} == dict.fromkeys(SCORES, 0.0)


@pytest.mark.parametrize("sync_on_compute", [True, False])
def test_warns_with_counts_once_per_compute(minilm, sync_on_compute):
    metric = BERTScore(minilm, 2, max_length=8, sync_on_compute=sync_on_compute)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        metric(["", " \n", "fine"], ["some text", "more text", "fine"])
        metric.update(["word " * 20, "other " * 20], ["word " * 9, "short"])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        metric.compute()
    texts = [str(warning.message) for warning in caught]
    assert len(texts) == 2
    assert texts[0].startswith("2 candidates scored 0")
    assert texts[1].startswith("3 texts are longer than 8 tokens")


def test_impossible_settings(encoder):
    with pytest.raises(ValueError, match="reduction='sum'"):
        BERTScore(encoder, reduction="sum")
    with pytest.raises(ValueError, match="Unexpected keyword"):
        BERTScore(encoder, no_such_option=1)


# --- what a torchmetrics user does


@pytest.mark.parametrize("idf", [False, True])
@pytest.mark.parametrize("dist_sync_on_step", [False, True])
def test_forward_gives_the_batch_and_accumulates(encoder, idf, dist_sync_on_step):
    metric = BERTScore(encoder, idf=idf, reduction="none", dist_sync_on_step=dist_sync_on_step)
    for batch in (FIRST, SECOND, THIRD):
        assert_equal(metric(*batch), per_pair(encoder, batch, idf=idf))
    assert metric.update_count == 3
    assert_equal(metric.compute(), per_pair(encoder, FIRST, SECOND, THIRD, idf=idf))


def test_forward_encodes_once_and_refuses_a_synced_metric(encoder, monkeypatch):
    calls = []
    encode = FrozenEncoder.encode
    monkeypatch.setattr(FrozenEncoder, "encode", lambda *args, **kwargs: calls.append(1) or encode(*args, **kwargs))
    # What the encoder keeps of other tests would not be encoded again.
    forget_batch(encoder, torch.device("cpu"))
    metric = BERTScore(encoder, dist_sync_on_step=True, cache_bytes=0)
    metric(*FIRST)
    metric.compute()
    assert len(calls) == 1
    metric.sync(dist_sync_fn=lambda tensor, group: [tensor], distributed_available=lambda: True)
    with pytest.raises(TorchMetricsUserError, match="unsync"):
        metric(*FIRST)


class Prefixed(BERTScore):
    """Updates without the first word of each text, in two parts."""

    def update(self, preds, target, indices=None) -> None:
        short = [[text.partition(" ")[2] for text in side] for side in (preds, target)]
        super().update(*(side[:1] for side in short))
        super().update(*(side[1:] for side in short))


def test_forward_calls_the_update_of_a_subclass(encoder):
    metric = Prefixed(encoder, reduction="none")
    short = [[text.partition(" ")[2] for text in side] for side in FIRST]
    assert_equal(metric(*FIRST), bert_score(*short, encoder))
    assert_equal(metric.compute(), bert_score(*short, encoder))
    assert metric.update_count == 1


@pytest.mark.parametrize("how", ["compute", "forward"])
def test_failed_gathering_keeps_the_pairs_and_explains_how_to_score_them(encoder, how):
    def fail(tensor, group):
        raise RuntimeError("connection closed by peer")

    metric = BERTScore(encoder, dist_sync_fn=fail, distributed_available_fn=lambda: True, dist_sync_on_step=True)
    metric.update(*FIRST)
    with pytest.raises(RuntimeError, match="closed by peer") as caught:
        metric.compute() if how == "compute" else metric(*SECOND)
    assert "merge_state this metric into a BERTScore with sync_on_compute=False" in caught.value.__notes__[0]
    alone = BERTScore(encoder, sync_on_compute=False)
    alone.merge_state(metric)
    # The batch of a failed forward counts: it was added before the gathering.
    assert_equal(alone.compute(), mean(per_pair(encoder, FIRST, *([SECOND] if how == "forward" else []))))


class Halved(BERTScore):
    """Computes half of each score."""

    def compute(self):
        return {name: value / 2 for name, value in super().compute().items()}


@pytest.mark.parametrize("on_step", [False, True])
def test_forward_calls_the_compute_of_a_subclass(encoder, on_step):
    metric = Halved(encoder, reduction="none", dist_sync_on_step=on_step)
    whole = bert_score(*FIRST, encoder)
    assert_equal(metric(*FIRST), {name: value / 2 for name, value in whole.items()})
    metric.update(*SECOND)
    assert_equal(metric.compute(), {name: value / 2 for name, value in per_pair(encoder, FIRST, SECOND).items()})


def test_copies_of_a_synchronised_metric(encoder):
    own, both = mean(per_pair(encoder, FIRST)), mean(per_pair(encoder, FIRST, SECOND))
    metric = updated(BERTScore(encoder, sync_on_compute=False), FIRST)
    other = updated(BERTScore(encoder), SECOND)
    # Ranks that keep sums gather once: four counts, the fingerprint and the sums.
    facts = torch.cat([torch.zeros(4, dtype=torch.int64), other.fingerprint, other.totals])
    metric.sync(dist_sync_fn=lambda tensor, group: [tensor, facts], distributed_available=lambda: True)
    for _, copied in _copies(metric):
        assert_equal(copied.compute(), both)
        copied.unsync()
        assert_equal(copied.compute(), own)
    assert_equal(metric.compute(), both)
    metric.unsync()
    assert_equal(metric.compute(), own)


def _copies(metric):
    yield "clone", metric.clone()
    yield "deepcopy", copy.deepcopy(metric)
    yield "copy", copy.copy(metric)
    yield "pickle", pickle.loads(pickle.dumps(metric))


@pytest.mark.parametrize("idf", [False, True])
def test_copies_continue_on_their_own(encoder, idf):
    metric = updated(BERTScore(encoder, idf=idf, reduction="none"), FIRST)
    expected = per_pair(encoder, FIRST, THIRD, idf=idf)
    for name, other in _copies(metric):
        assert other.encoder is encoder or name == "pickle"
        assert_equal(updated(other, THIRD).compute(), expected)
        other.reset()
    assert_equal(metric.compute(), per_pair(encoder, FIRST, idf=idf))
    # No weights (91 MB) and no texts travel.
    pickled = pickle.dumps(metric)
    assert len(pickled) < 2_000_000
    assert b"the cat sat on a mat" not in pickled


@pytest.mark.parametrize("idf", [False, True])
def test_reset(encoder, idf):
    metric = updated(BERTScore(encoder, idf=idf, reduction="none"), FIRST)
    metric.compute()
    metric.reset()
    assert not metric.update_called
    assert_equal(updated(metric, SECOND).compute(), per_pair(encoder, SECOND, idf=idf))


@pytest.mark.parametrize("idf", [False, True])
def test_merge_state_appends(encoder, idf):
    metric = updated(BERTScore(encoder, idf=idf, reduction="none"), FIRST)
    metric.compute()
    metric.merge_state(updated(BERTScore(encoder, idf=idf, reduction="none"), SECOND))
    metric.merge_state(updated(BERTScore(encoder, idf=idf, reduction="none"), THIRD).metric_state)
    assert metric.update_count == 3
    expected = per_pair(encoder, FIRST, SECOND, THIRD, idf=idf)
    assert_equal(metric.compute(), expected)
    # A mean takes pairs and means, in any order; nothing can take pairs out of a mean.
    average = updated(BERTScore(encoder, idf=idf), FIRST)
    average.merge_state(updated(BERTScore(encoder, idf=idf, reduction="none"), THIRD))
    average.merge_state(updated(BERTScore(encoder, idf=idf), SECOND))
    assert_equal(average.compute(), mean(expected))
    if not idf:
        with pytest.raises(ValueError, match="kept sums only"):
            metric.merge_state(average)
        assert_equal(metric.compute(), expected)


def test_merge_state_of_something_else(encoder):
    metric = updated(BERTScore(encoder), FIRST)
    others = [BERTScore(encoder, idf=True), BERTScore(encoder.name, 4), BERTScore(encoder.name, 2, dtype="bfloat16")]
    for other in (*others, MetricCollection([]), 3, {}):
        with pytest.raises(ValueError, match=r"differ|expected a BERTScore"):
            metric.merge_state(other)
    incomplete = {name: value for name, value in metric.metric_state.items() if name != "totals"}
    with pytest.raises(ValueError, match="has no totals"):
        metric.merge_state(incomplete)
    assert_equal(metric.compute(), mean(per_pair(encoder, FIRST)))


@pytest.mark.parametrize("idf", [False, True])
def test_state_dict(encoder, idf):
    metric = updated(BERTScore(encoder, idf=idf), FIRST)
    assert metric.state_dict() == {}
    assert nn.ModuleDict({"metric": metric}).state_dict() == {}
    metric.load_state_dict({})
    metric.persistent(True)
    saved = metric.state_dict()
    first, second = BERTScore(encoder, idf=idf), BERTScore(encoder, idf=idf)
    first.load_state_dict(saved)
    second.load_state_dict(saved)
    assert_equal(updated(first, SECOND).compute(), mean(per_pair(encoder, FIRST, SECOND, idf=idf)))
    # What one of them adds is not in the other, nor in what was saved.
    assert_equal(updated(second, THIRD).compute(), mean(per_pair(encoder, FIRST, THIRD, idf=idf)))
    with pytest.raises(ValueError, match="same arguments"):
        BERTScore(encoder, idf=not idf).load_state_dict(saved)
    with pytest.raises(ValueError, match="same arguments"):
        nn.ModuleDict({"metric": BERTScore(encoder.name, 4, idf=idf)}).load_state_dict(
            {f"metric.{name}": value for name, value in saved.items()}
        )


def test_holds_no_module_and_no_parameter(encoder):
    metric = updated(BERTScore(encoder), FIRST)
    assert list(metric.parameters()) == list(metric.buffers()) == list(metric.children()) == []
    flags = (BERTScore.higher_is_better, BERTScore.is_differentiable, BERTScore.full_state_update)
    assert flags == (True, False, False)


@pytest.mark.parametrize(
    "cast",
    [
        lambda module: module.half(),
        lambda module: module.bfloat16(),
        lambda module: module.to(torch.bfloat16),
        lambda module: module.double(),
        lambda module: module.to("cpu", torch.float16),
    ],
)
def test_does_not_follow_the_dtype_of_its_owner(encoder, cast):
    owner = nn.Module()
    owner.metric, owner.linear = BERTScore(encoder, idf=True), nn.Linear(1, 1)
    updated(owner.metric, FIRST)
    for module in (owner, owner.metric):
        cast(module)
    updated(owner.metric, THIRD)
    assert owner.linear.weight.dtype != torch.float32
    for name, dtype in owner.metric._list_dtypes.items():
        assert all(part.dtype == dtype for part in getattr(owner.metric, name))
    owner.metric.set_dtype(torch.bfloat16)
    assert_equal(owner.metric.compute(), mean(per_pair(encoder, FIRST, THIRD, idf=True)))
    assert owner.metric.compute()["f1"].dtype == torch.float32


@pytest.mark.parametrize("idf", [False, True])
def test_inference_mode(minilm, idf):
    encoder = FrozenEncoder(minilm, num_layers=1)
    with torch.inference_mode():
        metric = BERTScore(encoder, idf=idf, reduction="none")
        metric.reset()
        metric(*FIRST)
    assert_equal(metric.compute(), per_pair(encoder, FIRST, idf=idf))
    metric.update(*SECOND)
    metric = pickle.loads(pickle.dumps(metric.clone()))
    with torch.inference_mode():
        metric.update(*THIRD)
    assert_equal(metric.compute(), per_pair(encoder, FIRST, SECOND, THIRD, idf=idf))
    assert not any(parameter.is_inference() for parameter in encoder.backbone(torch.device("cpu")).parameters())


@pytest.mark.parametrize("idf", [False, True])
def test_compute_on_cpu(encoder, idf):
    metric = BERTScore(encoder, idf=idf, compute_on_cpu=True)
    metric(*FIRST)
    metric.update(*THIRD)
    assert_equal(metric.compute(), mean(per_pair(encoder, FIRST, THIRD, idf=idf)))
    assert metric.compute_on_cpu


def test_compute_on_cpu_keeps_lists_there_when_the_metric_moves(encoder):
    metric = updated(BERTScore(encoder, compute_on_cpu=True, reduction="none"), FIRST).to("meta")
    assert metric.totals.device.type == "meta"
    assert [part.device.type for part in metric.scores] == ["cpu"]


def test_result_is_kept_until_an_update(encoder, monkeypatch):
    metric = BERTScore(encoder)
    updated(metric, FIRST).compute()
    metric.merge_state(updated(BERTScore(encoder), SECOND))
    expected = mean(per_pair(encoder, FIRST, SECOND))
    monkeypatch.setattr(metric, "_combine", Mock(wraps=metric._combine))
    for _ in range(3):
        found = metric.compute()
        assert_equal(found, expected)
        # The caller's own.
        found["f1"] *= 100
    assert metric._combine.call_count == 1
    metric.update(*THIRD)
    assert_equal(metric.compute(), mean(per_pair(encoder, FIRST, SECOND, THIRD)))


# --- collections


# Scores of identical texts are 1 at any layer and with any weights, so that even the states are equal.
_SAME = (["a cat"], ["a cat"])


@pytest.mark.parametrize(("first", "how"), [(([], []), "update"), (_SAME, "update"), (_SAME, "forward")])
def test_collection_keeps_different_metrics_apart(encoder, first, how):
    kinds = {"plain": BERTScore(encoder), "idf": BERTScore(encoder, idf=True), "layer": BERTScore(encoder.name, 3)}
    collection = MetricCollection({name: metric.clone() for name, metric in kinds.items()})
    for batch in (first, SECOND, THIRD):
        getattr(collection, how)(*batch)
        for metric in kinds.values():
            metric.update(*batch)
    assert len(collection.compute_groups) == 3
    found = collection.compute()
    for kind, metric in kinds.items():
        # Other texts are encoded together.
        assert_equal({name: found[f"{kind}_{name}"] for name in SCORES}, metric.compute())
    assert found["plain_f1"] != found["layer_f1"]


def test_collection_keeps_ready_models_apart():
    kinds = {}
    for seed in (0, 1):
        model, tokenizer = tiny_model("bert")
        model = copy.deepcopy(model)
        torch.nn.init.normal_(model.embeddings.word_embeddings.weight, std=0.3 + seed)
        kinds[f"model{seed}"] = BERTScore(model=model, user_tokenizer=tokenizer, num_layers=2)
    collection = MetricCollection({name: metric.clone() for name, metric in kinds.items()})
    for batch in (([], []), FIRST, THIRD):
        updated(collection, batch)
        for metric in kinds.values():
            metric.update(*batch)
    found = collection.compute()
    for kind, metric in kinds.items():
        assert_equal({name: found[f"{kind}_{name}"] for name in SCORES}, metric.compute(), 0)


def test_collection_of_equal_metrics_shares(encoder):
    table = {"a": BERTScore(encoder), "b": BERTScore(encoder), "c": BERTScore(encoder, reduction="none")}
    collection = MetricCollection(table)
    collection.update(*FIRST)
    assert sorted(map(sorted, collection.compute_groups.values())) == [["a", "b"], ["c"]]
    collection(*SECOND)
    collection.update(*THIRD)
    found, expected = collection.compute(), per_pair(encoder, FIRST, SECOND, THIRD)
    for kind, wanted in (("a", mean(expected)), ("b", mean(expected)), ("c", expected)):
        assert_equal({name: found[f"{kind}_{name}"] for name in SCORES}, wanted)
    collection.reset()
    collection.update(*THIRD)
    assert_equal({name: collection.compute()[f"c_{name}"] for name in SCORES}, per_pair(encoder, THIRD))


# --- drawing


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_plot(encoder, reduction):
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    metric = BERTScore(encoder, return_hash=True, reduction=reduction)
    values = [metric(*FIRST), metric(*FIRST)]
    for val in (None, values[0], values) if reduction == "mean" else (None, values[0]):
        figure, axes = metric.plot(val)
        assert isinstance(figure, plt.Figure)
        assert axes is not None
        plt.close(figure)
    figure, axes = plt.subplots()
    assert metric.plot(ax=axes)[1] is axes
    plt.close(figure)
