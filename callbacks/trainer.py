"""Questions that the callbacks ask the trainer that runs them."""

from __future__ import annotations

from typing import Any

import lightning.pytorch as pl
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities import CombinedLoader

__all__ = [
    "count_scored_loaders",
    "count_steps",
    "gather_objects",
    "get_dataloaders",
    "has_validation_loaders",
    "require_lightning_trainer",
]


def require_lightning_trainer(trainer: Any, callback: pl.Callback) -> None:
    """Raise an error for a trainer of another package, such as ``pytorch_lightning``, whose classes differ."""
    if not isinstance(trainer, pl.Trainer):
        given = f"{type(trainer).__module__.split('.')[0]}.{type(trainer).__name__}"
        raise MisconfigurationException(
            f"{type(callback).__name__} needs a lightning.pytorch.Trainer, got a {given}: replace `import "
            f"pytorch_lightning as pl` by `import lightning.pytorch as pl` for both the module and the trainer"
        )


def get_dataloaders(trainer: pl.Trainer) -> CombinedLoader:
    """Return the dataloaders of the running validation or test, and the mode in which they are combined."""
    # `trainer.val_dataloaders` does not contain the mode.
    if trainer.testing:
        loop = trainer.test_loop
    elif trainer.state.fn == TrainerFn.VALIDATING:
        loop = trainer.validate_loop
    else:
        loop = trainer.fit_loop.epoch_loop.val_loop
    assert loop._combined_loader is not None
    return loop._combined_loader


def has_validation_loaders(trainer: pl.Trainer) -> bool:
    """Return whether the validation dataloaders of a training run are loaded."""
    return trainer.fit_loop.epoch_loop.val_loop._combined_loader is not None


def count_scored_loaders(trainer: pl.Trainer) -> int:
    """Return the number of dataloaders that get separate scores; 1 if each batch combines all of them."""
    loaders = get_dataloaders(trainer)
    return len(loaders.flattened) if loaders._mode == "sequential" else 1


def count_steps(trainer: pl.Trainer) -> int:
    """Return the step at which Lightning logs; a batch that steps several optimizers counts once."""
    return trainer.fit_loop.epoch_loop._batches_that_stepped


def gather_objects(trainer: pl.Trainer, own: Any) -> list[Any]:
    """Return the picklable objects of all ranks, in rank order; a collective call."""
    if trainer.world_size == 1:
        return [own]
    gathered: list[Any] = [None] * trainer.world_size
    torch.distributed.all_gather_object(gathered, own)
    return gathered
