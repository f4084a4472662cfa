import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bertscore_tm.matching.greedy import (
    TOKENWISE_MATCHINGS,
    TokenMass,
    TokenwiseMatching,
    match_by_softmax,
    match_greedily,
    match_pairs,
)
from bertscore_tm.matching.vectors import TokenizedTexts, TokenVectors, cosine_similarities, token_batches
from tests.support.rounding import rounding


def packed(texts, has_content=None):
    """Token vectors of texts that are given as lists of vectors."""
    lengths = np.array([len(text) for text in texts])
    vectors = torch.cat([torch.tensor(text).reshape(-1, 2) for text in texts])[None]
    has_content = [True] * len(texts) if has_content is None else has_content
    sizes = np.zeros(len(lengths), dtype=np.int64), np.zeros(len(lengths), dtype=np.int64)
    facts = np.array(has_content), np.zeros(len(lengths), dtype=bool), *sizes
    return TokenVectors(TokenizedTexts(np.arange(vectors.shape[1]), lengths, *facts), vectors)


def looped(vectors, pairs):
    """Best similarities of every pair, token by token."""
    texts = vectors.vectors.split(vectors.texts.lengths.tolist(), dim=1)
    candidate_best, reference_best = [], []
    for c, r in pairs:
        for layer_c, layer_r in zip(texts[c], texts[r], strict=True):
            candidate_best.extend([max(float(x @ y) for y in layer_r) for x in layer_c])
            reference_best.extend([max(float(x @ y) for y in layer_c) for x in layer_r])
    return candidate_best, reference_best


def assert_equals_loops(vectors, pairs):
    matched = match_pairs(vectors, *np.array(pairs).T)
    expected_candidate, expected_reference = looped(vectors, pairs)
    assert matched.candidate.best[:, 0].tolist() == pytest.approx(expected_candidate, abs=1e-6)
    assert matched.reference.best[:, 0].tolist() == pytest.approx(expected_reference, abs=1e-6)


def angle(degrees):
    return [math.cos(math.radians(degrees)), math.sin(math.radians(degrees))]


@settings(max_examples=30, deadline=None)
@given(
    angles=st.lists(st.lists(st.floats(0, 360), min_size=1, max_size=6), min_size=2, max_size=6),
    budget=st.sampled_from([1, 20, 1_000_000]),
    data=st.data(),
)
def test_matching_pairs_in_steps_equals_loops(angles, budget, data):
    vectors = packed([[angle(a) for a in text] for text in angles])
    number = st.integers(0, len(angles) - 1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bertscore_tm.device.memory._NUMBERS_PER_STEP", budget)
        assert_equals_loops(vectors, data.draw(st.lists(st.tuples(number, number), min_size=1, max_size=8)))


def test_equal_and_exchanged_pairs_are_compared_once(monkeypatch):
    compared = []

    def counted(candidate, reference):
        compared.append(len(candidate))
        return cosine_similarities(candidate, reference)

    monkeypatch.setattr("bertscore_tm.matching.greedy.cosine_similarities", counted)
    vectors = packed([[angle(0), angle(9)], [angle(20)], [angle(180), angle(60), angle(3)]])
    assert_equals_loops(vectors, [(0, 1), (1, 0), (0, 1), (2, 1), (0, 2), (1, 2), (2, 2)])
    assert sum(compared) == 4


def test_pairs_without_content_match_nothing():
    vectors = packed([[angle(0), angle(9)], [angle(0)], [angle(180)]], has_content=[True, False, True])
    matched = match_pairs(vectors, np.array([0, 1, 0]), np.array([1, 0, 2]))
    assert matched.candidate.best[:3].abs().max() == 0
    assert matched.reference.best[:3].abs().max() == 0
    assert (matched.candidate.best[3:] < 0).all()
    assert matched.candidate.lengths.tolist() == [2, 1, 2]


@pytest.mark.parametrize("match", [match_greedily, match_by_softmax])
def test_rows_without_keys_give_zero_and_finite_gradients(match):
    s = torch.randn(3, 4, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    keys = torch.tensor([[True, False, True, False, False], [False] * 5, [True] * 5])
    matched = match(s, keys)
    assert matched[1].abs().max() == 0
    assert (matched[[0, 2]] != 0).all()
    matched.sum().backward()
    assert torch.isfinite(s.grad).all()
    assert s.grad[1].abs().max() == 0
    assert torch.autograd.gradcheck(lambda x: match(x, keys, 0.3), s)


@pytest.mark.parametrize("temperature", [0.0, -0.1, math.nan])
def test_temperatures_must_be_positive(temperature):
    with pytest.raises(ValueError, match="temperature must be above 0"):
        match_by_softmax(torch.zeros(1, 1), torch.ones(1, dtype=torch.bool), temperature)


def softmax_of(row, temperature):
    powers = [math.exp(x / temperature) for x in row]
    return sum(p * x for p, x in zip(powers, row, strict=True)) / sum(powers)


ROW_FORMULAE = {"max": lambda row, temperature: max(row), "softmax": softmax_of}


@pytest.mark.parametrize("temperature", [0.02, 0.2, 5.0])
@pytest.mark.parametrize("name", TOKENWISE_MATCHINGS)
def test_both_sides_are_matched_and_weighted(name, temperature):
    """By loops over pairs and tokens."""
    random = torch.Generator().manual_seed(0)
    s = torch.rand(2, 3, 4, generator=random, dtype=torch.float64) * 2 - 1
    sides = []
    for size in (3, 4):
        mask = torch.rand(2, size, generator=random) > 0.3
        mask[:, 0] = True
        weights = torch.rand(2, size, generator=random, dtype=torch.float64)
        sides.append(TokenMass(mask, weights))
    matched = TOKENWISE_MATCHINGS[name](s, *sides, temperature)
    for matrix, queries, keys, sums in ((s, *sides, matched[0]), (s.mT, *sides[::-1], matched[1])):
        for pair in range(2):
            rows = zip(matrix[pair, :, keys.mask[pair]].tolist(), queries.weights[pair].tolist(), strict=True)
            expected = sum(weight * ROW_FORMULAE[name](row, temperature) for row, weight in rows)
            assert sums[pair].item() == pytest.approx(expected, abs=1e-12)


def test_similarities_ignore_autocast_and_widens_half_precision():
    generator = torch.Generator().manual_seed(0)
    a, b = torch.randn(3, 8, generator=generator), torch.randn(4, 8, generator=generator)
    expected = a @ b.T
    with torch.autocast("cpu", dtype=torch.bfloat16):
        limit = rounding(torch.float32, 8, expected.abs().max().item())
        torch.testing.assert_close(cosine_similarities(a, b), expected, atol=limit, rtol=0)
    assert cosine_similarities(a.bfloat16(), b.bfloat16()).dtype == torch.float32
    assert cosine_similarities(a.double(), b.double()).dtype == torch.float64


@settings(deadline=None)
@given(st.lists(st.integers(1, 40), max_size=30), st.integers(1, 100))
def test_token_batches_keep_to_the_budget_and_lose_nothing(lengths, budget):
    batches = list(token_batches(lengths, budget))
    assert sorted(i for batch in batches for i in batch) == list(range(len(lengths)))
    for batch in batches:
        assert len(batch) == 1 or len(batch) * max(lengths[i] for i in batch) <= budget


@pytest.mark.parametrize("buffer", [None, 2, 100])
def test_vectors_after_the_end_of_a_text_are_zero(buffer):
    vectors = packed([[[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], [[7.0, 8.0]]])
    memory = None if buffer is None else torch.full((buffer,), torch.nan)
    index, mask = vectors.texts.locate(np.array([1, 0]))
    padded = vectors.gather(index, torch.from_numpy(mask), memory)
    assert padded.tolist() == [[[[7, 8], [0, 0], [0, 0]], [[1, 2], [3, 4], [5, 6]]]]
    assert mask.tolist() == [[True, False, False], [True, True, True]]


@pytest.mark.parametrize("shape", [(5, 5), (5, 8), (8, 5), (3, 40), (40, 3), (1, 1)])
def test_sides_of_unequal_length_are_matched_in_little_memory(shape):
    """Both sides, and no padding to a multiple of what there is."""
    generator = torch.Generator().manual_seed(0)
    similarities = torch.rand(2, *shape, generator=generator)
    masses = [
        TokenMass(torch.rand(2, n, generator=generator) < 0.7, torch.rand(2, n, generator=generator)) for n in shape
    ]
    seen = []

    def match(values, mask, temperature):
        seen.append(values.numel())
        return match_by_softmax(values, mask, temperature)

    matched = TokenwiseMatching(match)(similarities, *masses, 0.1)
    for number, (values, found) in enumerate(zip((similarities, similarities.mT), matched, strict=True)):
        own, other = masses[number], masses[1 - number]
        for item in range(2):
            keys = values[item][:, other.mask[item]]
            best = ((keys / 0.1).softmax(-1) * keys).sum(-1)
            assert found[item].item() == pytest.approx((best * own.weights[item]).sum().item(), abs=1e-6)
    assert sum(seen) <= 4 * similarities.numel()
