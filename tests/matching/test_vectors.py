"""Batches of texts as flat arrays."""

from dataclasses import fields

import numpy as np
import pytest
import torch

from bertscore_tm.matching.vectors import TokenizedTexts, TokenVectors, concatenate

ROWS = [[5, 6, 7], [], [8], [9, 10]]


@pytest.fixture
def vectors():
    """Four texts, each with other facts; one has no token."""
    texts = TokenizedTexts(
        ids=np.array([token for row in ROWS for token in row]),
        lengths=np.array([len(row) for row in ROWS]),
        has_content=np.array([True, False, False, True]),
        truncated=np.array([False, False, True, True]),
        text_sizes=np.array([30, 0, 10, 20]),
        unknown_sizes=np.array([3, 0, 1, 2]),
    )
    return TokenVectors(texts, torch.arange(24.0).view(2, 6, 2))


def assert_has(selected, vectors, indices):
    """Compare each fact and vector of some texts with those that they had."""
    texts = vectors.texts.rows()
    assert selected.texts.rows() == [texts[i] for i in indices]
    for field in fields(TokenizedTexts)[1:]:
        values = getattr(vectors.texts, field.name).tolist()
        assert getattr(selected.texts, field.name).tolist() == [values[i] for i in indices]
    parts = vectors.vectors.split(vectors.texts.lengths.tolist(), 1)
    expected = torch.cat([parts[i] for i in indices], 1)
    assert torch.equal(selected.vectors, expected)


def test_a_selection_has_the_facts_and_vectors_of_its_texts(vectors):
    for indices in ([2, 0, 3], [1], [3, 3]):
        assert_has(vectors.select(np.array(indices)), vectors, indices)


def test_single_texts_are_views_and_concatenated_again(vectors):
    parts = vectors.split()
    for i, part in enumerate(parts):
        assert_has(part, vectors, [i])
        assert part.vectors.untyped_storage().data_ptr() == vectors.vectors.untyped_storage().data_ptr()
    assert_has(concatenate(parts), vectors, range(len(ROWS)))


def test_trimmed_texts_keep_their_facts(vectors):
    texts = vectors.select(np.array([0, 3])).texts
    trimmed, remains = texts.trim(1, 1)
    assert trimmed.rows() == [[6], []]
    assert remains.tolist() == [False, True, False, False, False]
    assert trimmed.lengths.tolist() == [1, 0]
    assert trimmed.text_sizes is texts.text_sizes
