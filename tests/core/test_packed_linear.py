"""Linear layers in oneDNN's arrangement: the same numbers, gradients, copies, and nobody else's model is touched."""

import copy
import pickle

import pytest
import torch
from torch import nn
from transformers import BertConfig, BertModel

from bertscore_tm import FrozenEncoder
from bertscore_tm.core.packed_linear import PackedLinear, pack_linears
from tests.support.models import tiny_tokenizer

pytestmark = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="torch was built without oneDNN")


def layers(dtype=torch.float32, bias=True, sizes=(24, 40)):
    torch.manual_seed(0)
    plain = nn.Linear(*sizes, bias=bias, dtype=dtype).requires_grad_(False)
    packed = copy.deepcopy(plain)
    pack_linears(packed)
    return plain, packed


def is_packed(layer):
    return layer.__dict__.get("_packed") is not None


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(
    "shape", [(24,), (1, 24), (7, 24), (31, 24), (32, 24), (33, 24), (3, 5, 24), (1111, 24), (4096, 24), (2, 2, 2, 24)]
)
def test_the_numbers_are_the_same(shape, bias):
    plain, packed = layers(bias=bias)
    x = torch.randn(shape)
    exact = nn.functional.linear(x.double(), plain.weight.double(), plain.bias.double() if bias else None)
    with torch.no_grad():
        found = packed(x)
    assert is_packed(packed)
    assert found.shape == exact.shape
    assert (found - exact).abs().max() < 2e-6


def test_few_numbers_of_rows_reach_onednn(monkeypatch):
    _, packed = layers()
    rows, product = set(), torch.ops.mkldnn._linear_pointwise

    def watched(part, *args):
        rows.add(len(part))
        return product(part, *args)

    monkeypatch.setattr(torch.ops.mkldnn, "_linear_pointwise", watched)
    with torch.no_grad():
        for count in range(1, 1500, 7):
            packed(torch.randn(count, 24))
    assert rows == {*range(32, 513, 32)}


def test_bfloat16():
    plain, packed = layers(torch.bfloat16)
    x = torch.randn(50, 24, dtype=torch.bfloat16)
    exact = nn.functional.linear(x.double(), plain.weight.double(), plain.bias.double())
    with torch.no_grad():
        found = packed(x)
    assert found.dtype == torch.bfloat16
    assert ((found - exact).abs() <= 2**-8 * exact.abs() + 2**-9).all()  # one rounding of the result


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_other_precisions_stay_as_they_are(dtype):
    assert type(layers(dtype)[1]) is nn.Linear


def test_the_gradient_of_the_input():
    plain, packed = layers()
    x = torch.randn(2, 3, 24, requires_grad=True)
    (expected,) = torch.autograd.grad(plain(x).square().sum(), x)
    (found,) = torch.autograd.grad(packed(x).square().sum(), x)
    assert torch.allclose(found, expected, atol=1e-5)
    assert is_packed(packed)


def test_a_weight_that_is_trained_after_all_gets_its_gradient():
    plain, packed = layers()
    x = torch.randn(6, 24)
    for layer in (plain, packed):
        layer.weight.requires_grad_()
        layer(x).square().sum().backward()
    assert torch.equal(packed.weight.grad, plain.weight.grad)
    assert not is_packed(packed)


def test_what_is_arranged_in_inference_mode_serves_everywhere():
    _, packed = layers()
    x = torch.randn(6, 24)
    with torch.inference_mode():
        first = packed(x).clone()
    with torch.no_grad():
        assert torch.equal(packed(x), first)
    x.requires_grad_()
    packed(x).sum().backward()
    assert x.grad is not None


def test_other_inputs_go_the_usual_way():
    _, packed = layers()
    assert packed(torch.empty(0, 24)).shape == (0, 40)
    with pytest.raises(RuntimeError, match="dtype"):
        packed(torch.randn(2, 24, dtype=torch.float64))


@pytest.mark.parametrize(
    "way", [copy.deepcopy, lambda layer: pickle.loads(pickle.dumps(layer))], ids=["copy", "pickle"]
)
def test_copies_make_their_own(way):
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


@pytest.fixture
def model():
    torch.manual_seed(0)
    tokenizer = tiny_tokenizer("wordpiece")
    config = BertConfig(
        vocab_size=len(tokenizer), hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24
    )
    return BertModel(config), tokenizer


def test_encoders_use_them_and_leave_the_users_model_alone(model):
    own, tokenizer = model
    encoder = FrozenEncoder(own, tokenizer, num_layers=2)
    vectors = encoder.encode(["the cat sat", "it rains"]).vectors
    inside = [layer for layer in encoder.backbone(torch.device("cpu")).modules() if isinstance(layer, nn.Linear)]
    assert len(inside) == 12
    assert all(type(layer) is PackedLinear and is_packed(layer) for layer in inside)
    assert not any(isinstance(layer, PackedLinear) for layer in own.modules())
    # Against the user's model, text by text.
    for number, text in enumerate(["the cat sat", "it rains"]):
        ids = tokenizer(text, return_tensors="pt")["input_ids"]
        with torch.no_grad():
            hidden = own.eval()(ids).last_hidden_state[0]
        start = 0 if number == 0 else len(tokenizer("the cat sat")["input_ids"])
        found = vectors[0, start : start + len(hidden)]
        assert torch.allclose(found, nn.functional.normalize(hidden, dim=-1), atol=1e-6)
