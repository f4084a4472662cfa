"""Lightning validation with this package and with torchmetrics' metric."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import lightning.pytorch as pl
from torch.utils.data import DataLoader
from torchmetrics import Metric
from torchmetrics.text import BERTScore as PeerBERTScore

from bertscore_tm import BERTScore
from bertscore_tm.callbacks import BERTScoreCallback
from examples.programs.docstrings import quieten
from examples.research.benchmarks.loss import PLAIN, TrainingStep
from examples.research.benchmarks.package import LAYER, MODEL, load_encoders
from examples.research.benchmarks.processes import run_fresh
from examples.research.benchmarks.random_models import T5_SMALL, train_tokenizer
from examples.research.benchmarks.rounds import Figure, in_turn, ratios
from examples.research.benchmarks.texts import Options

_PAIRS, _BATCH_SIZE = 1_000, 16
# torchmetrics' metric pads every text to this length, which few sentences exceed.
_MAX_LENGTH = 128
_PEER = "torchmetrics"


class Validation(pl.LightningModule):
    """A module that only validates pairs, in batches of 16, by a metric or, without one, by a callback."""

    def __init__(self, metric: Metric | None, pairs: Sequence[tuple[str, str]]) -> None:
        super().__init__()
        self.metric = metric
        self.pairs = list(pairs)

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
            self.metric.compute()
            self.metric.reset()


def measure(options: Options) -> Iterator[Figure]:
    """Time validations with this package in turn with torchmetrics' metric.

    All use the same layer of the same encoder and at most 128 tokens per text, and return a score per pair. Each metric
    is created once and validates repeatedly, as in training. torchmetrics' metric tokenizes in ``update``, and loads
    the model and encodes in ``compute``. It excludes special tokens from the matching, and compares a candidate with
    its reference only if all texts are sorted by length; neither affects its speed.

    Yields:
        Ratio of torchmetrics' time to this package's for 1,000 pairs: through the callback and with the metric updated
        in the validation step, in float32, with the references of the previous validation cached, and in bfloat16 where
        the processor computes it. And the time of decoding and scoring a batch by that of a step with cross-entropy,
        of a generator of T5-small's shape that reads at most 64 tokens and writes 24.
    """
    pairs = options.texts[: options.pairs or _PAIRS]
    seconds = run_fresh(_time_validations, options, pairs, threads=options.threads)
    for kind in (kind for kind in seconds if kind != _PEER):
        what = f"validation of {len(pairs):,} pairs: {kind}, faster than torchmetrics"
        yield Figure(what, ratios(seconds[_PEER], seconds[kind]), "times")
    steps = run_fresh(_time_training, options, threads=options.threads)
    what = f"T5-small: decoding and scoring {_BATCH_SIZE} texts, by a training step with as many"
    yield Figure(what, ratios(steps["validation"], steps["training"]), "times")


def _time_validations(options: Options, pairs: Sequence[tuple[str, str]]) -> dict[str, list[float]]:
    quieten()
    encoders = load_encoders(max_length=_MAX_LENGTH)
    metrics = {
        dtype: partial(BERTScore, encoder, reduction="none", cache_bytes=0) for dtype, encoder in encoders.items()
    }
    metrics["float32, references cached"] = partial(BERTScore, encoders["float32"], reduction="none")
    calls: dict[str, Callable[[], Any]] = {}
    for name, make in metrics.items():
        calls[f"callback, {name}"] = _prepare(Validation(None, pairs), [BERTScoreCallback(make())])
        calls[f"metric, {name}"] = _prepare(Validation(make(), pairs), [])
    peer = PeerBERTScore(MODEL, num_layers=LAYER, max_length=_MAX_LENGTH, truncation=True)
    return in_turn(calls | {_PEER: _prepare(Validation(peer, pairs), [])}, options.rounds)


def _prepare(module: Validation, callbacks: list[pl.Callback]) -> Callable[[], Any]:
    """Return a validation by a trainer that writes nothing."""
    silent = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
    trainer = pl.Trainer(accelerator="cpu", devices=1, callbacks=callbacks, **dict.fromkeys(silent, False))
    return partial(trainer.validate, module, verbose=False)


def _time_training(options: Options) -> dict[str, list[float]]:
    texts = options.flat_texts()
    tokenizer = train_tokenizer(T5_SMALL, texts)
    step = TrainingStep(T5_SMALL, tokenizer, replace(options, pairs=_BATCH_SIZE), [PLAIN])
    metric = BERTScore(load_encoders(max_length=_MAX_LENGTH)["float32"], reduction="none", cache_bytes=0)

    def validate() -> None:
        # The weights are random, so that every text has the largest number of tokens.
        ids = step.model.generate(step.inputs, attention_mask=step.mask, min_new_tokens=24, max_new_tokens=24)
        metric(tokenizer.batch_decode(ids, skip_special_tokens=True), texts[:_BATCH_SIZE])

    return in_turn({"validation": validate, "training": partial(step.run, PLAIN)}, options.rounds)
