"""How far a long generation is, in the trainer's progress bar."""

from __future__ import annotations

from time import monotonic
from types import TracebackType
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import RichProgressBar, TQDMProgressBar
from torch import Tensor
from transformers import StoppingCriteria

__all__ = ["GenerationProgress"]

# Nothing is said of batches that take less.
_QUIET_S = 5.0
_REFRESHED_EVERY_S = 1.0


class GenerationProgress(StoppingCriteria):
    """Show in the bar how many tokens there are, once a batch takes long; as a stopping criterion that stops nothing.

    Args:
        pl_module: the module that generates. Without a trainer, or where the trainer has no bar, nothing is shown.
        max_new_tokens: how many tokens there will be at most, if that is known.
    """

    def __init__(self, pl_module: pl.LightningModule, max_new_tokens: int | None = None) -> None:
        trainer = pl_module._trainer
        self._bar = None if trainer is None else _bar(trainer)
        self._of = "" if max_new_tokens is None else f" of {max_new_tokens}"
        self._num_tokens = 0
        self._started = self._shown = monotonic()
        self._is_shown = False

    def __call__(self, input_ids: Tensor, scores: Tensor | None, **kwargs: Any) -> Tensor:
        """Count a token."""
        self._num_tokens += 1
        now = monotonic()
        if self._bar is not None and now - self._started >= _QUIET_S and now - self._shown >= _REFRESHED_EVERY_S:
            self._bar.say(f"generating, token {self._num_tokens}{self._of}")
            self._shown, self._is_shown = now, True
        return torch.zeros(len(input_ids), dtype=torch.bool, device=input_ids.device)

    def __enter__(self) -> GenerationProgress:
        """Start."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave the bar as it was."""
        if self._bar is not None and self._is_shown:
            self._bar.say("")


class _TQDMBar:
    def __init__(self, bar: Any) -> None:
        self._bar = bar

    def say(self, text: str) -> None:
        self._bar.set_postfix_str(text)


class _RichBar:
    def __init__(self, bar: RichProgressBar, progress: Any, task: Any) -> None:
        self._bar, self._progress, self._task, self._description = bar, progress, task, task.description

    def say(self, text: str) -> None:
        description = f"{self._description} ({text})" if text else self._description
        self._progress.update(self._task.id, description=description)
        self._bar.refresh()


def _bar(trainer: pl.Trainer) -> _TQDMBar | _RichBar | None:
    """The bar of the running validation or test."""
    bars = trainer.progress_bar_callback
    if isinstance(bars, TQDMProgressBar) and bars.is_enabled:
        return _TQDMBar(bars.test_progress_bar if trainer.testing else bars.val_progress_bar)
    if isinstance(bars, RichProgressBar) and bars.is_enabled and bars.progress is not None:
        if trainer.testing:
            return _RichBar(bars, bars.progress, bars.test_progress_bar)
        return _RichBar(
            bars, bars.progress, bars.val_sanity_check_bar if trainer.sanity_checking else bars.val_progress_bar
        )
    return None
