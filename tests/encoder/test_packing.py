"""Texts that share a forward pass, packed, padded or of equal length: equal to texts alone, with their gradients."""

import copy
import gc
import inspect
import logging
import pickle
import random
import weakref
from contextlib import nullcontext
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import normalize
from transformers import (
    AutoModel,
    BertConfig,
    BertModel,
    FNetConfig,
    FNetModel,
    MobileBertConfig,
    MobileBertModel,
    masking_utils,
)

from bertscore_tm import FrozenEncoder, bert_score
from bertscore_tm.encoder import forward as forward_module
from bertscore_tm.encoder import packing
from bertscore_tm.encoder.families import ALONE, FAMILIES, PACKED, PADDED, ModelSpec
from bertscore_tm.encoder.forward import ForwardPass
from bertscore_tm.encoder.packing import Row, group_texts
from bertscore_tm.encoder.soft_tokens import encode_soft
from bertscore_tm.losses import SoftBERTScoreLoss
from tests.support.models import last_hidden_state, randomised, soft_texts, tiny_config, tiny_model, tiny_tokenizer
from tests.support.rounding import rounding
from tests.support.texts import real_pairs

CPU = torch.device("cpu")
LAYER = 2
# The tiny models' width, which all their sums have, and the limit for unit vectors.
WIDTH = 32
ROUNDING = rounding(torch.float32, WIDTH)
RELATIVE = ["deberta", "deberta-v2", "mpnet", "t5"]
# Attention to the whole text, to what precedes, to a window of that, and to alternating windows.
PATTERNS = ["bert", "gpt2", "llama", "mistral", "modernbert"]


def texts(count=9):
    """Real texts; together longer than the 64 positions of the tiny models."""
    return [" ".join(text.split()[: 3 + 2 * i]) for i, text in enumerate(real_pairs(count)[0])]


def batching(encoder):
    return encoder._backbone.loaded(CPU).batching


@pytest.mark.parametrize("options", [{}, {"long_text": "window", "max_length": 12}])
@pytest.mark.parametrize("family", ["camembert", "mpnet", "roberta", "xlm-roberta", "xlm-roberta-xl"])
def test_a_padding_token_in_a_text_is_not_counted_as_a_position(family, options):
    """As the model numbers them where a text is alone: also in windows, and for the references of a loss."""
    model, tokenizer = tiny_model(family)
    written = [text.replace(" ", f" {tokenizer.pad_token} ", 2) for text in texts()]
    together, single = (FrozenEncoder(model, tokenizer, num_layers=LAYER, **options) for _ in range(2))
    single.batch_size = 1
    assert batching(together) == PACKED
    expected = single.encode(written).vectors
    torch.testing.assert_close(together.encode(written).vectors, expected, atol=ROUNDING, rtol=0)
    if not options:
        references = SoftBERTScoreLoss(together).encode_references(written).tokens
        torch.testing.assert_close(references.vectors[references.mass.mask], expected[0], atol=ROUNDING, rtol=0)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:torch.quantize_per_tensor:UserWarning")
def test_texts_that_cannot_share_a_pass_are_encoded_alone():
    """Dynamic quantization rounds by the largest state of a batch, also of a family that is listed as packed."""
    model, tokenizer = tiny_model("bert")
    quantized = torch.ao.quantization.quantize_dynamic(model, {nn.Linear}, dtype=torch.qint8)
    with pytest.warns(UserWarning, match="other vectors next to other texts than alone.*pass the model in float32"):
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
    signature, again = encoder.signature(), pickle.loads(pickle.dumps(encoder))
    torch.testing.assert_close(again.encode(texts()).vectors, alone, atol=0, rtol=0)
    assert signature == again.signature() != FrozenEncoder(model, tokenizer, num_layers=LAYER).signature()


@pytest.mark.parametrize(
    ("family", "options", "expected"),
    [
        ("deberta", {"pos_att_type": ["c2p"]}, PACKED),
        ("deberta", {"pos_att_type": ["p2c"], "max_relative_positions": 9, "position_biased_input": True}, PACKED),
        ("deberta", {"relative_attention": False, "position_biased_input": True}, PACKED),
        ("deberta", {"talking_head": True}, PADDED),
        ("deberta-v2", {"share_att_key": False, "position_buckets": -1, "max_relative_positions": 9}, PACKED),
        ("deberta-v2", {"share_att_key": False, "pos_att_type": ["p2c"]}, PACKED),
        ("deberta-v2", {"pos_att_type": ["c2p"], "position_buckets": 4}, PACKED),
        ("deberta-v2", {"conv_kernel_size": 3}, PADDED),
    ],
)
def test_kinds_of_relative_positions(family, options, expected):
    """Layers across tokens are padded."""
    model, tokenizer = tiny_model(family)
    config = copy.deepcopy(model.config)
    config.update(options)
    encoder = FrozenEncoder(randomised(type(model)(config)), tokenizer, num_layers=LAYER)
    assert batching(encoder) == expected
    alone = torch.cat([encoder.encode([text]).vectors for text in texts()], 1)
    torch.testing.assert_close(encoder.encode(texts()).vectors, alone, atol=ROUNDING, rtol=0)


def test_the_gradient_is_that_of_finite_differences():
    encoder = FrozenEncoder(*tiny_model("bert"), num_layers=1, dtype="float64")
    embeds, mask = soft_texts(encoder, texts(4))
    direction = torch.randn(embeds.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))

    def along(step):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return encode_soft(encoder, embeds.detach() + step * direction, mask)[:, mask].flatten()[::7]

    assert torch.autograd.gradcheck(along, torch.zeros((), dtype=torch.float64, requires_grad=True))


@pytest.mark.parametrize("family", RELATIVE)
def test_copies_with_relative_positions_are_packed_too(family):
    """As on a second device, from a pickle or after `unload`; and no cycle keeps a model in memory."""
    model, tokenizer = tiny_model(family)
    encoder = FrozenEncoder(model, tokenizer, num_layers=LAYER)
    expected = encoder.encode(texts()).vectors
    copied = FrozenEncoder(model, tokenizer, num_layers=LAYER)
    copied._backbone.models.clear()
    copied._backbone._place(CPU, lambda dtype: encoder._backbone._cut_copy(encoder.backbone("cpu"), dtype))
    for other in (copied, pickle.loads(pickle.dumps(encoder))):
        torch.testing.assert_close(other.encode(texts()).vectors, expected, atol=ROUNDING, rtol=0)
        assert batching(other) == PACKED
    gc.collect()
    gc.disable()
    try:
        parts = [weakref.ref(part) for part in copied.backbone("cpu").modules()]
        copied._backbone.models.clear()
        assert not any(part() for part in parts)
    finally:
        gc.enable()


def test_the_users_model_keeps_its_attention():
    model, tokenizer = tiny_model("bert")
    encoder = FrozenEncoder(model, tokenizer, num_layers=LAYER)
    encoder.encode(texts())
    assert model.config._attn_implementation == "sdpa"
    eager = copy.deepcopy(model)
    eager.set_attn_implementation("eager")
    other = FrozenEncoder(eager, tokenizer, num_layers=LAYER)
    assert other._backbone.loaded(CPU).batching == PADDED
    assert eager.config._attn_implementation == "eager"
    torch.testing.assert_close(other.encode(texts()).vectors, encoder.encode(texts()).vectors, atol=ROUNDING, rtol=0)


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


def attend_by_products(query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, scale=None, window_size=(-1, -1)):
    """What torch's kernel computes on a GPU: tokens of a text attend to so many before and after them."""
    assert cu_seq_q.dtype == torch.int32
    assert torch.equal(cu_seq_q, cu_seq_k)
    assert max_q == max_k == cu_seq_q.diff().max()
    steps = torch.arange(len(query))
    text = torch.bucketize(steps, cu_seq_q.long(), right=True)
    before, after = (len(query) if size < 0 else size for size in window_size)
    distance = steps[:, None] - steps
    allowed = (text[:, None] == text) & (distance <= before) & (distance >= -after)
    queries, keys, values = (state.transpose(0, 1) for state in (query, key, value))
    scores = queries @ keys.mT * (query.shape[-1] ** -0.5 if scale is None else scale)
    return (scores.masked_fill(~allowed, -torch.inf).softmax(-1) @ values).transpose(0, 1)


def kernel_of_2_10(query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, is_causal=False):
    window = (-1, 0) if is_causal else (-1, -1)
    return attend_by_products(query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, window_size=window)


def kernel_of_2_11(query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, *, scale=None, window_size=(-1, -1)):
    return attend_by_products(query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, scale, window_size)


def kernel_of_2_13(
    query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, *, scale=None, window_size=(-1, -1), enable_gqa=False
):
    assert enable_gqa == (query.shape[1] != key.shape[1])
    key, value = (state.repeat_interleave(query.shape[1] // key.shape[1], 1) for state in (key, value))
    return attend_by_products(query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, scale, window_size)


KERNELS = {"torch 2.10": kernel_of_2_10, "torch 2.11": kernel_of_2_11, "torch 2.13": kernel_of_2_13}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("form", "family"),
    [("padded", family) for family in (*RELATIVE, *PATTERNS)]
    + [(form, family) for form in (*KERNELS, "blocks") for family in PATTERNS],
)
def test_forms_of_attention_within_texts_are_equal(form, family, dtype, monkeypatch):
    """Padded inside of attention or by torch's kernel, as on an accelerator; in blocks, as for long texts."""
    encoder = FrozenEncoder(*tiny_model(family), num_layers=LAYER, dtype=dtype)
    expected = encoder.encode(texts()).vectors
    assert batching(encoder) == PACKED
    calls = []
    if form == "padded":

        def group_with_padding(lengths, padding, positions, texts=None):
            calls.append(lengths)
            return group_texts(lengths, 1.0, 2**60)

        monkeypatch.setattr(packing, "group_texts", group_with_padding)
    elif form == "blocks":
        monkeypatch.setattr(packing, "_SHORT", 6)
    else:
        kernel = KERNELS[form]
        monkeypatch.setattr(packing, "_find_kernel", lambda: kernel)
        monkeypatch.setitem(globals(), "attend_by_products", recorded(attend_by_products, calls))
        encoder._backbone.loaded(CPU).has_kernel = True
    limit = max(ROUNDING, 8 * torch.finfo(getattr(torch, dtype)).eps if dtype == "bfloat16" else 0)
    torch.testing.assert_close(encoder.encode(texts()).vectors, expected, atol=limit, rtol=0)
    # Mistral has windows in all layers, which the kernel of torch 2.10 lacks.
    assert bool(calls) == (form != "blocks" and (form, family) != ("torch 2.10", "mistral"))


def recorded(function, calls):
    return lambda *args, **options: calls.append(args) or function(*args, **options)


def test_installed_kernels_have_the_arguments_that_are_passed():
    kernels = pytest.importorskip("torch.nn.attention.varlen")  # older versions of torch lack it
    parameters = inspect.signature(kernels.varlen_attn).parameters
    assert [*parameters][:7] == [*inspect.signature(kernel_of_2_10).parameters][:7]
    assert parameters.keys() & {"is_causal", "window_size"}


@pytest.mark.parametrize("padding", [0.0, 0.1])
def test_groups_hold_all_texts_with_little_padding(padding):
    chooser = random.Random(0)
    for count in (1, 5, 400):
        lengths = np.array(sorted((chooser.randint(1, 300) for _ in range(count)), reverse=True))
        groups = group_texts(lengths, padding, 8192)
        assert [length for group in groups for length in group.lengths] == lengths.tolist()
        assert [group.tokens.start for group in groups] == [0, *(group.tokens.stop for group in groups)][:-1]
        for group in groups:
            positions = len(group.lengths) * group.longest
            assert positions <= 8192
            assert positions <= 8192 / 16 or group.lengths.sum() >= (1 - padding) * positions
            assert padding or not group.is_padded


def test_a_long_text_does_not_pad_short_ones():
    """One text of 512 tokens with 1,600 of 20 would take 820,000 positions."""
    groups = group_texts(np.array([512, *[20] * 1600]), 0.1, 16_384)
    assert [group.lengths.tolist() for group in groups] == [[512], [20] * 819, [20] * 781]


def test_a_rule_of_attention_is_evaluated_once(monkeypatch):
    """By its code and what it captured; a window as wide as the texts is none."""

    def rule_of(width):
        return lambda batch, head, query, key: (query - key).abs() <= width

    evaluated = []

    def find(rule, length):
        evaluated.append(length)
        return found(rule, length)

    found = packing._measure_window
    monkeypatch.setattr(packing, "_measure_window", find)
    monkeypatch.setattr(packing, "_windows", {})

    def window(width, longest):
        token = packing.row.set(Row(np.array([longest, longest, 1]), CPU))
        try:
            return packing._make_pattern(masking_utils, mask_function=rule_of(width), device=CPU).window
        finally:
            packing.row.reset(token)

    assert window(5, 100) == window(5, 90) == window(5, 128) == (5, 5)
    assert window(6, 100) == (6, 6)
    assert evaluated == [128, 128]
    assert window(5, 6) == (-1, -1)
    assert window(5, 7) == (5, 5)
    assert evaluated == [128, 128, 8]


class Width:
    def __init__(self, width):
        self.width = width

    def rule(self, batch, head, query, key):
        return (query - key).abs() <= self.width


def test_bound_methods_as_mask_functions_have_no_key():
    found = []
    for width in (5, 6):
        token = packing.row.set(Row(np.array([100, 100, 1]), CPU))
        try:
            found.append(packing._make_pattern(masking_utils, mask_function=Width(width).rule, device=CPU).window)
        finally:
            packing.row.reset(token)
    assert found == [(5, 5), (6, 6)]


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


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("family", ["bert", "gpt2"])
def test_packed_texts_on_a_gpu(family, dtype):
    encoder = FrozenEncoder(*tiny_model(family), num_layers=LAYER, dtype=dtype)
    expected = FrozenEncoder(*tiny_model(family), num_layers=LAYER).encode(texts()).vectors
    vectors = encoder.encode(texts(), "cuda").vectors.cpu()
    assert (vectors * expected).sum(-1).min() > (1 - 1e-4 if dtype == "float32" else 0.99)


# Models that mix padding into real tokens, or whose forward pass hides that it takes a mask


def vectors_without_mask(model, inputs):
    return model(inputs["input_ids"]).last_hidden_state


@pytest.fixture(scope="module")
def models():
    sizes = {"hidden_size": WIDTH, "num_hidden_layers": 2, "intermediate_size": 48}
    sizes["vocab_size"] = len(tiny_tokenizer("wordpiece"))
    mobile = MobileBertConfig(**sizes, embedding_size=16, num_attention_heads=4, intra_bottleneck_size=16)
    made = {
        "bert": BertModel(BertConfig(**sizes, num_attention_heads=4)),
        "mobilebert": MobileBertModel(mobile),
        "fnet": FNetModel(FNetConfig(**sizes)),
    }
    return {name: randomised(model) for name, model in made.items()}


@pytest.mark.parametrize(
    ("name", "forward"),
    [(name, last_hidden_state) for name in ("bert", "mobilebert")]
    + [(name, vectors_without_mask) for name in ("fnet", "bert")],
)
def test_scores_of_any_model_do_not_depend_on_neighbours(models, name, forward):
    tokenizer = tiny_tokenizer("wordpiece")
    candidates, references = ([text[:60] for text in texts] for texts in real_pairs(12))
    together = bert_score(candidates, references, FrozenEncoder(models[name], tokenizer, forward_fn=forward))["f1"]
    single = FrozenEncoder(models[name], tokenizer, forward_fn=forward, batch_size=1)
    pairs = zip(candidates, references, strict=True)
    alone = [bert_score([candidate], [reference], single)["f1"] for candidate, reference in pairs]
    torch.testing.assert_close(together, torch.cat(alone), atol=ROUNDING, rtol=0)


def test_a_long_text_does_not_switch_the_frequencies_of_others():
    rope = {"rope_type": "longrope", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 16}
    rope |= {"short_factor": [1.0, 1.1, 1.2, 1.3], "long_factor": [2.0, 3.0, 4.0, 5.0]}
    config = tiny_config("phi3", rope_parameters=rope, original_max_position_embeddings=16)
    model, tokenizer = randomised(AutoModel.from_config(config)), tiny_tokenizer("phi3")
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


@pytest.mark.parametrize("num_pairs", [256, 1000, 10_000])
def test_padded_families_compute_no_more_padding_than_bert_score(num_pairs, minilm):
    """bert-score pads batches of 64 distinct texts, longest first."""
    preds, target = real_pairs(1000)
    rows = FrozenEncoder(minilm, num_layers=2).tokenizer(preds + target).rows()
    chooser = random.Random(0)
    lengths = sorted((len(rows[chooser.randrange(len(rows))]) for _ in range(2 * num_pairs)), reverse=True)
    groups = group_texts(np.array(lengths), 0.1, 8192, 64)
    batches = [group.lengths.tolist() for group in groups]
    peers = [lengths[i : i + 64] for i in range(0, len(lengths), 64)]
    padded, of_peer = (sum(len(batch) * batch[0] for batch in parts) for parts in (batches, peers))
    assert padded <= of_peer
    assert padded < 1.25 * sum(lengths)
    assert max(len(batch) * batch[0] for batch in batches) <= 8192


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
