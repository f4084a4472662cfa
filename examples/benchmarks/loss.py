"""Training steps of generators with the loss, compared with cross-entropy alone."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedTokenizerBase

from bertscore_tm.losses import SoftBERTScoreLoss
from examples.benchmarks.package import load_encoders
from examples.benchmarks.processes import peak_growth, run_fresh
from examples.benchmarks.random_models import BART_BASE, T5_SMALL, build_model, train_tokenizer
from examples.benchmarks.rounds import Figure, in_turn, ratios
from examples.benchmarks.texts import Options, cut_sentences

PLAIN, CACHED, NEW = "cross-entropy", "with the loss, targets cached", "with the loss, new targets"
VARIANTS = (PLAIN, CACHED, NEW)
SHAPES = {"T5-small": T5_SMALL, "BART-base": BART_BASE}

_TARGETS, _TOKENS = 8, (32, 64)


class TrainingStep:
    """A step of a random generator: forward and backward pass, clipping and AdamW, in float32.

    Inputs and targets, 8 by default, have 32 to 64 tokens. The generator's tokenizer differs from the encoder's.
    """

    def __init__(
        self, shape: PreTrainedConfig, tokenizer: PreTrainedTokenizerBase, options: Options, variants: Sequence[str]
    ) -> None:
        texts = options.flat_texts()
        self.model: Any = build_model(shape).train()
        # Weights stay as they are, so that all steps compute the same.
        self._optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.0)
        self.inputs, labels = _draw_ids(texts, tokenizer, options.pairs or _TARGETS)
        self.mask = (self.inputs != tokenizer.pad_token_id).long()
        self.labels = labels.masked_fill(labels == tokenizer.pad_token_id, -100)
        self.losses: dict[str, nn.Module] = {}
        for variant, cache in {CACHED: {}, NEW: {"cache_bytes": 0}}.items():
            if variant in variants:
                encoder = load_encoders()["float32"]
                self.losses[variant] = SoftBERTScoreLoss(
                    encoder, tokenizer=tokenizer, fidelity_texts=texts[:8], **cache
                )

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
    """Measure training steps of T5-small's and BART-base's shape in turn, by cross-entropy alone and with the loss.

    Yields:
        Seconds of the step with cross-entropy; the time with the loss by it, with targets of an earlier epoch, whose
        vectors are cached, and with new ones, which are encoded; and the peak memory of training, with weights,
        gradients, the optimizer's state and, with the loss, the encoder, by that with cross-entropy alone.
    """
    torch.set_num_threads(options.threads)
    for name, shape in SHAPES.items():
        tokenizer = train_tokenizer(shape, options.flat_texts())
        step = TrainingStep(shape, tokenizer, options, VARIANTS)
        seconds = in_turn({variant: partial(step.run, variant) for variant in VARIANTS}, options.rounds)
        name = f"{name}, {len(step.labels)} targets"
        del step
        yield Figure(f"{name}: step with cross-entropy", seconds[PLAIN], "s")
        for variant in (CACHED, NEW):
            by_plain = ratios(seconds[variant], seconds[PLAIN])
            yield Figure(f"{name}: {variant}, time by cross-entropy's", by_plain, "times")
        plain, with_loss = (
            run_fresh(_peak_of_training, shape, tokenizer, options, variant, threads=options.threads) / 1e6
            for variant in (PLAIN, CACHED)
        )
        yield Figure(f"{name}: peak memory with cross-entropy", [plain], "MB")
        yield Figure(f"{name}: peak memory with the loss, by cross-entropy's", [with_loss / plain], "times")


def _peak_of_training(
    shape: PreTrainedConfig, tokenizer: PreTrainedTokenizerBase, options: Options, variant: str
) -> int:
    """Return the peak of two steps of a new generator; the second has the optimizer's state."""

    def train() -> None:
        step = TrainingStep(shape, tokenizer, options, [variant])
        for _ in range(2):
            step.run(variant)

    return peak_growth(train)


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
