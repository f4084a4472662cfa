"""Leave objects of this package out of the hyperparameters of a checkpoint.

Lightning saves the arguments of modules as hyperparameters. With such objects, a checkpoint could be loaded only with
``weights_only=False``, which is not the default.
"""

from collections.abc import Iterable
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.utilities import rank_zero_warn
from torch import nn
from torch.utils._pytree import tree_leaves


def drop_saved_objects(checkpoint: dict[str, Any]) -> None:
    """Remove hyperparameters that hold objects of this package from a checkpoint, in place, with a warning."""
    for owner in (pl.LightningModule, pl.LightningDataModule):
        hparams = checkpoint.get(owner.CHECKPOINT_HYPER_PARAMS_KEY)
        # Skip the containers of OmegaConf, which are not dictionaries: they need weights_only=False anyway.
        if not isinstance(hparams, dict):
            continue
        kept = {}
        dropped = []
        for name, value in hparams.items():
            if _holds_our_object(value):
                dropped.append(name)
            else:
                kept[name] = value
        checkpoint[owner.CHECKPOINT_HYPER_PARAMS_KEY] = kept
        if dropped:
            rank_zero_warn(
                f"the hyperparameters {dropped} are left out of the checkpoint, because weights_only=True cannot load "
                f"them. Call self.save_hyperparameters(ignore={dropped}) in the {owner.__name__}, and pass them to "
                f"load_from_checkpoint"
            )


def _holds_our_object(value: Any) -> bool:
    """Return whether a hyperparameter is or contains an object of this package, or of a class derived from one."""
    for leaf in tree_leaves(value):
        parts: Iterable[Any] = [leaf]
        if isinstance(leaf, nn.Module):
            # A module of the user may have a loss among its submodules.
            parts = leaf.modules()
        if any(_is_of_this_package(part) for part in parts):
            return True
    return False


def _is_of_this_package(value: Any) -> bool:
    for base in type(value).__mro__:
        package = base.__module__.partition(".")[0]
        if package == "bertscore_tm":
            return True
    return False
