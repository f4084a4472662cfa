"""Texts that share a forward pass, packed, padded or of equal length: equal to texts alone, with their gradients."""

import copy
import inspect
import random
from functools import cache

import numpy as np
import pytest
import torch
from transformers import (
    masking_utils,
)

from bertscore_tm import FrozenEncoder, bert_score
from bertscore_tm.encoder import packing
from bertscore_tm.encoder.families import PACKED, PADDED
from bertscore_tm.encoder.packing import Row, group_texts
from bertscore_tm.losses import SoftBERTScoreLoss
from tests.support.encoders import CPU, LAYER, RELATIVE, ROUNDING, attend_by_products, batching, texts
from tests.support.models import last_hidden_state, tiny_model, tiny_tokenizer
from tests.support.texts import real_pairs

# Attention to the whole text, to what precedes, to a window of that, and to alternating windows.
PATTERNS = ["bert", "gpt2", "llama", "mistral", "modernbert"]


@pytest.mark.parametrize("options", [{}, {"long_text": "window", "max_length": 12}])
@pytest.mark.parametrize("family", ["camembert", "mpnet", "roberta", "xlm-roberta", "xlm-roberta-xl"])
def test_a_padding_token_in_a_text_is_not_counted_as_a_position(family, options):
    """As the model numbers them where a text is alone: also in windows, and for the references of a loss."""
    model, tokenizer = tiny_model(family)
    written = [text.replace(" ", f" {tokenizer.pad_token} ", 2) for text in texts()]
    together = FrozenEncoder(model, tokenizer, num_layers=LAYER, **options)
    single = copy.copy(together)
    single.batch_size = 1

    assert batching(together) == PACKED
    expected = single.encode(written).vectors
    torch.testing.assert_close(together.encode(written).vectors, expected, atol=ROUNDING, rtol=0)
    if not options:
        references = SoftBERTScoreLoss(together).encode_references(written).tokens
        torch.testing.assert_close(references.vectors[references.mass.mask], expected[0], atol=ROUNDING, rtol=0)


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


@cache
def tiny_encoder(family, dtype):
    """An encoder for all forms of attention: a test changes what the calls of its model use, and puts it back."""
    return FrozenEncoder(*tiny_model(family), num_layers=LAYER, dtype=dtype)


@pytest.mark.filterwarnings("ignore:this processor has no bfloat16 instructions")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("form", "family"),
    [("padded", family) for family in (*RELATIVE, *PATTERNS)]
    + [(form, family) for form in (*KERNELS, "blocks") for family in PATTERNS],
)
def test_forms_of_attention_within_texts_are_equal(form, family, dtype, monkeypatch):
    """Padded inside of attention or by torch's kernel, as on an accelerator; in blocks, as for long texts."""
    encoder = tiny_encoder(family, dtype)
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
        monkeypatch.setattr(encoder._backbone.loaded(CPU), "has_kernel", True)
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
        starts = [group.tokens.start for group in groups]
        stops = [group.tokens.stop for group in groups]
        assert np.concatenate([group.lengths for group in groups]).tolist() == lengths.tolist()
        assert starts == [0, *stops[:-1]]
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


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize(("dtype", "least"), [("float32", 1 - 1e-4), ("bfloat16", 0.99)])
@pytest.mark.parametrize("family", ["bert", "gpt2"])
def test_packed_texts_on_a_gpu(family, dtype, least):
    encoder = FrozenEncoder(*tiny_model(family), num_layers=LAYER, dtype=dtype)
    expected = FrozenEncoder(*tiny_model(family), num_layers=LAYER).encode(texts()).vectors
    vectors = encoder.encode(texts(), "cuda").vectors.cpu()

    assert (vectors * expected).sum(-1).min() > least


def vectors_without_mask(model, inputs):
    return model(inputs["input_ids"]).last_hidden_state


@pytest.mark.parametrize(
    ("name", "forward"),
    [
        ("bert", last_hidden_state),
        ("mobilebert", last_hidden_state),
        ("fnet", vectors_without_mask),
        ("bert", vectors_without_mask),
    ],
)
def test_scores_of_any_model_do_not_depend_on_neighbours(models, name, forward):
    tokenizer = tiny_tokenizer("wordpiece")
    candidates, references = ([text[:60] for text in texts] for texts in real_pairs(12))
    together = bert_score(candidates, references, FrozenEncoder(models[name], tokenizer, forward_fn=forward))["f1"]
    single = FrozenEncoder(models[name], tokenizer, forward_fn=forward, batch_size=1)
    pairs = zip(candidates, references, strict=True)
    alone = [bert_score([candidate], [reference], single)["f1"] for candidate, reference in pairs]

    torch.testing.assert_close(together, torch.cat(alone), atol=ROUNDING, rtol=0)


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
    positions = [len(batch) * batch[0] for batch in batches]
    positions_of_peer = [len(batch) * batch[0] for batch in peers]

    assert sum(positions) <= sum(positions_of_peer)
    assert sum(positions) < 1.25 * sum(lengths)
    assert max(positions) <= 8192
