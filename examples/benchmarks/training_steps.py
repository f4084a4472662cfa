"""Training steps with the loss and with cross-entropy, from logits and from hidden states."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from bertscore_tm import FrozenEncoder
from bertscore_tm.losses import SoftBERTScoreLoss
from examples.benchmarks.devices import peak_megabytes, waited
from examples.benchmarks.rounds import Figure, in_turn, ratios

__all__ = ["ADDED", "VARIANTS", "TrainingSteps", "measure_steps"]

ADDED = ("from logits", "from hidden states")
_ALONE = ("from logits, alone", "from hidden states, alone")
VARIANTS = ("cross-entropy", *ADDED, *_ALONE)


class TrainingSteps:
    """Forward and backward passes of a training step whose generator is an output layer on given hidden states.

    Its vocabulary and width are the encoder's, its labels are tokens of texts, its precision is float32.

    Args:
        encoder: the encoder.
        texts: texts of the labels, repeated if they are too short.
        device: device of the steps.
        batch: number of rows.
        positions: tokens per row.

    Attributes:
        head: the output layer.
        hidden: the hidden states, shape (batch, positions, width).
        labels: shape (batch, positions).
        loss: the loss.
    """

    def __init__(
        self, encoder: FrozenEncoder, texts: Sequence[str], device: torch.device, batch: int = 8, positions: int = 64
    ) -> None:
        self.loss = SoftBERTScoreLoss(encoder)
        vocabulary, width = encoder.embedding_table(device).shape
        before, after = encoder.tokenizer.special_affixes
        rows = (row[len(before) : len(row) - len(after)] for row in encoder.tokenizer(texts).ids)
        content = torch.tensor(list(chain.from_iterable(rows)))
        self.labels = content[torch.arange(batch * positions) % len(content)].view(batch, positions).to(device)
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(0)
            self.hidden = torch.randn(batch, positions, width).to(device).requires_grad_()
            self.head = nn.Linear(width, vocabulary).to(device)
        self._variants: dict[str, Callable[[], Tensor]] = {
            "cross-entropy": lambda: self._cross_entropy(self.head(self.hidden)),
            "from logits": self._both_from_logits,
            "from hidden states": self._both_from_hidden_states,
            "from logits, alone": lambda: self.loss(self.head(self.hidden), self.labels),
            "from hidden states, alone": lambda: self.loss.forward_hidden(self.hidden, self.head, self.labels),
        }

    def run(self, variant: str) -> None:
        """Run one forward and backward pass.

        Args:
            variant: one of ``VARIANTS``: ``"cross-entropy"``; the same with the loss added, ``"from logits"`` or
                ``"from hidden states"``; or these two with ``", alone"``, the loss without cross-entropy.
        """
        self.clear()
        self._variants[variant]().backward()

    def clear(self) -> None:
        """Drop the gradients of the last step."""
        self.hidden.grad = None
        self.head.zero_grad()

    def _cross_entropy(self, logits: Tensor) -> Tensor:
        return F.cross_entropy(logits.flatten(0, 1), self.labels.flatten())

    def _both_from_logits(self) -> Tensor:
        logits = self.head(self.hidden)
        return self._cross_entropy(logits) + self.loss(logits, self.labels)

    def _both_from_hidden_states(self) -> Tensor:
        value, cross_entropy, *_ = self.loss.forward_hidden(
            self.hidden, self.head, self.labels, return_cross_entropy=True
        )
        return value + cross_entropy


def measure_steps(steps: TrainingSteps, device: torch.device, rounds: int, name: str) -> list[Figure]:
    """Measure each variant of a training step.

    Args:
        steps: the steps.
        device: device of the steps.
        rounds: number of timings of each step.
        name: prefix of the figures' names.

    Returns:
        The time of each step; for cross-entropy with the loss also the difference from cross-entropy alone and the
        ratio to it; and on CUDA the peak memory of each step.
    """
    seconds = in_turn({variant: waited(partial(steps.run, variant), device) for variant in VARIANTS}, rounds)
    milliseconds = {variant: [value * 1e3 for value in seconds[variant]] for variant in VARIANTS}
    plain = milliseconds["cross-entropy"]
    figures = [Figure(f"{name}: {variant}", milliseconds[variant], "ms") for variant in VARIANTS]
    for variant in ADDED:
        added = [total - base for total, base in zip(milliseconds[variant], plain, strict=True)]
        figures += [
            Figure(f"{name}: {variant}, added to cross-entropy", added, "ms"),
            Figure(f"{name}: {variant}, by cross-entropy", ratios(milliseconds[variant], plain), "times"),
        ]
    return [*figures, *_peaks(steps, device, name)] if device.type == "cuda" else figures


def _peaks(steps: TrainingSteps, device: torch.device, name: str) -> list[Figure]:
    peaks = {}
    for variant in VARIANTS:
        # Otherwise the step would reuse the memory of the old gradients, and the peak would be too low.
        steps.clear()
        peaks[variant] = peak_megabytes(partial(steps.run, variant), device)
    gradient = steps.head.weight.nbytes / 1e6
    logits, hidden = (peaks[variant] - gradient for variant in _ALONE)
    return [
        *(Figure(f"{name}: {variant}, peak", [peak], "MB") for variant, peak in peaks.items()),
        Figure(
            f"{name}: alone, peak beyond gradient from hidden states by that from logits", [hidden / logits], "times"
        ),
    ]
