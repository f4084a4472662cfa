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
    parts = vectors.vectors.split(vectors.texts.lengths.tolist(), 1)
    expected_vectors = torch.cat([parts[i] for i in indices], 1)

    assert selected.texts.rows() == [texts[i] for i in indices]
    assert torch.equal(selected.vectors, expected_vectors)
    for field in fields(TokenizedTexts)[1:]:
        values = getattr(vectors.texts, field.name).tolist()
        selected_values = getattr(selected.texts, field.name).tolist()
        assert selected_values == [values[i] for i in indices]


@pytest.mark.parametrize("indices", [[2, 0, 3], [1], [3, 3]])
def test_a_selection_has_the_facts_and_vectors_of_its_texts(vectors, indices):
    selected = vectors.select(np.array(indices))

    assert_has(selected, vectors, indices)


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
