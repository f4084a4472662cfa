"""Early stopping on BERTScore."""

from __future__ import annotations

from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import EarlyStopping
from torch import Tensor

__all__ = ["BERTScoreEarlyStopping"]


class BERTScoreEarlyStopping(EarlyStopping):
    """Lightning's ``EarlyStopping`` with defaults for BERTScore, which never counts the same score twice.

    The trainer keeps the last value of every logged key. When a score is not computed at every validation, the plain
    callback takes the old value for a new one without improvement and stops too early; this one waits for a new value.

    Args:
        monitor: the logged key.
        mode: ``"max"``, since higher is better.
        check_on_train_epoch_end: ``False``: checked after validation, where the score is logged.
        **kwargs: every other argument of ``lightning.pytorch.callbacks.EarlyStopping``, such as ``patience`` (counted
            in scores) and ``min_delta``.

    Raises:
        RuntimeError: at the first check, when nobody logs the monitored key and ``strict`` is on.

    Example:
        >>> BERTScoreEarlyStopping(patience=2).monitor
        'val_bertscore_f1'
    """

    def __init__(
        self,
        monitor: str = "val_bertscore_f1",
        *,
        mode: str = "max",
        check_on_train_epoch_end: bool | None = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(monitor=monitor, mode=mode, check_on_train_epoch_end=check_on_train_epoch_end, **kwargs)
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
