"""transported_similarity: near the optimum of the linear program, never above it, and right in its gradient."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from bertscore_tm.losses.transport import transported_similarity


def optimum(similarities, rows, columns):
    """The linear program's own solution."""
    m, n = similarities.shape
    limits = np.zeros((m + n, m * n))
    for i in range(m):
        limits[i, i * n : (i + 1) * n] = 1
    for j in range(n):
        limits[m + j, j::n] = 1
    found = linprog(-similarities.ravel(), A_ub=limits, b_ub=np.concatenate([rows, columns]), bounds=(0, None))
    return -found.fun


def problem(seed, m=6, n=4):
    generator = torch.Generator().manual_seed(seed)
    similarities = torch.rand(1, m, n, generator=generator, dtype=torch.float64) * 1.4 - 0.4
    return similarities, *(torch.rand(1, size, generator=generator, dtype=torch.float64) for size in (m, n))


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 10**6), st.integers(1, 8), st.integers(1, 8))
def test_never_above_the_optimum_and_near_it(seed, m, n):
    similarities, rows, columns = problem(seed, m, n)
    best = optimum(similarities[0].numpy(), rows[0].numpy(), columns[0].numpy())
    found = transported_similarity(similarities, rows, columns).item()
    assert found <= best + 1e-9
    assert found >= 0.85 * best - 1e-3
    many = transported_similarity(similarities, rows, columns, steps=2000).item()
    assert many == pytest.approx(best, abs=2e-2 * max(best, 0.1))


def test_order_and_padding_do_not_matter():
    similarities, rows, columns = problem(3)
    expected = transported_similarity(similarities, rows, columns)
    order = torch.tensor([3, 1, 0, 5, 4, 2])
    assert torch.allclose(transported_similarity(similarities[:, order], rows[:, order], columns), expected)
    wide = torch.nn.functional.pad(similarities, (0, 3, 0, 2), value=0.9)
    rows, columns = torch.nn.functional.pad(rows, (0, 2)), torch.nn.functional.pad(columns, (0, 3))
    assert torch.allclose(transported_similarity(wide, rows, columns), expected, atol=1e-12)
    turned = transported_similarity(wide.mT, columns, rows, steps=500)
    assert torch.allclose(turned, transported_similarity(wide, rows, columns, steps=500), atol=1e-2)


def test_gradcheck():
    similarities, rows, columns = problem(5)
    rows[0, 1], columns[0, 2] = 0, 0
    assert torch.autograd.gradcheck(
        lambda s: transported_similarity(s, rows, columns), similarities.clone().requires_grad_()
    )
    rows = rows + 0.1
    assert torch.autograd.gradcheck(
        lambda w: transported_similarity(similarities, w, columns), rows.clone().requires_grad_()
    )


@pytest.mark.parametrize("value", [-1.0, 0.0, 1.0])
@pytest.mark.parametrize("weight", [0.0, 1.0])
@pytest.mark.parametrize("temperature", [0.1, 1e-6])
def test_finite_at_the_edges(value, weight, temperature):
    similarities = torch.full((2, 3, 2), value, requires_grad=True)
    total = transported_similarity(similarities, torch.full((2, 3), weight), torch.full((2, 2), weight), temperature)
    total.sum().backward()
    assert similarities.grad.isfinite().all()
    assert total.tolist() == pytest.approx([max(value, 0) * 2 * weight] * 2, abs=1e-4)


def test_settings_that_cannot_be():
    with pytest.raises(ValueError, match="temperature must be above 0, got 0"):
        transported_similarity(*problem(0), temperature=0)
    with pytest.raises(ValueError, match="steps must be at least 1, got 0"):
        transported_similarity(*problem(0), steps=0)
