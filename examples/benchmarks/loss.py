"""Training steps of generators with the loss, compared with cross-entropy alone."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from examples.benchmarks.package import load_encoder, make_loss
from examples.benchmarks.processes import peak_growth, run_fresh
from examples.benchmarks.random_models import BART_BASE, T5_SMALL, Shape, build_model, train_tokenizer
from examples.benchmarks.rounds import Figure, in_turn, ratios
from examples.benchmarks.texts import Options, cut_sentences, flat_texts

PLAIN, CACHED, NEW = "cross-entropy", "with the loss, targets cached", "with the loss, new targets"
VARIANTS = (PLAIN, CACHED, NEW)
# Shapes with the time to reach, by cross-entropy's.
SHAPES = ((T5_SMALL, 1.08), (BART_BASE, 1.05))
_MEMORY_RATIO = 1.1

_TARGETS, _TOKENS = 8, (32, 64)
_IGNORED = -100


class TrainingStep:
    """A step of a random generator: forward and backward pass, clipping and AdamW, in float32.

    Inputs and targets are texts of 32 to 64 tokens. The generator's tokenizer differs from the encoder's.

    Args:
        shape: shape of the generator.
        tokenizer: its tokenizer.
        options: texts, encoder, and number of targets (``pairs``, 8 by default).
        *variants: those of ``VARIANTS`` that are run.
    """

    def __init__(self, shape: Shape, tokenizer: PreTrainedTokenizerBase, options: Options, *variants: str) -> None:
        texts = flat_texts(options.texts)
        self.model: Any = build_model(shape).train()
        # Weights stay as they are, so that all steps compute the same.
        self._optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.0)
        self.inputs, labels = _draw_ids(texts, tokenizer, options.pairs or _TARGETS)
        self.mask = (self.inputs != tokenizer.pad_token_id).long()
        self.labels = labels.masked_fill(labels == tokenizer.pad_token_id, _IGNORED)
        self.losses: dict[str, nn.Module] = {}
        for variant in (variant for variant in variants if variant != PLAIN):
            encoder = load_encoder(options.model, options.num_layers)
            self.losses[variant] = make_loss(encoder, tokenizer, texts[:8], keep_targets=variant == CACHED)

    def run(self, variant: str) -> float:
        """Run a step and return the value of its loss."""
        output = self.model(input_ids=self.inputs, attention_mask=self.mask, labels=self.labels)
        total: Tensor = output.loss
        if variant in self.losses:
            total = total + self.losses[variant](output.logits, self.labels)
        self._optimizer.zero_grad()
        total.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self._optimizer.step()
        return float(total.detach())


def measure(options: Options) -> Iterator[Figure]:
    """Measure training steps on the CPU.

    Args:
        options: settings; ``pairs`` is the number of targets, 8 by default.

    Yields:
        The figures of :func:`measure_shape` for T5-small and BART-base.

    Raises:
        OSError: the system is not Linux.
    """
    torch.set_num_threads(options.threads)
    for shape, target in SHAPES:
        yield from measure_shape(shape, target, options)


def measure_shape(shape: Shape, target: float, options: Options) -> Iterator[Figure]:
    """Measure the steps of a generator in turn, with cross-entropy alone and with the loss added.

    Args:
        shape: shape of the generator.
        target: time to reach, by cross-entropy's.
        options: settings.

    Yields:
        Seconds of the step with cross-entropy; the time with the loss by it, with targets of an earlier epoch, whose
        vectors are cached, and with new ones, which are encoded; and the peak memory of training, with weights,
        gradients, the optimizer's state and, with the loss, the encoder, by that with cross-entropy alone.
    """
    tokenizer = train_tokenizer(shape, flat_texts(options.texts), options.model)
    step = TrainingStep(shape, tokenizer, options, *VARIANTS)
    seconds = in_turn({variant: partial(step.run, variant) for variant in VARIANTS}, options.rounds)
    name = f"{shape.name}, {len(step.labels)} targets"
    del step
    yield Figure(f"{name}: step with cross-entropy", seconds[PLAIN], "s")
    for variant in (CACHED, NEW):
        by_plain = ratios(seconds[variant], seconds[PLAIN])
        yield Figure(f"{name}: {variant}, time by cross-entropy's", by_plain, "times", target, at_most=True)
    plain, with_loss = (_peak_of_process(shape, tokenizer, options, variant) for variant in (PLAIN, CACHED))
    yield Figure(f"{name}: peak memory with cross-entropy", [plain], "MB")
    by_plain = [with_loss / plain]
    yield Figure(f"{name}: peak memory with the loss, by cross-entropy's", by_plain, "times", _MEMORY_RATIO, True)


def train_briefly(shape: Shape, tokenizer: PreTrainedTokenizerBase, options: Options, variant: str) -> None:
    """Build a generator and train it for two steps, the second with the optimizer's state."""
    step = TrainingStep(shape, tokenizer, options, variant)
    for _ in range(2):
        step.run(variant)


def _peak_of_process(*training: Any) -> float:
    peak: int = run_fresh(_peak, *training)
    return peak / 1e6


def _peak(shape: Shape, tokenizer: PreTrainedTokenizerBase, options: Options, *training: Any) -> int:
    torch.set_num_threads(options.threads)
    return peak_growth(partial(train_briefly, shape, tokenizer, options, *training))


def _draw_ids(texts: list[str], tokenizer: PreTrainedTokenizerBase, count: int) -> tuple[Tensor, Tensor]:
    """Return the ids of inputs and of targets, padded, shape (count, tokens) each."""
    low, high = _TOKENS
    chooser = random.Random(0)
    # A word has at least one token. One row of each side is as long as possible.
    rows = [
        tokenizer(text, truncation=True, max_length=high if i % count == 0 else chooser.randint(low, high))["input_ids"]
        for i, text in enumerate(cut_sentences(texts, 2 * count, (high, high)))
    ]
    padded: Tensor = tokenizer.pad({"input_ids": rows}, return_tensors="pt")["input_ids"]
    return padded[:count], padded[count:]
