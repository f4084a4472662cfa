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
from bertscore_tm.utilities.checks import SCORE_NAMES, full_class_name

Texts = dict[int, tuple[str, Any]]
"""Generated text and its reference or references, by the example's number."""
Inputs = dict[pl.Callback, dict[int, str]]
"""Inputs of the model, by the listener that found them and the example's number."""


@dataclass(frozen=True)
class ScoredBatch:
    """A batch and the texts that were scored for it.

    Args:
        batch: the batch.
        outputs: the return value of the validation or test step.
        preds: generated texts.
        target: a reference, or a list of references, per prediction.
        numbers: number of each example, equal for duplicates on all ranks. On several ranks or with ``index_key`` it
            is the index in the data set, otherwise the position in the order in which the dataloader reads.
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
        suffix: end of the dataloader's keys. Empty for a single dataloader.
        metrics: copies of the callback's BERTScores, by name.
        scores: precision, recall and F1 of each pair by the metric's name, shape (pairs,), float32, on the CPU, in the
            order of the examples' numbers.
        texts: generated text, and reference or references, by the example's number.
        inputs: inputs that :meth:`TextListener.find_inputs` found, by listener and the example's number.
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
    """Metrics of one dataloader during a run, and its texts so far."""

    metrics: dict[str, Metric]  # copies of the callback's
    # Numbers of the examples in each batch on this rank. None on a single rank, and if batches contain their indices.
    batches: list[list[int]] | None
    batch_size: int  # the dataloader's, or the size of the largest batch so far
    texts: Texts = field(default_factory=dict)
    inputs: Inputs = field(default_factory=dict)

    def update(self, batch: ScoredBatch) -> None:
        """Update the BERTScores with a batch, and store its texts.

        The other metrics are updated at the end of the run, because they would count duplicates.
        """
        for metric in self.metrics.values():
            if isinstance(metric, BERTScore):
                metric.update(batch.preds, batch.target, batch.numbers)
        # The texts are kept for the listeners and for the other metrics.
        for number, pred, target in zip(batch.numbers, batch.preds, batch.target, strict=True):
            # Keep the first text of an example, as BERTScore does.
            self.texts.setdefault(number, (pred, target))
        self.batch_size = max(self.batch_size, len(batch.numbers))

    def add_inputs(self, listener: pl.Callback, batch: ScoredBatch, inputs: Any) -> None:
        """Store the inputs that a listener found for a batch, until the end of the run."""
        texts = as_documents(inputs, "inputs")
        if len(texts) != len(batch.preds):
            raise ValueError(
                f"inputs must have one text per prediction, got {len(texts)} inputs for {len(batch.preds)} predictions "
                f"of a batch. Return one each, or None"
            )
        self.inputs.setdefault(listener, {}).update(zip(batch.numbers, texts, strict=True))

    def _update_others(self, trainer: pl.Trainer) -> None:
        """Update the metrics that are not BERTScores, on each rank with the texts of all ranks."""
        others = [metric for metric in self.metrics.values() if not isinstance(metric, BERTScore)]
        if not others:
            return
        # Every rank computes these metrics for all texts, without synchronization: torchmetrics can synchronize neither
        # states that a rank lacks nor lists of unequal lengths.
        _disable_sync(others)
        # Merging drops the duplicates that the distributed sampler adds.
        texts = list(merge_texts(trainer, self.texts).values())
        # Update with the batches of a single process, because some metrics average over updates. All ranks need one
        # batch size for equal results. It is the largest one, because a rank may have read only a smaller last batch.
        batch_size = max(gather_objects(trainer, self.batch_size))
        for start in range(0, len(texts), batch_size):
            batch = texts[start : start + batch_size]
            preds = [pred for pred, _ in batch]
            target = [references for _, references in batch]
            for metric in others:
                metric.update(preds, _match_target_type(metric, target))

    def compute(self, trainer: pl.Trainer) -> tuple[dict[str, Tensor], dict[str, dict[str, Tensor]]]:
        """Return the results by logged name, and each BERTScore's scores of every pair. A collective call."""
        self._update_others(trainer)
        results: dict[str, Tensor] = {}
        scores = {}
        for name, metric in self.metrics.items():
            computed = metric.compute()
            if isinstance(metric, BERTScore):
                # On the CPU, so that listeners can hold them without taking memory of an accelerator.
                scores[name] = {key: computed[key].float().cpu() for key in SCORE_NAMES}
                # Average in float64, because a float32 sum of many pairs loses digits.
                computed = {key: values.double().mean() for key, values in scores[name].items()}
                computed["empty"] = self._share_empty(trainer, metric)
            elif getattr(metric, "return_sentence_level_score", False):
                # The first value is the score of the corpus, the second one has the scores of the sentences.
                computed = computed[0]
            if not isinstance(computed, Mapping):
                results[name] = _as_number(computed, name, metric)
                continue
            for key, value in computed.items():
                logged_name = name
                if key:
                    logged_name = f"{name}_{key}"
                results[logged_name] = _as_number(value, name, metric)
        return results, scores

    def _share_empty(self, trainer: pl.Trainer, metric: BERTScore) -> Tensor:
        """Return the share of all ranks' predictions without a token that is scored. A collective call."""
        preds = [pred for pred, _ in self.texts.values()]
        has_content = metric.encoder.tokenizer(preds).has_content
        by_number = dict(zip(self.texts, has_content, strict=True))
        # Duplicates on several ranks count once.
        all_by_number = ChainMap(*gather_objects(trainer, by_number))
        return 1 - torch.tensor(list(all_by_number.values()), dtype=torch.float64, device="cpu").mean()


def _disable_sync(metrics: Sequence[Metric]) -> None:
    """Turn the synchronization over ranks off, in metrics and in metrics inside them, such as that of a wrapper."""
    for metric in metrics:
        for part in metric.modules():
            if isinstance(part, Metric):
                part.distributed_available_fn = lambda: False


def _as_number(value: Any, name: str, metric: Metric) -> Tensor:
    """Return a result of a metric as a float32 tensor, or raise an error if it is not a single number."""
    number = value
    if isinstance(value, Real):
        number = torch.tensor(value, device="cpu")
    if not isinstance(number, Tensor) or number.numel() != 1:
        raise MisconfigurationException(
            f"BERTScoreCallback logs numbers, but the metric {name!r} ({full_class_name(metric)}) returned {value!r}. "
            f"Choose options with which it returns one number, or a dictionary of numbers"
        )
    return number.float()


def merge_texts(trainer: pl.Trainer, texts: Texts) -> Texts:
    """Return the texts of all ranks by number, in the order of the numbers. A collective call."""
    gathered: Texts = {}
    # If several ranks read one example, the first rank's text wins, as in the metric.
    for part in reversed(gather_objects(trainer, texts)):
        gathered |= part
    return dict(sorted(gathered.items()))


def find_value(key: str, option: str, batch: Any, outputs: Any) -> Any:
    """Return the value under a key of the batch or, if the batch lacks it, of the step's outputs.

    ``option`` is the argument that named the key, for the error.
    """
    for mapping in (batch, outputs):
        # Either may be any object, such as a tuple or None.
        if isinstance(mapping, Mapping) and key in mapping:
            return mapping[key]
    raise MisconfigurationException(
        f"neither the batch nor the return value of the step is a dictionary with the key {option}={key!r}. Add it to "
        f"one of them"
    )


def flatten_metrics(metric: Any, name: str) -> dict[str, Metric]:
    """Return the metrics of a callback by name. Members of a collection get the collection's name as a prefix."""
    if not isinstance(metric, BERTScore | Mapping):
        raise TypeError(
            f"metric is a {full_class_name(metric)}. Pass a bertscore_tm.BERTScore, or a dictionary of BERTScores and "
            f"other text metrics by name"
        )
    entries: Mapping[str, Any] = {name: metric}
    if isinstance(metric, Mapping):
        entries = metric
    # Pairs instead of a dictionary, which would hide repeated names.
    named: list[tuple[str, Any]] = []
    for key, entry in entries.items():
        if not isinstance(entry, MetricCollection):
            named.append((key, entry))
            continue
        # keep_base=True leaves the collection's own prefix and postfix out.
        for member, part in entry.items(keep_base=True):
            named.append((f"{key}_{member}", part))
    if not named:
        raise ValueError("metric is an empty dictionary. Pass at least one metric")
    repeated = find_repeated_keys(named)
    if repeated:
        raise ValueError(f"several metrics log under {repeated}. Give them different names")
    metrics = dict(named)
    if any(isinstance(part, BERTScore) and part.all_layers for part in metrics.values()):
        raise ValueError("BERTScoreCallback logs the scores of one layer, got all layers. Pass a BERTScore with layer=")
    return metrics


def _match_target_type(metric: Metric, target: list[Any]) -> list[Any]:
    """Put single references into lists for metrics that accept only lists.

    BLEU, for example, would split a single text into characters.
    """
    parameter = signature(type(metric).update).parameters.get("target")
    if parameter is None:
        return target
    annotation = parameter.annotation
    # The annotation Sequence[Sequence[str]] means several references per prediction.
    takes_lists = get_origin(annotation) is Sequence and get_origin(get_args(annotation)[0]) is Sequence
    if not takes_lists:
        return target
    lists = []
    for references in target:
        if isinstance(references, str):
            references = [references]
        lists.append(references)
    return lists
