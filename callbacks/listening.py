"""Callbacks that are told which texts were scored, so that nothing is generated twice."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import lightning.pytorch as pl
from lightning.pytorch.callbacks import Callback

if TYPE_CHECKING:
    from bertscore_tm.callbacks.scoring import BERTScoreCallback

__all__ = ["ScoredBatch", "TextListener"]


@dataclass(frozen=True)
class ScoredBatch:
    """A batch and its texts.

    Args:
        batch: the batch.
        outputs: what the step returned for it.
        preds: generated texts.
        target: a text, or a list of texts, for each of them.
        numbers: number of each example in the data set, or where no sampler tells it, a number that no other example of
            any rank has.
        repeated: which of them are copies that a distributed sampler adds.
        dataloader_idx: the loader that it comes from.
    """

    batch: Any
    outputs: Any
    preds: list[str]
    target: list[Any]
    numbers: list[int]
    repeated: list[bool]
    dataloader_idx: int


class TextListener(Callback, ABC):
    """A callback that :class:`BERTScoreCallback` tells which texts it has scored."""

    @abstractmethod
    def on_texts_scored(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, scorer: BERTScoreCallback, scored: ScoredBatch
    ) -> None:
        """Take the texts of a batch.

        Args:
            trainer: the running trainer.
            pl_module: the module.
            scorer: the callback that has scored them.
            scored: the texts.
        """
