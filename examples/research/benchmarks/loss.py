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
from examples.research.benchmarks.package import load_encoders
from examples.research.benchmarks.processes import peak_growth, run_fresh
from examples.research.benchmarks.random_models import BART_BASE, T5_SMALL, build_model, train_tokenizer
from examples.research.benchmarks.rounds import Figure, in_turn, ratios
from examples.research.benchmarks.texts import Options, cut_sentences

PLAIN, CACHED, NEW = "cross-entropy", "with the loss, targets cached", "with the loss, new targets"
HIDDEN = "with the loss from hidden states, targets cached"
VARIANTS = (PLAIN, CACHED, NEW, HIDDEN)
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
        for variant, cache in {CACHED: {}, NEW: {"cache_bytes": 0}, HIDDEN: {}}.items():
            if variant in variants:
                encoder = load_encoders()["float32"]
                self.losses[variant] = SoftBERTScoreLoss(
                    encoder, tokenizer=tokenizer, fidelity_texts=texts[:8], **cache
                )

    def run(self, variant: str) -> float:
        """Run a step and return the value of its loss."""
        total = self._from_hidden_states() if variant == HIDDEN else self._from_logits(variant)
        self._optimizer.zero_grad()
        total.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self._optimizer.step()
        return float(total.detach())

    def _from_logits(self, variant: str) -> Tensor:
        output = self.model(input_ids=self.inputs, attention_mask=self.mask, labels=self.labels)
        cross_entropy: Tensor = output.loss
        if variant not in self.losses:
            return cross_entropy
        added: Tensor = self.losses[variant](output.logits, self.labels)
        return cross_entropy + added

    def _from_hidden_states(self) -> Tensor:
        encoded = self.model.get_encoder()(input_ids=self.inputs, attention_mask=self.mask).last_hidden_state
        hidden = self.model.get_decoder()(
            input_ids=self.model.prepare_decoder_input_ids_from_labels(labels=self.labels),
            encoder_hidden_states=encoded,
            encoder_attention_mask=self.mask,
        ).last_hidden_state
        loss: Any = self.losses[HIDDEN]
        added, cross_entropy = loss.forward_hidden(hidden, self.model, self.labels, return_cross_entropy=True)
        total: Tensor = cross_entropy + added
        return total


def measure(options: Options) -> Iterator[Figure]:
    """Measure training steps of T5-small's and BART-base's shape in turn, by cross-entropy alone and with the loss.

    Yields:
        Seconds of the step with cross-entropy; the time with the loss by it, with targets of an earlier epoch, whose
        vectors are cached, with new ones, which are encoded, and from hidden states; and the peak memory of training by
        that with cross-entropy alone, with weights, gradients, the optimizer's state and, with the loss, the encoder.
    """
    torch.set_num_threads(options.threads)
    for name, shape in SHAPES.items():
        tokenizer = train_tokenizer(shape, options.flat_texts())
        step = TrainingStep(shape, tokenizer, options, VARIANTS)
        seconds = in_turn({variant: partial(step.run, variant) for variant in VARIANTS}, options.rounds)
        name = f"{name}, {len(step.labels)} targets"
        del step
        yield Figure(f"{name}: step with cross-entropy", seconds[PLAIN], "s")
        for variant in (CACHED, NEW, HIDDEN):
            by_plain = ratios(seconds[variant], seconds[PLAIN])
            yield Figure(f"{name}: {variant}, time by cross-entropy's", by_plain, "times")
        peaks = {
            variant: run_fresh(_peak_of_training, shape, tokenizer, options, variant, threads=options.threads) / 1e6
            for variant in (PLAIN, CACHED, HIDDEN)
        }
        yield Figure(f"{name}: peak memory with cross-entropy", [peaks[PLAIN]], "MB")
        for variant in (CACHED, HIDDEN):
            yield Figure(f"{name}: peak memory {variant}, by cross-entropy's", [peaks[variant] / peaks[PLAIN]], "times")


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
