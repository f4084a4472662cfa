"""Matrices of scores: each entry is the score of its pair."""

from itertools import chain

import pytest
import torch

from bertscore_tm import score_matrix
from bertscore_tm.encoder import FrozenEncoder
from bertscore_tm.scoring import corpus
from tests.support.models import tiny_model
from tests.support.ranking import score_pairs
from tests.support.texts import real_pairs


@pytest.mark.parametrize("kind", ["plain", "idf", "with itself"])
def test_every_entry_is_the_score_of_its_pair(encoder, kind, monkeypatch):
    # Several steps of references.
    monkeypatch.setattr(corpus, "_ELEMENTS_PER_STEP", 384 * 40)
    candidates, references = real_pairs(5)
    rows, columns = [*candidates[:3], "", candidates[0]], [*references, references[1]]
    if kind == "with itself":
        rows = columns = [*candidates, "hello"]
    result = score_matrix(rows, None if rows is columns else columns, encoder, idf=kind == "idf")
    assert {scores.dtype for scores in result.values()} == {torch.float32}
    expected = score_pairs(rows, columns, encoder, idf=columns if kind == "idf" else False)
    torch.testing.assert_close(result, expected, atol=1e-6, rtol=0, check_dtype=False)


def test_each_distinct_text_of_a_matrix_is_encoded_once(encoder, encoded):
    candidates, references = real_pairs(4)
    rows, columns = [*candidates, candidates[0]], [references[0], *candidates[::-1], *references]
    result = score_matrix(rows, columns, encoder)
    assert sorted(chain(*encoded)) == sorted({*rows, *columns})
    # In another order, and from two calls.
    for place, group in ((slice(1, 5), candidates[::-1]), (slice(5, 9), references)):
        expected = [score_matrix([row], group, encoder)["f1"][0] for row in rows]
        torch.testing.assert_close(result["f1"][:, place], torch.stack(expected), atol=1e-6, rtol=0)


def test_bad_input_of_a_matrix(monkeypatch):
    monkeypatch.setattr(corpus, "_ELEMENTS_PER_STEP", 1)  # a text per step
    encoder = FrozenEncoder(*tiny_model("bert"), num_layers=1, max_length=9)
    assert score_matrix([], ["a"], encoder)["f1"].shape == (0, 1)
    assert score_matrix(["a"], [], encoder)["f1"].shape == (1, 0)
    with pytest.warns(UserWarning, match=r"1 text is longer than 9 tokens.*long_text .*'window' to score whole texts"):
        score_matrix(["a"], [real_pairs(1)[0][0], "b", real_pairs(1)[0][0]], encoder)
    with pytest.raises(TypeError, match="candidates"):
        score_matrix("a", ["b"], encoder)
    with pytest.raises(ValueError, match="one layer"):
        score_matrix(["a"], ["b"], FrozenEncoder(*tiny_model("bert"), all_layers=True))
