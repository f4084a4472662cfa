"""Token vectors of texts of different lengths."""

import pytest
import torch

from bertscore_tm.core.token_vectors import TokenVectors


@pytest.mark.parametrize("buffer", [None, 2, 100])
def test_vectors_after_the_end_of_a_text_are_zero(buffer):
    vectors = TokenVectors(
        vectors=torch.arange(1.0, 9.0).view(1, 4, 2),
        ids=torch.arange(4),
        lengths=torch.tensor([3, 1]),
        has_content=torch.tensor([True, True]),
        truncated=torch.tensor([False, False]),
    )
    memory = None if buffer is None else torch.full((buffer,), torch.nan)
    index, mask = vectors.locate(torch.tensor([1, 0]))
    padded = vectors.gather(index, mask, memory)
    assert padded.tolist() == [[[[7, 8], [0, 0], [0, 0]], [[1, 2], [3, 4], [5, 6]]]]
    assert mask.tolist() == [[True, False, False], [True, True, True]]
