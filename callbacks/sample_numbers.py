"""Numbers of the examples that a rank scores, by which examples that several ranks score are recognized."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, IterableDataset

from bertscore_tm.callbacks.trainer import get_dataloaders

__all__ = ["SampleOrder", "find_value", "get_sample_orders", "read_indices"]


@dataclass(frozen=True)
class SampleOrder:
    """Numbers of all examples that this rank reads from a dataloader, in the order of reading.

    Args:
        numbers: index of each example in the data set.
        batch_size: number of examples of a batch.
    """

    numbers: list[int]
    batch_size: int

    def select_batch(self, start: int, count: int) -> list[int]:
        """Return the numbers of the ``count`` examples after the first ``start``."""
        expected = min(self.batch_size, len(self.numbers) - start)
        if count != expected:
            raise MisconfigurationException(
                f"got {count} predictions for a batch of {expected} examples, so the duplicates that the distributed "
                f"sampler adds cannot be recognized: return one prediction per example"
            )
        return self.numbers[start : start + count]


def get_sample_orders(trainer: pl.Trainer) -> list[SampleOrder]:
    """Return the order in which this rank reads each dataloader, on several ranks.

    The order is known if a plain ``BatchSampler`` cuts the examples of a plain ``DistributedSampler`` into batches.
    Otherwise it is unknown which examples several ranks read: an error.
    """
    dataloaders = get_dataloaders(trainer)
    if dataloaders._mode != "sequential" and len(dataloaders.flattened) > 1:
        raise _unknown_order(f"CombinedLoader of the mode {dataloaders._mode!r}", trainer.world_size)
    return [_get_sample_order(loader, trainer.world_size) for loader in dataloaders.flattened]


def _get_sample_order(loader: Any, world_size: int) -> SampleOrder:
    data = getattr(loader, "dataset", loader)
    if not isinstance(loader, DataLoader) or isinstance(data, IterableDataset):
        raise _unknown_order(f"{type(data).__name__}, which is read in order", world_size)
    if type(loader.batch_sampler) not in (BatchSampler, type(None)):
        raise _unknown_order(type(loader.batch_sampler).__name__, world_size)
    # The dataloader's own sampler is unused where it got a batch sampler.
    sampler = getattr(loader.batch_sampler, "sampler", loader.sampler)
    if type(sampler) is not DistributedSampler:
        raise _unknown_order(type(sampler).__name__, world_size)
    return SampleOrder(list(sampler), loader.batch_size or 1)


def _unknown_order(name: str, world_size: int) -> MisconfigurationException:
    return MisconfigurationException(
        f"BERTScoreCallback got a {name} instead of a DistributedSampler on {world_size} ranks, so it is unknown which "
        f"examples several ranks score: let each batch contain the indices of its examples in the whole data set, and "
        f"pass their key as BERTScoreCallback(index_key=...)"
    )


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
