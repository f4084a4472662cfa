"""Scoring and the loss on a GPU, with random weights in the shape of roberta-large."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from functools import partial

import torch

from examples.benchmarks.loss import SHAPES, measure_on, train_briefly
from examples.benchmarks.package import load_encoder, score_f1
from examples.benchmarks.peers import load_bert_score
from examples.benchmarks.random_models import ROBERTA_LARGE, Shape, build_model, train_tokenizer
from examples.benchmarks.rounds import Figure, in_turn, until_done
from examples.benchmarks.scoring import PAPER_PAIRS, SENTENCES, compare, rate_like_paper
from examples.benchmarks.texts import Options, cut_sentences, flat_texts

_DTYPES = ("bfloat16", "float32")
# Words per text and number of pairs.
_LENGTHS = {"sentences": (SENTENCES, PAPER_PAIRS), "summaries": ((40, 140), 1_024)}
_TARGETS = {"bfloat16": 5.0}
# Rows as in a large batch, and enough products to hide the time of launching kernels.
_ROWS, _PRODUCTS = 32_768, 50


def measure(options: Options) -> Iterator[Figure]:
    """Measure on the current CUDA device.

    Args:
        options: settings; ``pairs`` is the number of pairs of each length, and of targets. The encoder and its layer
            apply to the loss and to the paper's comparison.

    Yields:
        The figures of :func:`measure_scoring`, and those of training steps with the loss.

    Raises:
        RuntimeError: torch finds no CUDA device.
    """
    if not torch.cuda.is_available():
        raise RuntimeError(
            "the part gpu requires a CUDA device, but torch finds none: omit the part or check the driver"
        )
    torch.set_num_threads(options.threads)
    device = torch.device("cuda", torch.cuda.current_device())
    yield from measure_scoring(device, ROBERTA_LARGE, options, _ROWS)
    for shape, target in SHAPES:
        yield from measure_on(
            device, shape, target, options, lambda *args: peak_megabytes(partial(train_briefly, *args))
        )


def measure_scoring(device: torch.device, shape: Shape, options: Options, rows: int) -> Iterator[Figure]:
    """Compare scoring with bert-score, which computes in float32, and with the paper.

    Args:
        device: device to compute on.
        shape: shape of the encoder.
        options: texts, rounds, and number of pairs of each length.
        rows: rows of the matrices whose products measure the device's rate.

    Yields:
        For sentences and summaries in each precision the figures of :func:`compare`; the time of the weight products of
        all tokens, at the rate of plain matrix products, as a share of the whole; on CUDA the peak memory over the
        model; and the figures of :func:`rate_like_paper`.
    """
    texts = flat_texts(options.texts)
    tokenizer = train_tokenizer(shape, texts, options.model)
    with tempfile.TemporaryDirectory() as folder:
        build_model(shape).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        encoders = {dtype: load_encoder(folder, shape.layers, dtype, device=device) for dtype in _DTYPES}
        peer = load_bert_score(folder, shape.layers, device)
        for name, (words, usual) in _LENGTHS.items():
            count = options.pairs or usual
            pieces = cut_sentences(texts, 2 * count, words)
            pairs = pieces[:count], pieces[count:]
            yield from compare(name, pairs, encoders, peer, device, options.rounds, _TARGETS)
            tokens = sum(map(len, tokenizer(pieces)["input_ids"]))
            # Attention adds little for short texts.
            operations = 2 * tokens * shape.layers * (4 * shape.width**2 + 2 * shape.width * shape.inner)
            for dtype, encoder in encoders.items():
                call = partial(score_f1, *pairs, encoder)
                seconds = in_turn({dtype: until_done(call, device)}, options.rounds)[dtype]
                rate = matrix_rate(rows, shape, getattr(torch, dtype), device, options.rounds)
                shares = [operations / rate / time for time in seconds]
                yield Figure(f"{name}: {dtype}, share of the matrix-product rate", shares, "share")
                if device.type == "cuda":
                    yield Figure(f"{name}: {dtype}, peak over the model", [peak_megabytes(call)], "MB")
        named = {f"random {shape.name}, {dtype}": encoder for dtype, encoder in encoders.items()}
        named["encoder, float32"] = load_encoder(options.model, options.num_layers, device=device)
        yield from rate_like_paper(named, options, device)


def peak_megabytes(call: Callable[[], object]) -> float:
    """Return the largest growth of the tensors' memory on the current CUDA device during a call, in MB."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    call()
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - before) / 1e6


def matrix_rate(rows: int, shape: Shape, dtype: torch.dtype, device: torch.device, rounds: int) -> float:
    """Return how fast a device multiplies matrices of an encoder's shapes, in operations per second."""
    tokens = torch.randn(rows, shape.width, device=device).to(dtype)
    weight = torch.randn(shape.width, shape.inner, device=device).to(dtype)

    def multiply() -> None:
        for _ in range(_PRODUCTS):
            tokens @ weight

    best = min(in_turn({"products": until_done(multiply, device)}, rounds)["products"])
    return 2 * rows * shape.width * shape.inner * _PRODUCTS / best


def describe_gpu() -> str:
    """Return the name of the CUDA device and whether its float32 products use TF32, in one line."""
    exact = torch.get_float32_matmul_precision() == "highest"
    return f"{torch.cuda.get_device_name()}, float32 products {'without' if exact else 'with'} TF32"
