"""State of the trainer that the callbacks read: its callbacks, run, folder, dataloaders and ranks."""

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
    """Return whether an object's class, or one of its base classes, has a name.

    Unlike ``isinstance``, this also finds the classes of the package ``pytorch_lightning``, without importing it.
    """
    return any(base.__name__ == name for base in type(value).__mro__)


def find_callbacks(trainer: pl.Trainer, kind: type[CallbackT]) -> list[CallbackT]:
    """Return the trainer's callbacks of a class."""
    return [callback for callback in trainer.callbacks if isinstance(callback, kind)]  # type: ignore[attr-defined]


def is_training_validation(trainer: pl.Trainer) -> bool:
    """Return whether a validation of ``trainer.fit`` runs that is not the sanity check."""
    return trainer.state.fn == TrainerFn.FITTING and not trainer.sanity_checking


def find_unused_average(trainer: pl.Trainer) -> str | None:
    """Return the class name of a ``WeightAveraging`` callback that has not averaged any weights yet, or ``None``.

    Such a callback validates the initial weights.
    """
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        if not is_of_class(callback, "WeightAveraging"):
            continue
        average = getattr(callback, "_average_model", None)
        if average is not None and average.n_averaged == 0:
            return type(callback).__name__
    return None


def name_run(trainer: pl.Trainer) -> str:
    """Return the prefix of a run's file names: ``val`` in a training, otherwise ``validate`` or ``test``."""
    if is_training_validation(trainer):
        return "val"
    name: str = trainer.state.fn.value  # type: ignore[union-attr]
    return name


def find_run_folder(trainer: pl.Trainer, logger: Logger | None) -> str:
    """Return the folder of a logger's run, the one that ModelCheckpoint uses. Only rank 0 knows it."""
    if logger is None:
        # ModelCheckpoint writes there too.
        return trainer.default_root_dir
    version = logger.version
    if not isinstance(version, str):
        version = f"version_{version}"
    root = logger.save_dir or trainer.default_root_dir
    return os.path.join(root, str(logger.name), version)  # noqa: PTH118 - Path would change URLs


def restart_validation(trainer: pl.Trainer) -> None:
    """Let a resumed validation run over all batches, if its checkpoint was written during the validation.

    Lightning counts the batches before the checkpoint as fetched, reads the data from the start, and stops as many
    batches too early.
    """
    loop = trainer.fit_loop.epoch_loop.val_loop
    num_batches_before = loop.batch_progress.current.ready
    if loop._data_fetcher is None or num_batches_before == 0:
        return
    loop._data_fetcher.fetched -= num_batches_before
    loop.batch_progress.reset_on_run()


def list_loaders(trainer: pl.Trainer, *, with_numbers: bool) -> list[tuple[int, list[list[int]] | None]]:
    """Return (batch size, numbers of the examples of each batch) for each dataloader of the running evaluation.

    Args:
        trainer: the trainer.
        with_numbers: whether to find the numbers of this rank's examples, which are ``None`` otherwise.

    Returns:
        A pair per dataloader. The batch size is 0 if it is unknown. Dataloaders whose examples share batches count as
        one.

    Raises:
        MisconfigurationException: the numbers are needed, but unknown.
    """
    dataloaders = trainer._evaluation_loop._combined_loader  # `trainer.val_dataloaders` does not contain the mode
    assert dataloaders is not None
    shares_batches = dataloaders._mode != "sequential" and len(dataloaders.flattened) > 1
    if shares_batches:
        if with_numbers:
            raise _unknown_numbers(f"a CombinedLoader with mode={dataloaders._mode!r} mixes dataloaders in a batch")
        return [(0, None)]
    loaders = []
    for loader in dataloaders.flattened:
        batch_size = getattr(loader, "batch_size", None) or 0
        numbers = None
        if with_numbers:
            numbers = _read_numbers(loader)
        loaders.append((batch_size, numbers))
    return loaders


def _read_numbers(loader: Any) -> list[list[int]]:
    """Return the numbers of this rank's examples in each batch of a dataloader."""
    batch_sampler: Any = getattr(loader, "batch_sampler", None)
    sampler: Any = getattr(batch_sampler, "sampler", None)
    # A derived class or another sampler may draw other numbers when it is read a second time.
    has_known_numbers = type(batch_sampler) is BatchSampler and type(sampler) is DistributedSampler
    if not has_known_numbers:
        raise _unknown_numbers(
            f"the dataloader has a {full_class_name(batch_sampler)} with a {full_class_name(sampler)} instead of "
            f"torch's BatchSampler with a DistributedSampler"
        )
    return list(batch_sampler)


def _unknown_numbers(reason: str) -> MisconfigurationException:
    """Return the error for dataloaders that do not tell which examples this rank reads."""
    return MisconfigurationException(
        f"BERTScoreCallback cannot know which examples each rank scores, because {reason}. Add the indices of the "
        f"examples to each batch, and pass their key as BERTScoreCallback(index_key=...)"
    )


def count_steps(trainer: pl.Trainer) -> int:
    """Return the step at which Lightning logs. A batch that steps several optimizers counts once."""
    return trainer.fit_loop.epoch_loop._batches_that_stepped


def gather_objects(trainer: pl.Trainer, value: Any) -> list[Any]:
    """Return the picklable objects of all ranks, in the order of the ranks. A collective call."""
    if trainer.world_size == 1:
        # There is no process group to call.
        return [value]
    gathered: list[Any] = [None] * trainer.world_size
    torch.distributed.all_gather_object(gathered, value)
    return gathered
