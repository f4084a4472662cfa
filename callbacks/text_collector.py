"""Base class of callbacks that need all scored texts of a run at its end, with the scores of each."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import lightning.pytorch as pl
from lightning.fabric.utilities.exceptions import MisconfigurationException
from torch import Tensor

from bertscore_tm.callbacks.corpus_warnings import ignore_corpus_warnings
from bertscore_tm.callbacks.scoring import BERTScoreCallback, ScoredBatch, TextListener
from bertscore_tm.callbacks.trainer import count_scored_loaders, gather_objects
from bertscore_tm.losses.sampling import isolate_random_state
from bertscore_tm.metric import BERTScore
from bertscore_tm.scoring.texts import as_text_pairs

__all__ = ["ExampleTexts", "LoaderTexts", "TextCollector"]


class ExampleTexts(NamedTuple):
    """Texts of an example.

    Args:
        input: input of the model; ``None`` if it is not known.
        prediction: generated text.
        references: references of the prediction.
    """

    input: str | None
    prediction: str
    references: list[str]


@dataclass
class LoaderTexts:
    """Texts of one dataloader on this rank.

    Args:
        metric: the metric that scores every pair.
        texts: texts by the number of the example.
    """

    metric: BERTScore
    texts: dict[int, ExampleTexts] = field(default_factory=dict)

    def list_numbers(self, trainer: pl.Trainer) -> list[int]:
        """Return the numbers of the examples of all ranks, in the order of the metric's pairs; a collective call.

        Args:
            trainer: the running trainer.
        """
        return sorted({number for part in gather_objects(trainer, list(self.texts)) for number in part})

    def gather_texts(self, trainer: pl.Trainer, numbers: set[int] | None = None) -> dict[int, ExampleTexts]:
        """Return the texts of all ranks by the number of the example; a collective call.

        Args:
            trainer: the running trainer.
            numbers: the examples to return. Default: all.
        """
        own = {number: texts for number, texts in self.texts.items() if numbers is None or number in numbers}
        # Of an example that several ranks read, the metric keeps the score of the first rank.
        gathered = reversed(gather_objects(trainer, own))
        return {number: found for part in gathered for number, found in part.items()}


class TextCollector(TextListener):
    """Base class that keeps the texts and scores every pair of one BERTScore until the run ends.

    Args:
        name: name of the BERTScore. Default: the first one.
    """

    def __init__(self, name: str | None) -> None:
        super().__init__()
        self.name = name
        self._loaders: list[LoaderTexts] = []

    @abstractmethod
    def write_loader(
        self, trainer: pl.Trainer, loader: LoaderTexts, scores: dict[str, Tensor], stage: str, suffix: str
    ) -> None:
        """Write the texts of a dataloader; called on all ranks.

        Args:
            trainer: the running trainer.
            loader: the texts of this rank.
            scores: precision, recall and F1 of the pairs of all ranks, in the order of the examples' numbers.
            stage: ``"val"`` or ``"test"``.
            suffix: end of the dataloader's keys; empty for a single dataloader.
        """

    def get_inputs(self, scorer: BERTScoreCallback, scored: ScoredBatch) -> Sequence[str] | None:
        """Return the inputs of a batch. Default: ``None``.

        Args:
            scorer: the callback that scores the texts.
            scored: the batch and its texts.
        """
        return None

    def on_test_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Clear the texts."""
        self.start(trainer, pl_module)

    def on_texts_scored(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, scorer: BERTScoreCallback, scored: ScoredBatch
    ) -> None:
        """Keep the texts of a batch."""
        if not self._loaders or scorer is not self.find_scorer(trainer)[0] or all(scored.repeated):
            return
        texts = self._loaders[scored.dataloader_idx].texts
        references = as_text_pairs(scored.preds, scored.target).references
        inputs = self.get_inputs(scorer, scored)
        for i, number in enumerate(scored.numbers):
            if not scored.repeated[i]:
                texts[number] = ExampleTexts(None if inputs is None else inputs[i], scored.preds[i], references[i])

    def metric_for(self, trainer: pl.Trainer, scorer: BERTScoreCallback, dataloader_idx: int) -> BERTScore | None:
        """Return the metric that scores every pair of a dataloader in this run."""
        is_active = bool(self._loaders) and scorer is self.find_scorer(trainer)[0]
        return self._loaders[dataloader_idx].metric if is_active else None

    def on_validation_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Write the texts."""
        self.finish(trainer, pl_module, "val")

    def on_test_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Write the texts."""
        self.finish(trainer, pl_module, "test")

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        """Release the texts."""
        self._loaders = []

    def find_scorer(self, trainer: pl.Trainer) -> tuple[BERTScoreCallback, BERTScore]:
        """Return the callback that scores the texts, and its metric.

        Args:
            trainer: the running trainer.

        Raises:
            MisconfigurationException: the trainer has none.
        """
        own, names = type(self).__name__, []
        for callback in trainer.callbacks:  # type: ignore[attr-defined]
            if isinstance(callback, BERTScoreCallback):
                for name, metric in callback.metrics.items():
                    if isinstance(metric, BERTScore):
                        if self.name in (None, name):
                            return callback, metric
                        names.append(name)
        if names:
            raise MisconfigurationException(
                f"{own} got name={self.name!r}, but the BERTScores are named "
                f"{', '.join(map(repr, names))}: pass one of these names"
            )
        raise MisconfigurationException(
            f"{own} needs a BERTScoreCallback with a BERTScore, but the trainer has none: add "
            f"BERTScoreCallback(BERTScore(...)) to its callbacks"
        )

    def start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Start to keep texts.

        Args:
            trainer: the running trainer.
            pl_module: the module.
        """
        metric = self.find_scorer(trainer)[1]
        # Created on all ranks: a rank without batches must join every collective.
        count = count_scored_loaders(trainer)
        self._loaders = [LoaderTexts(metric.for_selection().per_pair().to(pl_module.device)) for _ in range(count)]

    def finish(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Compute the scores of all pairs and write the texts.

        Args:
            trainer: the running trainer.
            pl_module: the module.
            stage: ``"val"`` or ``"test"``.
        """
        if trainer.sanity_checking or not self._loaders:
            return
        scorer = self.find_scorer(trainer)[0]
        scorer.flush()
        loaders, self._loaders = self._loaders, []
        # Loggers may draw random numbers.
        with isolate_random_state(pl_module.device):
            for number, loader in enumerate(loaders):
                with ignore_corpus_warnings():  # the BERTScoreCallback warns
                    scores = loader.metric.compute()
                if len(scores["f1"]):
                    self.write_loader(trainer, loader, scores, stage, scorer.loader_suffix(number, len(loaders)))
