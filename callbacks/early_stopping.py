"""Early stopping on the logged BERTScore."""

from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.callbacks import EarlyStopping
from torch import Tensor

from bertscore_tm.callbacks.scoring import BERTScoreCallback
from bertscore_tm.callbacks.trainer import find_callbacks
from bertscore_tm.utilities.warnings import warn_user

# A smaller patience often stops in a dip from which the score of generated texts recovers.
_MIN_PATIENCE = 3


class BERTScoreEarlyStopping(EarlyStopping):
    """Lightning's ``EarlyStopping`` with defaults for BERTScore; it counts every logged score once.

    The trainer keeps the last value of every logged key. If some validations compute no score, Lightning's callback
    counts the old value again as a score without improvement, and stops too early. This one waits for a new value. If
    one rank stops, all ranks stop, even if the key is missing on some of them.

    The arguments have the names of ``lightning.pytorch.callbacks.EarlyStopping``. A resumed run uses its new
    ``patience``.

    Args:
        monitor: the logged key.
        min_delta: smallest change that counts as an improvement.
        patience: number of scores without improvement after which training stops. Below 3 there is a warning for a
            BERTScore, because early in training the score of generated texts often falls before it rises.
        verbose: log every decision.
        mode: ``"max"``, because a higher BERTScore is better, or ``"min"`` for other keys.
        check_on_train_epoch_end: ``False`` checks after validation, where the score is logged. ``None`` checks at the
            end of the training epoch if validation runs only there, and otherwise after validation.
        **options: the other arguments of Lightning's callback: ``check_finite``, ``stopping_threshold``,
            ``divergence_threshold``, ``log_rank_zero_only``, and ``strict``, which raises an error if the key is not
            logged. A validation that :class:`BERTScoreCallback` skips is not an error. Set ``strict=False`` if the
            first validations compute no score for another reason.

    Raises:
        RuntimeError: at the first check, if ``strict`` is set and the key is not logged on this rank.

    Example:
        >>> BERTScoreEarlyStopping(patience=6).monitor
        'val_bertscore_f1'
    """

    def __init__(
        self,
        monitor: str = "val_bertscore_f1",
        min_delta: float = 0.0,
        patience: int = 5,
        verbose: bool = False,
        mode: str = "max",
        *,
        check_on_train_epoch_end: bool | None = False,
        **options: Any,
    ) -> None:
        if patience < _MIN_PATIENCE and "bertscore" in monitor:
            warn_user(
                f"patience={patience} tends to stop too early, because F1 often falls before it rises. "
                f"Use patience=5 with ModelCheckpoint(monitor={monitor!r}, mode={mode!r})"
            )
        super().__init__(
            monitor, min_delta, patience, verbose, mode, check_on_train_epoch_end=check_on_train_epoch_end, **options
        )
        self._last_checked: Tensor | None = None

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the state of a checkpoint, except for the patience."""
        # Users resume a training with a larger patience because it had stopped too early.
        super().load_state_dict({**state_dict, "patience": self.patience})

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Mark the score that a resumed training restores as checked, because it was counted before."""
        for scorer in find_callbacks(trainer, BERTScoreCallback):
            scorer.restore_scores(trainer)
        self._last_checked = trainer.callback_metrics.get(self.monitor)

    def _run_early_stopping_check(self, trainer: pl.Trainer) -> None:
        if trainer.fast_dev_run or self._has_new_value(trainer):  # type: ignore[attr-defined]
            super()._run_early_stopping_check(trainer)
            return
        # A resumed trainer has no values until the next validation, although the key was logged before.
        checked_before = self.wait_count > 0 or bool(self.best_score.isfinite())
        was_logged = checked_before or self.monitor in trainer.callback_metrics
        # A skipped validation logs nothing, so its missing key is not an error.
        is_skipped = any(not scorer.is_scoring for scorer in find_callbacks(trainer, BERTScoreCallback))
        is_missing = not was_logged and not is_skipped
        # Lightning's check reduces its decision over ranks. A rank without a new value has to join this collective,
        # and an error on this rank stops the others.
        should_stop = trainer.strategy.reduce_boolean_decision(is_missing and self.strict, all=False)
        if should_stop:
            trainer.should_stop = True
            self.stopped_epoch = trainer.current_epoch
        if is_missing:
            # Lightning's error or, without ``strict``, its warning.
            self._validate_condition_metric(trainer.callback_metrics)

    def _has_new_value(self, trainer: pl.Trainer) -> bool:
        """Return whether the key was logged since the last check."""
        current = trainer.callback_metrics.get(self.monitor)
        last = self._last_checked
        self._last_checked = current
        if current is None:
            return False
        # Each call of log() stores a new tensor. The last checked one is still referenced here, so its memory is not
        # reused: an equal address means that nothing new was logged.
        return last is None or current.data_ptr() != last.data_ptr()
