"""Which example of which loader each rank is scoring, so that the sampler's duplicates can be told."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import lightning.pytorch as pl
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities import CombinedLoader
from torch.utils.data import DataLoader, DistributedSampler

__all__ = ["SampleNumbers", "holds_copies", "loaders_of", "num_scored_loaders", "sample_numbers"]


def loaders_of(trainer: pl.Trainer) -> CombinedLoader:
    """Return the loaders that the running validation or test reads.

    Args:
        trainer: the running trainer.

    Returns:
        The loaders, and the way in which they are read.
    """
    # `trainer.val_dataloaders` does not tell whether they are read one after the other.
    if trainer.testing:
        loop = trainer.test_loop
    elif trainer.state.fn == TrainerFn.VALIDATING:
        loop = trainer.validate_loop
    else:
        loop = trainer.fit_loop.epoch_loop.val_loop
    assert loop._combined_loader is not None
    return loop._combined_loader


def num_scored_loaders(trainer: pl.Trainer) -> int:
    """Return how many loaders have scores of their own.

    Args:
        trainer: the running trainer.

    Returns:
        Their number; 1 where the batches of all loaders are put into one.
    """
    loaders = loaders_of(trainer)
    return len(loaders.flattened) if loaders._mode == "sequential" else 1


def holds_copies(pl_module: pl.LightningModule) -> bool:
    """Whether an earlier rank gets the same batches, as ranks do that hold parts of the same layers.

    Args:
        pl_module: the module, which knows the mesh of ``ModelParallelStrategy``.

    Returns:
        Whether the texts of this rank are to count on another one.
    """
    mesh = pl_module.device_mesh
    return mesh is not None and bool(mesh["tensor_parallel"].get_local_rank() > 0)


@dataclass(frozen=True)
class SampleNumbers:
    """Which examples of the data set a batch holds.

    Args:
        numbers: their numbers in the order of the sampler, equal for the copies that a sampler adds.
        repeated: which of them are such copies.
    """

    numbers: list[int]
    repeated: list[bool]


def sample_numbers(dataloader: Iterable[Any], start: int, count: int) -> SampleNumbers | None:
    """Return the numbers of the next examples of this rank, equal for the copies that a sampler adds.

    ``DistributedSampler`` deals out the data set in turn and repeats its beginning until all ranks have equally many.

    Args:
        dataloader: the loader that the examples come from.
        start: how many examples this rank has seen of it.
        count: how many come now.

    Returns:
        Their numbers, or ``None`` where no sampler adds duplicates.

    Raises:
        MisconfigurationException: the batch holds more or fewer examples than the loader gives out.
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
                f"there are {count} predictions for a batch of {expected} examples, so that the examples which the "
                f"distributed sampler repeats cannot be told apart: give one prediction per example"
            )
    size = len(sampler.dataset)  # type: ignore[arg-type]  # sized, or the sampler could not have been made
    places = [sampler.rank + position * sampler.num_replicas for position in range(start, start + count)]
    return SampleNumbers([place % size for place in places], [place >= size for place in places])
