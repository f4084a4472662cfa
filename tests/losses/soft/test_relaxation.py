"""Relaxations and expected embeddings: the formula, its gradient and its precision."""

import pytest
import torch

from bertscore_tm.losses import expected_embedding, softmax_relaxation
from tests.support.soft_predictions import normal


@pytest.mark.parametrize("temperature", [0.01, 1.0, 5.0])
@pytest.mark.parametrize("excluded", [(), (0, 6)])
def test_rows_are_the_softmax_over_content(temperature, excluded):
    z = normal(1, 2, 7, dtype=torch.float64).requires_grad_()
    content = [k for k in range(7) if k not in excluded]
    weights = torch.exp(z / temperature)[..., content]
    factors = normal(7, dtype=torch.float64, seed=1)

    p = softmax_relaxation(z, temperature, excluded)
    (gradient,) = torch.autograd.grad((p * factors).sum(), z)

    assert torch.allclose(p[..., content], weights / weights.sum(-1, keepdim=True), rtol=1e-12)
    assert (p[..., list(excluded)] == 0).all()
    assert (gradient[..., list(excluded)] == 0).all()
    assert torch.autograd.gradcheck(lambda z: softmax_relaxation(z, temperature, excluded), z)


@pytest.mark.parametrize("shape", [(5,), (2, 3, 5)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_expected_embedding_is_the_weighted_sum_of_embeddings(shape, dtype):
    p = normal(*shape, dtype=dtype).softmax(-1)
    table = normal(5, 4, dtype=dtype, seed=1)
    expected = sum(p[..., k, None] * table[k] for k in range(5))
    result = expected_embedding(p, table)

    assert result.dtype == expected_embedding(p, table.bfloat16()).dtype == dtype
    assert torch.allclose(result, expected, rtol=1e-5, atol=1e-6)
    leaves = p.double().requires_grad_(), table.double().requires_grad_()
    assert torch.autograd.gradcheck(expected_embedding, leaves)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_does_not_lower_the_precision(dtype):
    z = normal(3, 700)
    table = normal(700, 16, seed=1)
    plain = expected_embedding(softmax_relaxation(z), table)
    with torch.autocast("cpu", dtype):
        p = softmax_relaxation(z)
        result = expected_embedding(p, table)
        assert (p @ table).dtype == dtype

    assert p.dtype == result.dtype == torch.float32
    assert torch.equal(result, plain)


@pytest.mark.parametrize("row", [[0.0, torch.nan, 1.0], [0.0, torch.inf, 1.0], [-torch.inf] * 3], ids=str)
@pytest.mark.parametrize("temperature", [0.5, 1.0])
def test_a_row_without_a_finite_maximum_is_nan(row, temperature):
    """Gradient scalers skip such a step; other rows are unaffected."""
    z = torch.tensor([[1.0, 3.0, 2.0], row], requires_grad=True)
    finite = z[:1].expand(2, 3)

    p = [softmax_relaxation(rows, temperature) for rows in (z, finite)]

    assert p[0][1].isnan().all()
    assert torch.equal(p[0][0], p[1][0])
    (gradient,) = torch.autograd.grad((p[0] * torch.arange(3)).sum(), z)
    assert gradient[1].isnan().all()
    assert gradient[0].isfinite().all()


@pytest.mark.parametrize("temperature", [0, -1.0, float("nan")])
def test_temperatures_are_positive(temperature):
    with pytest.raises(ValueError, match="temperature must be above 0, got"):
        softmax_relaxation(torch.zeros(3), temperature)
