"""Numbers of the examples that a rank scores, by which a distributed sampler's duplicates are recognized."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import lightning.pytorch as pl
from lightning.fabric.utilities.exceptions import MisconfigurationException
from torch.utils.data import DataLoader, DistributedSampler

__all__ = ["SampleNumbers", "get_sample_numbers", "is_tensor_parallel_replica"]


@dataclass(frozen=True)
class SampleNumbers:
    """Numbers of the examples of a batch.

    Args:
        numbers: position of each example in the sampler's order; a duplicate has the number of its original.
        repeated: whether each example is a duplicate that the sampler added.
    """

    numbers: list[int]
    repeated: list[bool]


def get_sample_numbers(dataloader: Iterable[Any], start: int, count: int) -> SampleNumbers | None:
    """Return the numbers of the next examples of this rank.

    ``DistributedSampler`` deals examples to the ranks in turn and repeats the first ones until all ranks have equally
    many.

    Args:
        dataloader: the dataloader of the examples.
        start: number of examples that this rank has read from it so far.
        count: number of examples to come.

    Returns:
        Their numbers, or ``None`` if the dataloader has no ``DistributedSampler``.

    Raises:
        MisconfigurationException: the number of predictions differs from the number of examples in the batch.
    """
    if not isinstance(dataloader, DataLoader):
        return None
    sampler: Any = dataloader.sampler
    if not isinstance(sampler, DistributedSampler):
        sampler = getattr(dataloader.batch_sampler, "sampler", None)
    if not isinstance(sampler, DistributedSampler):
        return None
    if dataloader.batch_size is not None:
        expected = min(dataloader.batch_size, len(sampler) - start)
        if count != expected:
            raise MisconfigurationException(
                f"got {count} predictions for a batch of {expected} examples, so the duplicates that the distributed "
                f"sampler adds cannot be recognized: return one prediction per example"
            )
    size = len(sampler.dataset)  # type: ignore[arg-type]  # sized, or the sampler could not have been made
    positions = [sampler.rank + index * sampler.num_replicas for index in range(start, start + count)]
    return SampleNumbers([position % size for position in positions], [position >= size for position in positions])


def is_tensor_parallel_replica(pl_module: pl.LightningModule) -> bool:
    """Return whether another rank gets the same batches and counts their texts.

    Args:
        pl_module: the module, which has a device mesh under ``ModelParallelStrategy``.

    Returns:
        Whether this rank is not the first of its tensor-parallel group.
    """
    mesh = pl_module.device_mesh
    return mesh is not None and bool(mesh["tensor_parallel"].get_local_rank() > 0)
