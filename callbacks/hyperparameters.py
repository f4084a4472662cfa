"""This package's objects among the hyperparameters that Lightning writes into checkpoints.

Checkpoints with them can be loaded with ``weights_only=False`` only, which is not the default.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import Any

import lightning.pytorch as pl
from torch import nn

from bertscore_tm.utilities.user_warnings import warn_user

__all__ = ["drop_saved_objects", "warn_about_saved_objects"]

_CHECKPOINT_KEYS = (
    pl.LightningModule.CHECKPOINT_HYPER_PARAMS_KEY,
    pl.LightningDataModule.CHECKPOINT_HYPER_PARAMS_KEY,
)


def warn_about_saved_objects(pl_module: pl.LightningModule, datamodule: pl.LightningDataModule | None) -> None:
    """Warn once if hyperparameters of a module or its data module hold objects of this package."""
    owners = {type(owner).__name__: owner for owner in (pl_module, datamodule) if owner is not None}
    names = {name: _names_of_objects(owner.hparams) for name, owner in owners.items()}
    held = {name: arguments for name, arguments in names.items() if arguments}
    if held:
        objects = " and ".join(f"{', '.join(map(repr, arguments))} of {name}" for name, arguments in held.items())
        remedies = " and ".join(f"self.save_hyperparameters(ignore={names}) in {name}" for name, names in held.items())
        warn_user(
            f"checkpoints with the hyperparameters {objects} could only be loaded with weights_only=False, so they are "
            f"left out, except with save_weights_only=True and from containers of OmegaConf. Write {remedies}, and "
            f"pass them to load_from_checkpoint"
        )


def drop_saved_objects(checkpoint: dict[str, Any]) -> None:
    """Remove hyperparameters that hold objects of this package from a checkpoint, in place."""
    for key in _CHECKPOINT_KEYS:
        hparams = checkpoint.get(key)
        if isinstance(hparams, dict):
            names = _names_of_objects(hparams)
            checkpoint[key] = {name: value for name, value in hparams.items() if name not in names}


def _names_of_objects(hparams: Mapping[str, Any]) -> list[str]:
    return [name for name, value in hparams.items() if _holds_object(value)]


def _holds_object(value: Any) -> bool:
    """Return whether a value, or what a container or a module holds, is an object of this package."""
    if any(base.__module__.partition(".")[0] == "bertscore_tm" for base in type(value).__mro__):
        return True
    if isinstance(value, Mapping):
        return any(map(_holds_object, value.values()))
    if isinstance(value, nn.Module):
        return any(map(_holds_object, value.children()))
    return isinstance(value, Sequence | Set) and not isinstance(value, str | bytes) and any(map(_holds_object, value))
