"""Stop training early when the logged BERTScore no longer improves."""

from __future__ import annotations

from typing import Any

import lightning.pytorch as pl
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.callbacks import EarlyStopping
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor

from bertscore_tm.callbacks.sample_numbers import has_random_order
from bertscore_tm.callbacks.scoring import BERTScoreCallback
from bertscore_tm.callbacks.trainer import count_scored_loaders, has_validation_loaders
from bertscore_tm.metric import BERTScore
from bertscore_tm.statistics import mean_interval, scipy_stats
from bertscore_tm.utilities.settings import require_between
from bertscore_tm.utilities.user_warnings import warn_user

__all__ = ["BERTScoreEarlyStopping"]

# Fewer scores without improvement are often a dip from which the score recovers.
_MIN_PATIENCE = 3


class BERTScoreEarlyStopping(EarlyStopping):
    """Lightning's ``EarlyStopping`` with defaults for BERTScore; it counts every logged score once.

    The trainer keeps the last value of every logged key. If not every validation computes a score, Lightning's callback
    counts the old value as a score without improvement and stops too early; this one waits for a new value. If ranks
    disagree, all of them report the reason of the first rank that stops, even if the key is missing on some ranks.

    With ``significance`` a score counts as an improvement only if it passes the one-sided paired t-test at that level:
    the mean difference to the best epoch over the pairs, which must be independent, is reliably above 0. Noise around a
    plateau then does not reset the patience. Small improvements that add up do, since each epoch is compared with the
    last one that counted.

    All arguments except the last are those of ``lightning.pytorch.callbacks.EarlyStopping``, in the same order. A
    resumed run uses its new ``patience``. If ``significance`` is set only in the resumed run, the pairs of the best
    epoch are unknown, and the next better score counts without a test.

    Args:
        monitor: the logged key.
        min_delta: smallest change that counts as an improvement; with ``significance`` both conditions must hold.
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
        significance: level of the test, between 0 and 0.5, such as 0.05. Needs scipy, a :class:`BERTScoreCallback` that
            logs ``monitor`` with a metric of ``reduction="none"``, and validation data in a fixed order or with
            ``index_key``. The F1 of the best epoch's pairs is kept, 4 bytes per pair.

    Raises:
        MisconfigurationException: at the start of training, if ``significance`` is set but no callback keeps the pairs
            of ``monitor``, which may be the mean of several dataloaders or a shuffled one, or if ``strict`` is set but
            the run has no validation to check after; at the first check, if there are fewer than two pairs.
        RuntimeError: at the first check, on all ranks, if ``strict`` is set and the key is not logged on every rank; at
            the start of training or after an epoch, if the validation that should log it has no batches.
        ValueError: ``significance`` is not between 0 and 0.5, or combined with ``mode="min"`` or a negative
            ``min_delta``.
        ImportError: ``significance`` is set, but scipy is not installed.

    Example:
        >>> BERTScoreEarlyStopping(significance=0.05).monitor
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
        *,
        significance: float | None = None,
    ) -> None:
        if significance is not None:
            require_between("significance", significance, 0, 0.5)
            if mode != "max":
                raise ValueError(f"significance needs mode='max', got mode={mode!r}")
            if min_delta < 0:
                raise ValueError(f"with significance, min_delta must be at least 0, got {min_delta}")
            scipy_stats()
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
        self.significance = significance
        self._last_checked: Tensor | None = None
        self._pairs: Tensor | None = None
        self._best_pairs: Tensor | None = None

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
        """Check that the pairs of two epochs can be compared."""
        self._require_validation_batches(trainer)
        if self.significance is not None:
            self._require_comparable_pairs(trainer)

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Check the key, unless it is checked after validation, which Lightning skips without batches."""
        self._require_validation_batches(trainer)
        super().on_train_epoch_end(trainer, pl_module)

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Check the same, also before the sanity check and with other dataloaders than at the start."""
        if self.significance is not None and trainer.state.fn == TrainerFn.FITTING:
            self._require_comparable_pairs(trainer)

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

    def _require_comparable_pairs(self, trainer: pl.Trainer) -> None:
        keys = _find_pair_keys(trainer)
        if not any(self.monitor == key or self.monitor.startswith(f"{key}_") for _, key in keys):
            raise MisconfigurationException(
                f"significance={self.significance} needs the F1 of every pair of {self.monitor!r}, but the callbacks "
                f"keep the pairs of {[key for _, key in keys] or 'no key'}: add "
                f"BERTScoreCallback(BERTScore(..., reduction='none')), or monitor a key whose pairs are kept"
            )
        if not has_validation_loaders(trainer):  # the first validation is in a later epoch
            return
        count = count_scored_loaders(trainer)
        found = {key + callback.loader_suffix(i, count): (callback, i) for callback, key in keys for i in range(count)}
        if self.monitor not in found:
            reason = "is the mean over dataloaders" if count > 1 else "has no pairs"
            raise MisconfigurationException(
                f"significance={self.significance} compares pairs, but {self.monitor!r} {reason}: monitor the key of "
                f"one dataloader, such as {next(iter(found))!r}"
            )
        callback, i = found[self.monitor]
        if callback.index_key is None and has_random_order(trainer, i):
            raise MisconfigurationException(
                f"significance={self.significance} compares the same pairs in two epochs, but the validation "
                f"dataloader {i} is shuffled: remove shuffle=True, or pass BERTScoreCallback(index_key=...)"
            )

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint, with ``significance`` including the best epoch's pairs."""
        state: dict[str, Any] = super().state_dict()
        return state if self._best_pairs is None else {**state, "best_pairs": self._best_pairs}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the state of a checkpoint, except for the patience."""
        super().load_state_dict({**state_dict, "patience": self.patience})
        self._best_pairs = None if self.significance is None else state_dict.get("best_pairs")

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
            self._pairs = self._current_pairs(trainer)
            should_stop, reason = self._evaluate_stopping_criteria(current.squeeze())
            self._pairs = None
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

    def _current_pairs(self, trainer: pl.Trainer) -> Tensor | None:
        if self.significance is None:
            return None
        pairs = next(one.pairs[self.monitor] for one, _ in _find_pair_keys(trainer) if self.monitor in one.pairs)
        if len(pairs) < 2:
            raise MisconfigurationException(
                f"significance={self.significance} needs the spread of several pairs, but {self.monitor!r} has "
                f"{len(pairs)}: validate on at least 2 pairs, better on hundreds, or remove significance="
            )
        return pairs

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

    def _evaluate_stopping_criteria(self, current: Tensor) -> tuple[bool, str | None]:
        best = self.best_score.to(current.device)
        is_reached = self.stopping_threshold is not None and bool(self.monitor_op(current, self.stopping_threshold))
        is_better = bool(torch.isfinite(current)) and bool(self.monitor_op(current - self.min_delta, best))
        is_noise = is_better and not is_reached and not self._is_significant()
        # Passing the best score itself counts as a score without improvement.
        result = super()._evaluate_stopping_criteria(best if is_noise else current)
        if self.best_score is current:
            self._best_pairs = self._pairs
        return result

    def _is_significant(self) -> bool:
        """Return whether the current pairs beat the best ones; ``True`` if either are unknown."""
        if self.significance is None or self._pairs is None or self._best_pairs is None:
            return True
        if self._pairs.shape != self._best_pairs.shape:
            raise MisconfigurationException(
                f"{self.monitor!r} has {len(self._pairs)} pairs, but had {len(self._best_pairs)} in the best epoch, so "
                f"the two cannot be compared: validate on the same data every time"
            )
        low, _ = mean_interval(self._pairs - self._best_pairs, 1 - 2 * self.significance)
        return bool(low > 0)


def _find_pair_keys(trainer: pl.Trainer) -> list[tuple[BERTScoreCallback, str]]:
    """Return the keys of which callbacks keep the pairs, without the suffixes of dataloaders."""
    return [
        (callback, f"val_{name}_f1")
        for callback in trainer.callbacks  # type: ignore[attr-defined]
        if isinstance(callback, BERTScoreCallback)
        for name, metric in callback.metrics.items()
        if isinstance(metric, BERTScore) and metric.reduction == "none"
    ]
