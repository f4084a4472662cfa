"""Relaxations and expected_embedding: from logits to the embedding that an encoder sees on average."""

from typing import get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bertscore_tm.losses.soft.expectations import expected_embedding
from bertscore_tm.losses.soft.relaxation import (
    RELAXATIONS,
    RelaxationName,
    gumbel_softmax_relaxation,
    softmax_relaxation,
)

HALVES = [torch.bfloat16, torch.float16]


def noise(*shape, dtype=torch.float32, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


@pytest.mark.parametrize("temperature", [0.01, 0.3, 1.0, 5.0])
@pytest.mark.parametrize("excluded", [(), (0, 6)])
def test_rows_are_the_softmax_over_content(temperature, excluded):
    z = noise(2, 3, 7, dtype=torch.float64)
    p = softmax_relaxation(z, temperature, excluded)
    content = [k for k in range(7) if k not in excluded]
    weights = torch.exp(z / temperature)[..., content]
    assert torch.allclose(p[..., content], weights / weights.sum(-1, keepdim=True), rtol=1e-12)
    assert torch.allclose(p.sum(-1), torch.ones(2, 3, dtype=torch.float64), rtol=1e-12)
    assert (p[..., list(excluded)] == 0).all()


@pytest.mark.parametrize("dtype", [*HALVES, torch.float32])
def test_half_precision_logits_are_relaxed_in_float32(dtype):
    z = noise(4, 50, dtype=dtype)
    p = softmax_relaxation(z)
    assert p.dtype == torch.float32
    assert torch.equal(p, softmax_relaxation(z.float()))
    assert softmax_relaxation(z.double()).dtype == torch.float64


def test_low_temperature_gives_one_hot_and_high_temperature_uniform():
    z = noise(5, 9)
    one_hot = torch.nn.functional.one_hot(z.argmax(-1), 9).float()
    assert torch.equal(softmax_relaxation(z, 1e-5), one_hot)
    assert torch.allclose(softmax_relaxation(z, 1e6), torch.full((5, 9), 1 / 9), atol=1e-5)
    assert softmax_relaxation(torch.tensor([1.0, 50.0, 2.0]), 1e-4, [1]).tolist() == [0, 0, 1]


@pytest.mark.parametrize("temperature", [0.1, 1.0, 3.0])
def test_adding_a_constant_changes_nothing(temperature):
    z = noise(3, 8, dtype=torch.float64)
    shifted = softmax_relaxation(z + noise(3, 1, dtype=torch.float64, seed=1) * 100, temperature, [2])
    assert torch.allclose(shifted, softmax_relaxation(z, temperature, [2]), rtol=1e-10, atol=0)


@pytest.mark.parametrize("temperature", [1e-3, 1.0])
@pytest.mark.parametrize(
    "row",
    [
        [3e38, -3e38, 0.0],
        [1e30, 1e30, -1e30],
        [-3e38, -3e38, -3e38],
        [torch.finfo(torch.float32).max, 0.0, torch.finfo(torch.float32).min],
        [-torch.inf, 0.0, 1.0],
        [0.0, -torch.inf, -torch.inf],
        [5.0, -torch.inf, -torch.inf],
    ],
    ids=str,
)
@pytest.mark.parametrize("excluded", [(), (0,)])
def test_no_overflow(row, temperature, excluded):
    z = torch.tensor([row], requires_grad=True)
    p = softmax_relaxation(z, temperature, excluded)
    assert torch.allclose(p.sum(-1), torch.ones(1))
    (p * torch.tensor([0.3, -1.0, 2.0])).sum().backward()
    assert z.grad.isfinite().all()


def test_gradient_is_that_of_the_softmax_and_zero_for_excluded():
    z = noise(2, 6, dtype=torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(lambda z: softmax_relaxation(z, 0.7, [1, 4]), z)
    softmax_relaxation(z, 0.7, [1, 4])[:, 0].sum().backward()
    assert (z.grad[:, [1, 4]] == 0).all()
    assert (z.grad[:, 0] > 0).all()


@settings(deadline=None)
@given(st.lists(st.floats(allow_nan=False, allow_infinity=False, width=32), min_size=2, max_size=8), st.data())
def test_always_a_distribution(row, data):
    temperature = data.draw(st.floats(1e-4, 1e4))
    p = softmax_relaxation(torch.tensor(row), temperature)
    assert p.min() >= 0
    assert abs(p.sum().item() - 1) < 1e-5


@pytest.mark.parametrize("shape", [(5,), (3, 5), (2, 3, 5)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_expected_embedding_is_the_weighted_sum_of_embeddings(shape, dtype):
    p, table = noise(*shape, dtype=dtype).softmax(-1), noise(5, 4, dtype=dtype, seed=1)
    expected = sum(p[..., k, None] * table[k] for k in range(5))
    result = expected_embedding(p, table)
    assert result.dtype == dtype
    assert torch.allclose(result, expected, rtol=1e-5, atol=1e-6)


def test_expected_embedding_of_one_hot_is_the_lookup(encoder):
    table = encoder.embedding_table("cpu")
    ids = torch.tensor([[2054, 1037, 4937]])
    one_hot = torch.nn.functional.one_hot(ids, len(table)).float()
    assert torch.equal(expected_embedding(one_hot, table), table[ids])


def test_expected_embedding_takes_a_table_of_another_precision():
    p, table = noise(3, 5).softmax(-1), noise(5, 4, dtype=torch.bfloat16)
    torch.testing.assert_close(expected_embedding(p, table), p @ table.float(), atol=1e-6, rtol=0)


@pytest.mark.parametrize("dtype", HALVES)
def test_autocast_does_not_lower_the_precision(dtype):
    z, table = noise(3, 700), noise(700, 16, seed=1)
    plain = expected_embedding(softmax_relaxation(z), table)
    with torch.autocast("cpu", dtype):
        p = softmax_relaxation(z)
        result = expected_embedding(p, table)
        assert (p @ table).dtype == dtype
    assert p.dtype == result.dtype == torch.float32
    assert torch.equal(result, plain)


def test_expected_embedding_gradient():
    p = noise(2, 5, dtype=torch.float64).requires_grad_()
    table = noise(5, 4, dtype=torch.float64, seed=1).requires_grad_()
    assert torch.autograd.gradcheck(expected_embedding, (p, table))


def test_gumbel_samples_are_distributed_as_the_softmax():
    z = noise(6)
    torch.manual_seed(0)
    sampled = gumbel_softmax_relaxation(z.expand(20000, 6), 0.5, [2])
    shares = torch.bincount(sampled.argmax(-1), minlength=6) / 20000
    expected = softmax_relaxation(z, 1.0, [2])
    assert torch.allclose(shares, expected, atol=4 * (0.25 / 20000) ** 0.5)
    assert torch.allclose(sampled.sum(-1), torch.ones(20000))
    assert (sampled[:, 2] == 0).all()


def test_gumbel_depends_on_the_seed_and_on_nothing_else():
    z = noise(3, 5)
    torch.manual_seed(1)
    first, other = gumbel_softmax_relaxation(z), gumbel_softmax_relaxation(z)
    torch.manual_seed(1)
    assert torch.equal(gumbel_softmax_relaxation(z), first)
    assert not torch.equal(first, other)


@pytest.mark.parametrize("relaxation", RELAXATIONS.values(), ids=RELAXATIONS)
@pytest.mark.parametrize("dtype", [*HALVES, torch.float32, torch.float64])
def test_every_relaxation_gives_probabilities_of_any_logits(relaxation, dtype):
    largest = torch.finfo(dtype).max
    rows = [[0.0] * 5, [1e4, -1e4, 3.0, 0.0, 1.0], [largest, -largest, 0.0, largest, 1.0], [-torch.inf] * 4 + [1.0]]
    z = torch.tensor(rows, dtype=torch.float64).to(dtype).requires_grad_()
    for temperature in (1.0, 0.01):
        p = relaxation(z, temperature, [4])
        assert p.dtype == torch.promote_types(dtype, torch.float32)
        assert torch.allclose(p.sum(-1), torch.ones(4, dtype=p.dtype), atol=1e-5)
        assert (p >= 0).all()
        assert (p[:3, 4] == 0).all()
        (gradient,) = torch.autograd.grad((p * torch.arange(5)).sum(), z)
        assert gradient.isfinite().all()


@pytest.mark.parametrize("relaxation", RELAXATIONS.values(), ids=RELAXATIONS)
@pytest.mark.parametrize("row", [[0.0, torch.nan, 1.0], [0.0, torch.inf, 1.0], [-torch.inf] * 3], ids=str)
@pytest.mark.parametrize("temperature", [0.5, 1.0])
def test_a_row_without_a_finite_maximum_is_nan_and_so_is_its_gradient(relaxation, row, temperature):
    """Gradient scalers skip such a step; other rows are unaffected."""
    z = torch.tensor([[1.0, 3.0, 2.0], row], requires_grad=True)
    p = []
    for rows in (z, z[:1].expand(2, 3)):
        torch.manual_seed(0)
        p.append(relaxation(rows, temperature))
    assert p[0][1].isnan().all()
    assert torch.equal(p[0][0], p[1][0])
    gradients = [torch.autograd.grad((rows[:2] * torch.arange(3)).sum(), z)[0] for rows in p]
    assert gradients[0][1].isnan().all()
    assert gradients[0][0].isfinite().all()


@pytest.mark.parametrize("relaxation", RELAXATIONS.values(), ids=RELAXATIONS)
@pytest.mark.parametrize("temperature", [0, -1.0, float("nan")])
def test_temperatures_must_be_positive(relaxation, temperature):
    with pytest.raises(ValueError, match="temperature must be above 0, got"):
        relaxation(torch.zeros(3), temperature)


def test_names_of_relaxations():
    assert (*RELAXATIONS,) == get_args(RelaxationName)
