"""The forward pass: the trial at load, models that cannot share a pass, and replaced forward methods."""

import copy
import logging
import pickle
from contextlib import nullcontext
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn.functional import normalize
from transformers import (
    AutoModel,
    BertModel,
)

from bertscore_tm import FrozenEncoder
from bertscore_tm.encoder import forward as forward_module
from bertscore_tm.encoder import packing
from bertscore_tm.encoder.families import ALONE, FAMILIES, PACKED, PADDED, ModelSpec
from bertscore_tm.encoder.forward import ForwardPass
from bertscore_tm.encoder.soft_tokens import encode_soft
from tests.support.encoders import CPU, LAYER, ROUNDING, WIDTH, attend_by_products, batching, texts
from tests.support.models import randomised, soft_texts, tiny_config, tiny_model, tiny_tokenizer


@pytest.mark.filterwarnings(
    "ignore::DeprecationWarning",
    "ignore:torch.quantize_per_tensor:UserWarning",
    "ignore:BertModel gives a text other vectors next to other texts",  # by the pickle again
)
def test_texts_that_cannot_share_a_pass_are_encoded_alone():
    """Dynamic quantization rounds by the largest state of a batch, also of a family that is listed as packed."""
    model, tokenizer = tiny_model("bert")
    quantized = torch.ao.quantization.quantize_dynamic(model, {nn.Linear}, dtype=torch.qint8)

    with pytest.warns(UserWarning, match="other vectors next to other texts, .*Pass the model in float32"):
        encoder = FrozenEncoder(quantized, tokenizer, num_layers=LAYER)
    assert batching(encoder) == ALONE
    alone = torch.cat([encoder.encode([text]).vectors for text in texts()], 1)
    torch.testing.assert_close(encoder.encode(texts()).vectors, alone, atol=0, rtol=0)
    ids = [torch.tensor(row) for row in tokenizer(texts())["input_ids"]]
    with torch.no_grad():
        plain = torch.cat([quantized(row[None], output_hidden_states=True).hidden_states[LAYER][0] for row in ids])
    torch.testing.assert_close(alone[0], normalize(plain, dim=-1), atol=ROUNDING, rtol=0)
    embeds, mask = soft_texts(encoder, texts())
    torch.testing.assert_close(encode_soft(encoder, embeds, mask)[0][mask], alone[0], atol=ROUNDING, rtol=0)
    signature = encoder.signature()
    again = pickle.loads(pickle.dumps(encoder))
    torch.testing.assert_close(again.encode(texts()).vectors, alone, atol=0, rtol=0)
    assert signature == again.signature() != FrozenEncoder(model, tokenizer, num_layers=LAYER).signature()


@pytest.mark.parametrize("is_packed", [False, True])
@pytest.mark.parametrize("family", ["bert", "t5", "deberta"])
def test_a_trial_changes_neither_the_model_nor_its_forward_pass(family, is_packed):
    """Of a model as transformers makes it, and of one that attends within packed rows already."""
    if is_packed:
        forward = FrozenEncoder(*tiny_model(family), num_layers=LAYER)._backbone.loaded(CPU)
    else:
        model = tiny_model(family)[0]
        encoder = copy.deepcopy(model.encoder if family == "t5" else model)
        config = copy.deepcopy(encoder.config)
        forward = ForwardPass(encoder, ModelSpec(config, FAMILIES[family], num_layers=3, all_layers=True))

    def state():
        classes = [type(module) for module in forward.model.modules()]
        return classes, forward.model.config._attn_implementation, vars(forward).copy()

    before = state()
    drawn = [torch.arange(5, 5 + length) for length in (12, 7, 3)]

    for candidate in (PACKED, PADDED, ALONE):
        with torch.no_grad():
            assert forward.find_batching(drawn, [candidate], torch.float32).batching == candidate
        assert state() == before


@pytest.mark.parametrize("refuses", [False, True])
def test_packing_stays_where_the_kernel_refuses(refuses, monkeypatch, caplog):
    """Then attention alone is padded."""

    def kernel(query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, *, scale=None, window_size=(-1, -1)):
        if refuses:
            raise RuntimeError("no kernel for this head size")
        return attend_by_products(query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, scale, window_size)

    monkeypatch.setattr(forward_module, "has_attention_kernel", lambda device, dtype: True)
    monkeypatch.setattr(packing, "_find_kernel", lambda: kernel)
    warned = pytest.warns(UserWarning, match="does not take BertModel .RuntimeError: no kernel for this head size")
    with caplog.at_level(logging.DEBUG, "bertscore_tm"), warned if refuses else nullcontext():
        loaded = FrozenEncoder(*tiny_model("bert"), num_layers=LAYER)._backbone.loaded(CPU)

    assert (loaded.batching, loaded.has_kernel) == (PACKED, not refuses)
    assert f"packed texts, has_kernel={not refuses}" in caplog.text


def test_the_trial_at_load_expects_the_rounding_of_tf32(monkeypatch):
    """Of 10 bits of mantissa, as float16 has."""
    vectors = torch.randn(50, WIDTH, generator=torch.Generator().manual_seed(0))

    assert not forward_module.are_same_vectors(vectors, vectors.half().float(), torch.float32)
    monkeypatch.setattr(forward_module, "may_use_tf32", lambda device: True)
    assert forward_module.are_same_vectors(vectors, vectors.half().float(), torch.float32)
    assert not forward_module.are_same_vectors(vectors, vectors + 0.02, torch.float32)


def test_a_long_text_does_not_switch_the_frequencies_of_others():
    rope = {"rope_type": "longrope", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 16}
    rope |= {"short_factor": [1.0, 1.1, 1.2, 1.3], "long_factor": [2.0, 3.0, 4.0, 5.0]}
    config = tiny_config("phi3", rope_parameters=rope, original_max_position_embeddings=16)
    model = randomised(AutoModel.from_config(config))
    tokenizer = tiny_tokenizer("phi3")
    texts = ["a cat sat", "hello", "the quick brown fox jumps over the lazy dog near a bank" * 2]
    encoder = FrozenEncoder(model, tokenizer, num_layers=2)
    alone = torch.cat([encoder.encode([text]).vectors[0] for text in texts])

    torch.testing.assert_close(encoder.encode(texts).vectors[0], alone, atol=ROUNDING, rtol=0)
    embeds, mask = soft_texts(encoder, texts)
    torch.testing.assert_close(encode_soft(encoder, embeds, mask)[0][mask], alone, atol=ROUNDING, rtol=0)


class ForwardsAll(BertModel):
    def forward(self, *args, **kwargs):
        return super().forward(*args, **kwargs)


class DropsMask(BertModel):
    def forward(self, **kwargs):
        return super().forward(**kwargs | {"attention_mask": None})


class TakesIdsOnly(BertModel):
    def forward(self, input_ids):
        return super().forward(input_ids)


TEXTS = ["a", "a cat sat", "a dog ran", "the quick brown fox jumps over the lazy dog near a bank"]


@pytest.mark.parametrize("kind", [ForwardsAll, DropsMask, TakesIdsOnly])
def test_a_forward_without_argument_names_gets_the_mask(models, kind):
    tokenizer = tiny_tokenizer("wordpiece")
    plain = FrozenEncoder(models["bert"], tokenizer, num_layers=2)
    expected = torch.cat([plain.encode([text]).vectors for text in TEXTS], 1)
    model = kind(models["bert"].config).eval()
    model.load_state_dict(models["bert"].state_dict())
    batches = []
    encoder = FrozenEncoder(model, tokenizer, num_layers=2)
    encoder.encode(["a", "b"])
    encoder.backbone("cpu").register_forward_pre_hook(
        lambda model, args, kwargs: batches.append(kwargs), with_kwargs=True
    )

    torch.testing.assert_close(encoder.encode(TEXTS).vectors, expected, atol=ROUNDING, rtol=0)
    assert len(batches) == (3 if kind is TakesIdsOnly else 1)
    assert encoder.signature() | plain.signature().select("model", "contents") == plain.signature()
    if kind is TakesIdsOnly:
        with pytest.raises(ValueError, match=r"TakesIdsOnly does not return the hidden states.*forward_fn="):
            FrozenEncoder(model, tokenizer, num_layers=2, all_layers=True)
        return
    embeds, mask = soft_texts(encoder, TEXTS)
    torch.testing.assert_close(encode_soft(encoder, embeds, mask)[:, mask], expected, atol=ROUNDING, rtol=0)


def test_a_forward_method_replaced_by_a_function_is_an_error(models):
    """A copy would run the original model, whose layers are not cut and whose training goes on."""
    model = copy.deepcopy(models["bert"])
    model.forward = partial(type(model).forward, model)  # copied with the model
    expected = FrozenEncoder(models["bert"], tiny_tokenizer("wordpiece"), num_layers=2).encode(TEXTS).vectors
    vectors = FrozenEncoder(model, tiny_tokenizer("wordpiece"), num_layers=2).encode(TEXTS).vectors

    torch.testing.assert_close(vectors, expected, atol=ROUNDING, rtol=0)
    for module in (model, model.encoder.layer[0].attention):
        replaced = module.forward
        module.forward = lambda *args, forward=replaced, **kwargs: forward(*args, **kwargs)
        with pytest.raises(ValueError, match=r"forward method of .* was replaced by a function"):
            FrozenEncoder(model, tiny_tokenizer("wordpiece"), num_layers=2)
        module.forward = replaced
