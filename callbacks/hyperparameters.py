"""This package's objects among the hyperparameters that Lightning writes into checkpoints.

Checkpoints with them can be loaded with ``weights_only=False`` only, which is not the default.
"""

from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.utilities import rank_zero_warn
from torch import nn
from torch.utils._pytree import tree_leaves


def drop_saved_objects(checkpoint: dict[str, Any]) -> None:
    """Remove hyperparameters that hold objects of this package from a checkpoint, in place, with a warning."""
    for owner in (pl.LightningModule, pl.LightningDataModule):
        hparams = checkpoint.get(owner.CHECKPOINT_HYPER_PARAMS_KEY)
        # Containers of OmegaConf, which are not dictionaries, need weights_only=False anyway.
        if not isinstance(hparams, dict):
            continue
        dropped = [name for name, value in hparams.items() if any(map(_is_of_this_package, tree_leaves(value)))]
        checkpoint[owner.CHECKPOINT_HYPER_PARAMS_KEY] = {
            name: value for name, value in hparams.items() if name not in dropped
        }
        if dropped:
            rank_zero_warn(
                f"checkpoints with encoders, metrics or losses among the hyperparameters could only be loaded with "
                f"weights_only=False, so these are left out: write self.save_hyperparameters(ignore={dropped}) in the "
                f"{owner.__name__}, and pass them to load_from_checkpoint"
            )


def _is_of_this_package(value: Any) -> bool:
    parts = value.modules() if isinstance(value, nn.Module) else [value]
    return any(base.__module__.partition(".")[0] == "bertscore_tm" for part in parts for base in type(part).__mro__)
