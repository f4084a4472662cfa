"""The GPU part of the benchmark: on the processor with a tiny encoder, and as it is where there is a GPU."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoModel, AutoTokenizer

from bertscore_tm import FrozenEncoder
from bertscore_tm.losses import SoftBERTScoreLoss
from examples.benchmarks import accelerator
from examples.benchmarks.accelerator_inputs import Shape, save_encoder, texts_of_length
from examples.benchmarks.devices import describe_gpu, matrix_rate, peak_megabytes
from examples.benchmarks.options import Options, flat_texts
from examples.benchmarks.training_steps import VARIANTS, TrainingSteps
from tests.support.texts import real_pairs

pytestmark = pytest.mark.usefixtures("one_thread")

gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

CPU = torch.device("cpu")
VOCABULARY, WIDTH, PAIRS, ROUNDS = 1_100, 32, 6, 2
SHAPE = Shape(
    layers=2,
    width=WIDTH,
    heads=4,
    inner=64,
    vocabulary=VOCABULARY,
    compared=1,
    positions=130,
    tokenizer="byte-BPE 1k",
)
LENGTHS = {"sentences": 30, "summaries": 120}
DTYPES = ("bfloat16", "float32")


@pytest.fixture(scope="module")
def options() -> Options:
    texts = [(candidate, [reference]) for candidate, reference in zip(*real_pairs(40), strict=True)]
    return Options(rounds=ROUNDS, threads=1, pairs=PAIRS, model="", num_layers=0, texts=texts)


@pytest.fixture(scope="module")
def texts(options) -> list[str]:
    return flat_texts(options.texts)


@pytest.fixture(scope="module")
def folder(texts, tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("encoder")
    save_encoder(SHAPE, texts, path)
    return str(path)


@pytest.fixture(scope="module")
def tokenizer(folder):
    return AutoTokenizer.from_pretrained(folder)


@pytest.fixture(scope="module")
def found(options) -> dict:
    return by_name(accelerator.measure_on(CPU, SHAPE, options, rows=64))


def by_name(figures: list) -> dict:
    named = {figure.what: figure for figure in figures}
    assert len(named) == len(figures)
    return named


def test_every_figure_is_there(found):
    for dtype in DTYPES:
        assert found[f"{dtype}, matrix products"].unit == "TFLOP/s"
        for way in VARIANTS:
            assert found[f"loss, encoder in {dtype}: {way}"].unit == "ms"
        assert f"sentences: {dtype}, by the paper's 192.5 pairs/s" in found
        assert f"summaries: {dtype}, by the paper's 192.5 pairs/s" not in found
    # Each length: three rates, and three figures for each precision; the paper's; matrices; steps.
    assert len(found) == 2 * (3 + 2 * 3) + 2 + 2 + 2 * (len(VARIANTS) + 4)
    for figure in found.values():
        assert all(math.isfinite(value) for value in figure.values)
        assert len(figure.values) == (1 if re.search("matrix products|difference", figure.what) else ROUNDS)
        if "added" not in figure.what and "difference" not in figure.what:
            assert min(figure.values) > 0
    # Memory is that of a GPU.
    assert "MB" not in {figure.unit for figure in found.values()}


def test_targets_are_for_bfloat16(found):
    targets = {figure.what: figure.target for figure in found.values() if figure.target is not None}
    assert targets == {
        "sentences: bfloat16, faster than bert-score": 5.0,
        "summaries: bfloat16, faster than bert-score": 5.0,
        "sentences: bfloat16, share of the matrix-product rate": 0.35,
        "summaries: bfloat16, share of the matrix-product rate": 0.6,
    }
    assert not any(figure.at_most for figure in found.values())


@pytest.mark.parametrize("name", LENGTHS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_rates_of_a_round_agree(found, folder, name, dtype):
    ours, theirs = (found[f"{name}: {way}"].values for way in (dtype, "bert-score"))
    assert found[f"{name}: {dtype}, faster than bert-score"].values == pytest.approx(
        [one / other for one, other in zip(ours, theirs, strict=True)]
    )
    # A multiplication and an addition for every weight of the layers that are needed, for every token of both texts.
    layers = AutoModel.from_pretrained(folder).encoder.layer[: SHAPE.compared]
    weights = sum(module.weight.numel() for module in layers.modules() if isinstance(module, nn.Linear))
    operations = 2 * weights * 2 * LENGTHS[name]
    [rate] = found[f"{dtype}, matrix products"].values
    assert found[f"{name}: {dtype}, share of the matrix-product rate"].values == pytest.approx(
        [per_second * operations / (rate * 1e12) for per_second in ours]
    )
    if name == "sentences":
        over = found[f"{name}: {dtype}, by the paper's 192.5 pairs/s"].values
        assert over == pytest.approx([per_second / 192.5 for per_second in ours])


@pytest.mark.parametrize("name", LENGTHS)
def test_scores_are_those_of_bert_score(found, name):
    [exact] = found[f"{name}: float32, largest difference in F1"].values
    [rounded] = found[f"{name}: bfloat16, largest difference in F1"].values
    assert exact < 1e-5 < rounded < 0.05


def test_both_sides_score_the_layer_that_is_asked_for(folder, texts, tokenizer):
    pieces = texts_of_length(texts, tokenizer, 30, 20)
    scores = {}
    for layer in (1, 2):
        encoder = FrozenEncoder(folder, num_layers=layer)
        scores[layer] = accelerator._ours(pieces[:10], pieces[10:], encoder, CPU)
        theirs = accelerator._theirs(pieces[:10], pieces[10:], accelerator._peer(folder, layer, CPU))
        torch.testing.assert_close(scores[layer], theirs, atol=1e-5, rtol=0)
        assert scores[layer].std() > 1e-3
    assert (scores[1] - scores[2]).abs().max() > 1e-4


@pytest.mark.parametrize("tokens", LENGTHS.values())
def test_texts_have_as_many_tokens_as_asked_for(texts, tokenizer, tokens):
    # More than the words are enough for, so that they come again in another order.
    count = 2 * len(tokenizer(" ".join(texts))["input_ids"]) // tokens
    pieces = texts_of_length(texts, tokenizer, tokens, count)
    assert len({*pieces}) == len(pieces) == count
    assert {len(row) for row in tokenizer(pieces)["input_ids"]} == {tokens}
    words = {word for text in texts for word in text.split()}
    assert {word for piece in pieces for word in piece.split()} <= words
    assert pieces[: count // 4] == texts_of_length(texts, tokenizer, tokens, count // 4)


def test_special_tokens_that_texts_spell_out_are_left_out(tokenizer):
    pieces = texts_of_length(["a <mask> b <s> c </s>, d"], tokenizer, 4, 3)
    assert pieces[:2] == ["a b", "c d"]
    assert {len(row) for row in tokenizer(pieces)["input_ids"]} == {4}


@pytest.mark.parametrize("words", ["", "a b", "a a a a a a a a"])
def test_too_few_words_for_different_texts(tokenizer, words):
    with pytest.raises(ValueError, match=r"\d words are too few for 9 distinct pieces of 4 tokens"):
        texts_of_length([words], tokenizer, 4, 9)


def test_the_encoder_is_the_same_every_time(folder, texts, tmp_path):
    state = torch.random.get_rng_state()
    save_encoder(SHAPE, texts, tmp_path)
    assert torch.equal(torch.random.get_rng_state(), state)
    weights = [AutoModel.from_pretrained(path).state_dict() for path in (folder, tmp_path)]
    assert weights[0].keys() == weights[1].keys()
    assert all(torch.equal(tensor, weights[1][name]) for name, tensor in weights[0].items())
    assert weights[0]["embeddings.word_embeddings.weight"].shape == (VOCABULARY, WIDTH)


def test_the_shape_is_that_of_roberta_large():
    # As published: https://huggingface.co/FacebookAI/roberta-large/blob/main/config.json
    assert Shape() == Shape(24, 1024, 16, 4096, 50_265, 17, 514, "byte-BPE 50k")


def test_a_vocabulary_holds_the_tokens(texts, tmp_path):
    with pytest.raises(ValueError, match=r"tokenizer='byte-BPE 1k' has \d+ tokens, but vocabulary=500"):
        save_encoder(replace(SHAPE, vocabulary=500), texts, tmp_path)


def gradients(steps: TrainingSteps, way: str) -> list[torch.Tensor]:
    steps.run(way)
    return [leaf.grad.clone() for leaf in (steps.hidden, steps.head.weight, steps.head.bias)]


@pytest.mark.parametrize("dtype", DTYPES)
def test_steps_have_the_gradients_of_what_they_are_named_after(folder, texts, tokenizer, dtype):
    encoder = FrozenEncoder(folder, num_layers=1, dtype=dtype)
    steps = TrainingSteps(encoder, texts, CPU, batch=2, positions=7)
    content = [token for row in tokenizer(texts, add_special_tokens=False)["input_ids"] for token in row]
    assert steps.labels.tolist() == [content[:7], content[7:14]]
    logits = steps.head(steps.hidden).detach()
    # Cross-entropy's gradient, in closed form.
    of_logits = ((logits.softmax(-1) - F.one_hot(steps.labels, VOCABULARY)) / steps.labels.numel()).flatten(0, 1)
    hidden, weight = steps.hidden.detach(), steps.head.weight.detach()
    expected = [
        (of_logits @ weight).view_as(hidden),
        of_logits.T @ hidden.flatten(0, 1),
        of_logits.sum(0),
    ]
    leaves = (steps.hidden, steps.head.weight, steps.head.bias)
    alone = torch.autograd.grad(SoftBERTScoreLoss(encoder)(steps.head(steps.hidden), steps.labels), leaves)
    both = [one + other for one, other in zip(expected, alone, strict=True)]
    # Where embeddings are rounded, expectations that differ in the last digit may differ by more in the encoder.
    tolerance = 0.1 if dtype == "bfloat16" else 0.01
    for way, wanted in zip(VARIANTS, (expected, both, both, alone, alone), strict=True):
        for grad, right, of_loss in zip(gradients(steps, way), wanted, alone, strict=True):
            # The loss's gradient is small compared with cross-entropy's, and must not be lost in it.
            assert (grad - right).norm() < tolerance * of_loss.norm()
    steps.clear()
    assert all(leaf.grad is None for leaf in leaves)


def test_labels_begin_anew_where_texts_are_short(folder, tokenizer):
    steps = TrainingSteps(FrozenEncoder(folder, num_layers=1), ["a cat"], CPU, batch=2, positions=9)
    once = tokenizer("a cat", add_special_tokens=False)["input_ids"]
    assert steps.labels.flatten().tolist() == (18 * once)[:18]


def test_all_products_count_for_the_rate():
    with FlopCounterMode(display=False) as counter:
        rate = matrix_rate(64, 32, 48, torch.float32, CPU, rounds=3, products=7)
    # Once to warm up.
    assert counter.get_total_flops() == 4 * 7 * 2 * 64 * 32 * 48
    assert rate > 1e6


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_the_part_needs_a_gpu(options):
    with pytest.raises(RuntimeError, match="the part gpu requires a CUDA device, but torch finds none"):
        accelerator.measure(options)


@gpu
def test_peak_is_that_of_the_call():
    device = torch.device("cuda")
    kept = torch.zeros(5_000_000, device=device)
    peak = peak_megabytes(lambda: torch.zeros(3_000_000, device=device).add(1), device)
    assert 24 <= peak < 30
    assert kept.sum() == 0


@gpu
@pytest.mark.slow
def test_the_part_on_a_gpu(options):
    found = by_name(accelerator.measure(replace(options, pairs=64)))
    for name in LENGTHS:
        [difference] = found[f"{name}: float32, largest difference in F1"].values
        assert difference < 1e-3
        for way in (*DTYPES, "bert-score"):
            assert found[f"{name}: {way}, peak over the model"].values[0] > 0
    for dtype in DTYPES:
        peaks = {way: found[f"loss, encoder in {dtype}: {way}, peak"].values[0] for way in VARIANTS}
        # The gradients of the output layer's weight and of logits.
        assert peaks["cross-entropy"] >= 50_265 * (1024 + 512) * 4 / 1e6
        assert peaks["from hidden states, alone"] < peaks["from logits, alone"]
        beyond = [peaks[f"from {what}, alone"] - 50_265 * 1024 * 4 / 1e6 for what in ("hidden states", "logits")]
        ratio = found[f"loss, encoder in {dtype}: alone, peak beyond gradient from hidden states by that from logits"]
        assert ratio.values == pytest.approx([beyond[0] / beyond[1]])


@gpu
def test_the_gpu_is_described():
    assert re.fullmatch(r".+, float32 products (with|without) TF32", describe_gpu())
    assert torch.cuda.get_device_name() in describe_gpu()
