"""What the callbacks need of the trainer that runs them."""

from __future__ import annotations

from typing import Any

import lightning.pytorch as pl
from lightning.fabric.utilities.exceptions import MisconfigurationException

__all__ = ["require_lightning"]


def require_lightning(trainer: Any, callback: pl.Callback) -> None:
    """Make sure that the trainer is the one of ``lightning.pytorch``.

    Args:
        trainer: what runs the callback.
        callback: the callback, for the error.

    Raises:
        MisconfigurationException: it is another one, such as that of ``pytorch_lightning``, whose classes are not the
            same.
    """
    if not isinstance(trainer, pl.Trainer):
        given = f"{type(trainer).__module__.split('.')[0]}.{type(trainer).__name__}"
        raise MisconfigurationException(
            f"{type(callback).__name__} runs in a lightning.pytorch.Trainer, and this is a {given}: write `import "
            f"lightning.pytorch as pl` in the place of `import pytorch_lightning as pl`, for module and trainer"
        )
