"""Early stopping on BERTScore."""

from __future__ import annotations

from typing import Any

import lightning.pytorch as pl
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.callbacks import EarlyStopping
from torch import Tensor

from bertscore_tm.callbacks.scoring import BERTScoreCallback
from bertscore_tm.callbacks.trainer import require_lightning_trainer
from bertscore_tm.metric import BERTScore
from bertscore_tm.statistics import mean_interval

__all__ = ["BERTScoreEarlyStopping"]


class BERTScoreEarlyStopping(EarlyStopping):
    """Lightning's ``EarlyStopping`` with defaults for BERTScore, which never counts the same score twice.

    The trainer keeps the last value of every logged key. When a score is not computed at every validation, the plain
    callback takes the old value for a new one without improvement and stops too early; this one waits for a new value.
    Over ranks all of them report why the first of those that want to stop wants it, also where the key differs between
    them or is missing on some.

    With ``significance`` a score counts as an improvement only where the paired bootstrap over the pairs of texts says
    so (Koehn, EMNLP 2004): the difference to the best epoch so far, resampled over pairs, is above 0 in all but that
    share of the resamples. Noise around a plateau then no longer restarts the patience, while small steps that add up
    still do, since each is compared with the last epoch that counted.

    All arguments but the last are those of ``lightning.pytorch.callbacks.EarlyStopping``, in its order. A run that is
    resumed keeps the patience that it was given now. Where ``significance`` is new to it the best epoch's pairs are
    unknown, and the next epoch with a better score counts without a test.

    Args:
        monitor: the logged key.
        min_delta: smallest change that counts as an improvement; with ``significance`` both must hold.
        patience: number of scores without improvement after which training stops.
        verbose: say each time what was decided.
        mode: ``"max"``, since higher is better.
        strict: raise when the key is not logged. Turn it off when the first validations do not score.
        check_finite: stop when the score is not finite.
        stopping_threshold: stop as soon as the score is better than this.
        divergence_threshold: stop as soon as the score is worse than this.
        check_on_train_epoch_end: ``False``: checked after validation, where the score is logged. ``None``: at the end
            of the training epoch if validation runs there too, or not at all, and otherwise after validation.
        log_rank_zero_only: let the first rank alone say what was decided.
        significance: share of the resamples that may be against an improvement, between 0 and 0.5, such as 0.05. Needs
            a :class:`BERTScoreCallback` that logs ``monitor`` with a metric of ``reduction="none"``, over data that
            come in the same order each time. The F1 of the best epoch's pairs are kept, 4 bytes each.

    Raises:
        MisconfigurationException: when training starts: ``significance`` is given, and no callback keeps the pairs of
            ``monitor``; or it is to be checked after validation, there is none, and ``strict`` is on.
        RuntimeError: at the first check, on all ranks, when nobody logs the monitored key, or not all ranks do, and
            ``strict`` is on.

    Example:
        >>> BERTScoreEarlyStopping(patience=2).monitor
        'val_bertscore_f1'
    """

    def __init__(
        self,
        monitor: str = "val_bertscore_f1",
        min_delta: float = 0.0,
        patience: int = 3,
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
            if not 0 < significance < 0.5:
                raise ValueError(f"significance must be between 0 and 0.5, got {significance}")
            if mode != "max":
                raise ValueError(f"significance is for scores of which higher is better, and mode={mode!r}")
            if min_delta < 0:
                raise ValueError(f"with significance min_delta must be at least 0, got {min_delta}")
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
        """Choose when to check, and make sure that there will be something to check."""
        require_lightning_trainer(trainer, self)
        if stage != "fit":
            return
        if self._check_on_train_epoch_end is None:
            if not trainer.enable_validation:
                self._check_on_train_epoch_end = True
            elif getattr(trainer, "_val_check_time_interval", None) is not None:
                # Lightning's choice needs an interval in batches.
                self._check_on_train_epoch_end = False
        super().setup(trainer, pl_module, stage)
        if self.strict and not self._check_on_train_epoch_end and not trainer.enable_validation:
            raise MisconfigurationException(
                f"{self.monitor!r} is to be checked after validation, and this run has none, so that training would "
                f"never stop early: define validation_step, pass validation data and leave limit_val_batches above 0, "
                f"or pass check_on_train_epoch_end=True"
            )
        if self.significance is not None:
            self._require_pairs(trainer, self.significance)

    def _require_pairs(self, trainer: pl.Trainer, significance: float) -> None:
        kept = [
            f"val_{name}_f1"
            for callback in _scorers(trainer)
            for name, metric in callback.metrics.items()
            if isinstance(metric, BERTScore) and metric.reduction == "none"
        ]
        if self.monitor.split("_dataloader_idx_")[0] not in kept:
            raise MisconfigurationException(
                f"significance={significance} compares the pairs behind {self.monitor!r}, and the pairs that are "
                f"kept are those of {kept or 'no score'}: add BERTScoreCallback(BERTScore(..., reduction='none')), or "
                f"monitor one of these"
            )

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint keeps; with ``significance`` the best epoch's pairs too."""
        state: dict[str, Any] = super().state_dict()
        return state if self._best_pairs is None else {**state, "best_pairs": self._best_pairs}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a checkpoint, with this run's own patience."""
        super().load_state_dict({**state_dict, "patience": self.patience})
        self._best_pairs = None if self.significance is None else state_dict.get("best_pairs")

    def _validate_condition_metric(self, logs: dict[str, Tensor]) -> bool:
        try:
            return bool(super()._validate_condition_metric(logs))
        except RuntimeError as error:
            raise RuntimeError(
                f"{error}. Or add BERTScoreCallback, which logs 'val_bertscore_f1', or log {self.monitor!r} in the "
                f"module"
            ) from None

    def _run_early_stopping_check(self, trainer: pl.Trainer) -> None:
        # Not Lightning's: there a rank without a value leaves the others waiting, and only the ranks that want to stop
        # know why all of them do.
        if trainer.fast_dev_run:  # type: ignore[attr-defined]
            return
        wants_to_stop, reason = False, None
        current = self._new_value(trainer)
        if current is not None:
            self._pairs = self._current_pairs(trainer)
            wants_to_stop, reason = self._evaluate_stopping_criteria(current.squeeze())
            self._pairs = None
        if trainer.strategy.reduce_boolean_decision(wants_to_stop, all=False):
            trainer.should_stop = True
            self.stopped_epoch = trainer.current_epoch
            self.stopping_reason_message = reason
            if trainer.world_size > 1:
                self._share_reason(trainer, wants_to_stop)
                reason = self.stopping_reason_message
        if reason and self.verbose:
            self._log_info(trainer, reason, self.log_rank_zero_only)

    def _new_value(self, trainer: pl.Trainer) -> Tensor | None:
        """Return the monitored value if it was logged since the last check; ranks may differ in that."""
        logs = trainer.callback_metrics
        # After a resume the trainer has no values yet, though this key was logged before.
        checked_before = self.wait_count > 0 or bool(torch.isfinite(self.best_score))
        lacking = self.monitor not in logs and not checked_before
        if self.strict and trainer.strategy.reduce_boolean_decision(lacking, all=False) and not lacking:
            raise RuntimeError(
                f"Early stopping conditioned on metric `{self.monitor}` which is not available on all ranks, though it "
                f"is on rank {trainer.global_rank}: log it on each, with sync_dist=True, or pass strict=False"
            )
        if (self.monitor not in logs and not lacking) or not self._validate_condition_metric(logs):
            return None
        # Each time a key is logged its value gets storage of its own, and the storage of the value that was checked
        # last is held here, so the same address means the same logging event.
        current, last = logs[self.monitor], self._last_checked
        self._last_checked = current
        return None if last is not None and current.data_ptr() == last.data_ptr() else current

    def _current_pairs(self, trainer: pl.Trainer) -> Tensor | None:
        if self.significance is None:
            return None
        found = [callback.pairs[self.monitor] for callback in _scorers(trainer) if self.monitor in callback.pairs]
        if not found:
            raise MisconfigurationException(
                f"there are no pairs behind {self.monitor!r}: with several validation loaders monitor one of them, "
                f"such as '{self.monitor}_dataloader_idx_0'"
            )
        return found[0]

    def _share_reason(self, trainer: pl.Trainer, wants_to_stop: bool) -> None:
        """Take over the reason of the first rank that wants to stop."""
        # Older versions of Lightning have no `stopping_reason`.
        names = ("stopping_reason", "stopping_reason_message")
        own = {name: value for name, value in vars(self).items() if name in names}
        for rank in range(trainer.world_size):
            wants, reason = trainer.strategy.broadcast((wants_to_stop, own), rank)
            if wants:
                vars(self).update(reason)
                return

    def _evaluate_stopping_criteria(self, current: Tensor) -> tuple[bool, str | None]:
        best = self.best_score.to(current.device)
        reached = self.stopping_threshold is not None and bool(self.monitor_op(current, self.stopping_threshold))
        better = bool(torch.isfinite(current)) and bool(self.monitor_op(current - self.min_delta, best))
        by_chance = better and not reached and not self._is_significant()
        # The best score is no better than itself.
        result = super()._evaluate_stopping_criteria(best if by_chance else current)
        if self.best_score is current:
            self._best_pairs = self._pairs
        return result

    def _is_significant(self) -> bool:
        """Whether the current pairs beat the best ones; without either there is nothing to doubt."""
        if self.significance is None or self._pairs is None or self._best_pairs is None:
            return True
        if self._pairs.shape != self._best_pairs.shape:
            raise MisconfigurationException(
                f"{self.monitor!r} is now of {len(self._pairs)} pairs and was of {len(self._best_pairs)} in the best "
                f"epoch, so that they cannot be compared: validate on the same data each time"
            )
        low, _ = mean_interval(self._pairs - self._best_pairs, 1 - 2 * self.significance)
        return bool(low > 0)


def _scorers(trainer: pl.Trainer) -> list[BERTScoreCallback]:
    return [one for one in trainer.callbacks if isinstance(one, BERTScoreCallback)]  # type: ignore[attr-defined]
