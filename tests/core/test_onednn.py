"""Products by oneDNN against float64, their gradients, and what oneDNN gets to see."""

import pytest
import torch
from torch import nn

from bertscore_tm.core.onednn import FrozenProduct, arranged, product, serves, transposed_product

pytestmark = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="torch was built without oneDNN")

ROWS = [1, 31, 32, 33, 512, 545, 1111]


def matrix(*shape, dtype=torch.float32, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def exact(rows, weight, bias=None):
    return nn.functional.linear(rows.double(), weight.double(), None if bias is None else bias.double())


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("bias", [None, matrix(40, seed=2)], ids=["plain", "bias"])
def test_product(rows, bias):
    x, weight = matrix(rows, 24), matrix(40, 24, seed=1)
    assert serves(x, weight)
    for packed in (None, arranged(weight)):
        assert (product(x, weight, bias, packed) - exact(x, weight, bias)).abs().max() < 5e-6


def test_views_are_multiplied_as_they_lie():
    x, weight = matrix(24, 70), matrix(24, 40, seed=1)
    expected = exact(x.t(), weight.t())
    assert (product(x.t(), weight.t()) - expected).abs().max() < 5e-6
    every_other = matrix(140, 48)[::2, ::2]
    assert (product(every_other, weight.t()) - exact(every_other, weight.t())).abs().max() < 5e-6
    one = matrix(1, 24)
    assert (product(one.expand(70, 24), weight.t()) - exact(one, weight.t())).abs().max() < 5e-6
    part = matrix(50, 90)[:, 10:34]
    assert (product(part, weight.t()) - exact(part, weight.t())).abs().max() < 5e-6


@pytest.mark.parametrize("rows", ROWS)
def test_transposed_product(rows):
    left, right = matrix(rows, 40), matrix(rows, 24, seed=1)
    expected = exact(left.t(), right.t())
    assert (transposed_product(left, right) - expected).abs().max() < 5e-6 * rows**0.5
    assert torch.equal(transposed_product(left.double(), right.double()), left.double().t() @ right.double())


def test_few_numbers_reach_onednn(monkeypatch):
    """Of rows, and of the rows that are summed over."""
    seen, own = {"rows": set(), "features": set()}, torch.ops.mkldnn._linear_pointwise

    def watched(part, weight, *args):
        seen["rows"].add(part.shape[0])
        seen["features"].add(part.shape[1])
        return own(part, weight, *args)

    monkeypatch.setattr(torch.ops.mkldnn, "_linear_pointwise", watched)
    for count in range(1, 1200, 7):
        product(matrix(count, 24), matrix(40, 24))
    few = {*range(32, 513, 32)}
    assert seen == {"rows": few, "features": {24}}
    seen["features"].clear()
    for count in range(1, 1200, 7):
        transposed_product(matrix(count, 32), matrix(count, 24))
    assert seen == {"rows": few, "features": few}


@pytest.mark.parametrize("rows", [7, 600])
def test_the_gradient_of_a_frozen_product(rows):
    x, weight, bias = matrix(rows, 24).requires_grad_(), matrix(40, 24, seed=1), matrix(40, seed=2)
    upstream = matrix(rows, 40, seed=3)
    found = FrozenProduct.apply(x, weight, bias, None)
    (gradient,) = torch.autograd.grad(found, x, upstream)
    assert (gradient - exact(upstream, weight.t())).abs().max() < 1e-5
    # A gradient that is one number, not a matrix in memory.
    (gradient,) = torch.autograd.grad(FrozenProduct.apply(x, weight, bias, None).sum(), x)
    assert (gradient - weight.double().sum(0)).abs().max() < 1e-5


def test_the_gradient_can_be_differentiated():
    x, weight = matrix(5, 4, dtype=torch.float64).requires_grad_(), matrix(3, 4, dtype=torch.float64, seed=1)
    assert torch.autograd.gradcheck(lambda x: FrozenProduct.apply(x, weight, None, None), x)
    assert torch.autograd.gradgradcheck(lambda x: FrozenProduct.apply(x, weight, None, None).square(), x)
    short = matrix(5, 4).requires_grad_()
    (gradient,) = torch.autograd.grad(
        FrozenProduct.apply(short, weight.float(), None, None).square().sum(), short, create_graph=True
    )
    (again,) = torch.autograd.grad(gradient.sum(), short)
    assert torch.allclose(again, (2 * weight.T @ weight).sum(0).float().expand(5, 4), atol=1e-5)


def test_what_goes_the_usual_way():
    x, weight = matrix(5, 24), matrix(40, 24)
    for rows, other in ((x.double(), weight.double()), (x.half(), weight.half()), (x[:0], weight)):
        assert not serves(rows, other)
        assert product(rows, other).dtype == rows.dtype
        assert product(rows, other).shape == (len(rows), 40)
    assert not serves(x, weight.bfloat16())
    assert not serves(nn.Parameter(x), weight)
    doubled = torch.func.vmap(lambda row: product(row[None], weight)[0])(x)
    assert torch.allclose(doubled, x @ weight.T, atol=1e-5)


def test_bfloat16():
    x, weight = matrix(50, 24, dtype=torch.bfloat16), matrix(40, 24, dtype=torch.bfloat16, seed=1)
    found, expected = product(x, weight), exact(x, weight)
    assert found.dtype == torch.bfloat16
    assert ((found - expected).abs() <= 2**-8 * expected.abs() + 2**-9).all()
