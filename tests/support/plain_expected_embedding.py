"""The plain product of softmax and table, and tensors for it."""

import torch
from torch.nn import functional as F  # noqa: N812

from bertscore_tm.losses.soft.expectations import expected_embedding
from bertscore_tm.losses.soft.relaxation import softmax_relaxation

VOCABULARY = 23


def noise(*shape, dtype=torch.float32, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def make(positions=(2, 3), vocabulary=VOCABULARY, features=8, width=5, dtype=torch.float32):
    """Hidden states, weight and bias that want gradients, and a table."""
    return (
        noise(*positions, features, dtype=dtype).requires_grad_(),
        noise(vocabulary, features, dtype=dtype, seed=1).requires_grad_(),
        noise(vocabulary, dtype=dtype, seed=2).requires_grad_(),
        noise(vocabulary, width, dtype=dtype, seed=3),
    )


def plain(hidden, weight, bias, table, temperature=1.0, excluded_ids=()):
    return expected_embedding(softmax_relaxation(F.linear(hidden, weight, bias), temperature, excluded_ids), table)


def plain_cross_entropy(hidden, weight, bias, target, **options):
    logits = F.linear(hidden, weight, bias)
    return F.cross_entropy(logits.reshape(-1, logits.shape[-1]), target.reshape(-1), **options)


def upstream(y):
    return noise(*y.shape, dtype=y.dtype, seed=4)


def gradients(y, leaves, *losses):
    return torch.autograd.grad(sum(losses, (y * upstream(y)).sum()), leaves)


def assert_close(found, expected, tolerance):
    """To the tolerance, relative to the largest number where that is above 1."""
    assert found.shape == expected.shape
    assert found.dtype == expected.dtype
    assert expected.isfinite().all()
    if expected.numel():
        largest = max(1.0, expected.abs().max().item())
        torch.testing.assert_close(found, expected, rtol=0, atol=tolerance * largest)
