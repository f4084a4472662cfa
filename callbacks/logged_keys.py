"""Keys under which scores are logged: metrics with the same key, and others that read the scores."""

import math
from collections.abc import Iterable
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.utilities.types import LRSchedulerConfig
from torchmetrics import Metric

from bertscore_tm.callbacks.trainer import is_of_class
from bertscore_tm.metric import BERTScore
from bertscore_tm.utilities.score_names import SCORE_NAMES
from bertscore_tm.utilities.warnings import warn_user


def find_repeated_keys(metrics: Iterable[tuple[str, Metric]]) -> list[str]:
    """Return the keys under which several metrics, given with their names, log."""
    ends = [f"_{score}" for score in (*SCORE_NAMES, "empty")]
    keys = [name + end for name, metric in metrics for end in (ends if isinstance(metric, BERTScore) else [""])]
    return sorted({key for key in keys if keys.count(key) > 1})


def warn_of_stale_scores(trainer: pl.Trainer, names: Iterable[str], every_n: int, first: int) -> None:
    """Warn of callbacks and schedulers to which the trainer shows the last score again where there is no new one."""
    starts = tuple(f"val_{name}_" for name in names)
    readers: list[tuple[Any, str | None, str | None]] = []
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        remedy = _find_callback_remedy(trainer, callback, every_n, first)
        readers.append((callback, getattr(callback, "monitor", None), remedy))
    if trainer.lightning_module.automatic_optimization:
        for config in trainer.lr_scheduler_configs:
            if config.reduce_on_plateau:
                readers.append((config.scheduler, config.monitor, _find_scheduler_remedy(trainer, config, every_n)))
    for reader, monitor, remedy in readers:
        if remedy is not None and f"{monitor}_".startswith(starts):
            warn_user(f"{type(reader).__name__} counts the last {monitor} again where there is no new one. {remedy}")


def _find_callback_remedy(trainer: pl.Trainer, callback: pl.Callback, every_n: int, first: int) -> str | None:
    """Return how a callback sees each score once; ``None`` if it does."""
    if is_of_class(callback, "ModelCheckpoint"):
        epochs = callback._every_n_epochs  # type: ignore[attr-defined]  # 0 where it saves by steps or time
        num_epochs = every_n * (trainer.check_val_every_n_epoch or 1)
        replaces_models = callback.save_top_k in (0, 1)  # type: ignore[attr-defined]
        saves_after_scores = first % every_n == epochs % num_epochs == 0
        if epochs > 0 and (every_n == 1 or replaces_models or saves_after_scores):
            return None
        spaced = f"save_top_k=1 or every_n_epochs={num_epochs} with first_validation={every_n}"
        return f"Leave out every_n_train_steps and train_time_interval, and use {spaced}"
    if every_n == 1 or is_of_class(callback, "BERTScoreEarlyStopping"):
        return None
    return "Use BERTScoreEarlyStopping, which waits for the next score"


def _find_scheduler_remedy(trainer: pl.Trainer, config: LRSchedulerConfig, every_n: int) -> str | None:
    """Return the settings with which a scheduler sees each score at most once; ``None`` if it does."""
    frequency = _find_frequency(trainer, config.interval, every_n)
    if frequency is not None:
        return None if config.frequency >= frequency else f"Set frequency={frequency} in its configuration"
    other = "epoch" if config.interval == "step" else "step"
    frequency = _find_frequency(trainer, other, every_n)
    if frequency is not None:
        return f"Set interval={other!r} and frequency={frequency} in its configuration"
    return (
        "Its right frequency= cannot be known, because the number of validations per epoch is unknown. Validate once "
        "per epoch"
    )


def _find_frequency(trainer: pl.Trainer, interval: str, every_n: int) -> int | None:
    """Return the smallest frequency with which a scheduler never sees a score twice; ``None`` if there is none."""
    val_epochs, val_batches = trainer.check_val_every_n_epoch, trainer.val_check_batch
    num_batches = trainer.num_training_batches
    if val_batches is None:
        # Validations follow a clock.
        return None
    if interval == "step":
        between_scores = every_n * val_batches
        # Lightning counts the batches of an epoch from 1, so a scheduler with a larger frequency would never step.
        is_reached = math.isfinite(between_scores) and between_scores <= num_batches
        return int(between_scores) if is_reached and val_epochs in (None, 1) else None
    if val_batches == math.inf:
        # Data without a length is validated at the end of an epoch.
        return every_n * (val_epochs or 1)
    if num_batches == math.inf:
        return None
    if val_epochs is None:
        # Validations follow a number of batches, in which epochs do not matter.
        return math.ceil(every_n * val_batches / num_batches)
    return val_epochs * math.ceil(every_n / (num_batches // val_batches))
