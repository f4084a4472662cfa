"""Time and memory that the loss adds to a training step with cross-entropy."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch
from torch import Tensor
from transformers import AutoModel

from bertscore_tm import FrozenEncoder
from bertscore_tm.encoder.loading import quiet_loading
from examples.benchmarks.expected_embedding import MADE_UP_SIZES, peak_beyond_gradient, peak_growth
from examples.benchmarks.options import Options, flat_texts
from examples.benchmarks.processes import run_fresh
from examples.benchmarks.rounds import Figure, in_turn, ratios
from examples.benchmarks.small_step import measure_small_steps
from examples.benchmarks.training_steps import ADDED, TrainingSteps

__all__ = ["MEMORY_RATIO", "TIME_RATIO", "Steps", "measure"]

TIME_RATIO = 1.3
MEMORY_RATIO = 0.25

_BATCH_SIZE = 8
_POSITIONS = 64
_MEGABYTE = 1e6


class Steps(TrainingSteps):
    """Training steps on the CPU, and passes of the transformers encoder alone.

    Args:
        options: settings; the batch size is ``pairs``, at most 8.
        positions: tokens per row.
    """

    def __init__(self, options: Options, positions: int = _POSITIONS) -> None:
        encoder = FrozenEncoder(options.model, num_layers=options.num_layers)
        batch = _BATCH_SIZE if options.pairs is None else min(options.pairs, _BATCH_SIZE)
        super().__init__(encoder, flat_texts(options.texts), torch.device("cpu"), batch, positions)
        # Frozen, with the same number of layers.
        with quiet_loading("weights", options.model, options.model):
            self._encoder = AutoModel.from_pretrained(options.model, num_hidden_layers=options.num_layers)
        self._encoder.eval().requires_grad_(False)
        around = [torch.tensor(special).expand(batch, -1) for special in encoder.tokenizer.special_affixes]
        ids = torch.cat([around[0], self.labels, around[1]], dim=1).long()
        self.embeds = encoder.embedding_table("cpu")[ids].requires_grad_()
        self._variants["encoder"] = self._encode

    def clear(self) -> None:
        """Drop the gradients of the last step."""
        super().clear()
        self.embeds.grad = None

    def _encode(self) -> Tensor:
        states: Tensor = self._encoder(inputs_embeds=self.embeds).last_hidden_state
        return states.sum()


def measure(options: Options) -> list[Figure]:
    """Measure a step of 8 rows of 64 tokens, with cross-entropy from the same output layer.

    The added time is divided by the time of a forward and backward pass of the encoder in the same round. Memory is the
    peak of a separate process, measured once.

    Args:
        options: settings; the batch size is ``pairs``, at most 8.

    Returns:
        Added time and added peak memory, from logits and from hidden states; and the peak of expected embeddings from
        hidden states minus the gradient of the output layer's weight, as a ratio to the plain product; and the time of
        a step of a small generator, see :func:`measure_small_steps`.

    Raises:
        OSError: the system is not Linux.
    """
    seconds, small = run_fresh(_times, options)
    peaks = {variant: run_fresh(_peak, options, variant) / _MEGABYTE for variant in ("cross-entropy", *ADDED)}
    added = {
        variant: ratios(
            [both - one for both, one in zip(seconds[variant], seconds["cross-entropy"], strict=True)],
            seconds["encoder"],
        )
        for variant in ADDED
    }
    beyond = {name: peak_beyond_gradient(name, *MADE_UP_SIZES) for name in ("in parts", "plain")}
    return [
        *(
            Figure(f"loss {variant}: added time by the encoder's", added[variant], "times", TIME_RATIO, at_most=True)
            for variant in ADDED
        ),
        *(Figure(f"loss {variant}: added peak", [peaks[variant] - peaks["cross-entropy"]], "MB") for variant in ADDED),
        Figure(
            "expected embeddings: peak beyond gradient by the plain product's",
            [beyond["in parts"] / beyond["plain"]],
            "times",
            MEMORY_RATIO,
            at_most=True,
        ),
        *small,
    ]


def _times(options: Options) -> tuple[dict[str, list[float]], list[Figure]]:
    torch.set_num_threads(options.threads)
    steps = Steps(options)
    variants = ("cross-entropy", *ADDED, "encoder")
    seconds = in_turn({name: partial(steps.run, name) for name in variants}, options.rounds)
    return seconds, measure_small_steps(options)


def _peak(options: Options, variant: str) -> int:
    torch.set_num_threads(options.threads)
    # Loads libraries and weights before the measurement.
    Steps(replace(options, pairs=1), positions=2).run(variant)
    steps = Steps(options)
    return peak_growth(lambda: steps.run(variant))
