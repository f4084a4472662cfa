"""What the loss adds to a training step: time and memory beside cross-entropy, measured in passes of the encoder."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain, cycle, islice
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.flop_counter import FlopCounterMode

from bertscore_tm import FrozenEncoder
from bertscore_tm.losses import SoftBERTScoreLoss
from examples.benchmarks.expected_embedding import peak_growth
from examples.benchmarks.options import Options
from examples.benchmarks.processes import run_fresh
from examples.benchmarks.rounds import Figure, in_turn, ratios

__all__ = ["MEMORY_RATIO", "TIME_RATIO", "Steps", "count_operations", "measure"]

TIME_RATIO = 1.3
MEMORY_RATIO = 0.25

_BATCH_SIZE = 8
_POSITIONS = 64
_WIDTH = 384
_MEGABYTE = 1e6
_ADDED = ("from logits", "from hidden states")
_ALONE = ("from logits, alone", "from hidden states, alone")


class Steps:
    """Forward and backward passes of a training step whose generator is an output layer on given hidden states.

    Its vocabulary is the encoder's, its labels are tokens of texts.

    Args:
        options: settings; ``pairs`` is the batch size where it is below 8.
        positions: tokens of each row.

    Attributes:
        head: the output layer.
        labels: shape (batch, positions).
        loss: the loss.
    """

    def __init__(self, options: Options, positions: int = _POSITIONS) -> None:
        encoder = FrozenEncoder(options.model, num_layers=options.num_layers)
        self.loss = SoftBERTScoreLoss(encoder)
        table = encoder.embedding_table("cpu")
        before, after = encoder.tokenizer.special_affixes
        batch = _BATCH_SIZE if options.pairs is None else min(options.pairs, _BATCH_SIZE)
        rows = encoder.tokenizer([text for candidate, references in options.texts for text in (candidate, *references)])
        content = chain.from_iterable(row[len(before) : len(row) - len(after)] for row in rows.ids)
        self.labels = torch.tensor(list(islice(cycle(content), batch * positions))).view(batch, positions)
        random = torch.Generator().manual_seed(0)
        self.hidden = torch.randn(batch, positions, _WIDTH, generator=random).requires_grad_()
        self.head = nn.Linear(_WIDTH, len(table))
        around = [torch.tensor(special).expand(batch, -1) for special in (before, after)]
        self._embeds = table[torch.cat([around[0], self.labels, around[1]], dim=1).long()].requires_grad_()
        self._ways: dict[str, Callable[[], Tensor]] = {
            "cross-entropy": lambda: self._cross_entropy(self.head(self.hidden)),
            "from logits": self._from_logits,
            "from hidden states": self._from_hidden_states,
            "from logits, alone": lambda: self.loss(self.head(self.hidden), self.labels),
            "from hidden states, alone": lambda: self.loss.forward_hidden(self.hidden, self.head, self.labels),
            "encoder": self._encode,
        }

    def run(self, way: str) -> None:
        """Go forward and backward once.

        Args:
            way: ``"cross-entropy"``; the same with the loss added, ``"from logits"`` or ``"from hidden states"``; these
                two with ``", alone"`` for the loss without cross-entropy; or ``"encoder"``, which encodes the labels.
        """
        self._embeds.grad = self.hidden.grad = None
        self.head.zero_grad()
        self._ways[way]().backward()

    def _cross_entropy(self, logits: Tensor) -> Tensor:
        return F.cross_entropy(logits.flatten(0, 1), self.labels.flatten())

    def _from_logits(self) -> Tensor:
        logits = self.head(self.hidden)
        return self._cross_entropy(logits) + self.loss(logits, self.labels)

    def _from_hidden_states(self) -> Tensor:
        cross_entropy = self._cross_entropy(self.head(self.hidden))
        return cross_entropy + self.loss.forward_hidden(self.hidden, self.head, self.labels)

    def _encode(self) -> Tensor:
        mask = torch.ones(self._embeds.shape[:2], dtype=torch.bool)
        return self.loss.encoder.encode_soft(self._embeds, mask).sum()


def measure(options: Options) -> list[Figure]:
    """Measure a step of 8 rows of 64 tokens, with cross-entropy from the same output layer.

    The added time is divided by that of one pass forward and backward through the encoder, in the same round; the added
    operations likewise, counted in all products of matrices, attention aside. Memory is the peak of a process of its
    own, measured once.

    Args:
        options: settings; ``pairs`` is the batch size where it is below 8.

    Returns:
        Added time from logits and from hidden states, added operations, added peak memory; and the peak of the loss
        without cross-entropy, beyond the gradient of the output layer's weight, in both ways and as a ratio.

    Raises:
        OSError: the system is not Linux.
    """
    seconds, operations, gradient = run_fresh(_times, options)
    peaks = {way: run_fresh(_peak, options, way) / _MEGABYTE for way in ("cross-entropy", *_ADDED, *_ALONE)}
    beyond = {way: peaks[way] - gradient / _MEGABYTE for way in _ALONE}
    added = {
        way: ratios(
            [both - one for both, one in zip(seconds[way], seconds["cross-entropy"], strict=True)], seconds["encoder"]
        )
        for way in _ADDED
    }
    counted = (operations["from logits"] - operations["cross-entropy"]) / operations["encoder"]
    return [
        *(
            Figure(f"loss {way}: added time by the encoder's", added[way], "times", TIME_RATIO, at_most=True)
            for way in _ADDED
        ),
        Figure("loss from logits: added operations by the encoder's", [counted], "times"),
        *(Figure(f"loss {way}: added peak", [peaks[way] - peaks["cross-entropy"]], "MB") for way in _ADDED),
        *(Figure(f"loss {way}: peak beyond gradient", [beyond[way]], "MB") for way in _ALONE),
        Figure(
            "loss alone: peak from hidden states by that from logits",
            [beyond[_ALONE[1]] / beyond[_ALONE[0]]],
            "times",
            MEMORY_RATIO,
            at_most=True,
        ),
    ]


def count_operations(steps: Steps, way: str) -> int:
    """Count multiplications and additions of matrix products, without those of attention.

    Args:
        steps: what to run.
        way: as for :meth:`Steps.run`.

    Returns:
        Their number.
    """
    own = (
        {torch.ops.mkldnn._linear_pointwise: _of_packed_layer} if hasattr(torch.ops.mkldnn, "_linear_pointwise") else {}
    )
    with FlopCounterMode(display=False, custom_mapping=own) as counter:
        steps.run(way)
    return counter.get_total_flops()


def _of_packed_layer(given: Sequence[int], *_: Any, out_shape: Sequence[int], **__: Any) -> int:
    """Operations of a linear layer whose weights are packed, which the counter does not know."""
    return 2 * math.prod(given) * out_shape[-1]


def _times(options: Options) -> tuple[dict[str, list[float]], dict[str, int], int]:
    """Return seconds, operations, and the bytes of the gradient of the output layer's weight."""
    torch.set_num_threads(options.threads)
    steps = Steps(options)
    ways = ("cross-entropy", *_ADDED, "encoder")
    seconds = in_turn({way: lambda way=way: steps.run(way) for way in ways}, options.rounds)  # type: ignore[misc]
    operations = {way: count_operations(steps, way) for way in ("cross-entropy", "from logits", "encoder")}
    return seconds, operations, steps.head.weight.nbytes


def _peak(options: Options, way: str) -> int:
    torch.set_num_threads(options.threads)
    # Loads what is loaded once.
    Steps(replace(options, pairs=1), positions=2).run(way)
    steps = Steps(options)
    return peak_growth(lambda: steps.run(way))
