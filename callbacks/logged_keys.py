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


def warn_if_stale_scores_are_read(trainer: pl.Trainer, names: Iterable[str], every_n: int, first: int) -> None:
    """Warn about each callback and learning-rate scheduler that would count a stale score again, with a remedy.

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
        _warn_if_monitors_score(callback, getattr(callback, "monitor", None), prefixes, remedy)
    if not trainer.lightning_module.automatic_optimization:
        # The user's code steps the schedulers.
        return
    for config in trainer.lr_scheduler_configs:
        if config.reduce_on_plateau:
            remedy = _find_scheduler_remedy(trainer, config, every_n)
            _warn_if_monitors_score(config.scheduler, config.monitor, prefixes, remedy)


def _warn_if_monitors_score(reader: Any, monitor: str | None, prefixes: tuple[str, ...], remedy: str | None) -> None:
    """Warn about a callback or scheduler if it monitors one of our keys and needs a remedy."""
    # The key of a single number has no suffix, so "_" is added to compare it with the prefixes.
    monitors_score = f"{monitor}_".startswith(prefixes)
    if remedy is not None and monitors_score:
        warn_user(f"{type(reader).__name__} counts the last {monitor} again where there is no new one. {remedy}")


def _find_callback_remedy(trainer: pl.Trainer, callback: pl.Callback, *, every_n: int, first: int) -> str | None:
    """Return the settings with which a callback sees each score once, or ``None`` if it does."""
    if is_of_class(callback, "ModelCheckpoint"):
        return _find_checkpoint_remedy(trainer, callback, every_n=every_n, first=first)
    # Other callbacks, such as Lightning's EarlyStopping, read the key after each validation. They see a stale score
    # only if some validations are not scored.
    if every_n == 1 or is_of_class(callback, "BERTScoreEarlyStopping"):
        return None
    return "Use BERTScoreEarlyStopping, which waits for the next score"


def _find_checkpoint_remedy(trainer: pl.Trainer, checkpoint: Any, *, every_n: int, first: int) -> str | None:
    """Return the settings with which a ModelCheckpoint sees each score once, or ``None`` if it does."""
    # Epochs from a scored validation to the next one.
    score_period = every_n * (trainer.check_val_every_n_epoch or 1)
    remedy = (
        f"Leave out every_n_train_steps and train_time_interval, and use save_top_k=1 or "
        f"every_n_epochs={score_period} with first_validation={every_n}"
    )
    saves_by_epochs = checkpoint._every_n_epochs > 0
    if not saves_by_epochs:
        # It saves by steps or time, so it may save several times between two validations.
        return remedy
    if every_n == 1:
        # It saves after validations, and each of them has a new score.
        return None
    if checkpoint.save_top_k in (0, 1):
        # A stale score is not better than the best one, so it does not replace the single saved model.
        return None
    # Scores come with the validations first, first + every_n and so on, but saving is at multiples of every_n_epochs.
    # For example, with a validation per epoch, every_n=3 and first=3, scores come after the epochs 3, 6, 9 and so on,
    # and every_n_epochs=6 saves after 6 and 12. With first=2, scores come after 2, 5 and 8, so they are stale after 6.
    has_scores_at_multiples = first % every_n == 0
    saves_after_scores = checkpoint._every_n_epochs % score_period == 0
    if has_scores_at_multiples and saves_after_scores:
        return None
    return remedy


def _find_scheduler_remedy(trainer: pl.Trainer, config: LRSchedulerConfig, every_n: int) -> str | None:
    """Return the settings with which a scheduler sees each score at most once, or ``None`` if it does."""
    least_frequency = _find_least_frequency(trainer, config.interval, every_n)
    if least_frequency is not None:
        # A larger frequency is fine: the scheduler then leaves out some scores, but there is a new one at each step.
        if config.frequency >= least_frequency:
            return None
        return f"Set frequency={least_frequency} in its configuration"
    other_interval = "step"
    if config.interval == "step":
        other_interval = "epoch"
    least_frequency = _find_least_frequency(trainer, other_interval, every_n)
    if least_frequency is not None:
        return f"Set interval={other_interval!r} and frequency={least_frequency} in its configuration"
    return (
        "Its right frequency= cannot be known, because the number of validations per epoch is unknown. Validate once "
        "per epoch"
    )


def _find_least_frequency(trainer: pl.Trainer, interval: str, every_n: int) -> int | None:
    """Return the smallest frequency with which a scheduler sees no score twice, or ``None`` if none is known.

    For example, with 100 batches per epoch, a validation after every 25 batches and ``every_n=2``, it is 50 for the
    interval ``"step"`` and 1 for ``"epoch"``.
    """
    if trainer.val_check_batch is None:
        # Validations follow a clock.
        return None
    if interval == "step":
        return _find_least_step_frequency(trainer, every_n * trainer.val_check_batch)
    return _find_least_epoch_frequency(trainer, trainer.val_check_batch, every_n)


def _find_least_step_frequency(trainer: pl.Trainer, steps_between_scores: float) -> int | None:
    """Return the smallest frequency in steps; ``None`` if a scheduler with that frequency would never step."""
    # Lightning counts the batches of an epoch from 1, so a frequency above their number is never reached.
    is_reached = math.isfinite(steps_between_scores) and steps_between_scores <= trainer.num_training_batches
    validates_every_epoch = trainer.check_val_every_n_epoch in (None, 1)
    if is_reached and validates_every_epoch:
        return int(steps_between_scores)
    return None


def _find_least_epoch_frequency(trainer: pl.Trainer, batches_between: float, every_n: int) -> int | None:
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
        # Validations follow the number of batches of the whole training, not of an epoch. For example, with 100 batches
        # per epoch and 150 batches from a score to the next one, it is 2 epochs.
        return math.ceil(every_n * batches_between / num_batches)
    # For example, 4 validations per epoch and every_n=6 give a score every 1.5 epochs, so it is 2 epochs.
    validations_per_epoch = num_batches // batches_between
    return val_epochs * math.ceil(every_n / validations_per_epoch)
