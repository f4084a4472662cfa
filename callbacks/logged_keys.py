"""Logged keys: metrics that share a key, and callbacks and schedulers that read a stale score."""

import math
from collections import Counter
from collections.abc import Iterable
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.utilities.types import LRSchedulerConfig
from torchmetrics import Metric

from bertscore_tm.callbacks.trainer import is_of_class
from bertscore_tm.metric import BERTScore
from bertscore_tm.utilities.checks import SCORE_NAMES
from bertscore_tm.utilities.warnings import warn_user


def find_repeated_keys(metrics: Iterable[tuple[str, Metric]]) -> list[str]:
    """Return the keys under which several of the named metrics log."""
    # A BERTScore logs four keys, another metric at least its name.
    num_metrics: Counter[str] = Counter()
    for name, metric in metrics:
        if isinstance(metric, BERTScore):
            num_metrics.update(f"{name}_{score}" for score in (*SCORE_NAMES, "empty"))
        else:
            num_metrics[name] += 1
    return sorted(key for key, count in num_metrics.items() if count > 1)


def warn_of_stale_scores(trainer: pl.Trainer, names: Iterable[str], every_n: int, first: int) -> None:
    """Warn about callbacks and learning-rate schedulers that would count a stale score again, with a remedy.

    After a validation without scores, the trainer still shows the last ones to everybody who monitors their keys.

    Args:
        trainer: the trainer.
        names: names of the metrics whose keys are monitored.
        every_n: every n-th validation is scored.
        first: number of the first scored validation, from 1.
    """
    prefixes = tuple(f"val_{name}_" for name in names)
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        remedy = _find_callback_remedy(trainer, callback, every_n=every_n, first=first)
        _warn_reader(callback, getattr(callback, "monitor", None), prefixes, remedy)
    if not trainer.lightning_module.automatic_optimization:
        # The user's code steps the schedulers.
        return
    for config in trainer.lr_scheduler_configs:
        if config.reduce_on_plateau:
            remedy = _find_scheduler_remedy(trainer, config, every_n)
            _warn_reader(config.scheduler, config.monitor, prefixes, remedy)


def _warn_reader(reader: Any, monitor: str | None, prefixes: tuple[str, ...], remedy: str | None) -> None:
    """Warn about a reader with a remedy if it monitors one of our keys."""
    # The key of a single number has no suffix, so "_" is added to compare it with the prefixes.
    monitors_score = f"{monitor}_".startswith(prefixes)
    if remedy is not None and monitors_score:
        warn_user(f"{type(reader).__name__} counts the last {monitor} again where there is no new one. {remedy}")


def _find_callback_remedy(trainer: pl.Trainer, callback: pl.Callback, *, every_n: int, first: int) -> str | None:
    """Return the settings with which a callback sees each score once, or ``None`` if it does."""
    if is_of_class(callback, "ModelCheckpoint"):
        return _find_checkpoint_remedy(trainer, callback, every_n=every_n, first=first)
    # Others, such as Lightning's EarlyStopping, read the key after each validation. They see a stale score only if some
    # validations are not scored.
    if every_n == 1 or is_of_class(callback, "BERTScoreEarlyStopping"):
        return None
    return "Use BERTScoreEarlyStopping, which waits for the next score"


def _find_checkpoint_remedy(trainer: pl.Trainer, checkpoint: Any, *, every_n: int, first: int) -> str | None:
    """Return the settings with which a ModelCheckpoint sees each score once, or ``None`` if it does."""
    saves_by_epochs = checkpoint._every_n_epochs > 0  # 0 if it saves by steps or time
    # Epochs from a scored validation to the next one.
    score_period = every_n * (trainer.check_val_every_n_epoch or 1)
    # A stale score is not better than the best one, so it does not replace a single saved model.
    keeps_at_most_one = checkpoint.save_top_k in (0, 1)
    # Scored validations are first, first + every_n and so on, and saving is at multiples of its period.
    is_in_phase = first % every_n == 0
    saves_after_scores = is_in_phase and checkpoint._every_n_epochs % score_period == 0
    if saves_by_epochs and (every_n == 1 or keeps_at_most_one or saves_after_scores):
        return None
    return (
        f"Leave out every_n_train_steps and train_time_interval, and use save_top_k=1 or "
        f"every_n_epochs={score_period} with first_validation={every_n}"
    )


def _find_scheduler_remedy(trainer: pl.Trainer, config: LRSchedulerConfig, every_n: int) -> str | None:
    """Return the settings with which a scheduler sees each score at most once, or ``None`` if it does."""
    frequency = _find_frequency(trainer, config.interval, every_n)
    if frequency is not None:
        if config.frequency >= frequency:
            return None
        return f"Set frequency={frequency} in its configuration"
    other_interval = "step"
    if config.interval == "step":
        other_interval = "epoch"
    frequency = _find_frequency(trainer, other_interval, every_n)
    if frequency is not None:
        return f"Set interval={other_interval!r} and frequency={frequency} in its configuration"
    return (
        "Its right frequency= cannot be known, because the number of validations per epoch is unknown. Validate once "
        "per epoch"
    )


def _find_frequency(trainer: pl.Trainer, interval: str, every_n: int) -> int | None:
    """Return the smallest frequency with which a scheduler sees no score twice, or ``None`` if none is known.

    For example, with 100 batches per epoch, a validation after every 25 batches and ``every_n=2``, it is 50 for the
    interval ``"step"`` and 1 for ``"epoch"``.
    """
    if trainer.val_check_batch is None:
        # Validations follow a clock.
        return None
    if interval == "step":
        return _find_step_frequency(trainer, every_n * trainer.val_check_batch)
    return _find_epoch_frequency(trainer, trainer.val_check_batch, every_n)


def _find_step_frequency(trainer: pl.Trainer, steps_between_scores: float) -> int | None:
    """Return the smallest frequency in steps; ``None`` if a scheduler with that frequency would never step."""
    # Lightning counts the batches of an epoch from 1, so a frequency above their number is never reached.
    is_reached = math.isfinite(steps_between_scores) and steps_between_scores <= trainer.num_training_batches
    validates_every_epoch = trainer.check_val_every_n_epoch in (None, 1)
    if is_reached and validates_every_epoch:
        return int(steps_between_scores)
    return None


def _find_epoch_frequency(trainer: pl.Trainer, batches_between: float, every_n: int) -> int | None:
    """Return the smallest frequency in epochs; ``None`` if the number of validations per epoch is unknown.

    ``batches_between`` is the number of training batches from a validation to the next one.
    """
    val_epochs = trainer.check_val_every_n_epoch
    num_batches = trainer.num_training_batches
    if batches_between == math.inf:
        # Data without a length is validated at the end of an epoch.
        return every_n * (val_epochs or 1)
    if num_batches == math.inf:
        return None
    if val_epochs is None:
        # Validations follow the number of batches of the whole training, not of an epoch.
        return math.ceil(every_n * batches_between / num_batches)
    validations_per_epoch = num_batches // batches_between
    return val_epochs * math.ceil(every_n / validations_per_epoch)
