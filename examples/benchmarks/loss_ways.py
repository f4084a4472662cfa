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

__all__ = ["ADDED", "WAYS", "LossSteps", "measure_loss"]

ADDED = ("from logits", "from hidden states")
_ALONE = ("from logits, alone", "from hidden states, alone")
WAYS = ("cross-entropy", *ADDED, *_ALONE)


class LossSteps:
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
        self._ways: dict[str, Callable[[], Tensor]] = {
            "cross-entropy": lambda: self._cross_entropy(self.head(self.hidden)),
            "from logits": self._both_from_logits,
            "from hidden states": self._both_from_hidden_states,
            "from logits, alone": lambda: self.loss(self.head(self.hidden), self.labels),
            "from hidden states, alone": lambda: self.loss.forward_hidden(self.hidden, self.head, self.labels),
        }

    def run(self, way: str) -> None:
        """Go forward and backward once.

        Args:
            way: one of ``WAYS``: ``"cross-entropy"``; the same with the loss added, ``"from logits"`` or ``"from hidden
                states"``; or these two with ``", alone"`` for the loss without cross-entropy.
        """
        self.clear()
        self._ways[way]().backward()

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


def measure_loss(steps: LossSteps, device: torch.device, rounds: int, name: str) -> list[Figure]:
    """Measure the steps of ``WAYS``.

    Args:
        steps: the steps.
        device: device of the steps.
        rounds: number of timings of each step.
        name: prefix of the figures' names.

    Returns:
        The time of each step; for cross-entropy with the loss also the difference from cross-entropy alone and the
        ratio to it; and on CUDA the peak memory of each step.
    """
    seconds = in_turn({way: waited(partial(steps.run, way), device) for way in WAYS}, rounds)
    milliseconds = {way: [each * 1e3 for each in seconds[way]] for way in WAYS}
    plain = milliseconds["cross-entropy"]
    figures = [Figure(f"{name}: {way}", milliseconds[way], "ms") for way in WAYS]
    for way in ADDED:
        added = [both - one for both, one in zip(milliseconds[way], plain, strict=True)]
        figures += [
            Figure(f"{name}: {way}, added to cross-entropy", added, "ms"),
            Figure(f"{name}: {way}, by cross-entropy", ratios(milliseconds[way], plain), "times"),
        ]
    return [*figures, *_peaks(steps, device, name)] if device.type == "cuda" else figures


def _peaks(steps: LossSteps, device: torch.device, name: str) -> list[Figure]:
    peaks = {}
    for way in WAYS:
        # Otherwise the step would reuse the memory of the old gradients, and the peak would be too low.
        steps.clear()
        peaks[way] = peak_megabytes(partial(steps.run, way), device)
    gradient = steps.head.weight.nbytes / 1e6
    logits, hidden = (peaks[way] - gradient for way in _ALONE)
    return [
        *(Figure(f"{name}: {way}, peak", [peak], "MB") for way, peak in peaks.items()),
        Figure(
            f"{name}: alone, peak beyond gradient from hidden states by that from logits", [hidden / logits], "times"
        ),
    ]
