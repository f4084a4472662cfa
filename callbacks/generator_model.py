"""The Hugging Face model of a LightningModule."""

from __future__ import annotations

from typing import Any

import lightning.pytorch as pl
from lightning.fabric.utilities.exceptions import MisconfigurationException
from torch import nn
from torch.nn.parallel import DistributedDataParallel

__all__ = ["find_generator"]


def find_generator(pl_module: pl.LightningModule, path: str, user: object, remedy: str = "") -> Any:
    """Return the model that generates, without the wrappers of ``torch.compile`` and DDP.

    Args:
        pl_module: the module that has the model.
        path: dotted path of the model in the module; empty for the module itself.
        user: the object that needs the model, which the error names.
        remedy: what the error suggests next to another path, such as ``", or ..."``.

    Returns:
        A module with ``generate``.

    Raises:
        MisconfigurationException: the module has no such model.
    """
    found: Any = pl_module
    for part in path.split(".") if path else ():
        found = getattr(found, part, None)
    # Compiled models have a forward without named parameters.
    while hasattr(found, "_orig_mod"):
        found = found._orig_mod
    if isinstance(found, DistributedDataParallel):
        found = found.module
    if not isinstance(found, nn.Module) or not hasattr(found, "generate"):
        raise MisconfigurationException(
            f"{type(user).__name__} generates with pl_module.{path}, which is not a Hugging Face model with "
            f"generate(): pass model= with the dotted path of the model{remedy}"
        )
    return found
