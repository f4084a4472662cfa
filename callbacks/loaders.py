"""Texts and metrics of one dataloader during a validation or test run."""

from collections import ChainMap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from inspect import signature
from numbers import Real
from typing import Any, get_args, get_origin

import lightning.pytorch as pl
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from torch import Tensor
from torchmetrics import Metric, MetricCollection

from bertscore_tm.callbacks.logged_keys import find_repeated_keys
from bertscore_tm.callbacks.trainer import gather_objects
from bertscore_tm.metric import BERTScore
from bertscore_tm.scoring.inputs import as_documents
from bertscore_tm.utilities.checks import full_class_name
from bertscore_tm.utilities.score_names import SCORE_NAMES

Texts = dict[int, tuple[str, Any]]
Inputs = dict[pl.Callback, dict[int, str]]


@dataclass(frozen=True)
class ScoredBatch:
    """A batch and the texts that were scored for it.

    Args:
        batch: the batch.
        outputs: the return value of the validation or test step.
        preds: generated texts.
        target: a reference, or a list of references, per prediction.
        numbers: number of each example, equal for duplicates on all ranks: on several ranks or with ``index_key`` its
            index in the data set, otherwise its position in the order in which the dataloader reads.
        dataloader_idx: index of the dataloader.
    """

    batch: Any
    outputs: Any
    preds: list[str]
    target: list[Any]
    numbers: list[int]
    dataloader_idx: int


@dataclass(frozen=True)
class ScoredLoader:
    """Texts of a dataloader on this rank, and scores of its pairs on all ranks.

    Args:
        stage: ``"val"`` or ``"test"``.
        dataloader_idx: index of the dataloader.
        suffix: end of the dataloader's keys; empty for a single dataloader.
        metrics: the BERTScores by name, with the settings of the callback's.
        scores: precision, recall and F1 of each pair by the metric's name, shape (pairs,), float32, on the CPU, in the
            order of the examples' numbers.
        texts: generated text and reference, or references, by the example's number.
        inputs: inputs that :meth:`TextListener.find_inputs` found, by the listener and the example's number.
    """

    stage: str
    dataloader_idx: int
    suffix: str
    metrics: dict[str, BERTScore]
    scores: dict[str, dict[str, Tensor]]
    texts: Texts
    inputs: Inputs


@dataclass
class LoaderScores:
    """Copies of the callback's metrics, and texts so far, of one dataloader during a run."""

    metrics: dict[str, Metric]
    # Numbers of the examples in each batch on this rank of several, unless batches contain their indices.
    batches: list[list[int]] | None
    batch_size: int  # of the largest batch so far, or of the dataloader
    texts: Texts = field(default_factory=dict)
    inputs: Inputs = field(default_factory=dict)

    def update(self, batch: ScoredBatch) -> None:
        """Update the BERTScores, and keep the texts for the other metrics, which do not know duplicates."""
        for metric in self.metrics.values():
            if isinstance(metric, BERTScore):
                metric.update(batch.preds, batch.target, batch.numbers)
        for number, pred, target in zip(batch.numbers, batch.preds, batch.target, strict=True):
            self.texts.setdefault(number, (pred, target))
        self.batch_size = max(self.batch_size, len(batch.numbers))

    def add_inputs(self, listener: pl.Callback, batch: ScoredBatch, inputs: Any) -> None:
        """Keep the inputs that a listener found for a batch, until the end of the run."""
        texts = as_documents(inputs, "inputs")
        if len(texts) != len(batch.preds):
            raise ValueError(
                f"inputs must have one text per prediction, got {len(texts)} inputs for {len(batch.preds)} predictions "
                f"of a batch. Return as many, or none at all"
            )
        self.inputs.setdefault(listener, {}).update(zip(batch.numbers, texts, strict=True))

    def _update_others(self, trainer: pl.Trainer) -> None:
        """Update the other metrics of each rank with the texts of all ranks, as one process would."""
        others = [metric for metric in self.metrics.values() if not isinstance(metric, BERTScore)]
        if not others:
            return
        # torchmetrics can synchronize neither states that a rank lacks nor lists of unequal lengths.
        for part in torch.nn.ModuleList(others).modules():
            if isinstance(part, Metric):
                part.distributed_available_fn = lambda: False
        texts = list(merge_texts(trainer, self.texts).values())
        # Metrics may average over updates: the batches are those of one process.
        batch_size = max(gather_objects(trainer, self.batch_size))
        for start in range(0, len(texts), batch_size):
            preds, target = map(list, zip(*texts[start : start + batch_size], strict=True))
            for metric in others:
                metric.update(preds, _match_target_type(metric, target))

    def compute(self, trainer: pl.Trainer) -> tuple[dict[str, Tensor], dict[str, dict[str, Tensor]]]:
        """Return the results by logged name, and each BERTScore's scores of every pair; a collective call."""
        self._update_others(trainer)
        results, scores = {}, {}
        for name, metric in self.metrics.items():
            computed = metric.compute()
            if isinstance(metric, BERTScore):
                scores[name] = {key: computed[key].float().cpu() for key in SCORE_NAMES}
                full = metric.encoder.tokenizer([pred for pred, _ in self.texts.values()]).has_content
                all_full = ChainMap(*gather_objects(trainer, dict(zip(self.texts, full, strict=True)))).values()
                computed = {key: values.double().mean() for key, values in scores[name].items()}
                computed["empty"] = 1 - torch.tensor(list(all_full), dtype=torch.float64, device="cpu").mean()
            elif getattr(metric, "return_sentence_level_score", False):
                computed = computed[0]  # of the corpus
            for key, value in computed.items() if isinstance(computed, Mapping) else [("", computed)]:
                number = torch.tensor(value, device="cpu") if isinstance(value, Real) else value
                if not isinstance(number, Tensor) or number.numel() != 1:
                    raise MisconfigurationException(
                        f"BERTScoreCallback logs numbers, but the metric {name!r} ({full_class_name(metric)}) returned "
                        f"{value!r}: choose its options so that it returns one number, or a dictionary of numbers"
                    )
                results[f"{name}_{key}" if key else name] = number.float()
        return results, scores


def merge_texts(trainer: pl.Trainer, texts: Texts) -> Texts:
    """Return the texts of all ranks by number, in the order of the numbers; a collective call."""
    gathered: Texts = {}
    # Of an example that several ranks read, the metric keeps the score of the first rank.
    for part in reversed(gather_objects(trainer, texts)):
        gathered |= part
    return dict(sorted(gathered.items()))


def find_value(key: str, option: str, batch: Any, outputs: Any) -> Any:
    """Return what a batch, or else the step's outputs, has under the key that an option names."""
    for mapping in (batch, outputs):
        if isinstance(mapping, Mapping) and key in mapping:
            return mapping[key]
    raise MisconfigurationException(
        f"neither the batch nor what the step returns is a dictionary with the key {option}={key!r}"
    )


def flatten_metrics(metric: Any, name: str) -> dict[str, Metric]:
    """Return the metrics of a callback by name; those of a collection have its name as a prefix."""
    if not isinstance(metric, BERTScore | Mapping):
        raise TypeError(
            f"metric must be a bertscore_tm.BERTScore, or a dictionary of BERTScores and other text metrics by name; "
            f"got a {full_class_name(metric)}"
        )
    named: list[tuple[str, Any]] = []
    for key, entry in metric.items() if isinstance(metric, Mapping) else [(name, metric)]:
        if isinstance(entry, MetricCollection):
            named += [(f"{key}_{member}", part) for member, part in entry.items(keep_base=True)]
        else:
            named.append((key, entry))
    if repeated := find_repeated_keys(named):
        raise ValueError(f"several metrics log under {repeated}: give them different names")
    metrics = dict(named)
    if not metrics:
        raise ValueError("metric is an empty dictionary: pass at least one metric")
    if any(isinstance(part, BERTScore) and part.all_layers for part in metrics.values()):
        raise ValueError("BERTScoreCallback logs the scores of one layer: pass a BERTScore with layer=")
    return metrics


def _match_target_type(metric: Metric, target: list[Any]) -> list[Any]:
    """Put single references into lists for metrics that accept only lists, such as BLEU, which would split a text."""
    parameter = signature(type(metric).update).parameters.get("target")
    annotation = None if parameter is None else parameter.annotation
    if get_origin(annotation) is Sequence and get_origin(get_args(annotation)[0]) is Sequence:
        return [[references] if isinstance(references, str) else references for references in target]
    return target
