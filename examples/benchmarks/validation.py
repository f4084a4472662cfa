"""Lightning validation with this package and with torchmetrics' metric."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import Callback
from torch import Tensor
from torch.utils.data import DataLoader
from torchmetrics import Metric

from examples.benchmarks.loss import PLAIN, TrainingStep
from examples.benchmarks.package import load_encoders, make_callback, make_metric
from examples.benchmarks.peers import make_torchmetrics_metric, silence
from examples.benchmarks.processes import run_fresh
from examples.benchmarks.random_models import T5_SMALL, Shape, train_tokenizer
from examples.benchmarks.rounds import Figure, in_turn, ratios
from examples.benchmarks.texts import Options, distinct_pairs, flat_texts

_PAIRS, _BATCH_SIZE = 1_000, 16
# torchmetrics' metric pads every text to this length, which few sentences exceed.
_MAX_LENGTH = 128
_PEER = "torchmetrics"
# Shape of the generator whose decoding is compared with its training.
GENERATOR = T5_SMALL
# Speed-up to reach: with AVX512, and with less.
_TARGETS = {"callback, float32": (2.2, 1.5), "metric, float32": (2.2, 1.3)}


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
    """Time validations with this package in turn with torchmetrics' metric.

    All use the same layer of the same encoder and at most 128 tokens per text, and return a score per pair. Each metric
    is created once and validates repeatedly, as in training. torchmetrics' metric tokenizes in ``update``, and loads
    the model and encodes in ``compute``. It excludes special tokens from the matching, and compares a candidate with
    its reference only if all texts are sorted by length; neither affects its speed.

    Args:
        options: settings; ``pairs`` is 1,000 by default.

    Returns:
        Ratio of torchmetrics' time to this package's: through the callback and with the metric updated in the
        validation step, in float32, with the references of the previous validation cached, and in bfloat16 where the
        processor computes it. And the time of decoding and scoring a batch by that of a step with cross-entropy, of a
        generator of T5-small's shape that reads at most 64 tokens and writes 24.

    Raises:
        ValueError: there are too few distinct texts.
    """
    pairs = distinct_pairs(options.texts, _PAIRS if options.pairs is None else options.pairs)
    seconds = run_fresh(_times, options, pairs)
    has_avx512 = torch.backends.cpu.get_cpu_capability() == "AVX512"
    figures = []
    for kind in (kind for kind in seconds if kind != _PEER):
        targets = _TARGETS.get(kind)
        target = None if targets is None else targets[0 if has_avx512 else 1]
        what = f"validation of {len(pairs):,} pairs: {kind}, faster than torchmetrics"
        figures.append(Figure(what, ratios(seconds[_PEER], seconds[kind]), "times", target))
    steps = run_fresh(_training_times, options, GENERATOR)
    what = f"{GENERATOR.name}: decoding and scoring {_BATCH_SIZE} texts, by a training step with as many"
    return [*figures, Figure(what, ratios(steps["validation"], steps["training"]), "times")]


def prepare(options: Options, pairs: Sequence[tuple[str, str]]) -> dict[str, tuple[Validation, list[Callback]]]:
    """Return the module and the callbacks of each kind of validation of some pairs."""
    encoders = load_encoders(options.model, options.num_layers, max_length=_MAX_LENGTH)
    metrics = {dtype: partial(make_metric, encoder) for dtype, encoder in encoders.items()}
    metrics["float32, references cached"] = partial(make_metric, encoders["float32"], keep_references=True)
    kinds: dict[str, tuple[Validation, list[Callback]]] = {}
    for name, make in metrics.items():
        kinds[f"callback, {name}"] = Validation(None, pairs), [make_callback(make())]
        kinds[f"metric, {name}"] = Validation(make(), pairs), []
    peer = make_torchmetrics_metric(options.model, options.num_layers, _MAX_LENGTH)
    return kinds | {_PEER: (Validation(peer, pairs), [])}


def make_trainer(callbacks: list[Callback]) -> pl.Trainer:
    """Return a CPU trainer that writes nothing."""
    silence()
    return pl.Trainer(
        accelerator="cpu",
        devices=1,
        callbacks=callbacks,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )


def _times(options: Options, pairs: list[tuple[str, str]]) -> dict[str, list[float]]:
    torch.set_num_threads(options.threads)
    functions: dict[str, Callable[[], Any]] = {
        kind: partial(make_trainer(callbacks).validate, module, verbose=False)
        for kind, (module, callbacks) in prepare(options, pairs).items()
    }
    return in_turn(functions, options.rounds)


def _training_times(options: Options, shape: Shape) -> dict[str, list[float]]:
    torch.set_num_threads(options.threads)
    texts = flat_texts(options.texts)
    tokenizer = train_tokenizer(shape, texts, options.model)
    step = TrainingStep(shape, tokenizer, replace(options, pairs=_BATCH_SIZE), PLAIN)
    metric = make_metric(load_encoders(options.model, options.num_layers, max_length=_MAX_LENGTH)["float32"])

    def validate() -> None:
        # The weights are random, so that every text has the largest number of tokens.
        ids = step.model.generate(step.inputs, attention_mask=step.mask, min_new_tokens=24, max_new_tokens=24)
        metric(tokenizer.batch_decode(ids, skip_special_tokens=True), texts[:_BATCH_SIZE])

    return in_turn({"validation": validate, "training": partial(step.run, PLAIN)}, options.rounds)
