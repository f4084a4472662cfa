"""Stop training early when the logged BERTScore no longer improves."""

from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.callbacks import EarlyStopping
from torch import Tensor

from bertscore_tm.callbacks.scoring import BERTScoreCallback
from bertscore_tm.callbacks.trainer import find_callbacks
from bertscore_tm.utilities.warnings import warn_user

# Fewer scores without improvement are often a dip from which the score recovers.
_MIN_PATIENCE = 3


class BERTScoreEarlyStopping(EarlyStopping):
    """Lightning's ``EarlyStopping`` with defaults for BERTScore; it counts every logged score once.

    The trainer keeps the last value of every logged key. If not every validation computes a score, Lightning's callback
    counts the old value as a score without improvement and stops too early; this one waits for a new value. If
    one rank stops, all do, even if the key is missing on some ranks.

    The arguments have the names of ``lightning.pytorch.callbacks.EarlyStopping``. A resumed run uses its new
    ``patience``.

    Args:
        monitor: the logged key.
        min_delta: smallest change that counts as an improvement.
        patience: number of scores without improvement after which training stops. Early in training the score of
            generated texts often falls for a few validations before it rises, so fewer than 3 warn for a BERTScore.
        verbose: log every decision.
        mode: ``"max"``, since a higher BERTScore is better; or ``"min"`` for other keys.
        check_on_train_epoch_end: ``False`` checks after validation, where the score is logged. ``None`` checks at the
            end of the training epoch if validation runs only there, and otherwise after validation.
        **options: the other arguments of Lightning's callback: ``check_finite``, ``stopping_threshold``,
            ``divergence_threshold``, ``log_rank_zero_only``, and ``strict``, which raises an error if the key is not
            logged. Validations that :class:`BERTScoreCallback` skips are not an error; set it to ``False`` if the first
            validations compute no score for another reason.

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
                f"patience={patience} tends to stop too early: the F1 of generated texts often falls for a few "
                f"validations before it rises. Use patience=5, and keep the best model with "
                f"ModelCheckpoint(monitor={monitor!r}, mode={mode!r})"
            )
        super().__init__(
            monitor, min_delta, patience, verbose, mode, check_on_train_epoch_end=check_on_train_epoch_end, **options
        )
        self._last_checked: Tensor | None = None

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the state of a checkpoint, except for the patience."""
        super().load_state_dict({**state_dict, "patience": self.patience})

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Treat scores that a resumed training restores as checked."""
        for scorer in find_callbacks(trainer, BERTScoreCallback):
            scorer.restore_scores(trainer)
        self._last_checked = trainer.callback_metrics.get(self.monitor)

    def _run_early_stopping_check(self, trainer: pl.Trainer) -> None:
        if trainer.fast_dev_run or self._has_new_value(trainer):  # type: ignore[attr-defined]
            super()._run_early_stopping_check(trainer)
            return
        # A resumed trainer has no values yet, although the key was logged before.
        checked_before = self.wait_count > 0 or bool(self.best_score.isfinite())
        was_logged = checked_before or self.monitor in trainer.callback_metrics
        # A validation that is skipped logs nothing.
        is_missing = not was_logged and all(scorer.is_scoring for scorer in find_callbacks(trainer, BERTScoreCallback))
        # Ranks with a new value make this collective call in Lightning's check. An error of this rank stops them.
        if trainer.strategy.reduce_boolean_decision(is_missing and self.strict, all=False):
            trainer.should_stop = True
            self.stopped_epoch = trainer.current_epoch
        if is_missing:
            self._validate_condition_metric(trainer.callback_metrics)

    def _has_new_value(self, trainer: pl.Trainer) -> bool:
        """Return whether the key was logged since the last check."""
        current, last = trainer.callback_metrics.get(self.monitor), self._last_checked
        self._last_checked = current
        # Every logging allocates a new tensor, and the last checked one is still referenced here, so an equal address
        # means the same logging event.
        return current is not None and (last is None or current.data_ptr() != last.data_ptr())
