"""Base class of callbacks that need all scored texts of a run at its end, with the scores of each."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import lightning.pytorch as pl
from lightning.fabric.utilities.exceptions import MisconfigurationException
from torch import Tensor

from bertscore_tm.callbacks.scoring import BERTScoreCallback, ScoredBatch, ScoredLoader, TextListener
from bertscore_tm.callbacks.trainer import count_scored_loaders, gather_objects
from bertscore_tm.losses.sequence.sampling import isolate_random_state
from bertscore_tm.metric import BERTScore
from bertscore_tm.scoring.texts import as_text_pairs

__all__ = ["ExampleTexts", "TextCollector", "gather_numbers", "gather_texts"]


class ExampleTexts(NamedTuple):
    """Input of the model, if it is known, generated text and references of an example."""

    input: str | None
    prediction: str
    references: list[str]


def gather_numbers(trainer: pl.Trainer, texts: Mapping[int, ExampleTexts]) -> list[int]:
    """Return the numbers of the examples of all ranks, in the order of the scores; a collective call."""
    return sorted({number for part in gather_objects(trainer, list(texts)) for number in part})


def gather_texts(trainer: pl.Trainer, texts: Mapping[int, ExampleTexts]) -> dict[int, ExampleTexts]:
    """Return the texts of all ranks by the number of the example; a collective call."""
    # Of an example that several ranks read, the metric keeps the score of the first rank.
    return {number: found for part in reversed(gather_objects(trainer, dict(texts))) for number, found in part.items()}


class TextCollector(TextListener):
    """Base class that keeps the texts of a run until the BERTScore ``name``, or the first one, is computed."""

    def __init__(self, name: str | None) -> None:
        super().__init__()
        self.name = name
        self._texts: list[dict[int, ExampleTexts]] = []

    @abstractmethod
    def write_loader(
        self,
        trainer: pl.Trainer,
        texts: dict[int, ExampleTexts],
        scores: dict[str, Tensor],
        metric: BERTScore,
        loader: ScoredLoader,
    ) -> None:
        """Write the texts of a dataloader; called on all ranks.

        Args:
            trainer: the running trainer.
            texts: texts of this rank by the number of the example.
            scores: precision, recall and F1 of the pairs of all ranks, in the order of the examples' numbers.
            metric: the metric that computed the scores.
            loader: the dataloader.
        """

    def get_inputs(self, scorer: BERTScoreCallback, scored: ScoredBatch) -> Sequence[str] | None:
        """Return the inputs of a batch as texts. Default: ``None``."""
        return None

    def on_validation_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Start to keep texts."""
        self._texts = [] if trainer.sanity_checking else [{} for _ in range(count_scored_loaders(trainer))]

    def on_test_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Start to keep texts."""
        TextCollector.on_validation_epoch_start(self, trainer, pl_module)

    def on_texts_scored(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, scorer: BERTScoreCallback, scored: ScoredBatch
    ) -> None:
        """Keep the texts of a batch."""
        if not self._texts or scorer is not self.find_scorer(trainer)[0] or all(scored.repeated):
            return
        texts = self._texts[scored.dataloader_idx]
        references = as_text_pairs(scored.preds, scored.target).references
        inputs = self.get_inputs(scorer, scored)
        for i, number in enumerate(scored.numbers):
            if not scored.repeated[i]:
                texts[number] = ExampleTexts(None if inputs is None else inputs[i], scored.preds[i], references[i])

    def on_run_scored(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        scorer: BERTScoreCallback,
        loaders: Sequence[ScoredLoader],
    ) -> None:
        """Write the texts."""
        found, name = self.find_scorer(trainer)
        if not self._texts or scorer is not found:
            return
        texts, self._texts = self._texts, []
        # Loggers may draw random numbers.
        with isolate_random_state(pl_module.device):
            for loader in loaders:
                own = texts[loader.dataloader_idx]
                self.write_loader(trainer, own, loader.scores[name], loader.metrics[name], loader)

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        """Release the texts."""
        self._texts = []

    def find_scorer(self, trainer: pl.Trainer) -> tuple[BERTScoreCallback, str]:
        """Return the callback that scores the texts, and the name of its metric."""
        own, names = type(self).__name__, []
        for callback in trainer.callbacks:  # type: ignore[attr-defined]
            if isinstance(callback, BERTScoreCallback):
                for name, metric in callback.metrics.items():
                    if isinstance(metric, BERTScore):
                        if self.name in (None, name):
                            return callback, name
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
