"""Numbers of the examples that a rank scores, by which examples that several ranks score are recognized."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from bertscore_tm.callbacks.trainer import get_dataloaders

__all__ = [
    "SampleOrder",
    "find_value",
    "get_sample_orders",
    "has_random_order",
    "read_indices",
]


@dataclass(frozen=True)
class SampleOrder:
    """Numbers of all examples that this rank reads from a dataloader, in the order of reading.

    Args:
        numbers: index of each example in the data set.
        repeated: whether each example is a duplicate that the distributed sampler added.
        batch_size: number of examples of a batch.
    """

    numbers: list[int]
    repeated: list[bool]
    batch_size: int

    def select_batch(self, start: int, count: int) -> tuple[list[int], list[bool]]:
        """Return the numbers of the ``count`` examples after the first ``start``, and whether each is a duplicate."""
        expected = min(self.batch_size, len(self.numbers) - start)
        if count != expected:
            raise MisconfigurationException(
                f"got {count} predictions for a batch of {expected} examples, so the duplicates that the distributed "
                f"sampler adds cannot be recognized: return one prediction per example"
            )
        return self.numbers[start : start + count], self.repeated[start : start + count]


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
    data, sampler = getattr(loader, "dataset", loader), _get_sampler(loader)
    if not isinstance(loader, DataLoader) or isinstance(data, IterableDataset):
        raise _unknown_order(f"{type(data).__name__}, which is read in order", world_size)
    if type(loader.batch_sampler) not in (BatchSampler, type(None)):
        raise _unknown_order(type(loader.batch_sampler).__name__, world_size)
    if type(sampler) is not DistributedSampler:
        raise _unknown_order(type(sampler).__name__, world_size)
    numbers: list[int] = list(sampler)
    repeated = [sampler.rank + i * sampler.num_replicas >= len(data) for i in range(len(numbers))]
    return SampleOrder(numbers, repeated, loader.batch_size or 1)


def _get_sampler(loader: Any) -> Any:
    # A dataloader with a batch sampler of the user's own has another, unused sampler; other iterables have none.
    return getattr(getattr(loader, "batch_sampler", None), "sampler", getattr(loader, "sampler", None))


def _unknown_order(name: str, world_size: int) -> MisconfigurationException:
    return MisconfigurationException(
        f"BERTScoreCallback got a {name} instead of a DistributedSampler on {world_size} ranks, so it is unknown which "
        f"examples several ranks score: let each batch contain the indices of its examples in the whole data set, and "
        f"pass their key as BERTScoreCallback(index_key=...)"
    )


def find_value(key: str, batch: Any, outputs: Any, missing: str, remedy: str) -> Any:
    """Return what a batch, or else the step's outputs, has under a key; raise an error if neither has it."""
    mappings = [mapping for mapping in (batch, outputs) if isinstance(mapping, Mapping)]
    for mapping in mappings:
        if key in mapping:
            return mapping[key]
    keys = sorted({str(key) for mapping in mappings for key in mapping})
    raise MisconfigurationException(
        f"{missing} in the batch or in the step's outputs, which have {f'the keys {keys}' if keys else 'no keys'}: "
        f"{remedy}"
    )


def read_indices(index_key: str, batch: Any, outputs: Any, count: int) -> list[int]:
    """Return the indices of the ``count`` examples of a batch, which the batch or the step's outputs contain."""
    remedy = "return the index of each example in the data set under this key"
    indices = find_value(index_key, batch, outputs, f"BERTScoreCallback found no index_key={index_key!r}", remedy)
    if isinstance(indices, torch.Tensor):
        indices = indices.tolist()
    is_list = isinstance(indices, Sequence) and all(type(index) is int for index in indices)
    if not is_list or len(indices) != count:
        raise MisconfigurationException(
            f"index_key={index_key!r} must hold {count} integers, one per prediction, got {str(indices)[:60]}"
        )
    return list(indices)


def has_random_order(trainer: pl.Trainer, dataloader_idx: int) -> bool:
    """Return whether examples are drawn in another, unknown order in every epoch, as with ``shuffle=True``."""
    dataloaders = get_dataloaders(trainer)
    loaders = [dataloaders.flattened[dataloader_idx]] if dataloaders._mode == "sequential" else dataloaders.flattened
    random = (RandomSampler, SubsetRandomSampler, WeightedRandomSampler)
    return any(isinstance(_get_sampler(loader), random) for loader in loaders)
