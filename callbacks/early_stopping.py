"""Stop training early when the logged BERTScore no longer improves."""

from __future__ import annotations

from typing import Any

import lightning.pytorch as pl
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.callbacks import EarlyStopping
from torch import Tensor

from bertscore_tm.callbacks.trainer import has_validation_loaders
from bertscore_tm.utilities.user_warnings import warn_user

__all__ = ["BERTScoreEarlyStopping"]

# Fewer scores without improvement are often a dip from which the score recovers.
_MIN_PATIENCE = 3


class BERTScoreEarlyStopping(EarlyStopping):
    """Lightning's ``EarlyStopping`` with defaults for BERTScore; it counts every logged score once.

    The trainer keeps the last value of every logged key. If not every validation computes a score, Lightning's callback
    counts the old value as a score without improvement and stops too early; this one waits for a new value. If ranks
    disagree, all of them report the reason of the first rank that stops, even if the key is missing on some ranks.

    The arguments are those of ``lightning.pytorch.callbacks.EarlyStopping``, in the same order. A resumed run uses its
    new ``patience``.

    Args:
        monitor: the logged key.
        min_delta: smallest change that counts as an improvement.
        patience: number of scores without improvement after which training stops. Early in training the score of
            generated texts often falls for a few validations before it rises, so fewer than 3 warn for a BERTScore.
        verbose: log every decision.
        mode: ``"max"``, since a higher BERTScore is better; or ``"min"`` for other keys.
        strict: raise an error if the key is not logged. Set it to ``False`` if the first validations compute no score.
        check_finite: stop when the score is NaN or infinite.
        stopping_threshold: stop as soon as the score is better than this value.
        divergence_threshold: stop as soon as the score is worse than this value.
        check_on_train_epoch_end: ``False`` checks after validation, where the score is logged. ``None`` checks at the
            end of the training epoch if validation runs only there or is disabled, and otherwise after validation.
        log_rank_zero_only: log decisions on rank 0 only.

    Raises:
        MisconfigurationException: at the start of training, if ``strict`` is set but the run has no validation to check
            after.
        RuntimeError: at the first check, on all ranks, if ``strict`` is set and the key is not logged on every rank; at
            the start of training or after an epoch, if the validation that should log it has no batches.

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
        strict: bool = True,
        check_finite: bool = True,
        stopping_threshold: float | None = None,
        divergence_threshold: float | None = None,
        check_on_train_epoch_end: bool | None = False,
        log_rank_zero_only: bool = False,
    ) -> None:
        if patience < _MIN_PATIENCE and "bertscore" in monitor:
            warn_user(
                f"patience={patience} tends to stop too early: the F1 of generated texts often falls for a few "
                f"validations before it rises. Use patience=5, and keep the best model with "
                f"ModelCheckpoint(monitor={monitor!r}, mode={mode!r})"
            )
        super().__init__(
            monitor=monitor,
            min_delta=min_delta,
            patience=patience,
            verbose=verbose,
            mode=mode,
            strict=strict,
            check_finite=check_finite,
            stopping_threshold=stopping_threshold,
            divergence_threshold=divergence_threshold,
            check_on_train_epoch_end=check_on_train_epoch_end,
            log_rank_zero_only=log_rank_zero_only,
        )
        self._last_checked: Tensor | None = None

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Choose when to check, and raise an error if the key can never be checked."""
        if stage != "fit":
            return
        if self._check_on_train_epoch_end is None:
            if not trainer.enable_validation:
                self._check_on_train_epoch_end = True
            elif getattr(trainer, "_val_check_time_interval", None) is not None:
                # Lightning chooses only for intervals in batches.
                self._check_on_train_epoch_end = False
        super().setup(trainer, pl_module, stage)
        if self.strict and not self._check_on_train_epoch_end and not trainer.enable_validation:
            raise MisconfigurationException(
                f"{self.monitor!r} is checked after validation, but this run has no validation and would never stop "
                f"early: define validation_step, pass validation data and keep limit_val_batches above 0, or pass "
                f"check_on_train_epoch_end=True"
            )

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Check that the validation that should log the key has batches."""
        self._require_validation_batches(trainer)

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Check the key, unless it is checked after validation, which Lightning skips without batches."""
        self._require_validation_batches(trainer)
        super().on_train_epoch_end(trainer, pl_module)

    def _require_validation_batches(self, trainer: pl.Trainer) -> None:
        is_checked = self.strict and not self._check_on_train_epoch_end
        if is_checked and not trainer.fast_dev_run:  # type: ignore[attr-defined]
            is_empty = has_validation_loaders(trainer) and not sum(trainer.num_val_batches)
            if trainer.strategy.reduce_boolean_decision(is_empty, all=False):
                raise RuntimeError(
                    f"Early stopping conditioned on metric `{self.monitor}` which is not available, since the "
                    f"validation dataloaders have no batches on at least one rank: pass validation data, or "
                    f"strict=False"
                )

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the state of a checkpoint, except for the patience."""
        super().load_state_dict({**state_dict, "patience": self.patience})

    def _validate_condition_metric(self, logs: dict[str, Tensor]) -> bool:
        try:
            return bool(super()._validate_condition_metric(logs))
        except RuntimeError as error:
            raise RuntimeError(
                f"{error}. Or add BERTScoreCallback, which logs 'val_bertscore_f1', or log {self.monitor!r} in the "
                f"LightningModule"
            ) from None

    def _run_early_stopping_check(self, trainer: pl.Trainer) -> None:
        # Replaces Lightning's method, which deadlocks if a rank has no value and gives the reason only to the ranks
        # whose own value stops training.
        if trainer.fast_dev_run:  # type: ignore[attr-defined]
            return
        should_stop, reason = False, None
        current = self._new_value(trainer)
        if current is not None:
            should_stop, reason = self._evaluate_stopping_criteria(current.squeeze())
        if trainer.strategy.reduce_boolean_decision(should_stop, all=False):
            trainer.should_stop = True
            self.stopped_epoch = trainer.current_epoch
            self.stopping_reason_message = reason
            if trainer.world_size > 1:
                self._broadcast_reason(trainer, should_stop)
                reason = self.stopping_reason_message
        if reason and self.verbose:
            self._log_info(trainer, reason, self.log_rank_zero_only)

    def _new_value(self, trainer: pl.Trainer) -> Tensor | None:
        """Return the monitored value if it was logged since the last check; ranks may differ."""
        logs = trainer.callback_metrics
        # A resumed trainer has no values yet, although the key was logged before.
        checked_before = self.wait_count > 0 or bool(torch.isfinite(self.best_score))
        is_missing = self.monitor not in logs and not checked_before
        if self.strict and trainer.strategy.reduce_boolean_decision(is_missing, all=False) and not is_missing:
            raise RuntimeError(
                f"Early stopping conditioned on metric `{self.monitor}` which is not available on all ranks, but on "
                f"rank {trainer.global_rank}: log it on every rank with sync_dist=True, or pass strict=False"
            )
        if (self.monitor not in logs and not is_missing) or not self._validate_condition_metric(logs):
            return None
        # Every logging allocates a new tensor, and the last checked one is still referenced here, so an equal address
        # means the same logging event.
        current, last = logs[self.monitor], self._last_checked
        self._last_checked = current
        return None if last is not None and current.data_ptr() == last.data_ptr() else current

    def _broadcast_reason(self, trainer: pl.Trainer, should_stop: bool) -> None:
        """Copy the reason of the first rank that stops training."""
        # Older versions of Lightning have no `stopping_reason`.
        names = ("stopping_reason", "stopping_reason_message")
        own = {name: value for name, value in vars(self).items() if name in names}
        for rank in range(trainer.world_size):
            stops, reason = trainer.strategy.broadcast((should_stop, own), rank)
            if stops:
                vars(self).update(reason)
                return
