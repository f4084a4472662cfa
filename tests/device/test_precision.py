"""TF32 and half precision: which products may round, and which never do."""

import pytest
import torch

from bertscore_tm import FrozenEncoder
from bertscore_tm.device.precision import exact_products, fast_half_precision, may_use_tf32
from bertscore_tm.encoder import encoder as encoder_module
from tests.support.models import tiny_model

GPU = torch.device("cuda")
PRODUCTS = torch.backends.cuda.matmul


@pytest.fixture
def switches():
    """Set the switches of torch back after a test."""
    before = torch.get_float32_matmul_precision()
    setting = getattr(PRODUCTS, "fp32_precision", None)
    yield setting is not None
    if setting is not None:
        PRODUCTS.fp32_precision = "ieee"
    torch.set_float32_matmul_precision(before)
    if setting is not None:
        PRODUCTS.fp32_precision = setting


def test_tf32_is_read_from_the_switch_that_was_set(switches):
    torch.set_float32_matmul_precision("high")

    assert may_use_tf32(GPU)
    assert not may_use_tf32(torch.device("cpu"))
    torch.set_float32_matmul_precision("highest")
    assert not may_use_tf32(GPU)
    if switches:
        PRODUCTS.fp32_precision = "tf32"
        assert may_use_tf32(GPU)


@pytest.mark.parametrize("is_new", [False, True])
def test_exact_products_leave_the_switch_as_it_was(is_new, switches):
    if is_new and not switches:
        pytest.skip("this version of torch has the old switch only")
    if is_new:
        PRODUCTS.fp32_precision = "tf32"
    else:
        torch.set_float32_matmul_precision("high")
    with exact_products.turned():
        assert not may_use_tf32(GPU)

    assert may_use_tf32(GPU)
    if not is_new:
        assert torch.get_float32_matmul_precision() == "high"


# bfloat16 is asked for on purpose, also where the processor is slow at it.
@pytest.mark.filterwarnings("ignore:this processor has no bfloat16 instructions")
def test_the_signature_says_where_products_may_use_tf32(monkeypatch):
    model, tokenizer = tiny_model("bert")
    encoder = FrozenEncoder(model, tokenizer, num_layers=2)

    assert "tf32" not in encoder.signature()
    monkeypatch.setattr(encoder_module, "may_use_tf32", lambda device: True)
    assert "|dtype:float32|tf32:yes|" in str(encoder.signature())
    assert "tf32" not in FrozenEncoder(model, tokenizer, num_layers=2, dtype="bfloat16").signature()


@pytest.mark.parametrize(
    ("capability", "expected"), [((9, 0), torch.bfloat16), ((7, 5), torch.float16), ((6, 1), None)]
)
def test_half_precision_is_that_of_the_gpu_in_use(capability, expected, monkeypatch):
    capabilities = {torch.device("cuda", 1): capability, torch.device("cuda", 0): (9, 0)}
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capabilities[device])

    assert fast_half_precision(torch.device("cuda", 1)) == expected
    assert fast_half_precision(torch.device("meta")) is None


@pytest.mark.parametrize(("family", "dtype"), [("bert", torch.float16), ("t5", torch.float32)])
def test_models_whose_states_overflow_stay_in_float32(family, dtype, monkeypatch):
    encoder = FrozenEncoder(*tiny_model(family), num_layers=2, dtype="auto", device="cpu")
    monkeypatch.setattr("bertscore_tm.encoder.model.fast_half_precision", lambda device: torch.float16)

    assert encoder._backbone.resolve_dtype(GPU) == dtype
    encoder.config.dtype = torch.bfloat16
    assert encoder._backbone.resolve_dtype(GPU) == torch.float32
