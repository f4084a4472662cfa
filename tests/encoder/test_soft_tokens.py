"""Soft tokens: embeddings instead of ids give the same vectors, with gradients."""

import pytest
import torch

from bertscore_tm import FrozenEncoder
from bertscore_tm.encoder.soft_tokens import encode_soft
from tests.support.encoders import texts
from tests.support.models import soft_texts, tiny_model


def test_the_gradient_is_that_of_finite_differences():
    encoder = FrozenEncoder(*tiny_model("bert"), num_layers=1, dtype="float64")
    embeds, mask = soft_texts(encoder, texts(4))
    direction = torch.randn(embeds.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))

    def along(step):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return encode_soft(encoder, embeds.detach() + step * direction, mask)[:, mask].flatten()[::7]

    assert torch.autograd.gradcheck(along, torch.zeros((), dtype=torch.float64, requires_grad=True))


@pytest.mark.parametrize("source", ["folder", "ready model"])
def test_a_model_loaded_in_inference_mode_has_gradients(minilm, fresh_tiny, source):
    with torch.inference_mode():
        model, tokenizer = (minilm, None) if source == "folder" else fresh_tiny
        encoder = FrozenEncoder(model, tokenizer, num_layers=2)
        encoder.encode(["a"])

    assert not any(tensor.is_inference() for tensor in encoder.backbone("cpu").state_dict().values())
    embeds, mask = soft_texts(encoder, ["a cat sat"])
    encode_soft(encoder, embeds, mask)[..., 0].sum().backward()
    assert torch.isfinite(embeds.grad).all()
    assert (embeds.grad != 0).any(-1).all()
