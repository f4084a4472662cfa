"""Numbers of the examples that a rank scores, by which examples that several ranks score are recognized."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
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
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from bertscore_tm.callbacks.trainer import gather_objects, get_dataloaders, is_of_class

__all__ = [
    "SampleOrder",
    "count_equal_shares",
    "find_value",
    "get_sample_orders",
    "has_random_order",
    "is_tensor_parallel_replica",
    "read_indices",
    "require_equal_orders",
]

# Samplers that draw from the data of one rank, which no other rank has.
_LOCAL_SAMPLERS = (SequentialSampler, RandomSampler, SubsetRandomSampler, WeightedRandomSampler)


@dataclass(frozen=True)
class SampleOrder:
    """Numbers of all examples that this rank reads from a dataloader, in the order of reading.

    Args:
        numbers: number of each example, equal on all ranks and in all epochs: its index in the data set or, with a
            sampler other than ``DistributedSampler``, its position in that sampler's order.
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


def get_sample_orders(trainer: pl.Trainer) -> list[SampleOrder | None]:
    """Return the order in which this rank reads each dataloader, on several ranks.

    The order is known if a plain ``BatchSampler`` cuts the examples of a ``DistributedSampler`` into batches, and
    ``None`` if the ranks read their own data: an iterable data set, or a sampler of torch that does not divide data.
    Otherwise ranks may read the same examples, and it is not known which: an error.
    """
    dataloaders = get_dataloaders(trainer)
    orders = [_get_sample_order(one, trainer.world_size) for one in dataloaders.flattened]
    if dataloaders._mode == "sequential" or len(orders) == 1:
        return orders
    if any(order is not None for order in orders):
        raise _unknown_order(f"CombinedLoader of the mode {dataloaders._mode!r}", trainer.world_size)
    return [None]


def _get_sample_order(dataloader: Iterable[Any], world_size: int) -> SampleOrder | None:
    if not isinstance(dataloader, DataLoader) or isinstance(dataloader.dataset, IterableDataset):
        return None
    batch_sampler: Any = dataloader.batch_sampler
    if type(batch_sampler) not in (BatchSampler, type(None)):
        raise _unknown_order(type(batch_sampler).__name__, world_size)
    sampler = _get_sampler(dataloader)
    if type(sampler) in _LOCAL_SAMPLERS:
        return None
    if type(sampler) is not DistributedSampler and not _is_wrapper(sampler):
        raise _unknown_order(type(sampler).__name__, world_size)
    # Lightning's wrapper of another sampler yields what that sampler yields at these positions; iterating over the
    # wrapper itself would draw from that sampler.
    numbers = list(DistributedSampler.__iter__(sampler))
    size = len(sampler.dataset)
    repeated = [sampler.rank + i * sampler.num_replicas >= size for i in range(len(numbers))]
    return SampleOrder(numbers, repeated, 1 if batch_sampler is None else batch_sampler.batch_size)


def _get_sampler(dataloader: DataLoader[Any]) -> Any:
    # A dataloader with a batch sampler of the user's own has another, unused sampler.
    return getattr(dataloader.batch_sampler, "sampler", dataloader.sampler)


def _is_wrapper(sampler: Any) -> bool:
    """Return whether Lightning has wrapped a sampler of the user's own, so that ranks divide what it yields."""
    return is_of_class(sampler, "DistributedSamplerWrapper")


def _unknown_order(name: str, world_size: int) -> MisconfigurationException:
    return MisconfigurationException(
        f"BERTScoreCallback got a {name} on {world_size} ranks, so it is unknown which examples a batch contains and "
        f"which of them other ranks score too: let each batch contain the indices of its examples in the whole data "
        f"set, and pass their key as BERTScoreCallback(index_key=...)"
    )


def require_equal_orders(trainer: pl.Trainer) -> None:
    """Raise an error after a run in which a sampler of the user's own yielded other examples on each rank."""
    loaders = [one for one in get_dataloaders(trainer).flattened if isinstance(one, DataLoader)]
    samplers = [_get_sampler(one) for one in loaders]
    # Lightning keeps the examples that a sampler of the user's own yielded until it draws from it again.
    kept: list[Any] = [one.dataset for one in samplers if _is_wrapper(one)]
    yielded = [[one[i] for i in range(len(one))] for one in kept]
    digests = gather_objects(trainer, [sha256(repr(one).encode()).digest() for one in yielded]) if yielded else []
    if any(one != digests[0] for one in digests):
        raise MisconfigurationException(
            f"the sampler of a dataloader yields other examples on each of {trainer.world_size} ranks, so some were "
            f"scored several times and others never: seed the sampler equally on all ranks"
        )


def count_equal_shares(trainer: pl.Trainer, checksums: Sequence[int]) -> int:
    """Return the largest number of ranks whose references of a dataloader have the same checksum; a collective call."""
    loaders = zip(*gather_objects(trainer, checksums), strict=True)
    return max(count for ranks in loaders for count in (0, *Counter(filter(None, ranks)).values()))


def find_value(key: str, batch: Any, outputs: Any, missing: str, remedy: str) -> Any:
    """Return what a batch, or else the step's outputs, has under a key; raise an error if neither has it."""
    mappings = [one for one in (batch, outputs) if isinstance(one, Mapping)]
    for one in mappings:
        if key in one:
            return one[key]
    keys = sorted({str(key) for one in mappings for key in one})
    raise MisconfigurationException(
        f"{missing} in the batch or in the step's outputs, which have {f'the keys {keys}' if keys else 'no keys'}: "
        f"{remedy}"
    )


def read_indices(index_key: str, batch: Any, outputs: Any, count: int) -> list[int]:
    """Return the indices of the ``count`` examples of a batch, which the batch or the step's outputs contain."""
    remedy = "return the index of each example in the data set under this key"
    found = find_value(index_key, batch, outputs, f"BERTScoreCallback found no index_key={index_key!r}", remedy)
    indices = found.tolist() if isinstance(found, torch.Tensor) else found
    is_list = isinstance(indices, Sequence) and all(type(one) is int for one in indices)
    if not is_list or len(indices) != count:
        raise MisconfigurationException(
            f"index_key={index_key!r} must hold {count} integers, one per prediction, got {str(found)[:60]}"
        )
    return list(indices)


def has_random_order(trainer: pl.Trainer, dataloader_idx: int) -> bool:
    """Return whether examples are drawn in another, unknown order in every epoch, as with ``shuffle=True``."""
    dataloaders = get_dataloaders(trainer)
    chosen = [dataloaders.flattened[dataloader_idx]] if dataloaders._mode == "sequential" else dataloaders.flattened
    random = (RandomSampler, SubsetRandomSampler, WeightedRandomSampler)
    return any(
        isinstance(one, DataLoader)
        and not isinstance(one.dataset, IterableDataset)
        and isinstance(_get_sampler(one), random)
        for one in chosen
    )


def is_tensor_parallel_replica(pl_module: pl.LightningModule) -> bool:
    """Return whether the first rank of this one's tensor-parallel group gets the same batches and counts them."""
    mesh = pl_module.device_mesh
    return mesh is not None and bool(mesh["tensor_parallel"].get_local_rank() > 0)
