"""This package's objects among the hyperparameters that Lightning writes into checkpoints.

Checkpoints with them can be loaded with ``weights_only=False`` only, which is not the default.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import lightning.pytorch as pl
from torch import nn
from torch.utils._pytree import tree_leaves

from bertscore_tm.utilities.user_warnings import warn_user

__all__ = ["drop_saved_objects", "warn_about_saved_objects"]

_CHECKPOINT_KEYS = (
    pl.LightningModule.CHECKPOINT_HYPER_PARAMS_KEY,
    pl.LightningDataModule.CHECKPOINT_HYPER_PARAMS_KEY,
)


def warn_about_saved_objects(pl_module: pl.LightningModule, datamodule: pl.LightningDataModule | None) -> None:
    """Warn once if hyperparameters of a module or its data module hold objects of this package."""
    # Containers of OmegaConf, which are no dictionaries, need weights_only=False anyway.
    owners = [owner for owner in (pl_module, datamodule) if owner is not None and isinstance(owner.hparams, dict)]
    names = {type(owner).__name__: _list_objects(owner.hparams) for owner in owners}
    remedies = [f"self.save_hyperparameters(ignore={held}) in {owner}" for owner, held in names.items() if held]
    if remedies:
        warn_user(
            f"checkpoints with encoders, metrics or losses among the hyperparameters could only be loaded with "
            f"weights_only=False, so these are left out, except with save_weights_only=True. Write "
            f"{' and '.join(remedies)}, and pass them to load_from_checkpoint"
        )


def drop_saved_objects(checkpoint: dict[str, Any]) -> None:
    """Remove hyperparameters that hold objects of this package from a checkpoint, in place."""
    for key in _CHECKPOINT_KEYS:
        hparams = checkpoint.get(key)
        if isinstance(hparams, dict):
            names = _list_objects(hparams)
            checkpoint[key] = {name: value for name, value in hparams.items() if name not in names}


def _list_objects(hparams: Mapping[str, Any]) -> list[str]:
    """Return the names of the hyperparameters that are, or hold in containers or modules, objects of this package."""
    return [name for name, value in hparams.items() if any(map(_is_of_this_package, tree_leaves(value)))]


def _is_of_this_package(value: Any) -> bool:
    parts = value.modules() if isinstance(value, nn.Module) else [value]
    return any(base.__module__.partition(".")[0] == "bertscore_tm" for part in parts for base in type(part).__mro__)
