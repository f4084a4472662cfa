"""Buffer that collects the texts of small validation batches, so that the encoder runs on large ones."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any

from lightning.fabric.utilities.exceptions import MisconfigurationException

from bertscore_tm.metric import BERTScore
from bertscore_tm.scoring.texts import as_text_pairs

__all__ = ["TextBuffer", "add_metric_name"]

# Characters per metric update, for an encoder with one output layer. More would hardly save padding.
_NUM_CHARACTERS_CPU = 65_536
_NUM_CHARACTERS_ACCELERATOR = 131_072


@contextmanager
def add_metric_name(name: str) -> Generator[None, None, None]:
    """Turn a metric's ``TypeError`` or ``ValueError`` into an error that names the metric.

    Args:
        name: name of the metric.

    Raises:
        MisconfigurationException: the metric refused the texts.
    """
    try:
        yield
    except (TypeError, ValueError) as error:
        raise MisconfigurationException(f"{name} cannot score the texts of a batch: {error}") from error


class TextBuffer:
    """Texts of several batches, with which a metric is updated at once.

    The scores are those of one update per batch. If an update fails, the metric and the buffer are as they were before
    the call.

    Args:
        metric: the metric to update; complete only after :meth:`flush`.
        name: name of the metric for errors.
    """

    def __init__(self, metric: BERTScore, name: str) -> None:
        self._metric = metric
        self._name = name
        self._candidates: list[str] = []
        self._references: list[list[str]] = []
        self._indices: list[int] = []
        self._num_characters = 0

    def add(self, preds: Sequence[str], target: Sequence[Any], indices: Sequence[int]) -> None:
        """Add a batch, and update the metric if the buffer is full.

        Args:
            preds: candidates.
            target: one reference, or a list of references, per candidate.
            indices: number of each pair in the data set.

        Raises:
            MisconfigurationException: the metric cannot score these texts or those in the buffer.
        """
        with add_metric_name(self._name):
            texts = as_text_pairs(preds, target)
        num_characters = sum(map(len, chain(texts.candidates, *texts.references)))
        candidates, references = self._candidates + texts.candidates, self._references + texts.references
        numbers = self._indices + list(indices)
        if self._num_characters + num_characters >= self._limit:
            self._update(candidates, references, numbers)
        else:
            self._candidates, self._references, self._indices = candidates, references, numbers
            self._num_characters += num_characters

    def flush(self) -> None:
        """Update the metric with the buffered texts.

        Raises:
            MisconfigurationException: the metric cannot score these texts.
        """
        if self._candidates:
            self._update(self._candidates, self._references, self._indices)

    def _update(self, candidates: list[str], references: list[list[str]], numbers: list[int]) -> None:
        with add_metric_name(self._name):
            self._metric.update(candidates, references, indices=numbers)
        self._candidates, self._references, self._indices, self._num_characters = [], [], [], 0

    @property
    def _limit(self) -> int:
        limit = _NUM_CHARACTERS_CPU if self._metric.device.type == "cpu" else _NUM_CHARACTERS_ACCELERATOR
        return limit // self._metric.encoder.num_outputs
