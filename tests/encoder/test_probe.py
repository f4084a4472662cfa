"""Encoders of types that are not listed: right, or refused with the probe that failed."""

import json
import pickle

import pytest
import torch
from torch.nn.functional import normalize
from transformers import CONFIG_MAPPING, AutoConfig, AutoModel, ErnieModel, FunnelConfig, FunnelModel

from bertscore_tm import FrozenEncoder
from bertscore_tm.encoder import probe
from bertscore_tm.encoder.families import EQUAL, PACKED, PADDED
from bertscore_tm.encoder.soft_tokens import encode_soft
from tests.support.models import randomised, soft_texts, tiny_config, tiny_model, tiny_tokenizer
from tests.support.rounding import rounding

LAYERS = 3
# For unit vectors of the models' width.
ROUNDING = rounding(torch.float32, 32)
_BERT = {"hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 48, "max_position_embeddings": 72}
_LLAMA = _BERT | {"num_key_value_heads": 2, "head_dim": 8}
_EXPERTS = _LLAMA | {"num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
_GEMMA = _LLAMA | {"sliding_window": 8, "hidden_size_per_layer_input": 8, "embedding_dim": 16}
_GEMMA |= {"global_head_dim": 16, "sliding_window_pattern": 2}
_BART = {"d_model": 32, "encoder_layers": LAYERS, "decoder_layers": 1, "max_position_embeddings": 72}
_BART |= dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 4)
_BART |= dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim"), 48)
_T5 = {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_heads": 4, "num_layers": LAYERS, "num_decoder_layers": 1}
# Attention to the 4 tokens of the highest weight only.
_SPARSE = _BERT | {"num_key_value_heads": 4, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 1}
_SPARSE |= {"topk_group": 1, "moe_intermediate_size": 16, "q_lora_rank": 16, "kv_lora_rank": 16, "head_dim": 8}
_SPARSE |= dict.fromkeys(("qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim"), 8)
_SPARSE |= {"index_n_heads": 2, "index_head_dim": 16, "index_topk": 4}
_JETMOE = {"hidden_size": 32, "num_key_value_heads": 2, "kv_channels": 8, "max_position_embeddings": 72}
_JETMOE |= {"intermediate_size": 16, "num_local_experts": 4, "num_experts_per_tok": 2}
_MOBILE = _BERT | {"embedding_size": 16, "intra_bottleneck_size": 16}

# Model type to its sizes and the paths of its final modules. One of each structure.
TYPES = {
    "ernie": (_BERT, []),
    "ibert": (_BERT, []),
    "luke": (_BERT | {"entity_vocab_size": 10, "entity_emb_size": 16}, []),
    "flaubert": ({"emb_dim": 32, "n_heads": 4, "n_layers": LAYERS, "max_position_embeddings": 72}, []),
    "esm": (_BERT | {"mask_token_id": 3, "token_dropout": True}, ["encoder.emb_layer_norm_after"]),
    "data2vec-text": (_BERT, []),
    "roberta-prelayernorm": (_BERT, ["LayerNorm"]),
    "m2m_100": (_BART, ["layer_norm"]),
    "longt5": (_T5 | {"local_radius": 7}, ["final_layer_norm"]),
    "bloom": ({"hidden_size": 32, "n_layer": LAYERS, "n_head": 4}, ["ln_f"]),
    "gpt_oss": (_EXPERTS | {"sliding_window": 8}, ["norm"]),
    "granite": (_LLAMA, ["norm"]),
    "jetmoe": (_JETMOE, ["norm"]),  # takes contiguous states only
    "mamba": ({"hidden_size": 32, "state_size": 4}, ["norm_f"]),
    "embedding_gemma2_text": (_GEMMA, ["norm", "embedding_projection"]),
    "deepseek_v32": (_SPARSE, ["norm"]),
    "mobilebert": (_MOBILE, []),
    "fnet": (_BERT, []),
    "nystromformer": (_BERT | {"segment_means_seq_len": 64, "num_landmarks": 64}, []),
}
PADDED_TYPES = {"esm", "ibert", "luke", "flaubert", "m2m_100", "longt5", "bloom", "gpt_oss", "mamba"}
MIXING = {"deepseek_v32", "mobilebert", "fnet", "nystromformer"}
# With special tokens, of which models derive positions or, ESM of <unk>, which is its mask here, a factor.
TEXTS = [
    "a <pad> cat sat <unk> on </s> the mat",
    "",
    "hello",
    "the quick brown fox jumps over the lazy dog near a bank",
]


def tokenizer():
    return tiny_tokenizer("bytes")


def model_of(kind):
    if kind not in CONFIG_MAPPING:
        pytest.skip("not a type of this version of transformers")
    sizes = TYPES[kind][0]
    ids = {f"{role}_token_id": getattr(tokenizer(), f"{role}_token_id") for role in ("pad", "bos", "eos")}
    counted = sizes.keys() & {"n_layer", "n_layers", "num_layers", "encoder_layers"}
    layers = {} if counted else {"num_hidden_layers": LAYERS}
    config = AutoConfig.for_model(kind, **{"vocab_size": len(tokenizer()), **ids, **layers, **sizes})
    with torch.random.fork_rng(devices=[]):
        return randomised(AutoModel.from_config(config))


def by_plain_loop(model, norms, layer):
    """Unit vectors of every text alone, from the hidden states of transformers."""
    encoder = model.encoder if getattr(model.config, "is_encoder_decoder", False) else model
    states = []
    for text in TEXTS:
        with torch.no_grad():
            ids = torch.tensor([tokenizer().encode(text)])
            masks = {} if model.config.model_type == "fnet" else {"attention_mask": torch.ones_like(ids)}
            output = encoder(ids, output_hidden_states=True, return_dict=True, **masks)
            state = output.last_hidden_state[0]
            if layer < LAYERS:
                # Mamba's hidden states begin after the first layer.
                state = output.hidden_states[layer - (model.config.model_type == "mamba")][0]
                for path in norms:
                    state = encoder.get_submodule(path)(state)
            states.append(state)
    return normalize(torch.cat(states), dim=-1)


def batching_of(kind):
    """Return which texts share a pass of a type."""
    if kind in MIXING:
        return EQUAL
    if kind in PADDED_TYPES:
        return PADDED
    return PACKED


@pytest.mark.parametrize("kind", TYPES)
def test_other_types_equal_a_plain_loop(kind):
    model = model_of(kind)
    norms = TYPES[kind][1]

    for layer in (LAYERS, 1):
        encoder = FrozenEncoder(model, tokenizer(), num_layers=layer)
        vectors = encoder.encode(TEXTS).vectors[0]
        torch.testing.assert_close(vectors, by_plain_loop(model, norms, layer), atol=ROUNDING, rtol=0)

    assert str(encoder.signature()).endswith("|family:probed")
    assert encoder.family.batching == batching_of(kind)


def refused_model(kind):
    sizes = _BERT | {"num_hidden_layers": 2}
    if kind == "funnel":
        return FunnelModel(FunnelConfig(block_sizes=[1, 1], d_model=32, n_head=4, d_head=8, d_inner=48))
    if kind == "reformer":
        sizes = {"attn_layers": ["lsh", "local"], "hidden_size": 32, "attention_head_size": 16}
        sizes |= {"num_attention_heads": 2, "axial_pos_embds": False, "max_position_embeddings": 128}
    if kind == "lxmert":
        del sizes["num_hidden_layers"]  # it has several, one per part
    if kind == "nystromformer":
        sizes |= {"segment_means_seq_len": 64, "num_landmarks": 8}
    model = AutoModel.from_config(AutoConfig.for_model(kind, **sizes))
    if kind == "ernie":
        model.embeddings.register_forward_hook(lambda module, inputs, output: output + torch.rand_like(output))
    return model


@pytest.mark.parametrize(
    ("kind", "failed"),
    [
        # Its layers work on characters and on groups of them.
        ("canine", "forward pass failed .* CanineModel return 5, 5, 5 vectors for a text of 21 tokens"),
        (
            "funnel",
            "forward pass failed .* FunnelModel returned 6 hidden states, not 3 for 2 layers",
        ),  # and a decoder's
        ("nystromformer", "forward pass failed"),  # its landmarks fit some lengths only
        ("reformer", "forward pass failed"),  # its norm takes the output of two streams
        ("ernie", "neighbours failed"),  # its embeddings are random
        ("lxmert", "structure failed"),
        ("vit", "forward pass failed"),
    ],
)
def test_models_that_fail_a_probe_are_refused_with_its_name(kind, failed):
    with torch.random.fork_rng(devices=[]):
        model = refused_model(kind)
    with pytest.raises(ValueError, match=f"type '{kind}'.*the probe of the {failed}.*forward_fn="):
        FrozenEncoder(model, tokenizer(), num_layers=1)


def test_padding_that_affects_a_higher_layer_only_is_found(monkeypatch):
    monkeypatch.setattr(probe, "_results", {})
    model = model_of("ernie")
    model.encoder.layer[2].register_forward_hook(lambda layer, inputs, output: output + output.mean(1, keepdim=True))

    assert FrozenEncoder(model, tokenizer(), num_layers=1).family.batching == EQUAL


class Table(torch.nn.Module):
    """Fewer embeddings of tokens than the tokenizer has tokens, and more of positions."""

    def __init__(self):
        super().__init__()
        self.embeddings = torch.nn.Embedding(300, 8)
        self.positions = torch.nn.Embedding(2000, 8)


def test_models_without_an_embedding_are_refused_by_name():
    with pytest.raises(ValueError, match=r"forward_fn failed because .* embeddings of 300 tokens, .* 800"):
        FrozenEncoder(Table(), tokenizer(), forward_fn=lambda model, inputs: model.embeddings(inputs["input_ids"]))

    sizes = {name: value for name, value in _BART.items() if name != "encoder_layers"}
    config = AutoConfig.for_model("fsmt", **sizes, encoder_layers=2, src_vocab_size=800, tgt_vocab_size=90)

    with pytest.raises(ValueError, match=r"type 'fsmt'.*the probe of the structure failed .its encoder has no config"):
        FrozenEncoder(AutoModel.from_config(config), tokenizer(), num_layers=1)


def test_an_index_error_of_a_forward_function_is_unchanged():
    def last_of_none(model, inputs):
        return [][0]

    with pytest.raises(IndexError, match=r"^list index out of range$"):
        FrozenEncoder(*tiny_model("bert"), forward_fn=last_of_none)


def test_an_albert_with_inner_groups_runs_each_batch_once():
    config = tiny_config("albert", num_hidden_groups=1, inner_group_num=2)
    with torch.random.fork_rng(devices=[]):
        model = randomised(AutoModel.from_config(config))
    encoder = FrozenEncoder(model, tiny_tokenizer("albert"), all_layers=True)
    calls = []
    encoder.backbone("cpu").register_forward_hook(lambda *_: calls.append(1))
    encoder.encode(["a cat sat"])

    assert calls == [1]


class EndsInNorm(ErnieModel):
    def __init__(self, config, add_pooling_layer=True):
        super().__init__(config, add_pooling_layer)
        self.encoder.norm = torch.nn.LayerNorm(config.hidden_size)
        torch.nn.init.normal_(self.encoder.norm.weight)
        self.encoder.register_forward_hook(self.finish)

    def finish(self, encoder, inputs, output):
        output.last_hidden_state = encoder.norm(output.last_hidden_state)
        return output


def test_a_subclass_is_probed_apart_from_its_base():
    """With a configuration that was probed before."""
    model = model_of("ernie")
    FrozenEncoder(model, tokenizer(), all_layers=True).encode(TEXTS)
    with torch.random.fork_rng(devices=[]):
        normed = randomised(EndsInNorm(model.config))
    vectors = FrozenEncoder(normed, tokenizer(), all_layers=True).encode(TEXTS).vectors[1]

    torch.testing.assert_close(vectors, by_plain_loop(normed, ["encoder.norm"], 1), atol=ROUNDING, rtol=0)


def test_a_replaced_module_is_probed_apart():
    """With a configuration that was probed before."""

    class Mixing(torch.nn.Linear):
        def forward(self, states):
            return super().forward(states.mean(1, keepdim=True)).expand_as(states)

    model = model_of("ernie")
    FrozenEncoder(model, tokenizer(), num_layers=LAYERS)
    model.encoder.layer[0].attention.output.dense = Mixing(32, 32)

    assert FrozenEncoder(model, tokenizer(), num_layers=LAYERS).family.batching == EQUAL


_PLAIN_CODE = """
from transformers import ErnieModel


class Own(ErnieModel):
    pass
"""
_NORM_CODE = """
import torch
from transformers import ErnieModel


class Own(ErnieModel):
    def __init__(self, config, add_pooling_layer=True):
        super().__init__(config, add_pooling_layer)
        self.encoder.norm = torch.nn.LayerNorm(config.hidden_size)
        self.encoder.register_forward_hook(self.finish)

    def finish(self, encoder, inputs, output):
        output.last_hidden_state = encoder.norm(output.last_hidden_state)
        return output
"""


def test_folders_with_code_of_their_own_are_probed_apart(tmp_path):
    """With equal configurations."""
    with torch.random.fork_rng(devices=[]):
        normed = randomised(EndsInNorm(model_of("ernie").config))
    norms = {"plain": [], "normed": ["encoder.norm"]}
    for name, model, code in (("plain", model_of("ernie"), _PLAIN_CODE), ("normed", normed, _NORM_CODE)):
        folder = tmp_path / name
        for part in (model, tokenizer()):
            part.save_pretrained(folder)
        config = json.loads((folder / "config.json").read_text())
        config |= {"auto_map": {"AutoModel": "modeling.Own"}, "architectures": ["Own"]}
        (folder / "config.json").write_text(json.dumps(config))
        (folder / "modeling.py").write_text(code)
        encoder = FrozenEncoder(folder, all_layers=True, trust_remote_code=True)
        expected = by_plain_loop(model, norms[name], 1)
        torch.testing.assert_close(encoder.encode(TEXTS).vectors[1], expected, atol=ROUNDING, rtol=0)


@pytest.mark.parametrize("source", ["folder", "ready"])
def test_a_probe_does_not_round_weights_in_double_precision(source, tmp_path, monkeypatch):
    monkeypatch.setattr(probe, "_results", {})
    model = model_of("ernie").double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1e-12)
    weights = model.embeddings.word_embeddings.weight
    for part in (model, tokenizer()):
        part.save_pretrained(tmp_path)
    given = (tmp_path,) if source == "folder" else (model, tokenizer())

    for layer in (1, 2):
        encoder = FrozenEncoder(*given, num_layers=layer, dtype="float64")
        assert torch.equal(encoder.backbone("cpu").embeddings.word_embeddings.weight, weights)


@pytest.mark.parametrize("kind", ["m2m_100", "mobilebert"])
def test_folders_and_pickles_are_probed_once_per_configuration(kind, tmp_path, monkeypatch):
    model = model_of(kind)
    norms = TYPES[kind][1]
    probed = []
    monkeypatch.setattr(probe._Probe, "find_embeddings", lambda self: probed.append(self.last_kept))
    for part in (model, tokenizer()):
        part.save_pretrained(tmp_path)
    encoder = FrozenEncoder(tmp_path, all_layers=True)
    expected = torch.stack([by_plain_loop(model, norms, layer) for layer in range(LAYERS + 1)])

    torch.testing.assert_close(encoder.encode(TEXTS).vectors, expected, atol=ROUNDING, rtol=0)
    ready = FrozenEncoder(model, tokenizer(), num_layers=LAYERS)
    for other in (FrozenEncoder(tmp_path, num_layers=LAYERS), pickle.loads(pickle.dumps(encoder)), ready):
        vectors = pickle.loads(pickle.dumps(other)).encode(TEXTS).vectors
        torch.testing.assert_close(vectors[-1], expected[-1], atol=ROUNDING, rtol=0)
    fast = FrozenEncoder(tmp_path, num_layers=LAYERS, dtype="bfloat16")
    assert (fast.encode(TEXTS).vectors[0] * expected[-1]).sum(-1).min() > 0.9
    assert probed == [LAYERS]


def test_an_unpickled_model_changes_its_device_without_a_probe(monkeypatch):
    """It has lost the layers that a probe needs."""
    encoder = FrozenEncoder(model_of("m2m_100"), tokenizer(), num_layers=1)
    data = pickle.dumps(encoder)
    monkeypatch.setattr(probe, "_results", {})
    other = pickle.loads(data)
    weights = {name: value.shape for name, value in other.backbone("meta").state_dict().items()}

    assert weights == {name: value.shape for name, value in encoder.backbone("cpu").state_dict().items()}
    assert other.family == encoder.family


@pytest.mark.parametrize("source", ["folder", "ready"])
def test_computed_positions_have_the_precision_of_the_model(source, tmp_path, monkeypatch):
    """M2M100 adds them to embeddings; a probe, in float32, computed them."""
    monkeypatch.setattr(probe, "_results", {})
    model = model_of("m2m_100")
    for part in (model, tokenizer()):
        part.save_pretrained(tmp_path)
    given = (tmp_path,) if source == "folder" else (model, tokenizer())
    vectors = FrozenEncoder(*given, num_layers=LAYERS, dtype="bfloat16").encode(TEXTS).vectors[0]

    assert (vectors * by_plain_loop(model, TYPES["m2m_100"][1], LAYERS)).sum(-1).min() > 0.99


# Composite model to the type of its text part, where there is a choice, and the paths of this part and its norms.
_VISION = {"hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 16, "num_hidden_layers": 1}
_VISION |= {"image_size": 28, "patch_size": 14, "projection_dim": 32, "model_type": "siglip_vision_model"}
COMPOSITES = {
    "dpr": (None, "question_encoder", []),  # an encoder within another model of texts
    "gemma3": (None, "language_model", ["norm"]),
    "llava": ("llama", "language_model", ["norm"]),  # its text part is listed
    "paligemma": ("gemma", "language_model", ["norm"]),  # listed too, but its attention is not that of the listed type
    "siglip": (None, "text_model", ["final_layer_norm"]),  # its text part cannot be loaded alone
    "t5gemma2": (None, "encoder.text_model", ["norm"]),  # the encoder of an encoder-decoder model is one
}


@pytest.mark.parametrize("kind", COMPOSITES)
def test_composite_models_give_their_text_part(kind, tmp_path):
    text_type, path, norms = COMPOSITES[kind]
    sizes = {"num_hidden_layers": LAYERS, "sliding_window": 8, "vocab_size": len(tokenizer())}
    text = _LLAMA | sizes | {"pad_token_id": tokenizer().pad_token_id}
    if text_type is not None:
        text["model_type"] = text_type
    elif kind == "t5gemma2":
        text["dropout_rate"] = 0.0
    parts = {"text_config": text, "vision_config": _VISION}
    if kind == "dpr":
        parts = text
    elif kind == "t5gemma2":
        parts = {"encoder": parts, "decoder": text}
    with torch.random.fork_rng(devices=[]):
        model = randomised(AutoModel.from_config(AutoConfig.for_model(kind, **parts)))
    expected = by_plain_loop(model.get_submodule(path), norms, 1)
    for part in (model, tokenizer()):
        part.save_pretrained(tmp_path)

    for encoder in (FrozenEncoder(tmp_path, num_layers=1), FrozenEncoder(model, tokenizer(), num_layers=1)):
        torch.testing.assert_close(encoder.encode(TEXTS).vectors[0], expected, atol=ROUNDING, rtol=0)
        assert not any("vision" in name for name, _ in encoder.backbone("cpu").named_modules())
        assert encoder.family.probed == (kind != "llava")
        batching = {"paligemma": EQUAL, "siglip": PADDED, "dpr": PADDED}.get(kind, PACKED)
        assert encoder.family.batching == batching


@pytest.mark.parametrize("kind", ["ernie", "m2m_100", "esm", "ibert"])
def test_soft_tokens_are_exact_or_refused(kind):
    encoder = FrozenEncoder(model_of(kind), tokenizer(), num_layers=2)
    if kind in ("esm", "ibert"):  # scale embeddings by the number of masked tokens, and quantize them
        with pytest.raises(ValueError, match=rf"inputs_embeds, but .* \(type '{kind}'\).*sequence-level loss"):
            encode_soft(encoder, torch.zeros(1, 4, 32), torch.ones(1, 4, dtype=torch.bool))
    else:
        soft = encode_soft(encoder, *soft_texts(encoder, TEXTS[3:]))
        torch.testing.assert_close(soft[0, 0], encoder.encode(TEXTS[3:]).vectors[0], atol=ROUNDING, rtol=0)
