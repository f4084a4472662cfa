"""Matching of tokens against plain loops over pairs and tokens."""

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
    if has_content is None:
        has_content = [True] * len(texts)
    count = len(texts)
    tokenized = TokenizedTexts(
        ids=np.arange(vectors.shape[1]),
        lengths=lengths,
        has_content=np.array(has_content),
        truncated=np.zeros(count, dtype=bool),
        text_sizes=np.zeros(count, dtype=np.int64),
        unknown_sizes=np.zeros(count, dtype=np.int64),
    )
    return TokenVectors(tokenized, vectors)


def find_best(text, other):
    """Best similarity of each token of a text, by a loop over the tokens of another."""
    best = []
    for vector in text:
        similarities = [float(vector @ other_vector) for other_vector in other]
        best.append(max(similarities))
    return best


def assert_equals_loops(vectors, pairs):
    """Compare the matches of pairs with those of a loop."""
    (layer,) = vectors.vectors
    texts = layer.split(vectors.texts.lengths.tolist())
    candidates, references = np.array(pairs).T
    expected_candidate = []
    expected_reference = []
    for candidate, reference in pairs:
        expected_candidate += find_best(texts[candidate], texts[reference])
        expected_reference += find_best(texts[reference], texts[candidate])

    matched = match_pairs(vectors, candidates, references)

    assert matched.candidate.best[:, 0].tolist() == pytest.approx(expected_candidate, abs=1e-6)
    assert matched.reference.best[:, 0].tolist() == pytest.approx(expected_reference, abs=1e-6)


def angle(degrees):
    """Return the unit vector of an angle."""
    radians = math.radians(degrees)
    return [math.cos(radians), math.sin(radians)]


@settings(max_examples=30, deadline=None)
@given(
    angles=st.lists(st.lists(st.floats(0, 360), min_size=1, max_size=6), min_size=2, max_size=6),
    budget=st.sampled_from([1, 20, 1_000_000]),
    data=st.data(),
)
def test_matching_pairs_in_steps_equals_loops(angles, budget, data):
    texts = [list(map(angle, text)) for text in angles]
    number = st.integers(0, len(texts) - 1)
    pairs = data.draw(st.lists(st.tuples(number, number), min_size=1, max_size=8))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bertscore_tm.device.memory._NUMBERS_PER_STEP", budget)
        assert_equals_loops(packed(texts), pairs)


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
    generator = torch.Generator().manual_seed(0)
    similarities = torch.randn(3, 4, 5, dtype=torch.float64, generator=generator).requires_grad_()
    keys = torch.tensor([[True, False, True, False, False], [False] * 5, [True] * 5])

    matched = match(similarities, keys)
    matched.sum().backward()

    assert (matched[1] == 0).all()
    assert (matched[[0, 2]] != 0).all()
    assert torch.isfinite(similarities.grad).all()
    assert (similarities.grad[1] == 0).all()
    assert torch.autograd.gradcheck(lambda x: match(x, keys, 0.3), similarities)


@pytest.mark.parametrize("temperature", [0.0, -0.1, math.nan])
def test_temperatures_must_be_positive(temperature):
    mask = torch.ones(1, dtype=torch.bool)

    with pytest.raises(ValueError, match="temperature must be above 0"):
        match_by_softmax(torch.zeros(1, 1), mask, temperature)


def softmax_of(row, temperature):
    """Mean of a row, weighted by a softmax of itself."""
    weights = [math.exp(x / temperature) for x in row]
    weighted = [weight * x for weight, x in zip(weights, row, strict=True)]
    return sum(weighted) / sum(weights)


ROW_FORMULAE = {"max": lambda row, temperature: max(row), "softmax": softmax_of}


def draw_masses(generator, *sizes, dtype=torch.float64):
    """Masks and weights of the tokens of two pairs of texts; the first token of each text is real."""
    masses = []
    for size in sizes:
        mask = torch.rand(2, size, generator=generator) > 0.3
        mask[:, 0] = True
        masses.append(TokenMass(mask, torch.rand(2, size, generator=generator, dtype=dtype)))
    return masses


def sum_rows(matrix, queries, keys, pair, formula):
    """Weighted sum over the rows of a matrix of a formula of each row, among the keys that are real."""
    total = 0.0
    for row, weight in zip(matrix[pair], queries.weights[pair].tolist(), strict=True):
        values = row[keys.mask[pair]].tolist()
        total += weight * formula(values)
    return total


@pytest.mark.parametrize("temperature", [0.02, 0.2, 5.0])
@pytest.mark.parametrize("name", TOKENWISE_MATCHINGS)
def test_both_sides_are_matched_and_weighted(name, temperature):
    generator = torch.Generator().manual_seed(0)
    similarities = torch.rand(2, 3, 4, generator=generator, dtype=torch.float64) * 2 - 1
    candidate, reference = draw_masses(generator, 3, 4)

    def formula(row):
        return ROW_FORMULAE[name](row, temperature)

    precision, recall = TOKENWISE_MATCHINGS[name](similarities, candidate, reference, temperature)

    for pair in range(2):
        expected_precision = sum_rows(similarities, candidate, reference, pair, formula)
        expected_recall = sum_rows(similarities.mT, reference, candidate, pair, formula)
        assert precision[pair].item() == pytest.approx(expected_precision, abs=1e-12)
        assert recall[pair].item() == pytest.approx(expected_recall, abs=1e-12)


def test_similarities_ignore_autocast():
    generator = torch.Generator().manual_seed(0)
    a = torch.randn(3, 8, generator=generator)
    b = torch.randn(4, 8, generator=generator)
    expected = a @ b.T

    with torch.autocast("cpu", dtype=torch.bfloat16):
        similarities = cosine_similarities(a, b)

    limit = rounding(torch.float32, 8, expected.abs().max().item())
    torch.testing.assert_close(similarities, expected, atol=limit, rtol=0)


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [(torch.bfloat16, torch.float32), (torch.float32, torch.float32), (torch.float64, torch.float64)],
)
def test_similarities_are_in_float32_or_wider(dtype, expected):
    vectors = torch.ones(3, 8, dtype=dtype)

    assert cosine_similarities(vectors, vectors).dtype == expected


@settings(deadline=None)
@given(st.lists(st.integers(1, 40), max_size=30), st.integers(1, 100))
def test_token_batches_keep_to_the_budget_and_lose_nothing(lengths, budget):
    batches = list(token_batches(lengths, budget))

    in_order = sorted(i for batch in batches for i in batch)
    assert in_order == list(range(len(lengths)))
    for batch in batches:
        longest = max(lengths[i] for i in batch)
        assert len(batch) == 1 or len(batch) * longest <= budget


@pytest.mark.parametrize("buffer", [None, 2, 100])
def test_vectors_after_the_end_of_a_text_are_zero(buffer):
    vectors = packed([[[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], [[7.0, 8.0]]])
    memory = None if buffer is None else torch.full((buffer,), torch.nan)
    index, mask = vectors.texts.locate(np.array([1, 0]))

    padded = vectors.gather(index, torch.from_numpy(mask), memory)

    assert padded.tolist() == [[[[7, 8], [0, 0], [0, 0]], [[1, 2], [3, 4], [5, 6]]]]
    assert mask.tolist() == [[True, False, False], [True, True, True]]


SHAPES = [(5, 5), (5, 8), (8, 5), (3, 40), (40, 3), (1, 1)]


@pytest.mark.parametrize("shape", SHAPES)
def test_sides_of_unequal_length_are_matched(shape):
    generator = torch.Generator().manual_seed(0)
    similarities = torch.rand(2, *shape, generator=generator)
    candidate, reference = draw_masses(generator, *shape, dtype=torch.float32)

    precision, recall = TokenwiseMatching(match_by_softmax)(similarities, candidate, reference, 0.1)

    for pair in range(2):
        expected_precision = sum_rows(similarities, candidate, reference, pair, lambda row: softmax_of(row, 0.1))
        expected_recall = sum_rows(similarities.mT, reference, candidate, pair, lambda row: softmax_of(row, 0.1))
        assert precision[pair].item() == pytest.approx(expected_precision, abs=2e-6)
        assert recall[pair].item() == pytest.approx(expected_recall, abs=2e-6)


@pytest.mark.parametrize("shape", SHAPES)
def test_sides_of_unequal_length_are_matched_in_little_memory(shape):
    """No side is padded to a multiple of what there is."""
    generator = torch.Generator().manual_seed(0)
    similarities = torch.rand(2, *shape, generator=generator)
    masses = draw_masses(generator, *shape, dtype=torch.float32)
    sizes = []

    def match(values, mask, temperature):
        sizes.append(values.numel())
        return match_by_softmax(values, mask, temperature)

    TokenwiseMatching(match)(similarities, *masses, 0.1)

    assert sum(sizes) <= 4 * similarities.numel()
