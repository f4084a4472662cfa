"""Numbers of the examples that a rank scores, by which examples that several ranks score are recognized."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from torch.utils.data import BatchSampler, DistributedSampler

from bertscore_tm.callbacks.trainer import get_dataloaders


def list_batches(trainer: pl.Trainer) -> list[list[list[int]]]:
    """Return the numbers of the examples in each batch of each dataloader that this rank of several reads.

    They are known if a plain ``BatchSampler`` cuts the examples of a plain ``DistributedSampler`` into batches.
    Otherwise it is unknown which examples several ranks read: an error.
    """
    dataloaders = get_dataloaders(trainer)
    is_combined = dataloaders._mode != "sequential" and len(dataloaders.flattened) > 1
    numbers = []
    for loader in dataloaders.flattened:
        batches: Any = getattr(loader, "batch_sampler", None)
        sampler: Any = getattr(batches, "sampler", None)
        if is_combined or (type(batches), type(sampler)) != (BatchSampler, DistributedSampler):
            raise MisconfigurationException(
                f"BERTScoreCallback got a {type(batches).__name__} with a {type(sampler).__name__} in the mode "
                f"{dataloaders._mode!r} instead of a BatchSampler with a DistributedSampler, so it is unknown which "
                f"examples several ranks score: let each batch contain the indices of its examples in the whole data "
                f"set, and pass their key as BERTScoreCallback(index_key=...)"
            )
        numbers.append(list(batches))
    return numbers


def find_value(key: str, option: str, batch: Any, outputs: Any) -> Any:
    """Return what a batch, or else the step's outputs, has under the key that an option names."""
    for mapping in (batch, outputs):
        if isinstance(mapping, Mapping) and key in mapping:
            return mapping[key]
    raise MisconfigurationException(
        f"neither the batch nor what the step returns is a dictionary with the key {option}={key!r}"
    )


def read_indices(index_key: str, batch: Any, outputs: Any) -> list[int]:
    """Return the indices of the examples of a batch, which the batch or the step's outputs contain."""
    indices = find_value(index_key, "index_key", batch, outputs)
    return indices.tolist() if isinstance(indices, torch.Tensor) else list(indices)
