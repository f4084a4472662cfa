"""This package's objects among the hyperparameters of a module, which Lightning writes into checkpoints.

Checkpoints with them can be loaded with ``weights_only=False`` only, which is not the default.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from copy import copy
from typing import Any

import lightning.pytorch as pl

from bertscore_tm.utilities.user_warnings import warn_user

__all__ = ["drop_saved_objects", "warn_about_saved_objects"]


def warn_about_saved_objects(pl_module: pl.LightningModule) -> None:
    """Warn if a module's hyperparameters hold objects of this package."""
    names = _names_of_objects(pl_module.hparams)
    if names:
        arguments = ", ".join(f"{name}=" for name in names)
        warn_user(
            f"checkpoints with the hyperparameters {', '.join(map(repr, names))} of {type(pl_module).__name__} could "
            f"only be loaded with weights_only=False, so they are left out, except with save_weights_only=True. Write "
            f"self.save_hyperparameters(ignore={names}), and pass {arguments} to load_from_checkpoint"
        )


def drop_saved_objects(checkpoint: dict[str, Any]) -> None:
    """Remove objects of this package from the hyperparameters in a checkpoint, in place.

    The container keeps its type and what it holds otherwise; without such objects it is left alone.
    """
    key = pl.LightningModule.CHECKPOINT_HYPER_PARAMS_KEY
    names = _names_of_objects(checkpoint.get(key) or {})
    if names:
        # A copy, since Lightning puts the module's own container of OmegaConf into the checkpoint.
        kept = copy(checkpoint[key])
        with _unlocked(kept):
            for name in names:
                del kept[name]
        checkpoint[key] = kept


def _names_of_objects(hparams: Mapping[str, Any]) -> list[str]:
    return [
        name
        for name, value in hparams.items()
        if any(base.__module__.partition(".")[0] == "bertscore_tm" for base in type(value).__mro__)
    ]


def _unlocked(hparams: Any) -> AbstractContextManager[Any]:
    """Allow deletion in a container of OmegaConf, which may be read-only or have fixed keys."""
    omegaconf = sys.modules.get("omegaconf")
    if omegaconf is None or not isinstance(hparams, omegaconf.DictConfig):
        return nullcontext()
    unlocked: AbstractContextManager[Any] = omegaconf.flag_override(hparams, ["struct", "readonly"], False)
    return unlocked
