"""Keys under which scores are logged: metrics with the same key, and others that read the scores."""

import math
from collections.abc import Iterable

import lightning.pytorch as pl
from torchmetrics import Metric

from bertscore_tm.callbacks.trainer import is_of_class
from bertscore_tm.metric import BERTScore
from bertscore_tm.utilities.score_names import SCORE_NAMES
from bertscore_tm.utilities.user_warnings import warn_user


def find_repeated_keys(metrics: Iterable[tuple[str, Metric]]) -> list[str]:
    """Return the keys under which several metrics, given with their names, log."""
    ends = [f"_{score}" for score in (*SCORE_NAMES, "empty")]
    keys = [name + end for name, metric in metrics for end in (ends if isinstance(metric, BERTScore) else [""])]
    return sorted({key for key in keys if keys.count(key) > 1})


def show_scores_once(trainer: pl.Trainer, names: Iterable[str], every_n: int, first: int) -> None:
    """Let schedulers step once per score, and warn of others to whom the trainer shows the last score again."""
    starts = tuple(f"val_{name}_" for name in names)
    # Lightning sets no interval where validations follow a clock.
    val_epochs, val_interval = trainer.check_val_every_n_epoch, getattr(trainer, "val_check_interval", None)
    num_epochs = every_n * (val_epochs or 1)
    readers = []
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        reads_again = every_n > 1 and not is_of_class(callback, "BERTScoreEarlyStopping")
        remedy = "use BERTScoreEarlyStopping, which waits for the next score"
        if is_of_class(callback, "ModelCheckpoint"):
            epochs = callback._every_n_epochs  # 0 where it saves by steps or time
            is_spaced = callback.save_top_k in (0, 1) or first % every_n == epochs % num_epochs == 0
            reads_again = epochs == 0 or (reads_again and not is_spaced)
            spaced = f"save_top_k=1 or every_n_epochs={num_epochs} with first_validation={every_n}"
            remedy = f"leave out every_n_train_steps and train_time_interval, and use {spaced}"
        if reads_again:
            readers.append((callback, getattr(callback, "monitor", None), remedy))
    for config in trainer.lr_scheduler_configs:
        if not f"{config.monitor}_".startswith(starts):
            continue
        unit = 1 if config.interval == "step" else trainer.num_training_batches
        if config.interval == "epoch" and val_epochs is not None and isinstance(val_interval, float):
            config.frequency = max(config.frequency, val_epochs * math.ceil(every_n / int(1 / val_interval)))
        elif config.frequency < num_epochs * (trainer.val_check_batch or math.inf) / unit:
            readers.append((config.scheduler, config.monitor, "set the frequency= of its configuration"))
    for reader, monitor, remedy in readers:
        if f"{monitor}_".startswith(starts):
            warn_user(f"{type(reader).__name__} counts the last {monitor} again where there is no new one: {remedy}")
