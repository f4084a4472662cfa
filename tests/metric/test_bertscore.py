"""The metric in one process: the same numbers as the function, however the data comes in."""

from __future__ import annotations

import warnings
from itertools import pairwise
from unittest.mock import Mock

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import HealthCheck, given, settings

from bertscore_tm import BERTScore, FrozenEncoder
from bertscore_tm.functional import bert_score
from tests.support.metric_batches import FIRST, SECOND, THIRD, assert_equal, mean, per_pair, updated


@pytest.fixture(scope="module")
def texts(pairs) -> tuple[list[str], list[str]]:
    """9 real candidates and references, cut short."""
    preds, target = ([" ".join(text.split()[:9]) for text in side[:9]] for side in pairs)
    return preds, target


# --- numbers


@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cuts=st.lists(st.integers(0, 9), max_size=4), numbers=st.permutations(range(9)), idf=st.booleans())
def test_any_split_and_order(encoder, texts, cuts, numbers, idf):
    edges = [0, *sorted(cuts), 9]
    metric = BERTScore(encoder, idf=idf, reduction="none")
    for start, stop in pairwise(edges):
        chosen = numbers[start:stop]
        metric.update([texts[0][i] for i in chosen], [texts[1][i] for i in chosen], indices=chosen)
    assert_equal(metric.compute(), bert_score(*texts, encoder, idf=idf))


@pytest.mark.parametrize("all_layers", [False, True])
def test_one_pair_keeps_its_dimension(minilm, all_layers):
    for layers in (0, 2):
        metric = BERTScore(FrozenEncoder(minilm, num_layers=layers, all_layers=all_layers), reduction="none")
        metric.update("a cat", "the cat")
        shape = (layers + 1, 1) if all_layers else (1,)
        assert all(value.shape == shape for value in metric.compute().values())
        assert all(value.shape == shape for value in metric("a cat", "the cat").values())


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
    metric = updated(
        BERTScore(FrozenEncoder(minilm, num_layers=2, long_text="error"), idf=idf, reduction="none"), FIRST
    )
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


@pytest.mark.parametrize("sync_on_compute", [True, False])
def test_warns_with_counts_once_per_compute(minilm, sync_on_compute):
    metric = BERTScore(FrozenEncoder(minilm, num_layers=2, max_length=8), sync_on_compute=sync_on_compute)
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
