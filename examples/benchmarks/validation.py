"""Lightning validation with this package and with torchmetrics' metric, and the share of texts of each rank."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import lightning.pytorch as pl
import torch
import transformers
from lightning.fabric.utilities.warnings import PossibleUserWarning
from lightning.pytorch.strategies import DDPStrategy
from torch import Tensor
from torch.utils.data import DataLoader
from torchmetrics import Metric
from torchmetrics.text import BERTScore as TorchmetricsBERTScore

from bertscore_tm import BERTScore, FrozenEncoder
from bertscore_tm.callbacks import BERTScoreCallback
from examples.benchmarks.encoders import CountingEncoder
from examples.benchmarks.options import Options, Texts
from examples.benchmarks.processes import run_fresh, run_ranks
from examples.benchmarks.rounds import Figure, in_turn, ratios

__all__ = ["Validation", "distinct_pairs", "make_metric", "measure", "texts_per_rank"]

_PAIRS = 1_000
_BATCH_SIZE = 16
# torchmetrics' metric pads every text to this length, which few sentences exceed.
_MAX_LENGTH = 128
_OURS, _KNOWN, _PEER = "ours", "ours, references known", "torchmetrics"
_CALLBACK, _CALLBACK_KNOWN, _CALLBACK_AUTO = "callback", "callback, references known", "callback, dtype auto"


class Validation(pl.LightningModule):
    """A module that only validates fixed texts, in batches of 16.

    Args:
        metric: the metric. Default: none, a callback scores the texts that the step returns.
        pairs: candidates with one reference each.

    Attributes:
        scores: result of the metric in the last validation.
    """

    def __init__(self, metric: Metric | None, pairs: Sequence[tuple[str, str]]) -> None:
        super().__init__()
        self.metric = metric
        self.pairs = list(pairs)
        self.scores: dict[str, Tensor] = {}

    def val_dataloader(self) -> DataLoader[Any]:
        """Return batches of candidates and references."""
        return DataLoader(self.pairs, batch_size=_BATCH_SIZE)  # type: ignore[arg-type]

    def validation_step(self, batch: list[tuple[str, ...]], batch_idx: int) -> dict[str, list[str]]:
        """Update the metric with a batch, and return its texts."""
        candidates, references = batch
        texts = {"preds": list(candidates), "target": list(references)}
        if self.metric is not None:
            self.metric.update(**texts)
        return texts

    def on_validation_epoch_end(self) -> None:
        """Compute the scores."""
        if self.metric is not None:
            self.scores = self.metric.compute()
            self.metric.reset()


def measure(options: Options) -> list[Figure]:
    """Time validations with this package and with torchmetrics' metric, and count the texts encoded by two ranks.

    All use the same layer of the same encoder and at most 128 tokens per text, and return a score per pair. Each metric
    is created once and validates repeatedly, as in training. This package scores through ``BERTScoreCallback``, which
    collects small batches, and with the metric alone, updated in the validation step. torchmetrics' metric tokenizes in
    ``update``, loads the model and encodes in ``compute``. It excludes special tokens from the matching, and compares a
    candidate with its reference only if all texts are sorted by length; neither affects its speed.

    Args:
        options: settings; ``pairs`` is 1,000 by default.

    Returns:
        Ratio of torchmetrics' time to this package's, without and with cached references and, where the processor
        computes bfloat16, with ``dtype="auto"``; and the share of all texts that each of two ranks encodes.

    Raises:
        ValueError: there are too few distinct texts.
    """
    pairs = distinct_pairs(options.texts, _PAIRS if options.pairs is None else options.pairs)
    seconds = run_fresh(_times, options, pairs)
    what = f"validation of {len(pairs):,} pairs, torchmetrics by"
    figures = [
        Figure(f"{what} {kind}", ratios(seconds[_PEER], times), "times", 2.0 if kind == _CALLBACK else None)
        for kind, times in seconds.items()
        if kind != _PEER
    ]
    counts = texts_per_rank(pairs, options.model, options.num_layers)
    return [
        *figures,
        *(
            Figure(f"texts that rank {rank} of two encodes", [count / (2 * len(pairs))], "share", 0.52, at_most=True)
            for rank, count in enumerate(counts)
        ),
    ]


def distinct_pairs(texts: Texts, count: int) -> list[tuple[str, str]]:
    """Return pairs with one reference, all texts distinct.

    Args:
        texts: candidates with their references.
        count: number of pairs.

    Returns:
        The first such pairs.

    Raises:
        ValueError: there are too few.

    Example:
        >>> distinct_pairs([("a", ["b", "c"]), ("d", ["b"]), ("e", ["f"])], 2)
        [('a', 'b'), ('e', 'f')]
    """
    chosen: list[tuple[str, str]] = []
    seen: set[str] = set()
    for candidate, (reference, *_) in texts:
        if len(chosen) < count and candidate != reference and not seen & {candidate, reference}:
            chosen.append((candidate, reference))
            seen |= {candidate, reference}
    if len(chosen) < count:
        raise ValueError(f"the texts give {len(chosen)} pairs of distinct texts, not {count}: ask for fewer")
    return chosen


def make_metric(kind: str, model: str, num_layers: int) -> Metric:
    """Return a metric with one score per pair.

    Args:
        kind: ``"ours"`` or ``"callback"``, without a cache; the same with ``", references known"``, with a cache of
            references; ``"callback, dtype auto"``; or ``"torchmetrics"``.
        model: name or folder of the encoder.
        num_layers: encoder layer.

    Returns:
        The metric.
    """
    if kind == _PEER:
        return TorchmetricsBERTScore(model, num_layers=num_layers, max_length=_MAX_LENGTH, truncation=True)
    dtype = "auto" if kind == _CALLBACK_AUTO else "float32"
    encoder = FrozenEncoder(model, num_layers=num_layers, max_length=_MAX_LENGTH, dtype=dtype)
    kept: dict[str, Any] = {} if kind in (_KNOWN, _CALLBACK_KNOWN) else {"cache_bytes": 0}
    return BERTScore(encoder, reduction="none", **kept)


def texts_per_rank(pairs: Sequence[tuple[str, str]], model: str, num_layers: int) -> list[int]:
    """Return the numbers of texts that two ranks encode in a validation.

    Args:
        pairs: candidates with one reference each.
        model: name or folder of the encoder.
        num_layers: encoder layer.

    Returns:
        Number of encoded texts of each rank.
    """
    return run_ranks(_texts_of_rank, 2, list(pairs), model, num_layers)


def _times(options: Options, pairs: list[tuple[str, str]]) -> dict[str, list[float]]:
    torch.set_num_threads(options.threads)
    functions: dict[str, Callable[[], Any]] = {}
    for kind in (_CALLBACK, _CALLBACK_KNOWN, _CALLBACK_AUTO, _OURS, _KNOWN, _PEER):
        metric = make_metric(kind, options.model, options.num_layers)
        if kind == _CALLBACK_AUTO and metric.encoder.resolve_dtype("cpu") == torch.float32:
            continue
        if kind in (_CALLBACK, _CALLBACK_KNOWN, _CALLBACK_AUTO):
            trainer, module = _quiet_trainer(callbacks=[BERTScoreCallback(metric)]), Validation(None, pairs)
        else:
            trainer, module = _quiet_trainer(), Validation(metric, pairs)
        functions[kind] = partial(trainer.validate, module, verbose=False)
    return in_turn(functions, options.rounds)


def _texts_of_rank(rank: int, pairs: list[tuple[str, str]], model: str, num_layers: int) -> int:
    # Lightning reads these for processes that it did not start.
    os.environ.update(LOCAL_RANK=str(rank), NODE_RANK="0")
    encoder = CountingEncoder(model, num_layers=num_layers, max_length=_MAX_LENGTH)
    trainer = _quiet_trainer(devices=2, strategy=DDPStrategy(process_group_backend="gloo"))
    trainer.validate(Validation(BERTScore(encoder, cache_bytes=0), pairs), verbose=False)
    return encoder.counts.texts


def _quiet_trainer(**options: Any) -> pl.Trainer:
    """Return a CPU trainer, and silence all messages of this process except errors."""
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.simplefilter("ignore", PossibleUserWarning)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    return pl.Trainer(
        **{"accelerator": "cpu", "devices": 1} | options,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
