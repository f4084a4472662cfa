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
from examples.benchmarks.loss_ways import LossSteps, measure_loss
from examples.benchmarks.options import Options, flat_texts
from examples.benchmarks.rounds import Figure, in_turn, ratios

__all__ = ["FASTER", "PAPER_RATE", "SHARE", "measure", "measure_on"]

# Pairs per second with roberta-large on a GTX 1080 Ti (Zhang et al. 2020, section 5).
PAPER_RATE = 192.5
# Targets in bfloat16: of the rate of matrix products, and times faster than bert-score in float32.
SHARE, FASTER = 0.5, 8.0

# Tokens of each text, special ones included, and pairs.
_LENGTHS = {"sentences": (30, 4096), "summaries": (120, 1024)}
_DTYPES = ("bfloat16", "float32")
_PEER = "bert-score"
# As many rows as a batch of tokens on a GPU, and so many products that starting them takes no time.
_ROWS, _PRODUCTS = 32_768, 50


def measure(options: Options) -> list[Figure]:
    """Measure on the GPU, in the shape of roberta-large at layer 17.

    Args:
        options: texts, rounds, threads, and pairs of either length; encoder and layer are its own.

    Returns:
        As :func:`measure_on`.

    Raises:
        RuntimeError: there is no CUDA device.
    """
    if not torch.cuda.is_available():
        raise RuntimeError("the part gpu needs a CUDA device, and torch finds none: leave it out")
    return measure_on(torch.device("cuda", torch.cuda.current_device()), Shape(), options, _ROWS)


def measure_on(device: torch.device, shape: Shape, options: Options, rows: int) -> list[Figure]:
    """Score sentences of 30 tokens and summaries of 120 in turn with the peer, and make steps with the loss.

    Weights are random and all texts different, of one length to the token, so that none needs padding. bert-score
    computes in float32, and so does the generator whose loss is measured, whatever the encoder's precision.

    Args:
        device: where to compute.
        shape: of the encoder.
        options: texts to cut, rounds, threads, and pairs of either length.
        rows: of the matrices whose products are the measure of the encoder's.

    Returns:
        For both lengths and precisions pairs per second, how many times faster than bert-score and than the paper,
        which share of the rate of matrix products the useful operations take, how far F1 is from bert-score's, and on
        CUDA the peak of memory over the loaded model; and what the loss takes in a step.
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
        for name, (tokens, usual) in _LENGTHS.items():
            pairs = options.pairs or usual
            pieces = texts_of_length(texts, tokenizer, tokens, 2 * pairs)
            operations = shape.operations_per_token * tokens * len(pieces)
            ways: dict[str, Callable[[], Tensor]] = {
                dtype: partial(_ours, pieces[:pairs], pieces[pairs:], encoder, device)
                for dtype, encoder in encoders.items()
            }
            ways[_PEER] = partial(_theirs, pieces[:pairs], pieces[pairs:], peer)
            least = {dtype: operations / rate for dtype, rate in rates.items()}
            figures += _scoring(name, pairs, ways, least, device, options.rounds)
        for dtype, encoder in encoders.items():
            steps = LossSteps(encoder, texts, device)
            figures += measure_loss(steps, device, options.rounds, f"loss, encoder in {dtype}")
    return figures


def _scoring(
    name: str,
    pairs: int,
    ways: Mapping[str, Callable[[], Tensor]],
    least: Mapping[str, float],
    device: torch.device,
    rounds: int,
) -> list[Figure]:
    """Score the same pairs in all ways; ``least`` are the seconds that the useful operations take as mere products."""
    f1 = {way: score() for way, score in ways.items()}
    peaks = {way: peak_megabytes(score, device) for way, score in ways.items()} if device.type == "cuda" else {}
    seconds = in_turn({way: waited(score, device) for way, score in ways.items()}, rounds)
    per_second = {way: [pairs / each for each in seconds[way]] for way in ways}
    figures = [Figure(f"{name}: {way}", per_second[way], "pairs/s") for way in ways]
    figures += [Figure(f"{name}: {way}, peak over the model", [peak], "MB") for way, peak in peaks.items()]
    for dtype in least:
        faster = ratios(seconds[_PEER], seconds[dtype])
        shares = [least[dtype] / each for each in seconds[dtype]]
        difference = float((f1[dtype] - f1[_PEER]).abs().max())
        faster_target, share_target = (FASTER, SHARE) if dtype == "bfloat16" else (None, None)
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

    # By a relative path, as bert-score takes whatever has "t5" in its name for a model of that family.
    with contextlib.chdir(folder):
        return BERTScorer(model_type=".", num_layers=num_layers, device=str(device))
