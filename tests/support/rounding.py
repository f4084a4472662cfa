"""The limit within which two computations of the same numbers must agree."""

import torch


def rounding(dtype: torch.dtype, width: int = 1, size: float = 1.0) -> float:
    """Return the largest difference that rounding explains between two orders of the same sums.

    The errors of a sum of ``width`` products add up like a random walk: eps times the root of the width, times the
    ``size`` of the result. A model makes several such sums one after the other, hence the factor: on no processor or
    number of threads did a right result differ by more than a quarter of this.
    """
    return 16 * torch.finfo(dtype).eps * width**0.5 * max(size, 1.0)
