"""Scores of matched tokens, and their independence of the batch size, with the real encoder."""

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bertscore_tm import FrozenEncoder, bert_score
from bertscore_tm.matching.greedy import MatchedPairs, MatchedTokens
from bertscore_tm.matching.scores import best_of_references, harmonic_mean, precision_recall_f1, selection_f1
from tests.support.texts import several_references

TOLERANCE = 1e-6


@pytest.mark.parametrize("weight", [1.0, 0.0])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_scores_stay_in_the_range_of_similarities(sign, weight):
    similarity = sign * (1 + 1e-6)
    token = MatchedTokens(torch.tensor([0]), torch.tensor([[similarity]]), torch.tensor([1]))
    weights = torch.tensor([weight], dtype=torch.float64)

    scores = precision_recall_f1(MatchedPairs(token, token), weights)

    assert [score.item() for score in scores] == [sign * weight] * 3


@pytest.mark.parametrize("idf", [False, True])
@pytest.mark.parametrize("batch_size", [1, 7])
def test_scores_do_not_depend_on_the_batch_size(encoder, minilm, pairs, batch_size, idf):
    candidates, references = pairs[0][:6], several_references(pairs[1][:6])
    # Fixed texts, because the document frequencies of the references change with the corpus.
    documents = pairs[1][:6] if idf else False
    expected = bert_score(candidates, references, encoder, idf=documents)
    other = FrozenEncoder(minilm, num_layers=5, batch_size=batch_size)

    result = bert_score(candidates, references, other, idf=documents)
    alone = bert_score(candidates[3:4], references[3:4], other, idf=documents)

    of_pair = {name: scores[3:4] for name, scores in expected.items()}
    torch.testing.assert_close(result, expected, atol=TOLERANCE, rtol=0)
    torch.testing.assert_close(alone, of_pair, atol=TOLERANCE, rtol=0)


# The parts.


scores_in_range = st.floats(-1, 1, allow_subnormal=False)


@settings(deadline=None)
@given(p=scores_in_range, r=scores_in_range)
@example(p=0.3, r=-0.3)
def test_harmonic_mean_is_bounded_and_exact_where_positive(p, r):
    f = harmonic_mean(*torch.tensor([p, r], dtype=torch.float64)).item()

    assert -1 <= f <= 1
    if p > 0 and r > 0:
        assert f == pytest.approx(2 * p * r / (p + r), abs=1e-12)
    if p + r == 0:
        assert f == 0


@settings(deadline=None)
@given(p=scores_in_range, r=scores_in_range)
def test_selection_f1_is_continuous_and_bounded(p, r):
    both = torch.tensor([p, r], dtype=torch.float64, requires_grad=True)
    expected = min(p, r)
    if expected > 0:
        expected = 2 * p * r / (p + r)

    f = selection_f1(both[0], both[1])
    f.backward()

    assert torch.isfinite(both.grad).all()
    assert min(p, r) - 1e-12 <= f.item() <= max(p, r) + 1e-12
    assert f.item() == pytest.approx(expected, abs=1e-12)


def test_best_of_references_takes_each_maximum_within_its_group():
    scores = torch.tensor([[-0.5, 0.1, 0.9, -0.2, -0.2], [0.5, 0.4, 0.3, 0.2, 0.1]])

    best, which = best_of_references(scores, torch.tensor([1, 2, 2]))

    assert best.tolist() == torch.tensor([[-0.5, 0.9, -0.2], [0.5, 0.4, 0.2]]).tolist()
    assert which.tolist() == [[0, 1, 0], [0, 0, 0]]
