"""Encoding continues in smaller batches where memory runs out."""

import pytest
import torch

from bertscore_tm.core.memory import halve_until_it_fits


@pytest.mark.parametrize(("smallest", "tried"), [(1, [9, 4, 2, 1]), (4, [9, 4]), (5, [9]), (9, [9])])
def test_sizes_are_halved_down_to_the_smallest(smallest, tried):
    sizes = []

    def step(size):
        sizes.append(size)
        raise MemoryError

    with pytest.raises(torch.OutOfMemoryError, match="out of memory on cpu with 9 texts"):
        halve_until_it_fits(step, 9, smallest, torch.device("cpu"), "9 texts")
    assert sizes == tried
