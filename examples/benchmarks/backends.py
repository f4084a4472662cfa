"""Libraries for products of matrices in float32, compared at the shapes of two encoders."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch.nn import functional

from examples.benchmarks.rounds import Figure, in_turn
from examples.benchmarks.texts import Options

# Rows, inputs and outputs: layers of MiniLM and of roberta-large, for the tokens of one text and of many.
_LAYERS = [(384, 384), (384, 1536), (1024, 1024), (1024, 4096)]
_SHAPES = [(rows, *layer) for layer in _LAYERS for rows in (45, 512, 2048)]
# Calls per timing, as one may take microseconds.
_CALLS = 20


def measure(options: Options) -> Iterator[Figure]:
    """Multiply by torch's library and by oneDNN with a packed weight, in turn.

    Yields:
        Billions of operations per second of both, for each shape.
    """
    torch.set_num_threads(options.threads)
    onednn = torch.ops.mkldnn
    for rows, inputs, outputs in _SHAPES:
        states, weight, bias = torch.randn(rows, inputs), torch.randn(outputs, inputs), torch.randn(outputs)
        packed = onednn._reorder_linear_weight(weight, rows)
        calls = {
            "torch's library": partial(functional.linear, states, weight, bias),
            "oneDNN": partial(onednn._linear_pointwise, states, packed, bias, "none", [], ""),
        }
        seconds = in_turn({name: partial(_repeat, call) for name, call in calls.items()}, options.rounds)
        for name, times in seconds.items():
            rates = [2e-9 * rows * inputs * outputs * _CALLS / time for time in times]
            yield Figure(f"{rows} x {inputs} x {outputs}: {name}", rates, "GFLOP/s")


def _repeat(call: partial[torch.Tensor]) -> None:
    for _ in range(_CALLS):
        call()
