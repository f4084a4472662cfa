"""Scores of all pairs against a loop over their tokens."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from bertscore_tm.device import memory
from bertscore_tm.matching.all_pairs import score_all_pairs
from bertscore_tm.matching.scores import harmonic_mean
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


def looped(vectors, weights, candidate, reference):
    """Precision and recall of a pair, token by token."""
    texts, ids = vectors.vectors[0].split(LENGTHS), vectors.texts.rows()
    means = []
    for text, other in ((candidate, reference), (reference, candidate)):
        best = [max(float(x @ y) for y in texts[other]) for x in texts[text]]
        shares = [float(weights[i]) for i in ids[text]]
        has_score = vectors.texts.has_content[text] and vectors.texts.has_content[other] and sum(shares) > 0
        mean = sum(s * b for s, b in zip(shares, best, strict=True)) / max(sum(shares), 1e-9)
        means.append(mean if has_score else 0.0)
    return means


@pytest.mark.parametrize("numbers", [1_000_000, 200, 8], ids=["one block", "several blocks", "parts of texts"])
@pytest.mark.parametrize("with_references", [False, True])
def test_equals_a_loop_over_tokens(vectors, numbers, with_references, monkeypatch):
    monkeypatch.setattr(memory, "_NUMBERS_PER_STEP", numbers)
    # The tokens of text 3 have no weight.
    weights = torch.arange(9, dtype=torch.float64)
    weights[vectors.texts.rows()[3]] = 0
    candidates = [2, 0, 3, 4, 2, 1, 7]
    references = [5, 4, 6, 4, 2] if with_references else None
    others = candidates if references is None else references
    scores = score_all_pairs(vectors, weights, candidates, references)
    expected = torch.tensor(
        [[looped(vectors, weights, i, j) for j in others] for i in candidates], dtype=torch.float64
    ).permute(2, 0, 1)
    assert scores.dtype == torch.float32
    assert expected.abs().max() > 0.5
    assert torch.allclose(scores[:2].double(), expected, atol=ROUNDING)
    assert torch.allclose(scores[2].double(), harmonic_mean(*expected), atol=ROUNDING)


def test_rounding_does_not_lead_beyond_1(vectors):
    longer = replace(vectors, vectors=vectors.vectors * 1.0001)
    scores = score_all_pairs(longer, torch.ones(9), range(len(LENGTHS)))
    same = scores.diagonal(dim1=1, dim2=2)[:, vectors.texts.has_content.tolist()]
    assert torch.equal(same, torch.ones_like(same))
    assert scores.abs().max() == 1
