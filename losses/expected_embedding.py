"""The input embedding that an encoder would see on average, were tokens drawn from given probabilities."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["expected_embedding"]


def expected_embedding(probabilities: Tensor, table: Tensor) -> Tensor:
    r"""Return :math:`y_t = \sum_k p_{tk} E_k`, the expected input embedding at each position.

    Args:
        probabilities: p, shape (..., vocabulary).
        table: E, the encoder's input embeddings, shape (vocabulary, width).

    Returns:
        Shape (..., width), in the precision of the probabilities.

    Example:
        >>> expected_embedding(torch.tensor([0.5, 0.5]), torch.tensor([[0.0, 2.0], [4.0, 0.0]]))
        tensor([2., 1.])
    """
    with torch.autocast(device_type=probabilities.device.type, enabled=False):
        return probabilities @ table.to(probabilities.dtype)
