"""Scores of all pairs equal those of single pairs."""

import pytest
import torch

from bertscore_tm import FrozenEncoder, bert_score, score_matrix
from bertscore_tm.scoring import corpus
from tests.support.models import tiny_model
from tests.support.texts import real_pairs

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("idf", [False, True])
def test_every_entry_is_the_score_of_its_pair(encoder, idf, monkeypatch):
    # Several steps of references.
    monkeypatch.setattr(corpus, "_ELEMENTS_PER_STEP", 384 * 40)
    candidates, references = real_pairs(5)
    rows, columns = [*candidates[:3], "", candidates[0]], [*references, references[1]]
    found = score_matrix(rows, columns, encoder, idf=idf)
    pairs = [(row, column) for row in rows for column in columns]
    with pytest.warns(UserWarning, match="scored 0"):
        expected = bert_score(*map(list, zip(*pairs, strict=True)), encoder, idf=columns if idf else False)
    for name, scores in found.items():
        assert scores.shape == (5, 6)
        torch.testing.assert_close(scores.flatten(), expected[name], atol=1e-6, rtol=0)


def test_a_list_with_itself(encoder):
    texts = [*real_pairs(4)[0], "hello"]
    found, expected = score_matrix(texts, encoder=encoder), score_matrix(texts, texts, encoder)
    for name in ("precision", "recall", "f1"):
        torch.testing.assert_close(found[name], expected[name], atol=1e-6, rtol=0)
    torch.testing.assert_close(found["f1"].diagonal(), torch.ones(5), atol=1e-6, rtol=0)


def test_each_distinct_text_is_encoded_once(encoder, monkeypatch):
    encoded, encode = [], FrozenEncoder.encode

    def record(self, texts, *arguments, **options):
        encoded.extend(texts)
        return encode(self, texts, *arguments, **options)

    candidates, references = real_pairs(4)
    rows, columns = [*candidates, candidates[0]], [references[0], *candidates[::-1], *references]
    monkeypatch.setattr(FrozenEncoder, "encode", record)
    found = score_matrix(rows, columns, encoder)
    assert sorted(encoded) == sorted({*rows, *columns})
    # In another order, and from two calls.
    for place, several in ((slice(1, 5), candidates[::-1]), (slice(5, 9), references)):
        expected = [score_matrix([row], several, encoder)["f1"][0] for row in rows]
        torch.testing.assert_close(found["f1"][:, place], torch.stack(expected), atol=1e-6, rtol=0)


def test_bad_input():
    encoder = FrozenEncoder(*tiny_model("bert"), num_layers=1, max_length=9)
    assert score_matrix([], ["a"], encoder)["f1"].shape == (0, 1)
    assert score_matrix(["a"], [], encoder)["f1"].shape == (1, 0)
    with pytest.warns(UserWarning, match=r"1 text is longer than 9 tokens.*; long_text='window' scores whole texts"):
        score_matrix([" ".join(real_pairs(1)[0])], ["a"], encoder)
    with pytest.raises(TypeError, match="candidates"):
        score_matrix("a", ["b"], encoder)
    with pytest.raises(ValueError, match="one layer"):
        score_matrix(["a"], ["b"], FrozenEncoder(*tiny_model("bert"), all_layers=True))
