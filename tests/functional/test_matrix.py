"""Matrices of scores: each entry is the score of its pair."""

from itertools import chain

import pytest
import torch

from bertscore_tm import FrozenEncoder, score_matrix
from bertscore_tm.scoring import corpus
from tests.support.models import tiny_model
from tests.support.ranking import score_pairs
from tests.support.texts import real_pairs

CANDIDATES, REFERENCES = real_pairs(5)


@pytest.fixture
def several_steps(monkeypatch):
    """Few texts fit into a step."""
    monkeypatch.setattr(corpus, "_ELEMENTS_PER_STEP", 384 * 40)


@pytest.mark.usefixtures("several_steps")
@pytest.mark.parametrize("idf", [False, True])
def test_every_entry_is_the_score_of_its_pair(encoder, idf):
    rows = [*CANDIDATES[:3], "", CANDIDATES[0]]
    columns = [*REFERENCES, REFERENCES[1]]
    documents = columns if idf else False
    expected = score_pairs(rows, columns, encoder, idf=documents)

    result = score_matrix(rows, columns, encoder, idf=idf)

    assert {scores.dtype for scores in result.values()} == {torch.float32}
    torch.testing.assert_close(result, expected, atol=1e-6, rtol=0, check_dtype=False)


@pytest.mark.usefixtures("several_steps")
def test_texts_alone_are_scored_with_each_other(encoder):
    texts = [*CANDIDATES, "hello"]
    expected = score_pairs(texts, texts, encoder)

    result = score_matrix(texts, encoder=encoder)

    torch.testing.assert_close(result, expected, atol=1e-6, rtol=0, check_dtype=False)


def test_each_distinct_text_of_a_matrix_is_encoded_once(encoder, encoded):
    rows = [*CANDIDATES[:4], CANDIDATES[0]]
    columns = [REFERENCES[0], *CANDIDATES[3::-1], *REFERENCES[:4]]

    score_matrix(rows, columns, encoder)

    assert sorted(chain(*encoded)) == sorted({*rows, *columns})


def test_a_matrix_does_not_depend_on_the_order_of_its_texts(encoder):
    rows, columns = CANDIDATES[:4], REFERENCES[:4]
    expected = score_matrix(rows, columns, encoder)["f1"]

    result = score_matrix(rows[::-1], columns[::-1], encoder)["f1"]

    torch.testing.assert_close(result.flip(0, 1), expected, atol=1e-6, rtol=0)


@pytest.fixture
def tiny():
    """A tiny encoder of short texts."""
    return FrozenEncoder(*tiny_model("bert"), num_layers=1, max_length=9)


def test_a_matrix_without_rows_or_columns_has_their_shape(tiny):
    assert score_matrix([], ["a"], tiny)["f1"].shape == (0, 1)
    assert score_matrix(["a"], [], tiny)["f1"].shape == (1, 0)


def test_truncated_texts_of_a_matrix_are_counted_in_one_warning(tiny, monkeypatch):
    monkeypatch.setattr(corpus, "_ELEMENTS_PER_STEP", 1)  # a text per step
    long = CANDIDATES[0]
    message = r"1 text is longer than 9 tokens.*long_text .*'window' to score whole texts"

    with pytest.warns(UserWarning, match=message) as caught:
        score_matrix(["a"], [long, "b", long], tiny)

    assert len(caught) == 1


def test_impossible_arguments_of_a_matrix_are_named(tiny):
    all_layers = FrozenEncoder(*tiny_model("bert"), all_layers=True)

    with pytest.raises(TypeError, match="candidates"):
        score_matrix("a", ["b"], tiny)
    with pytest.raises(ValueError, match="one layer"):
        score_matrix(["a"], ["b"], all_layers)
