"""Scores of all pairs against a loop over their tokens."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from bertscore_tm.device import memory
from bertscore_tm.matching.all_pairs import score_all_pairs
from bertscore_tm.matching.vectors import TokenizedTexts, TokenVectors, unit_vectors
from tests.support.rounding import rounding

WIDTH = 6
ROUNDING = rounding(torch.float32, WIDTH)
LENGTHS = [4, 1, 7, 2, 30, 3, 1, 5]


@pytest.fixture
def vectors():
    generator = torch.Generator().manual_seed(0)
    total = sum(LENGTHS)
    units = unit_vectors(torch.randn(1, total, WIDTH, generator=generator))
    texts = TokenizedTexts(
        ids=torch.randint(0, 9, (total,), generator=generator).numpy(),
        lengths=np.array(LENGTHS),
        has_content=np.array([length > 1 for length in LENGTHS]),
        truncated=np.zeros(len(LENGTHS), dtype=bool),
        text_sizes=np.zeros(len(LENGTHS), dtype=np.int64),
        unknown_sizes=np.zeros(len(LENGTHS), dtype=np.int64),
    )
    return TokenVectors(texts, units)


def average(vectors, weights, text, other):
    """Weighted mean of the best similarities of a text's tokens, by a loop; 0 where nothing counts."""
    texts = vectors.vectors[0].split(LENGTHS)
    ids = vectors.texts.rows()
    has_content = vectors.texts.has_content[text] and vectors.texts.has_content[other]
    total = sum(float(weights[token]) for token in ids[text])
    if not has_content or total == 0:
        return 0.0
    mean = 0.0
    for token, vector in zip(ids[text], texts[text], strict=True):
        best = max(float(vector @ other_vector) for other_vector in texts[other])
        mean += float(weights[token]) * best / total
    return mean


def harmonic(precision, recall):
    """F1 between -1 and 1, and 0 without precision and recall."""
    if precision + recall == 0:
        return 0.0
    f1 = 2 * precision * recall / (precision + recall)
    return max(-1.0, min(f1, 1.0))


@pytest.mark.parametrize("numbers", [1_000_000, 200, 8], ids=["one block", "several blocks", "parts of texts"])
@pytest.mark.parametrize("has_references", [False, True])
def test_equals_a_loop_over_tokens(vectors, numbers, has_references, monkeypatch):
    monkeypatch.setattr(memory, "_NUMBERS_PER_STEP", numbers)
    weights = torch.arange(9, dtype=torch.float64)
    # The tokens of text 3 have no weight.
    weights[vectors.texts.rows()[3]] = 0
    candidates = [2, 0, 3, 4, 2, 1, 7]
    references = [5, 4, 6, 4, 2] if has_references else None

    scores = score_all_pairs(vectors, weights, candidates, references)

    assert scores.dtype == torch.float32
    others = references or candidates
    for row, candidate in enumerate(candidates):
        for column, other in enumerate(others):
            precision = average(vectors, weights, candidate, other)
            recall = average(vectors, weights, other, candidate)
            expected = [precision, recall, harmonic(precision, recall)]
            assert scores[:, row, column].tolist() == pytest.approx(expected, abs=ROUNDING)


def test_rounding_does_not_lead_beyond_1(vectors):
    longer = replace(vectors, vectors=vectors.vectors * 1.0001)

    scores = score_all_pairs(longer, torch.ones(9), range(len(LENGTHS)))

    has_content = vectors.texts.has_content.tolist()
    same = scores.diagonal(dim1=1, dim2=2)[:, has_content]
    assert (same == 1).all()
    assert scores.abs().max() == 1
