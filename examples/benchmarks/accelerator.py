"""Scoring and the loss on a GPU, with random weights in the shape of roberta-large."""

from __future__ import annotations

import contextlib
import logging
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers.utils import logging as transformers_logging

from bertscore_tm import FrozenEncoder, bert_score
from examples.benchmarks.accelerator_inputs import Shape, save_encoder, texts_of_length
from examples.benchmarks.devices import matrix_rate, peak_megabytes, waited
from examples.benchmarks.options import Options, flat_texts
from examples.benchmarks.rounds import Figure, in_turn, ratios
from examples.benchmarks.training_steps import TrainingSteps, measure_steps

__all__ = ["FASTER", "PAPER_RATE", "measure", "measure_on"]

# Pairs per second with roberta-large on a GTX 1080 Ti (Zhang et al. 2020, section 5).
PAPER_RATE = 192.5
# Target in bfloat16: speed-up over bert-score in float32.
FASTER = 5.0

# Tokens per text, special tokens included; number of pairs; target in bfloat16: share of the rate of matrix products.
_LENGTHS = {"sentences": (30, 4096, 0.35), "summaries": (120, 1024, 0.6)}
_DTYPES = ("bfloat16", "float32")
_PEER = "bert-score"
# Rows as in a large batch, and enough products to hide the time of launching kernels.
_ROWS, _PRODUCTS = 32_768, 50


def measure(options: Options) -> list[Figure]:
    """Measure on the current CUDA device, in the shape of roberta-large at layer 17.

    Args:
        options: texts, rounds, threads, and number of pairs of each length; its encoder and layer are ignored.

    Returns:
        The figures of :func:`measure_on`.

    Raises:
        RuntimeError: torch finds no CUDA device.
    """
    if not torch.cuda.is_available():
        raise RuntimeError(
            "the part gpu requires a CUDA device, but torch finds none: omit the part or check the driver"
        )
    return measure_on(torch.device("cuda", torch.cuda.current_device()), Shape(), options, _ROWS)


def measure_on(device: torch.device, shape: Shape, options: Options, rows: int) -> list[Figure]:
    """Compare scoring with bert-score for sentences of 30 and summaries of 120 tokens, and measure training steps.

    Weights are random. All texts are distinct and have equally many tokens, so none needs padding. bert-score and the
    generator of the training steps compute in float32 with either precision of the encoder.

    Args:
        device: device to compute on.
        shape: shape of the encoder.
        options: texts to cut, rounds, threads, and number of pairs of each length.
        rows: rows of the matrices whose products measure the device's rate.

    Returns:
        For each length and precision: pairs per second, the speed-up over bert-score and (for sentences) over the
        paper, the rate of useful operations relative to matrix products, the largest difference in F1, and on CUDA the
        peak memory over the loaded model; and the figures of :func:`measure_steps`.
    """
    torch.set_num_threads(options.threads)
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    transformers_logging.set_verbosity(logging.ERROR)
    texts = flat_texts(options.texts)
    rates = {
        dtype: matrix_rate(
            rows, shape.width, shape.inner, getattr(torch, dtype), device, 2 * options.rounds, products=_PRODUCTS
        )
        for dtype in _DTYPES
    }
    figures = [Figure(f"{dtype}, matrix products", [rate / 1e12], "TFLOP/s") for dtype, rate in rates.items()]
    with tempfile.TemporaryDirectory() as folder:
        save_encoder(shape, texts, folder)
        encoders = {dtype: FrozenEncoder(folder, num_layers=shape.compared, dtype=dtype) for dtype in _DTYPES}
        peer = _peer(folder, shape.compared, device)
        tokenizer = encoders["float32"].tokenizer.tokenizer
        for name, (tokens, usual, _) in _LENGTHS.items():
            pairs = options.pairs or usual
            pieces = texts_of_length(texts, tokenizer, tokens, 2 * pairs)
            operations = shape.operations_per_token * tokens * len(pieces)
            scorers: dict[str, Callable[[], Tensor]] = {
                dtype: partial(_ours, pieces[:pairs], pieces[pairs:], encoder, device)
                for dtype, encoder in encoders.items()
            }
            scorers[_PEER] = partial(_theirs, pieces[:pairs], pieces[pairs:], peer)
            shortest = {dtype: operations / rate for dtype, rate in rates.items()}
            figures += _compare_scorers(name, pairs, scorers, shortest, device, options.rounds)
        for dtype, encoder in encoders.items():
            steps = TrainingSteps(encoder, texts, device)
            figures += measure_steps(steps, device, options.rounds, f"loss, encoder in {dtype}")
    return figures


def _compare_scorers(
    name: str,
    pairs: int,
    scorers: Mapping[str, Callable[[], Tensor]],
    shortest: Mapping[str, float],
    device: torch.device,
    rounds: int,
) -> list[Figure]:
    """Score the same pairs with each scorer; ``shortest`` is the time of the useful operations as plain products."""
    f1 = {scorer: score() for scorer, score in scorers.items()}
    peaks = {}
    if device.type == "cuda":
        peaks = {scorer: peak_megabytes(score, device) for scorer, score in scorers.items()}
    seconds = in_turn({scorer: waited(score, device) for scorer, score in scorers.items()}, rounds)
    per_second = {scorer: [pairs / time for time in seconds[scorer]] for scorer in scorers}
    figures = [Figure(f"{name}: {scorer}", per_second[scorer], "pairs/s") for scorer in scorers]
    figures += [Figure(f"{name}: {scorer}, peak over the model", [peak], "MB") for scorer, peak in peaks.items()]
    for dtype in shortest:
        faster = ratios(seconds[_PEER], seconds[dtype])
        shares = [shortest[dtype] / time for time in seconds[dtype]]
        difference = float((f1[dtype] - f1[_PEER]).abs().max())
        faster_target, share_target = (FASTER, _LENGTHS[name][2]) if dtype == "bfloat16" else (None, None)
        figures += [
            Figure(f"{name}: {dtype}, faster than bert-score", faster, "times", faster_target),
            Figure(f"{name}: {dtype}, share of the matrix-product rate", shares, "share", share_target),
            Figure(f"{name}: {dtype}, largest difference in F1", [difference], ""),
        ]
        if name == "sentences":
            # The paper scored sentences.
            over = [rate / PAPER_RATE for rate in per_second[dtype]]
            figures.append(Figure(f"{name}: {dtype}, by the paper's {PAPER_RATE} pairs/s", over, "times"))
    return figures


def _ours(candidates: Sequence[str], references: Sequence[str], encoder: FrozenEncoder, device: torch.device) -> Tensor:
    f1: Tensor = bert_score(candidates, references, encoder, device=device)["f1"]
    return f1


def _theirs(candidates: Sequence[str], references: Sequence[str], peer: Any) -> Tensor:
    f1: Tensor = peer.score(candidates, references)[2]
    return f1


def _peer(folder: str, num_layers: int, device: torch.device) -> Any:
    from bert_score import BERTScorer

    # A relative path: bert-score treats a model with "t5" in its name as one of that family.
    with contextlib.chdir(folder):
        return BERTScorer(model_type=".", num_layers=num_layers, device=str(device))
