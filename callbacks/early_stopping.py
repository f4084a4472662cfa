"""Early stopping on BERTScore."""

from __future__ import annotations

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import EarlyStopping
from torch import Tensor

__all__ = ["BERTScoreEarlyStopping"]


class BERTScoreEarlyStopping(EarlyStopping):
    """Lightning's ``EarlyStopping`` with defaults for BERTScore, which never counts the same score twice.

    The trainer keeps the last value of every logged key. When a score is not computed at every validation, the plain
    callback takes the old value for a new one without improvement and stops too early; this one waits for a new value.

    All arguments are those of ``lightning.pytorch.callbacks.EarlyStopping``, in its order.

    Args:
        monitor: the logged key.
        min_delta: smallest change that counts as an improvement.
        patience: number of scores without improvement after which training stops.
        verbose: say each time what was decided.
        mode: ``"max"``, since higher is better.
        strict: raise when the key is not logged. Turn it off when the first validations do not score.
        check_finite: stop when the score is not finite.
        stopping_threshold: stop as soon as the score is better than this.
        divergence_threshold: stop as soon as the score is worse than this.
        check_on_train_epoch_end: ``False``: checked after validation, where the score is logged.
        log_rank_zero_only: let the first rank alone say what was decided.

    Raises:
        RuntimeError: at the first check, when nobody logs the monitored key and ``strict`` is on.

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
    ) -> None:
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

    def _should_skip_check(self, trainer: pl.Trainer) -> bool:
        return super()._should_skip_check(trainer) or self._is_stale(trainer.callback_metrics.get(self.monitor))

    def _run_early_stopping_check(self, trainer: pl.Trainer) -> None:
        super()._run_early_stopping_check(trainer)
        self._last_checked = trainer.callback_metrics.get(self.monitor)

    def _is_stale(self, current: Tensor | None) -> bool:
        if current is None:
            # After a resume the trainer has no values yet, though this key was logged before.
            return bool(torch.isfinite(self.best_score))
        # Each time a key is logged its value gets storage of its own, and the storage of the value that was checked
        # last is held here, so the same address means the same logging event.
        last = self._last_checked
        return last is not None and current.data_ptr() == last.data_ptr()
