"""Linear layers by oneDNN: against float64, their gradients, packed weights, and the switch that turns oneDNN off."""

import copy
import os
import pickle
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from bertscore_tm import FrozenEncoder, bert_score
from bertscore_tm.core import onednn
from bertscore_tm.core.onednn import (
    FrozenLinear,
    PackedLinear,
    can_use_onednn,
    disable_onednn,
    linear,
    pack_linears,
    pack_weight,
    transposed_matmul,
)
from tests.support.models import tiny_model
from tests.support.texts import real_pairs

pytestmark = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="torch was built without oneDNN")

ROWS = [1, 31, 32, 33, 512, 545, 1111]


@pytest.fixture(autouse=True)
def _on_every_processor(monkeypatch):
    """Use oneDNN in float32 on processors of Intel too."""
    monkeypatch.setenv("BERTSCORE_TM_ONEDNN", "1")


def matrix(*shape, dtype=torch.float32, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def exact(rows, weight, bias=None):
    return nn.functional.linear(rows.double(), weight.double(), None if bias is None else bias.double())


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("bias", [None, matrix(40, seed=2)], ids=["plain", "bias"])
def test_product(rows, bias):
    x, weight = matrix(rows, 24), matrix(40, 24, seed=1)
    assert can_use_onednn(x, weight)
    for packed in (None, pack_weight(weight)):
        assert (linear(x, weight, bias, packed) - exact(x, weight, bias)).abs().max() < 5e-6


def test_views_and_transposed_matrices():
    x, weight = matrix(24, 70), matrix(24, 40, seed=1)
    expected = exact(x.t(), weight.t())
    assert (linear(x.t(), weight.t()) - expected).abs().max() < 5e-6
    every_other = matrix(140, 48)[::2, ::2]
    assert (linear(every_other, weight.t()) - exact(every_other, weight.t())).abs().max() < 5e-6
    one = matrix(1, 24)
    assert (linear(one.expand(70, 24), weight.t()) - exact(one, weight.t())).abs().max() < 5e-6
    part = matrix(50, 90)[:, 10:34]
    assert (linear(part, weight.t()) - exact(part, weight.t())).abs().max() < 5e-6


@pytest.mark.parametrize("rows", ROWS)
def test_transposed_matmul(rows):
    left, right = matrix(rows, 40), matrix(rows, 24, seed=1)
    expected = exact(left.t(), right.t())
    assert (transposed_matmul(left, right) - expected).abs().max() < 5e-6 * rows**0.5
    assert torch.equal(transposed_matmul(left.double(), right.double()), left.double().t() @ right.double())


def test_onednn_gets_few_sizes(monkeypatch):
    """Each size costs a kernel: of rows, and of the rows that are summed over."""
    seen, own = {"rows": set(), "features": set()}, torch.ops.mkldnn._linear_pointwise

    def watched(part, weight, *args):
        seen["rows"].add(part.shape[0])
        seen["features"].add(part.shape[1])
        return own(part, weight, *args)

    monkeypatch.setattr(torch.ops.mkldnn, "_linear_pointwise", watched)
    for count in range(1, 1200, 31):
        linear(matrix(count, 24), matrix(40, 24))
    few = {*range(32, 513, 32)}
    assert seen == {"rows": few, "features": {24}}
    seen["features"].clear()
    for count in range(1, 1200, 31):
        transposed_matmul(matrix(count, 32), matrix(count, 24))
    assert seen == {"rows": few, "features": few}


@pytest.mark.parametrize("rows", [7, 600])
def test_the_gradient_of_a_frozen_product(rows):
    x, weight, bias = matrix(rows, 24).requires_grad_(), matrix(40, 24, seed=1), matrix(40, seed=2)
    upstream = matrix(rows, 40, seed=3)
    found = FrozenLinear.apply(x, weight, bias, None)
    (gradient,) = torch.autograd.grad(found, x, upstream)
    assert (gradient - exact(upstream, weight.t())).abs().max() < 1e-5
    # A gradient that is one number, not a matrix in memory.
    (gradient,) = torch.autograd.grad(FrozenLinear.apply(x, weight, bias, None).sum(), x)
    assert (gradient - weight.double().sum(0)).abs().max() < 1e-5


def test_the_gradient_of_the_gradient():
    x, weight = matrix(5, 4, dtype=torch.float64).requires_grad_(), matrix(3, 4, dtype=torch.float64, seed=1)
    assert torch.autograd.gradcheck(lambda x: FrozenLinear.apply(x, weight, None, None), x)
    assert torch.autograd.gradgradcheck(lambda x: FrozenLinear.apply(x, weight, None, None).square(), x)
    short = matrix(5, 4).requires_grad_()
    (gradient,) = torch.autograd.grad(
        FrozenLinear.apply(short, weight.float(), None, None).square().sum(), short, create_graph=True
    )
    (again,) = torch.autograd.grad(gradient.sum(), short)
    assert torch.allclose(again, (2 * weight.T @ weight).sum(0).float().expand(5, 4), atol=1e-5)


def test_torch_computes_what_onednn_cannot():
    x, weight = matrix(5, 24), matrix(40, 24)
    for rows, other in ((x.double(), weight.double()), (x.half(), weight.half()), (x[:0], weight)):
        assert not can_use_onednn(rows, other)
        assert linear(rows, other).dtype == rows.dtype
        assert linear(rows, other).shape == (len(rows), 40)
    assert not can_use_onednn(x, weight.bfloat16())
    assert not can_use_onednn(nn.Parameter(x), weight)
    doubled = torch.func.vmap(lambda row: linear(row[None], weight)[0])(x)
    assert torch.allclose(doubled, x @ weight.T, atol=1e-5)


def test_bfloat16():
    x, weight = matrix(50, 24, dtype=torch.bfloat16), matrix(40, 24, dtype=torch.bfloat16, seed=1)
    found, expected = linear(x, weight), exact(x, weight)
    assert found.dtype == torch.bfloat16
    assert ((found - expected).abs() <= 2**-8 * expected.abs() + 2**-9).all()


# Packed layers.


def layers(dtype=torch.float32, bias=True, sizes=(24, 40)):
    torch.manual_seed(0)
    plain = nn.Linear(*sizes, bias=bias, dtype=dtype).requires_grad_(False)
    packed = copy.deepcopy(plain)
    pack_linears(packed)
    return plain, packed


def own_model():
    """Return a model whose weights no other test's encoder shares: those may have been loaded without packing."""
    model, tokenizer = tiny_model("bert")
    return copy.deepcopy(model), tokenizer


def is_packed(layer):
    return layer.__dict__.get("_packed") is not None


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(24,), (33, 24), (3, 5, 24), (1111, 24)])
def test_a_packed_layer_equals_the_plain_one(shape, bias):
    plain, packed = layers(bias=bias)
    x = torch.randn(shape)
    exact = nn.functional.linear(x.double(), plain.weight.double(), plain.bias.double() if bias else None)
    with torch.no_grad():
        found = packed(x)
    assert is_packed(packed)
    assert found.shape == exact.shape
    assert (found - exact).abs().max() < 2e-6


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_other_dtypes_are_not_packed(dtype):
    assert type(layers(dtype)[1]) is nn.Linear


def test_the_gradient_of_the_input():
    plain, packed = layers()
    x = torch.randn(2, 3, 24, requires_grad=True)
    (expected,) = torch.autograd.grad(plain(x).square().sum(), x)
    (found,) = torch.autograd.grad(packed(x).square().sum(), x)
    assert torch.allclose(found, expected, atol=1e-5)
    assert is_packed(packed)


def test_a_trained_weight_gets_its_gradient():
    plain, packed = layers()
    x = torch.randn(6, 24)
    for layer in (plain, packed):
        layer.weight.requires_grad_()
        layer(x).square().sum().backward()
    assert torch.equal(packed.weight.grad, plain.weight.grad)
    assert not is_packed(packed)


def test_a_weight_packed_in_inference_mode_works_everywhere():
    _, packed = layers()
    x = torch.randn(6, 24)
    with torch.inference_mode():
        first = packed(x).clone()
    with torch.no_grad():
        assert torch.equal(packed(x), first)
    x.requires_grad_()
    packed(x).sum().backward()
    assert x.grad is not None


def test_a_packed_layer_with_inputs_that_onednn_cannot_take():
    _, packed = layers()
    assert packed(torch.empty(0, 24)).shape == (0, 40)
    with pytest.raises(RuntimeError, match="dtype"):
        packed(torch.randn(2, 24, dtype=torch.float64))


@pytest.mark.parametrize(
    "way", [copy.deepcopy, lambda layer: pickle.loads(pickle.dumps(layer))], ids=["copy", "pickle"]
)
def test_copies_pack_their_own_weight(way):
    _, packed = layers()
    x = torch.randn(3, 24)
    with torch.no_grad():
        first = packed(x)
        other = way(packed)
        assert not is_packed(other)
        assert torch.equal(other(x), first)
        other.weight.data.zero_()
        assert torch.equal(packed(x), first)
        assert torch.equal(way(other)(x), packed.bias.expand(3, -1))


def test_encoders_are_packed_and_the_users_model_is_not():
    model, tokenizer = own_model()
    texts = ["the cat sat", "it rains"]
    encoder = FrozenEncoder(model, tokenizer, num_layers=3)
    vectors = encoder.encode(texts).vectors[0]
    inside = [layer for layer in encoder.backbone("cpu").modules() if isinstance(layer, nn.Linear)]
    assert len(inside) == 18
    assert all(type(layer) is PackedLinear and is_packed(layer) for layer in inside)
    assert not any(isinstance(layer, PackedLinear) for layer in model.modules())
    with torch.no_grad():
        hidden = [model(tokenizer(text, return_tensors="pt")["input_ids"]).last_hidden_state[0] for text in texts]
    torch.testing.assert_close(vectors, nn.functional.normalize(torch.cat(hidden), dim=-1), atol=1e-6, rtol=0)


# The switch.


@pytest.fixture
def calls(monkeypatch):
    """The rows that oneDNN has multiplied."""
    seen, own = [], torch.ops.mkldnn._linear_pointwise

    def watched(part, *args):
        seen.append(len(part))
        return own(part, *args)

    monkeypatch.setattr(torch.ops.mkldnn, "_linear_pointwise", watched)
    return seen


def test_scores_are_equal_with_and_without_onednn(calls):
    encoder, texts = FrozenEncoder(*own_model(), num_layers=2), real_pairs(12)
    expected = bert_score(*texts, encoder)
    assert calls
    calls.clear()
    with disable_onednn():
        found = bert_score(*texts, encoder)  # with layers that are packed already
    assert not calls
    for name, scores in expected.items():
        torch.testing.assert_close(found[name], scores, atol=1e-6, rtol=0)
    bert_score(*texts, encoder)
    assert calls


def test_gradients_are_equal_with_and_without_onednn(calls):
    _, packed = layers()
    x = torch.randn(40, 24, requires_grad=True)
    (expected,) = torch.autograd.grad(packed(x).square().sum(), x)
    assert calls
    output = packed(x).square().sum()
    calls.clear()
    with disable_onednn():
        # Also where oneDNN computed the forward pass.
        for value in (output, packed(x).square().sum()):
            torch.testing.assert_close(torch.autograd.grad(value, x)[0], expected, atol=1e-5, rtol=0)
        transposed_matmul(x.detach(), x.detach())
    assert not calls


def test_the_switch_without_a_context_lasts(monkeypatch, calls):
    monkeypatch.setattr(disable_onednn, "is_disabled", False)
    disable_onednn()
    with disable_onednn():
        pass
    linear(matrix(5, 24), matrix(40, 24))
    assert not calls


def test_the_environment_variable():
    program = "import torch; from bertscore_tm.core.onednn import *; print(can_use_onednn(*torch.ones(2, 1, 1)))"
    environment = os.environ | {"BERTSCORE_TM_ONEDNN": "0"}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=environment)
    assert (done.stdout.strip(), can_use_onednn(*torch.ones(2, 1, 1))) == ("False", True)


@pytest.mark.parametrize(
    ("name", "has_mkl", "uses_onednn"),
    [("Intel Xeon", True, False), ("Intel Xeon", False, True), ("AMD EPYC", True, True), (None, True, True)],
)
def test_mkl_multiplies_on_processors_of_intel(monkeypatch, name, has_mkl, uses_onednn):
    monkeypatch.delenv("BERTSCORE_TM_ONEDNN")
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {} if name is None else {"cpu_name": name})
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: has_mkl)
    onednn._has_fast_blas.cache_clear()
    x, weight = matrix(5, 24), matrix(40, 24)
    assert can_use_onednn(x, weight) == uses_onednn
    assert can_use_onednn(x.bfloat16(), weight.bfloat16()) == torch.ops.mkldnn._is_mkldnn_bf16_supported()
    assert (type(layers()[1]) is PackedLinear) == uses_onednn
    monkeypatch.delattr(torch.cpu, "get_capabilities")
    onednn._has_fast_blas.cache_clear()
    assert can_use_onednn(x, weight)
    onednn._has_fast_blas.cache_clear()


def test_switches_and_versions_of_torch_without_onednn(monkeypatch):
    x, weight = matrix(5, 24), matrix(40, 24)
    with torch.backends.mkldnn.flags(enabled=False):
        assert not can_use_onednn(x, weight)
    names = ("_linear_pointwise", "_reorder_linear_weight", "_is_mkldnn_bf16_supported")
    operators = {name: getattr(torch.ops.mkldnn, name) for name in names}
    for missing in names:
        present = {name: operator for name, operator in operators.items() if name != missing}
        monkeypatch.setattr(torch.ops, "mkldnn", SimpleNamespace(**present))
        assert not can_use_onednn(x.bfloat16(), weight.bfloat16())
        assert can_use_onednn(x, weight) == (missing == "_is_mkldnn_bf16_supported")
    assert type(onednn.linear(x, weight)) is torch.Tensor
