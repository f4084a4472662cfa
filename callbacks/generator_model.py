"""The Hugging Face model of a LightningModule, whose weights may be sharded."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import lightning.pytorch as pl
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.strategies import DeepSpeedStrategy
from torch import nn
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel, register_fsdp_forward_method
from torch.nn.parallel import DistributedDataParallel

__all__ = ["find_generator", "gather_weights"]


def find_generator(pl_module: pl.LightningModule, path: str) -> Any:
    """Return the model that generates, without the wrappers of ``torch.compile`` and DDP.

    Args:
        pl_module: the module that has the model.
        path: dotted path of the model in the module; empty for the module itself.

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
            f"texts are generated with pl_module.{path}, which is not a Hugging Face model with generate(): pass "
            f"model= with the dotted path of the model, or a function as generate="
        )
    return found


@contextmanager
def gather_weights(pl_module: pl.LightningModule, model: Any) -> Generator[Any, None, None]:
    """Gather the sharded weights that FSDP gathers only in a forward pass of the whole model, and yield the model.

    ``generate`` calls parts of the model directly, such as its encoder, so the root's forward hooks do not run.

    Args:
        pl_module: the module that has the model.
        model: the model, from :func:`find_generator`.

    Raises:
        MisconfigurationException: DeepSpeed partitions the weights.
    """
    trainer = pl_module._trainer
    if trainer is not None and isinstance(trainer.strategy, DeepSpeedStrategy) and trainer.strategy.zero_stage_3:
        raise MisconfigurationException(
            "generating with weights that DeepSpeed ZeRO stage 3 partitions is not tested, so it is refused: use stage "
            "2 or FSDP, or pass a function that calls the model's generate with synced_gpus=True as generate="
        )
    roots = [model] if trainer is None else [trainer.strategy.model, model]
    is_sharded = isinstance(model, FSDPModule) and "generate" not in vars(model)
    wrapper = next((root for root in roots if isinstance(root, FullyShardedDataParallel)), None)
    if wrapper is not None:
        with FullyShardedDataParallel.summon_full_params(wrapper, recurse=False, writeback=False):
            yield model.module if isinstance(model, FullyShardedDataParallel) else model
    elif is_sharded:
        register_fsdp_forward_method(model, "generate")
        try:
            yield model
        finally:
            del model.generate
    else:
        yield model
