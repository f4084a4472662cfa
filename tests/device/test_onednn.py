"""Products by oneDNN and packed layers: torch's numbers, gradients, copies and the switch."""

import copy
import pickle
import platform
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from transformers.activations import GELUActivation

from bertscore_tm import FrozenEncoder
from bertscore_tm.device.onednn import (
    PackedLinear,
    Processor,
    adapt_layers,
    can_use_onednn,
    find_packed_weight,
    gains_from_onednn,
    linear,
    missing_rows,
    prefers_onednn,
    this_processor,
)
from bertscore_tm.encoder.soft_tokens import encode_soft
from bertscore_tm.functional import bert_score
from tests.support.models import soft_texts, tiny_model
from tests.support.rounding import rounding

# For sums of 24 products of normal numbers, which are smaller than the size.
SIZE = 4.0
ROUNDING = rounding(torch.float32, 24, SIZE)

pytestmark = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="torch was built without oneDNN")


@pytest.fixture(autouse=True)
def _on_every_processor(monkeypatch):
    monkeypatch.setenv("BERTSCORE_TM_ONEDNN", "1")


@pytest.fixture
def sizes(monkeypatch):
    """The rows and features that oneDNN has multiplied."""
    seen = []
    original = torch.ops.mkldnn._linear_pointwise

    def watched(part, *args):
        seen.append(tuple(part.shape))
        return original(part, *args)

    monkeypatch.setattr(torch.ops.mkldnn, "_linear_pointwise", watched)
    return seen


def matrix(*shape, dtype=torch.float32, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def exact(rows, weight, bias=None):
    """Return the product in double precision."""
    if bias is not None:
        bias = bias.double()
    return nn.functional.linear(rows.double(), weight.double(), bias)


ROWS = [1, 31, 32, 33, 512, 545, 1111]


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("bias", [None, matrix(40, seed=2)], ids=["no bias", "bias"])
def test_products_are_those_in_double_precision(rows, bias):
    x = matrix(rows, 24)
    weight = matrix(40, 24, seed=1)

    result = linear(x, weight, bias)

    assert can_use_onednn(x, weight)
    assert (result - exact(x, weight, bias)).abs().max() < ROUNDING


@pytest.mark.parametrize("rows", ROWS)
def test_products_in_bfloat16_are_rounded_once(rows):
    x = matrix(rows, 24).bfloat16()
    weight = matrix(40, 24, seed=1).bfloat16()

    result = linear(x, weight)

    expected = exact(x, weight)
    assert result.dtype == torch.bfloat16
    assert ((result - expected).abs() <= 2**-8 * expected.abs() + 2**-9).all()


@pytest.mark.parametrize(
    "rows", [matrix(24, 70).t(), matrix(140, 48)[::2, ::2], matrix(1, 24).expand(70, 24), matrix(50, 90)[:, 10:34]]
)
def test_views_and_transposed_matrices(rows):
    weight = matrix(24, 40, seed=1).t()
    assert (linear(rows, weight) - exact(rows, weight)).abs().max() < ROUNDING


@pytest.mark.parametrize("rows", [5, 64, 600])
def test_a_model_may_change_an_output_in_place(rows):
    """As LED does with its queries, also of fewer rows than are multiplied."""
    layer = nn.Linear(24, 40).requires_grad_(False)
    adapt_layers(layer)
    x = matrix(rows, 24).requires_grad_()
    output = layer(x[None])
    output /= 2
    output.sum().backward()

    torch.testing.assert_close(x.grad, layer.weight.sum(0).expand(rows, -1) / 2, atol=ROUNDING, rtol=0)


def test_onednn_gets_few_sizes(sizes):
    """Each number of rows costs a kernel."""
    few = {8, 16, 24, 32, 48, 64, *range(96, 513, 32), *range(640, 2049, 128)}
    counts = [*range(1, 512, 7), *range(513, 2048, 100)]
    for count in counts:
        linear(matrix(count, 24), matrix(40, 24))

    assert {*sizes} == {(rows, 24) for rows in few}
    assert len(sizes) == len(counts)


@pytest.mark.parametrize("family", ["bert", "mpnet", "t5"])
def test_second_derivatives_are_refused(family):
    model, tokenizer = tiny_model(family)
    encoder = FrozenEncoder(copy.deepcopy(model), tokenizer, num_layers=2)
    rows, mask = soft_texts(encoder, ["the cat sat", "it rains"])
    value = encode_soft(encoder, rows, mask)[0].square().sum()

    with pytest.raises(RuntimeError, match=r"frozen layers cannot be differentiated twice\. Leave out create_graph"):
        torch.autograd.grad(value, rows, create_graph=True, retain_graph=True)
    assert torch.autograd.grad(value, rows)[0].any()


def test_second_derivatives_where_nothing_refuses_them():
    """Against a difference of gradients, in double precision and with attention that torch can differentiate twice."""
    encoder = FrozenEncoder(*tiny_model("deberta-v2"), num_layers=2, dtype="float64")
    rows, mask = soft_texts(encoder, ["the cat sat", "it rains"])
    rows = rows.detach().double()
    step = 1e-6 * matrix(*rows.shape, dtype=torch.float64)

    def gradient(embeds, **options):
        embeds = embeds.clone().requires_grad_()
        value = encode_soft(encoder, embeds, mask)[0].sin().sum()
        return embeds, torch.autograd.grad(value, embeds, **options)[0]

    embeds, first = gradient(rows, create_graph=True)
    (second,) = torch.autograd.grad((first * step).sum(), embeds)
    expected = (gradient(rows + step)[1] - gradient(rows - step)[1]) / 2

    assert expected.abs().max() > 1e-8
    torch.testing.assert_close(second, expected, rtol=0, atol=1e-4 * expected.abs().max().item())


@pytest.mark.parametrize(("dtype", "count"), [(torch.float64, 5), (torch.float16, 5), (torch.float32, 0)])
def test_torch_computes_what_onednn_cannot(dtype, count):
    x = matrix(5, 24, dtype=dtype)[:count]
    weight = matrix(40, 24, dtype=dtype)

    result = linear(x, weight)

    assert not can_use_onednn(x, weight)
    assert result.dtype == dtype
    assert result.shape == (count, 40)


def test_a_product_in_double_precision_is_exact():
    x = matrix(5, 24).double()
    weight = matrix(40, 24).double()
    bias = matrix(40, seed=2).double()

    assert torch.equal(linear(x, weight, bias), exact(x, weight, bias))


def test_onednn_takes_frozen_float32_matrices_of_one_dtype():
    x = matrix(5, 24)
    weight = matrix(40, 24)

    assert can_use_onednn(x, weight)
    assert not can_use_onednn(x, weight.bfloat16())
    assert not can_use_onednn(nn.Parameter(x), weight)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_layers_of_other_dtypes_are_not_packed(dtype):
    assert type(layers(dtype)[1]) is nn.Linear


def test_a_packed_layer_refuses_another_dtype():
    with pytest.raises(RuntimeError, match="dtype"):
        layers()[1](matrix(5, 24).double())


def test_a_product_in_vmap_is_that_of_torch():
    x = matrix(5, 24)
    weight = matrix(40, 24)

    result = torch.func.vmap(lambda row: linear(row[None], weight)[0])(x)

    assert torch.allclose(result, x @ weight.T, atol=ROUNDING)


def layers(dtype=torch.float32, bias=True):
    torch.manual_seed(0)
    plain = nn.Linear(24, 40, bias=bias, dtype=dtype).requires_grad_(False)
    packed = copy.deepcopy(plain)
    adapt_layers(packed)
    return plain, packed


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(24,), (33, 24), (3, 5, 24), (1111, 24), (0, 24)])
def test_a_packed_layer_equals_the_plain_one(shape, bias):
    plain, packed = layers(bias=bias)
    x = matrix(*shape).requires_grad_()
    expected = exact(x, plain.weight, plain.bias)
    with torch.no_grad():
        result = packed(x)

    assert ("_packed" in vars(packed)) == (0 not in shape)
    torch.testing.assert_close(result.double(), expected, atol=ROUNDING, rtol=0)
    # The gradient of a sum is one number, not a matrix in memory.
    for function in (torch.sum, lambda y: y.square().sum()):
        gradients = [torch.autograd.grad(function(y), x, retain_graph=True)[0] for y in (expected, packed(x))]
        torch.testing.assert_close(*gradients, atol=40**0.5 * ROUNDING, rtol=0)


def test_the_first_packed_weight_of_a_model_is_found():
    plain = nn.Sequential(nn.LayerNorm(24), nn.Linear(24, 40), nn.Linear(40, 24))

    assert find_packed_weight(plain) is None
    packed = copy.deepcopy(plain)
    adapt_layers(packed)
    weight = find_packed_weight(packed)
    assert weight.data_ptr() == packed[1].weight.data_ptr()
    assert not weight.requires_grad


@pytest.mark.parametrize(
    ("num_rows", "expected"), [(1, 7), (8, 0), (33, 15), (65, 31), (600, 40), (2048, 0), (2081, 15)]
)
def test_with_the_missing_rows_no_layer_adds_any(monkeypatch, sizes, num_rows, expected):
    _, packed = layers()
    weight = find_packed_weight(packed)
    num_missing = missing_rows(weight, num_rows)

    assert num_missing == expected
    for num_given in (num_rows, num_rows + num_missing):
        sizes.clear()
        packed(matrix(num_given, 24))
        assert sum(num_multiplied for num_multiplied, _ in sizes) == num_rows + num_missing
    # torch's functions take any number of rows.
    assert missing_rows(None, num_rows) == 0
    monkeypatch.setenv("BERTSCORE_TM_ONEDNN", "0")
    assert missing_rows(weight, num_rows) == 0


def test_gradients_of_a_trained_weight_and_after_inference_mode():
    plain, packed = layers()
    x = matrix(6, 24).requires_grad_()
    with torch.inference_mode():
        first = packed(x).clone()

    assert torch.equal(packed(x), first)
    assert torch.autograd.grad(packed(x).sum(), x)[0].any()
    for layer in (plain, packed):
        layer.weight.requires_grad_()
        layer(x).square().sum().backward()
    assert torch.equal(packed.weight.grad, plain.weight.grad)


@torch.no_grad()
def test_copies_pack_their_own_weight():
    packed = layers()[1]
    x = matrix(3, 24)
    first = packed(x)
    other = pickle.loads(pickle.dumps(packed))

    assert torch.equal(other(x), first)
    other.weight.data.zero_()
    assert torch.equal(packed(x), first)
    assert torch.equal(copy.deepcopy(other)(x), packed.bias.expand(3, -1))


def test_packing_of_weights_changes_rounding_only(monkeypatch, sizes):
    # A model whose weights no other test's encoder shares: those may have been loaded without packing.
    model, tokenizer = copy.deepcopy(tiny_model("bert"))
    encoder = FrozenEncoder(model, tokenizer, num_layers=3)
    texts = ["the cat sat", "it rains"]
    layer = layers()[1]
    x = matrix(40, 24).requires_grad_()
    expected = bert_score(texts, texts[::-1], encoder)
    inside = [part for part in encoder.backbone("cpu").modules() if isinstance(part, nn.Linear)]

    assert len(inside) == 18
    assert all(type(part) is PackedLinear and "_packed" in vars(part) for part in inside)
    assert not any(isinstance(part, PackedLinear) for part in model.modules())
    output = layer(x).square().sum()
    (gradient,) = torch.autograd.grad(output, x, retain_graph=True)
    assert sizes
    sizes.clear()
    monkeypatch.setenv("BERTSCORE_TM_ONEDNN", "0")
    assert type(layers()[1]) is nn.Linear
    # Also with layers that are packed already, and where oneDNN computed the forward pass.
    torch.testing.assert_close(bert_score(texts, texts[::-1], encoder), expected, atol=1e-6, rtol=0)
    for value in (output, layer(x).square().sum()):
        torch.testing.assert_close(torch.autograd.grad(value, x)[0], gradient, atol=40**0.5 * ROUNDING, rtol=0)
    assert not sizes


INTEL, AMD = "GenuineIntel", "AuthenticAMD"


@pytest.mark.parametrize(
    ("processor", "in_float32", "in_bfloat16"),
    [
        (Processor(INTEL, has_avx512=True, has_bfloat16=True, has_amx=True, has_mkl=True), False, True),
        (Processor(INTEL, has_avx512=True, has_bfloat16=True, has_amx=False, has_mkl=True), False, False),
        (Processor(INTEL, has_avx512=False, has_bfloat16=False, has_amx=False, has_mkl=True), False, False),
        (Processor(AMD, has_avx512=True, has_bfloat16=True, has_amx=False, has_mkl=True), True, True),
        (Processor(AMD, has_avx512=True, has_bfloat16=False, has_amx=False, has_mkl=True), True, False),
        (Processor(AMD, has_avx512=False, has_bfloat16=False, has_amx=False, has_mkl=True), False, False),
        (Processor("", has_avx512=False, has_bfloat16=True, has_amx=False, has_mkl=False), True, True),
    ],
    ids=["Xeon with AMX", "Xeon", "Core", "Zen 4", "Zen 4 without bfloat16", "Zen 3", "ARM"],
)
def test_each_processor_gets_the_library_that_is_faster(processor, in_float32, in_bfloat16):
    gains = [gains_from_onednn(dtype, processor) for dtype in (torch.float32, torch.bfloat16, torch.float16)]
    assert gains == [in_float32, in_bfloat16, False]


def test_without_the_switch_this_processor_decides(monkeypatch):
    monkeypatch.delenv("BERTSCORE_TM_ONEDNN")

    for dtype in (torch.float32, torch.bfloat16):
        gains = gains_from_onednn(dtype, this_processor())
        assert can_use_onednn(matrix(5, 24, dtype=dtype), matrix(40, 24, dtype=dtype)) == gains
        small = nn.Linear(40, 24, dtype=dtype)
        large = nn.Linear(200, 200, dtype=dtype)
        adapt_layers(nn.Sequential(small, large).requires_grad_(False))
        # A call of a small one would take longer.
        assert type(small) is nn.Linear
        assert (type(large) is PackedLinear) == gains
    torch_uses = torch.backends.cpu.get_cpu_capability()

    assert this_processor().has_avx512 == (torch_uses == "AVX512")
    if platform.system() == "Linux" and platform.machine() == "x86_64":
        assert f"vendor_id\t: {this_processor().vendor}" in Path("/proc/cpuinfo").read_text(encoding="utf-8")


def test_gelu_replaces_its_input_unless_a_gradient_needs_it():
    layer = GELUActivation()
    adapt_layers(layer)
    x = matrix(5, 24)
    expected = nn.functional.gelu(matrix(5, 24))
    trained = x.clone().requires_grad_()
    output = layer(trained)

    assert torch.equal(output, expected)
    assert torch.equal(trained, x)
    output.sum().backward()
    assert trained.grad.any()
    assert torch.equal(torch.func.vmap(layer)(x), expected)
    assert torch.equal(layer(x), expected)
    assert torch.equal(x, expected)


def test_switches_and_versions_of_torch_without_onednn(monkeypatch):
    x = matrix(5, 24)
    weight = matrix(40, 24)
    with torch.backends.mkldnn.flags(enabled=False):
        assert not can_use_onednn(x, weight)
    names = ("_linear_pointwise", "_reorder_linear_weight", "_is_mkldnn_bf16_supported")
    operators = {name: getattr(torch.ops.mkldnn, name) for name in names}

    for missing in names:
        present = {name: operators[name] for name in {*names} - {missing}}
        monkeypatch.setattr(torch.ops, "mkldnn", SimpleNamespace(**present))
        this_processor.cache_clear()
        prefers_onednn.cache_clear()
        assert not can_use_onednn(x.bfloat16(), weight.bfloat16())
        assert can_use_onednn(x, weight) == (missing == "_is_mkldnn_bf16_supported")
    this_processor.cache_clear()
    prefers_onednn.cache_clear()
