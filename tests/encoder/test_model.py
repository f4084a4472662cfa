"""Loading a model: precision, hooks, pickles and layers that are not needed."""

import copy
import json
import pickle
import warnings

import pytest
import torch
from transformers import AutoModel

from bertscore_tm import FrozenEncoder, bert_score
from bertscore_tm.encoder import model as model_module
from bertscore_tm.encoder.model import warn_of_slow_bfloat16
from tests.support.encoders import TEXTS
from tests.support.models import save_tiny_model, tiny_model
from tests.support.ranks import run_ranks


@pytest.mark.filterwarnings("ignore:this processor has no bfloat16 instructions")
def test_bfloat16_is_close_and_returns_float32(minilm, encoder, corpus):
    candidates, references = corpus

    exact = bert_score(candidates, references, encoder)["f1"]
    half = FrozenEncoder(minilm, num_layers=5, dtype="bfloat16")
    fast = bert_score(candidates, references, half)["f1"]

    assert 0 < (fast - exact).abs().max() <= 5e-3
    assert (fast.mean() - exact.mean()).abs() <= 1e-3
    assert next(half.backbone("cpu").parameters()).dtype == torch.bfloat16
    vectors = half.encode(TEXTS).vectors
    assert vectors.dtype == torch.float32
    torch.testing.assert_close(vectors.norm(dim=-1), torch.ones(vectors.shape[:2]))


@pytest.mark.parametrize(("native", "dtype"), [(True, torch.bfloat16), (False, torch.float32)])
def test_auto_is_bfloat16_where_the_device_computes_it(minilm, encoder, monkeypatch, native, dtype):
    automatic = FrozenEncoder(minilm, num_layers=5, dtype="auto")

    assert automatic.signature()["dtype"].startswith("auto/")
    monkeypatch.setattr(model_module, "fast_half_precision", lambda device: torch.bfloat16 if native else None)
    assert automatic.backbone("cpu").dtype == dtype
    assert (automatic.backbone("cpu") is encoder.backbone("cpu")) != native


def test_bfloat16_on_a_processor_without_it_warns_once(minilm, monkeypatch):
    monkeypatch.setattr(model_module, "fast_half_precision", lambda device: None)
    warn_of_slow_bfloat16.cache_clear()
    slow, automatic = (FrozenEncoder(minilm, num_layers=1, dtype=dtype) for dtype in ("bfloat16", "auto"))
    with warnings.catch_warnings(record=True, action="always") as warned:
        automatic.encode(TEXTS)
        slow.encode(TEXTS)
        FrozenEncoder(minilm, num_layers=0, dtype="bfloat16").encode(TEXTS)
    [warning] = warned

    assert "no bfloat16 instructions" in str(warning.message)
    assert "Set dtype (--dtype) to 'auto'" in str(warning.message)
    assert warning.filename == __file__


def test_weights_in_a_lower_precision_are_never_widened(minilm, encoder, monkeypatch):
    """An encoder moved from a device with native bfloat16 to one without gets the exact weights there."""
    expected = copy.deepcopy(encoder.backbone("cpu")).state_dict()
    automatic = FrozenEncoder(minilm, num_layers=2, dtype="auto")
    monkeypatch.setattr(
        model_module, "fast_half_precision", lambda device: torch.bfloat16 if device.type == "meta" else None
    )

    assert automatic.backbone(torch.device("meta")).dtype == torch.bfloat16
    for name, weights in automatic.backbone("cpu").state_dict().items():
        assert torch.equal(weights, expected[name])


def encode_in_a_new_process(data):
    """Return the vectors of a pickled encoder where transformers knows neither our attention nor a class's states."""
    (vectors,) = run_ranks(encode_pickle, 1, data)
    return vectors


def encode_pickle(rank, data):
    return pickle.loads(data).encode(TEXTS).vectors


@pytest.mark.distributed
def test_a_ready_model_with_hooks_is_pickled(fresh_tiny):
    # Returning all layers leaves hooks on the model, which cannot be pickled.
    model, tokenizer = fresh_tiny
    model(**tokenizer("a cat", return_tensors="pt"), output_hidden_states=True)
    encoder = FrozenEncoder(model, tokenizer, all_layers=True)
    expected = encoder.encode(TEXTS).vectors
    signature = encoder.signature()
    data = pickle.dumps(encoder)
    del encoder, model

    again = pickle.loads(data)

    assert torch.equal(again.encode(TEXTS).vectors, expected)
    assert again.signature() == signature
    torch.testing.assert_close(encode_in_a_new_process(data), expected, atol=1e-6, rtol=0)


def test_a_ready_model_needs_its_tokenizer(fresh_tiny):
    with pytest.raises(ValueError, match="needs its tokenizer"):
        FrozenEncoder(fresh_tiny[0], num_layers=2)


def mean_of_layers(model, inputs):
    return torch.stack(model(**inputs, output_hidden_states=True).hidden_states).mean(0)


@pytest.mark.distributed
def test_a_model_whose_function_asks_for_states_is_pickled(fresh_tiny):
    encoder = FrozenEncoder(*fresh_tiny, forward_fn=mean_of_layers)
    expected = encoder.encode(TEXTS).vectors

    again = pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(encoder))))

    of_new_process = encode_in_a_new_process(pickle.dumps(encoder))

    torch.testing.assert_close(of_new_process, expected, atol=1e-6, rtol=0)
    assert torch.equal(again.encode(TEXTS).vectors, expected)
    assert torch.equal(encoder.encode(TEXTS).vectors, expected)


@pytest.mark.parametrize("layer", [0, 2])
def test_layers_replaced_after_a_call_are_recorded(fresh_tiny, layer):
    model, tokenizer = fresh_tiny
    model(**tokenizer("a cat", return_tensors="pt"), output_hidden_states=True)
    model.encoder.layer[layer] = copy.deepcopy(model.encoder.layer[1])
    model.encoder.layer[layer]._forward_hooks.clear()
    expected = [FrozenEncoder(model, tokenizer, num_layers=number).encode(TEXTS).vectors[0] for number in (1, 2, 3)]
    vectors = FrozenEncoder(model, tokenizer, all_layers=True).encode(TEXTS).vectors

    torch.testing.assert_close(vectors[1:], torch.stack(expected))
    torch.testing.assert_close(FrozenEncoder(model, tokenizer, num_layers=0).encode(TEXTS).vectors[0], vectors[0])


_CODE_WITHOUT_FIRST_STATE = """
from transformers import BertModel


class Own(BertModel):
    def forward(self, **kwargs):
        output = super().forward(**kwargs)
        output.hidden_states = output.hidden_states and output.hidden_states[1:]
        return output
"""


def test_a_model_loaded_for_its_last_layer_records_all_states(tmp_path):
    """Remote code returns one state too few, which the encoder that loads the model does not ask for."""
    model, tokenizer = tiny_model("bert")
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config |= {"auto_map": {"AutoModel": "modeling.Own"}, "architectures": ["Own"]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "modeling.py").write_text(_CODE_WITHOUT_FIRST_STATE)
    last = FrozenEncoder(tmp_path, num_layers=2, trust_remote_code=True)
    last.encode(TEXTS)
    layers = FrozenEncoder(tmp_path, num_layers=2, all_layers=True, trust_remote_code=True)
    vectors = layers.encode(TEXTS).vectors

    assert layers.backbone("cpu") is last.backbone("cpu")
    expected = [FrozenEncoder(model, tokenizer, num_layers=number).encode(TEXTS).vectors[0] for number in range(3)]
    torch.testing.assert_close(vectors, torch.stack(expected))


@pytest.mark.parametrize("family", ["t5", "gemma"])
def test_pickles_of_a_bfloat16_model_give_the_same_vectors(family, capfd):
    encoder = FrozenEncoder(*tiny_model(family), num_layers=2, dtype="bfloat16")
    again = pickle.loads(pickle.dumps(encoder))

    assert torch.equal(again.encode(TEXTS).vectors, encoder.encode(TEXTS).vectors)
    assert again.signature() == encoder.signature()
    assert "Loading" not in capfd.readouterr().err


@pytest.mark.parametrize("family", ["llama", "modernbert"])
def test_bfloat16_keeps_the_frequencies_of_rotary_positions(family, tmp_path):
    encoder = FrozenEncoder(save_tiny_model(family, tmp_path), num_layers=2, dtype="bfloat16")
    ours = dict(encoder.backbone("cpu").named_buffers())
    # transformers computes them in float32 for a model in any precision.
    theirs = dict(AutoModel.from_pretrained(tmp_path, dtype=torch.bfloat16).named_buffers())
    names = [name for name in theirs if "inv_freq" in name]

    assert names
    assert all(torch.equal(ours[name], theirs[name]) and ours[name].dtype == torch.float32 for name in names)
