"""Softmax and expected embedding in one, against the two plain steps."""

import pytest
import torch

from bertscore_tm.losses.soft import expectations as module
from bertscore_tm.losses.soft.expectations import linear_expected_embedding, softmax_expectation

VOCABULARY, WIDTH = 23, 5


def noise(*shape, dtype=torch.float64, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def plain(logits, table, temperature=1.0, excluded=()):
    """By the definition."""
    kept = torch.ones(logits.shape[-1], dtype=torch.bool)
    kept[list(excluded)] = False
    return (logits[..., kept] / temperature).softmax(-1) @ table[kept]


@pytest.fixture(params=[2048, 6], ids=["one part", "parts"])
def parts(request, monkeypatch):
    monkeypatch.setattr(module, "_TOKENS_PER_CHUNK", request.param)


@pytest.mark.parametrize("shape", [(), (3,), (2, 4), (0, 4)], ids=str)
@pytest.mark.parametrize("temperature", [1.0, 0.3])
@pytest.mark.parametrize("excluded", [(), (0, 7, 22)], ids=str)
@pytest.mark.usefixtures("parts")
def test_values_and_gradients(shape, temperature, excluded):
    logits, table = noise(*shape, VOCABULARY).requires_grad_(), noise(VOCABULARY, WIDTH, seed=1)
    found, expected = (
        softmax_expectation(logits, table, temperature, excluded),
        plain(logits, table, temperature, excluded),
    )
    torch.testing.assert_close(found, expected, atol=1e-14, rtol=1e-12)
    upstream = noise(*shape, WIDTH, seed=2)
    torch.testing.assert_close(
        torch.autograd.grad(found, logits, upstream),
        torch.autograd.grad(expected, logits, upstream),
        atol=1e-14,
        rtol=1e-12,
    )


@pytest.mark.parametrize("kept", [None, torch.tensor([0, 2])], ids=["all", "some"])
@pytest.mark.usefixtures("parts")
def test_gradcheck(kept):
    logits, table = noise(3, VOCABULARY).requires_grad_(), noise(VOCABULARY, WIDTH, seed=1)

    def function(logits):
        return softmax_expectation(logits, table, 0.7, [2, 22], kept)

    assert torch.autograd.gradcheck(function, logits)
    assert torch.autograd.gradgradcheck(function, logits)
    if kept is not None:
        whole = softmax_expectation(logits, table, 0.7, [2, 22])
        torch.testing.assert_close(function(logits)[kept], whole[kept], atol=1e-14, rtol=0)
        assert not function(logits)[1].any()


@pytest.mark.usefixtures("parts")
def test_ignored_logits_may_be_anything():
    """As on an accelerator, where all positions are computed."""
    logits, table = noise(3, VOCABULARY), noise(VOCABULARY, WIDTH, seed=1)
    logits[1] = torch.nan
    logits.requires_grad_()

    def function(logits):
        found = softmax_expectation(logits, table, 0.7, [2, 22], ignored=torch.tensor([False, True, False]))
        return found[[0, 2]]

    torch.testing.assert_close(function(logits), plain(logits[[0, 2]], table, 0.7, [2, 22]))
    assert torch.autograd.gradcheck(function, logits)
    assert torch.autograd.gradgradcheck(function, logits)
    (gradient,) = torch.autograd.grad(function(logits).sum(), logits)
    assert not gradient[1].any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_precisions(dtype):
    """In float32 inside, with the gradient in the logits' own."""
    logits, table = (
        noise(40, 3000, dtype=torch.float32).to(dtype).requires_grad_(),
        noise(3000, 16, dtype=torch.float32),
    )
    found, expected = softmax_expectation(logits, table), plain(logits.double(), table.double())
    assert found.dtype == torch.float32
    assert (found - expected).abs().max() < 1e-6
    upstream = noise(40, 16, dtype=torch.float32, seed=2)
    (gradient,) = torch.autograd.grad(found, logits, upstream)
    (exact,) = torch.autograd.grad(expected, logits, upstream.double())
    assert gradient.dtype == dtype
    assert (gradient - exact).abs().max() < 1e-6 + torch.finfo(dtype).eps * exact.abs().max()


@pytest.mark.parametrize("scale", [1e4, 1e30])
@pytest.mark.usefixtures("parts")
def test_large_logits(scale):
    logits = (scale * noise(4, VOCABULARY)).float().requires_grad_()
    table = noise(VOCABULARY, WIDTH, seed=1).float()
    found = softmax_expectation(logits, table, 0.01, [3])
    assert torch.allclose(found, table[logits.detach().index_fill(1, torch.tensor([3]), -torch.inf).argmax(1)])
    found.sum().backward()
    assert logits.grad.isfinite().all()


@pytest.mark.usefixtures("parts")
def test_logits_without_mass():
    """Words of -inf have none; a row in which only excluded words have any stays finite, without gradient."""
    logits = noise(2, VOCABULARY)
    logits[0, 5:] = -torch.inf
    logits[1, 1:] = -torch.inf
    logits.requires_grad_()
    table = noise(VOCABULARY, WIDTH, seed=1)
    found = softmax_expectation(logits, table, 1.0, [0])
    torch.testing.assert_close(found[0], logits[0, 1:5].softmax(0) @ table[1:5])
    assert found.isfinite().all()
    (gradient,) = torch.autograd.grad(found.sum(), logits)
    assert gradient.isfinite().all()
    assert gradient[0, 1:5].abs().min() > 0
    assert not gradient[0, 5:].any()
    assert not gradient[:, 0].any()


@pytest.mark.parametrize("from_hidden", [False, True])
def test_denormal_probabilities_are_0(from_hidden):
    """A processor multiplies denormal numbers some 10 times slower."""
    logits, table = torch.tensor([[0.0, -80.0, -95.0]], requires_grad=True), torch.tensor([[0.0], [1.0], [1e38]])
    if from_hidden:
        found = linear_expected_embedding(logits, torch.eye(3), table)
    else:
        found = softmax_expectation(logits, table)
    (gradient,) = torch.autograd.grad(found.sum(), logits)
    expected = torch.tensor(-80.0).exp()
    torch.testing.assert_close(found, expected.view(1, 1), atol=0, rtol=1e-5)
    torch.testing.assert_close(gradient, torch.tensor([[-1.0, 1.0, 0.0]]) * expected, atol=0, rtol=1e-5)


def test_a_row_does_not_depend_on_its_neighbours():
    logits, table = noise(70, VOCABULARY), noise(VOCABULARY, WIDTH, seed=1)
    whole = softmax_expectation(logits, table)
    for row in (0, 31, 69):
        torch.testing.assert_close(whole[row], softmax_expectation(logits[row], table), atol=1e-14, rtol=0)


@pytest.mark.parametrize("temperature", [0.0, -1.0, float("nan")])
def test_temperatures_that_cannot_be(temperature):
    with pytest.raises(ValueError, match="temperature must be above 0, got"):
        softmax_expectation(torch.zeros(1, 3), torch.zeros(3, 2), temperature)
