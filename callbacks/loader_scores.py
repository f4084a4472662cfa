"""Texts and metrics of one dataloader during a validation or test run."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from inspect import signature
from typing import Any, get_args, get_origin

import lightning.pytorch as pl
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from torch import Tensor
from torchmetrics import Metric, MetricCollection

from bertscore_tm.callbacks.sample_numbers import SampleOrder
from bertscore_tm.callbacks.trainer import gather_objects
from bertscore_tm.metric import BERTScore
from bertscore_tm.scoring.corpus import SCORES
from bertscore_tm.utilities.settings import full_class_name

__all__ = ["LoaderScores", "ScoredBatch", "ScoredLoader", "check_loader_names", "compute_metric", "flatten_metrics"]


@dataclass(frozen=True)
class ScoredBatch:
    """A batch and the texts that were scored for it.

    Args:
        batch: the batch.
        outputs: the return value of the validation or test step.
        preds: generated texts.
        target: a reference, or a list of references, per prediction.
        numbers: number of each example, unique over all ranks: on several ranks or with ``index_key`` its index in the
            data set, otherwise its position in the order in which the dataloader reads.
        repeated: whether each example is known to be a duplicate.
        dataloader_idx: index of the dataloader.
        has_numbers: whether an example has the same number in every run; ``False`` if the order is random.
    """

    batch: Any
    outputs: Any
    preds: list[str]
    target: list[Any]
    numbers: list[int]
    repeated: list[bool]
    dataloader_idx: int
    has_numbers: bool = True


@dataclass(frozen=True)
class ScoredLoader:
    """Scores of a dataloader's pairs on all ranks.

    Args:
        stage: ``"val"`` or ``"test"``.
        dataloader_idx: index of the dataloader.
        suffix: end of the dataloader's keys; empty for a single dataloader.
        metrics: the BERTScores by name, with the settings of the callback's.
        scores: precision, recall and F1 of each pair by the metric's name, shape (pairs,), float32, on the CPU, in the
            order of the examples' numbers.
    """

    stage: str
    dataloader_idx: int
    suffix: str
    metrics: dict[str, BERTScore]
    scores: dict[str, dict[str, Tensor]]


@dataclass
class LoaderScores:
    """State of one dataloader during a run.

    Args:
        metrics: copies of the callback's metrics by name.
        order: the order in which this rank of several reads the examples, unless batches contain their indices.
        has_numbers: whether an example has the same number in every run.
        num_pairs: number of pairs so far, duplicates included.
    """

    metrics: dict[str, Metric]
    order: SampleOrder | None
    has_numbers: bool
    num_pairs: int = 0
    _seen: set[int] = field(default_factory=set)
    _held: dict[int, tuple[str, Any]] = field(default_factory=dict)

    def mark_seen(self, indices: Sequence[int]) -> list[bool]:
        """Return whether this rank has read each example before, and remember the examples."""
        repeated = [index in self._seen or index in indices[:i] for i, index in enumerate(indices)]
        self._seen.update(indices)
        return repeated

    def update(self, batch: ScoredBatch, *, hold: bool) -> None:
        """Update the metrics; other ones than BERTScores, which do not know duplicates, with the new examples only.

        Args:
            batch: texts of which one is new at least.
            hold: keep the texts of the other metrics for :meth:`update_held`, since another rank may read the same.
        """
        for name, metric in self.metrics.items():
            if isinstance(metric, BERTScore):
                with _add_metric_name(name):
                    metric.update(batch.preds, batch.target, batch.numbers)
        examples = zip(batch.numbers, batch.preds, batch.target, batch.repeated, strict=True)
        texts = {number: (pred, target) for number, pred, target, is_repeated in examples if not is_repeated}
        if hold:
            self._held |= texts
        else:
            self._update_others(texts)

    def update_held(self, trainer: pl.Trainer) -> None:
        """Update the other metrics with the held texts that no lower rank holds; a collective call."""
        gathered = gather_objects(trainer, list(self._held))
        lower = {number for part in gathered[: trainer.global_rank] for number in part}
        texts = {number: pair for number, pair in self._held.items() if number not in lower}
        if texts:
            self._update_others(texts)

    def _update_others(self, texts: Mapping[int, tuple[str, Any]]) -> None:
        preds, target = [pred for pred, _ in texts.values()], [target for _, target in texts.values()]
        for name, metric in self.metrics.items():
            if not isinstance(metric, BERTScore):
                with _add_metric_name(name):
                    metric.update(preds, _match_target_type(metric, target))


def flatten_metrics(metric: Any, name: str) -> dict[str, Metric]:
    """Return the metrics of a callback by name; those of a collection have its name as a prefix."""
    metrics: dict[str, Any] = {}
    for key, entry in metric.items() if isinstance(metric, Mapping) else [(name, metric)]:
        if isinstance(metric, Mapping) and isinstance(entry, MetricCollection):
            metrics |= {f"{key}_{member}": part for member, part in entry.items(keep_base=True)}
        else:
            metrics[key] = entry
    if not metrics:
        raise ValueError("metric is an empty dictionary: pass at least one metric")
    for key, part in metrics.items():
        if {"/", "\\"} & set(key):
            raise ValueError(f"metric names become part of file names and must be without slashes, got {key!r}")
        if not isinstance(part, Metric if isinstance(metric, Mapping) else BERTScore):
            raise TypeError(
                f"metric must be a bertscore_tm.BERTScore, or a dictionary of BERTScores and other text metrics by "
                f"name; got a {full_class_name(part)}" + (f" under {key!r}" if isinstance(metric, Mapping) else "")
            )
        if isinstance(part, BERTScore) and (part.all_layers or part.component is not None):
            raise ValueError(
                "BERTScoreCallback logs one precision, recall and F1 per metric: pass a BERTScore with one layer and "
                "without component="
            )
    return metrics


def check_loader_names(names: Sequence[str]) -> list[str]:
    """Return the names of dataloaders as a list, if they can end the logged keys."""
    if isinstance(names, str):
        raise TypeError(f"loader_names must be a list of names, one per dataloader, got {names!r}")
    if len(set(names)) < len(names) or any(not name or {"/", "\\"} & set(name) for name in names):
        raise ValueError(f"loader_names must be different texts without slashes, got {list(names)}")
    return list(names)


@contextmanager
def _add_metric_name(name: str) -> Generator[None, None, None]:
    """Turn a metric's ``TypeError`` or ``ValueError`` into an error that names the metric."""
    try:
        yield
    except (TypeError, ValueError) as error:
        raise MisconfigurationException(f"{name} cannot score the texts of a batch: {error}") from error


def _match_target_type(metric: Metric, target: list[Any]) -> list[Any]:
    """Put single references into lists for metrics that accept only lists, such as BLEU, which would split a text."""
    parameter = signature(type(metric).update).parameters.get("target")
    annotation = None if parameter is None else parameter.annotation
    if get_origin(annotation) is Sequence and get_origin(get_args(annotation)[0]) is Sequence:
        return [[references] if isinstance(references, str) else references for references in target]
    return target


def compute_metric(name: str, metric: Metric) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Compute a metric; a collective call.

    Returns:
        Its results by logged name, and for a BERTScore precision, recall and F1 of every pair, on the CPU.
    """
    computed = metric.compute()
    if not isinstance(computed, Mapping):
        computed = {"": computed}
    pairs = {}
    if isinstance(metric, BERTScore):
        pairs = {key: computed[key].float().cpu() for key in SCORES}
        computed = {**computed, **{key: scores.double().mean() for key, scores in pairs.items()}}
    results = {}
    for key, value in computed.items():
        number = (value if isinstance(value, Tensor) else torch.tensor(value, device="cpu")).float()
        if number.numel() != 1:
            raise MisconfigurationException(
                f"{name} returns {key or 'a tensor'} of shape {tuple(number.shape)}, but only single numbers can be "
                f"logged: configure the metric to return the mean"
            )
        results[f"{name}_{key}" if key else name] = number.reshape(())
    return results, pairs
