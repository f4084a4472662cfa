"""Questions that the callbacks ask the trainer that runs them."""

import os
from typing import Any, TypeVar

import lightning.pytorch as pl
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.loggers import Logger
from lightning.pytorch.trainer.states import TrainerFn
from torch.utils.data import BatchSampler, DistributedSampler

from bertscore_tm.utilities.checks import full_class_name

CallbackT = TypeVar("CallbackT", bound=pl.Callback)


def is_of_class(value: object, name: str) -> bool:
    """Return whether an object's class has, or is derived from one of, this name, in either package of Lightning."""
    return any(base.__name__ == name for base in type(value).__mro__)


def find_callbacks(trainer: pl.Trainer, kind: type[CallbackT]) -> list[CallbackT]:
    """Return the trainer's callbacks of a class."""
    return [callback for callback in trainer.callbacks if isinstance(callback, kind)]  # type: ignore[attr-defined]


def is_training_validation(trainer: pl.Trainer) -> bool:
    """Return whether the running validation is one of a training, other than the sanity check."""
    return trainer.state.fn == TrainerFn.FITTING and not trainer.sanity_checking


def find_unused_average(trainer: pl.Trainer) -> str | None:
    """Return the class of a callback that validates an average of the weights before it has averaged any."""
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        average = getattr(callback, "_average_model", None)
        if is_of_class(callback, "WeightAveraging") and average is not None and average.n_averaged == 0:
            return type(callback).__name__
    return None


def name_run(trainer: pl.Trainer) -> str:
    """Return the start of the names of a run's files: ``val`` in a training, otherwise ``validate`` or ``test``."""
    return "val" if is_training_validation(trainer) else trainer.state.fn.value  # type: ignore[union-attr]


def find_run_folder(trainer: pl.Trainer, logger: Logger | None) -> str:
    """Return the folder of a logger's run, in which Lightning's ModelCheckpoint writes; known on rank 0 only."""
    if logger is None:
        return trainer.default_root_dir
    version = logger.version if isinstance(logger.version, str) else f"version_{logger.version}"
    return os.path.join(logger.save_dir or trainer.default_root_dir, str(logger.name), version)  # noqa: PTH118 - URLs


def restart_validation(trainer: pl.Trainer) -> None:
    """Let a validation in which the checkpoint of a resumed training was written run from its first to its last batch.

    Lightning counts the batches that were validated before as fetched, and ends as many batches too early.
    """
    loop = trainer.fit_loop.epoch_loop.val_loop
    if loop._data_fetcher is not None and loop.batch_progress.current.ready:
        loop._data_fetcher.fetched -= loop.batch_progress.current.ready
        loop.batch_progress.reset_on_run()


def list_loaders(trainer: pl.Trainer, *, with_numbers: bool) -> list[tuple[int, list[list[int]] | None]]:
    """Return batch size (0: unknown) and, on request, numbers of this rank's examples of each separate dataloader.

    The numbers, per batch, are known for a plain ``BatchSampler`` over a plain ``DistributedSampler``, else an error.
    """
    dataloaders = trainer._evaluation_loop._combined_loader  # `trainer.val_dataloaders` does not contain the mode
    assert dataloaders is not None
    is_combined = dataloaders._mode != "sequential" and len(dataloaders.flattened) > 1
    remedy = (
        "Let each batch contain the indices of its examples in the whole data set, and pass their key as "
        "BERTScoreCallback(index_key=...)"
    )
    if with_numbers and is_combined:
        raise MisconfigurationException(
            f"BERTScoreCallback cannot know which examples several ranks score, because a CombinedLoader with the mode "
            f"{dataloaders._mode!r} puts examples of several dataloaders into one batch. {remedy}"
        )
    loaders = []
    for loader in dataloaders.flattened:
        batches: Any = getattr(loader, "batch_sampler", None)
        sampler: Any = getattr(batches, "sampler", None)
        if with_numbers and (type(batches), type(sampler)) != (BatchSampler, DistributedSampler):
            raise MisconfigurationException(
                f"BERTScoreCallback cannot know which examples several ranks score, because it got a "
                f"{full_class_name(batches)} with a {full_class_name(sampler)} instead of torch's "
                f"BatchSampler with a DistributedSampler. {remedy}"
            )
        loaders.append((getattr(loader, "batch_size", None) or 0, list(batches) if with_numbers else None))
    return [(0, None)] if is_combined else loaders  # each batch has examples of all


def count_steps(trainer: pl.Trainer) -> int:
    """Return the step at which Lightning logs; a batch that steps several optimizers counts once."""
    return trainer.fit_loop.epoch_loop._batches_that_stepped


def gather_objects(trainer: pl.Trainer, value: Any) -> list[Any]:
    """Return the picklable objects of all ranks, in rank order; a collective call."""
    if trainer.world_size == 1:
        return [value]
    gathered: list[Any] = [None] * trainer.world_size
    torch.distributed.all_gather_object(gathered, value)
    return gathered
