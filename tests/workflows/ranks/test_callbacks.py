"""Callbacks on 2 and 3 ranks: each rank logs the values of one process, and files have the texts of all ranks."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler
from torchmetrics.aggregation import MeanMetric
from torchmetrics.text import (
    BLEUScore,
    CHRFScore,
    EditDistance,
    ExtendedEditDistance,
    Perplexity,
    ROUGEScore,
    SacreBLEUScore,
    SQuAD,
    TranslationEditRate,
    WordErrorRate,
)
from torchmetrics.wrappers import MinMaxMetric

from bertscore_tm import BERTScore, FrozenEncoder
from bertscore_tm.callbacks import (
    BERTScoreCallback,
    BERTScoreEarlyStopping,
    BERTScoreReport,
    SampleLogger,
    ScoredTextWriter,
)
from tests.support.lightning_runs import (
    Chooser,
    Logs,
    Quality,
    chooser,
    generate,
    loader,
    strategy_on_cpu,
    stream,
    trainer,
)
from tests.support.oracle import oracle_scores
from tests.support.rank_tables import Case, Job, every_case
from tests.support.report_pages import read_data
from tests.support.sample_tables import files, inputs_of, mixed, table
from tests.support.texts import real_pairs

pytestmark = [
    pytest.mark.distributed,
    pytest.mark.slow,
    # Some predictions of the samples are empty.
    pytest.mark.filterwarnings("ignore:2 candidates scored 0"),
]

LAYERS = 2
COUNT = 11
# Short texts, because edit distances and pictures take most of the time. All are different.
CANDIDATES, REFERENCES = real_pairs(COUNT, words=4)
PAIRS = (CANDIDATES, REFERENCES)


@cache
def load_encoder(model: str) -> FrozenEncoder:
    """Return the encoder of this process."""
    return FrozenEncoder(model, num_layers=LAYERS)


def options_on_ranks(world_size: int) -> dict[str, Any]:
    """Return the trainer's options for some ranks."""
    return {"devices": world_size, "strategy": strategy_on_cpu("ddp")}


def deal_nothing(world_size: int) -> list[list[Any]]:
    """Deal out no batches, because the trainer does."""
    return [[] for _ in range(world_size)]


def score_f1(model: str, numbers: Sequence[int], *, idf: bool = False) -> torch.Tensor:
    """Return the F1 of examples by bert-score, shape (pairs,)."""
    preds = [CANDIDATES[i] for i in numbers]
    target = [REFERENCES[i] for i in numbers]
    return oracle_scores(model, preds, target, LAYERS, idf=idf)[2]


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a file of scored texts."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


# Scores of the whole data set, however its examples are dealt out.


class Indexed(Chooser):
    """Its prediction is the candidate with the number of the example."""

    def choose(self, numbers):
        numbers = numbers.tolist()
        return [self.choices[i] for i in numbers], [self.references[i] for i in numbers]


class ByLength(BatchSampler):
    """Batches of examples of similar lengths; the length of example i is i modulo 3."""

    def __iter__(self):
        numbers = sorted(self.sampler, key=lambda number: (number % 3, number))
        for start in range(0, len(numbers), self.batch_size):
            yield numbers[start : start + self.batch_size]


class Unusual(DistributedSampler):
    """A distributed sampler with an order of its own."""

    def __iter__(self):
        return iter(sorted(super().__iter__(), reverse=True))


@dataclass(frozen=True)
class Run:
    """A run of the trainer on ranks.

    Attributes:
        name: folder of its files.
        make_loaders: returns the dataloaders of a rank from its number and the number of ranks.
        numbers: the examples of each dataloader on all ranks.
        call: the trainer's method. ``"fit"`` validates twice.
        inserts_sampler: whether Lightning deals out the examples.
        options: arguments of the scorer.
    """

    name: str
    make_loaders: Callable[[int, int], list[Any]]
    numbers: Sequence[Sequence[int]] = (range(COUNT),)
    call: str = "validate"
    inserts_sampler: bool = True
    options: dict[str, Any] = field(default_factory=lambda: {"index_key": "index"})


def execute(job: Job, run: Run, **options: Any) -> Any:
    """Run the trainer on a rank with a scorer and a writer of texts, and return it."""
    encoder = load_encoder(job.resources.model)
    metrics = {
        "bertscore": BERTScore(encoder),
        "idf": BERTScore(encoder, idf=True, reduction="none"),
        "edits": EditDistance(reduction="sum"),
    }
    folder = job.resources.folder / run.name
    callbacks = [BERTScoreCallback(metrics, **(run.options | options)), ScoredTextWriter(folder)]
    settings = options_on_ranks(job.world_size) | {"use_distributed_sampler": run.inserts_sampler}
    fitted = trainer(folder, callbacks, **settings)
    module = chooser(PAIRS, count=COUNT, kind=Indexed)
    module.allow_zero_length_dataloader_with_multiple_devices = True
    loaders = run.make_loaders(job.rank, job.world_size)
    if run.call == "fit":
        fitted.fit(module, loader(2), loaders)
    else:
        getattr(fitted, run.call)(module, loaders, verbose=False)
    return fitted


def scores_and_files(job: Job, run: Run) -> dict[str, Any]:
    """Return the logged scores of a run, and the texts in its files."""
    fitted = execute(job, run)
    dist.barrier()
    metrics = {}
    for key, value in fitted.callback_metrics.items():
        if "_f1" in key or "_edits" in key:
            metrics[key] = value.item()
    texts = {}
    for path in (job.resources.folder / run.name).glob("*.jsonl"):
        rows = read_rows(path)
        texts[path.name] = [(row["candidate"], row["references"], row["f1"]) for row in rows]
    return {"metrics": metrics, "texts": texts}


def expect_scores_and_files(job: Job, run: Run) -> dict[str, Any]:
    """Return the scores of all examples of each dataloader in order, and the means over the dataloaders."""
    stage = "test" if run.call == "test" else "val"
    start = "val" if run.call == "fit" else run.call
    # Both epochs have the same texts.
    steps = (0, 1) if run.call == "fit" else (0,)
    metrics: dict[str, float] = {}
    texts: dict[str, Any] = {}
    sums = dict.fromkeys(("bertscore_f1", "idf_f1", "edits"), 0.0)
    for place, numbers in enumerate(run.numbers):
        end = f"_dataloader_idx_{place}" if len(run.numbers) > 1 else ""
        ordered = sorted(numbers)
        f1 = score_f1(job.resources.model, ordered)
        values = {
            "bertscore_f1": f1.mean().item(),
            "idf_f1": score_f1(job.resources.model, ordered, idf=True).mean().item(),
            "edits": float(sum(count_edits(CANDIDATES[i], REFERENCES[i]) for i in ordered)),
        }
        for name, value in values.items():
            sums[name] += value
            metrics[f"{stage}_{name}{end}"] = value
        rows = [(CANDIDATES[i], [REFERENCES[i]], score) for i, score in zip(ordered, f1.tolist(), strict=True)]
        for step in steps:
            texts[f"{start}{end}_step_{step}.jsonl"] = rows
    for name, total in sums.items():
        metrics[f"{stage}_{name}"] = total / len(run.numbers)
    return {"metrics": metrics, "texts": texts}


def count_edits(text: str, other: str) -> int:
    """Return the Levenshtein distance of two texts."""
    row = list(range(len(other) + 1))
    for i, character in enumerate(text, start=1):
        diagonal, row[0] = row[0], i
        for j, wanted in enumerate(other, start=1):
            substituted = diagonal + (character != wanted)
            diagonal = row[j]
            row[j] = min(substituted, row[j] + 1, row[j - 1] + 1)
    return row[-1]


def share(*parts: tuple[Sequence[int], Sequence[int]], make: Any = stream) -> dict[str, Any]:
    """Return dataloaders of given examples of the first and of the second rank, as arguments of a run."""
    return {
        "make_loaders": lambda rank, _: [make(part[rank]) for part in parts],
        "numbers": [[*first, *second] for first, second in parts],
    }


NONE_ON_THE_FIRST = [([], range(7))]
EACH_A_LOADER = [(range(5), []), ([], [5, 6]), ([8, 2, 3, 4], [7])]
BACKWARDS = range(COUNT - 1, -1, -1)
GROUPS = ByLength(range(COUNT), 2, False)
OWN_SAMPLER = Run("own_sampler", lambda *_: [DataLoader(range(COUNT), 2, sampler=BACKWARDS)])
BUCKETING = Run("bucketing", lambda *_: [DataLoader(range(COUNT), batch_sampler=GROUPS)])
SUBCLASS = Run("subclass", lambda rank, _: [DataLoader(range(COUNT), sampler=Unusual(range(COUNT), 2, rank))])
SAME = Run("same", lambda *_: [loader(COUNT, batch_size=2)], inserts_sampler=False)
ITERABLE = Run("iterable", lambda rank, world_size: [stream(range(rank, COUNT, world_size))])
RUNS = [
    Run("plain", lambda *_: [loader(COUNT, batch_size=2)], call="fit", options={}),
    Run("shuffled", lambda *_: [DataLoader(range(COUNT), 2, shuffle=True)], call="fit", options={}),
    OWN_SAMPLER,
    BUCKETING,
    SUBCLASS,
    SAME,
    ITERABLE,
    Run("none_on_the_first", **share(*NONE_ON_THE_FIRST), call="fit"),
    Run(
        "none_generated",
        **share(*NONE_ON_THE_FIRST),
        options={"index_key": "index", "generate": generate},
    ),
    Run("each_a_loader", **share(*EACH_A_LOADER), call="test"),
    # If all lengths are known to be 0, Lightning skips the run of that rank without calling callbacks.
    Run("known_lengths", **share(*EACH_A_LOADER, make=DataLoader), inserts_sampler=False),
]
ALSO_ON_3 = ("plain", "iterable")
# Runs that need a key of the indices, and the sampler that the error names without one.
REFUSED = [
    (OWN_SAMPLER, ".DistributedSamplerWra"),
    (BUCKETING, ".ByLength"),
    (SUBCLASS, ".Unusual"),
    (SAME, ".Sequ"),
    (ITERABLE, "._InfiniteConstantSampler"),
]


def run_case(run: Run) -> Case:
    """Return the case of a run whose scores are those of the whole data set."""
    return Case(
        compute=partial(scores_and_files, run=run),
        deal=deal_nothing,
        expect=partial(expect_scores_and_files, run=run),
        world_sizes=(2, 3) if run.name in ALSO_ON_3 else (2,),
        tolerance=2e-6,
    )


def error_has(job: Job, run: Run, words: Sequence[str], **options: Any) -> bool:
    """Return whether the error of a run has some words."""
    with pytest.raises(MisconfigurationException) as caught:
        execute(job, run, **options)
    return all(word in str(caught.value) for word in words)


def refused_case(run: Run, words: Sequence[str], **options: Any) -> Case:
    """Return the case of a run that is an error on each rank."""
    compute = partial(error_has, run=run, words=words, **options)
    return Case(compute=compute, deal=deal_nothing, expect=lambda job: True, world_sizes=(2,))


def unindexed_case(run: Run, sampler: str) -> Case:
    """Return the case of a training whose sampler needs a key of the indices, without one."""
    return refused_case(replace(run, call="fit"), [sampler, "index_key="], index_key=None)


def generate_fewer(pl_module: Chooser, batch: torch.Tensor) -> list[list[str]]:
    """Return one prediction too few."""
    return [side[1:] for side in generate(pl_module, batch)]


def generate_none(pl_module: Chooser, batch: torch.Tensor) -> tuple[list[str], list[str]]:
    return [], []


def fewer_case(count: int, function: Any) -> Case:
    """Return the case of a generator with too few predictions."""
    run = Run("fewer", lambda *_: [loader(7)], options={})
    words = [f"got {count} predictions for a batch of 3 examples", "return one prediction per example"]
    return refused_case(run, words, generate=function)


# Metrics of torchmetrics in the callback, also where a rank has no text.


class TextSQuAD(SQuAD):
    """SQuAD itself takes dictionaries instead of texts."""

    def update(self, preds, target):
        answers = [{"answers": {"answer_start": [0], "text": [text]}, "id": text} for text in target]
        predicted = [{"prediction_text": pred, "id": text} for pred, text in zip(preds, target, strict=True)]
        super().update(predicted, answers)


class BytePerplexity(Perplexity):
    """Perplexity itself takes logits instead of texts: here those that the bytes of a text define."""

    def update(self, preds, target):
        for pred, text in zip(preds, target, strict=True):
            ids = torch.tensor(list(text.encode()))[None]
            logits = torch.eye(256)[list(pred.encode())].mean(0).expand(1, ids.shape[1], -1)
            super().update(logits, ids)


class LengthRatio(MeanMetric):
    """A mean of the batches' means, which depends on how texts are batched, and on a state that may be missing."""

    def __init__(self):
        super().__init__()
        self.add_state("lengths", [], dist_reduce_fx=None)

    def update(self, preds, target):
        self.lengths.append(torch.tensor([len(text) for text in target]))
        super().update(sum(map(len, preds)) / sum(map(len, target)))


WITH_SENTENCES = {"return_sentence_level_score": True}
METRICS = {
    "rouge": partial(ROUGEScore, rouge_keys=("rouge1", "rougeL")),
    "bleu": partial(BLEUScore, n_gram=1),
    "sacre": partial(SacreBLEUScore, n_gram=1),
    "wer": WordErrorRate,
    "chrf": CHRFScore,
    "chrf_each": partial(CHRFScore, **WITH_SENTENCES),
    "ter": TranslationEditRate,
    "ter_each": partial(TranslationEditRate, **WITH_SENTENCES),
    "eed": ExtendedEditDistance,
    "eed_each": partial(ExtendedEditDistance, **WITH_SENTENCES),
    "edits_mean": EditDistance,
    "edits_sum": partial(EditDistance, reduction="sum"),
    "squad": TextSQuAD,
    "perplexity": BytePerplexity,
    "ratio": LengthRatio,
    "wrapped": lambda: MinMaxMetric(ExtendedEditDistance()),
}
BATCH_SIZE = 2


def log_other_metrics(job: Job, count: int) -> dict[str, float]:
    """Return what a validation of the first texts logs."""
    metrics = {"bertscore": BERTScore(load_encoder(job.resources.model))}
    metrics |= {name: make() for name, make in METRICS.items()}
    run = trainer(job.resources.folder, [BERTScoreCallback(metrics, generate)], **options_on_ranks(job.world_size))
    run.validate(chooser(PAIRS, kind=Indexed), loader(count, batch_size=BATCH_SIZE), verbose=False)
    logged = {key: value.item() for key, value in run.callback_metrics.items()}
    del logged["val_bertscore_precision"], logged["val_bertscore_recall"]
    return logged


def expect_other_metrics(job: Job, count: int) -> dict[str, float]:
    """Return what each metric gives for all texts in one process, in batches of the loader."""
    f1 = score_f1(job.resources.model, range(count))
    values = {"val_bertscore_f1": f1.mean().item(), "val_bertscore_empty": 0.0}
    for name, make in METRICS.items():
        values |= compute_other_metric(f"val_{name}", make(), count)
    return values


def compute_other_metric(name: str, metric: Any, count: int) -> dict[str, float]:
    """Return the values of a metric of the first texts by the names under which they are logged."""
    takes_lists = isinstance(metric, BLEUScore | CHRFScore | TranslationEditRate)
    for start in range(0, count, BATCH_SIZE):
        end = min(start + BATCH_SIZE, count)
        target = REFERENCES[start:end]
        metric.update(CANDIDATES[start:end], [[text] for text in target] if takes_lists else target)
    value = metric.compute()
    if isinstance(value, tuple):
        value = value[0]
    if isinstance(value, dict):
        return {f"{name}_{key}": float(number) for key, number in value.items()}
    return {name: float(value)}


# Numbers of texts, and for each a number of ranks that does not divide it, so that texts come twice.
OTHERS = [(1, 2), (3, 2), (5, 2), (2, 3), (4, 3)]


def others_case(count: int, world_size: int) -> Case:
    """Return the case of a validation of some texts by all metrics."""
    return Case(
        compute=partial(log_other_metrics, count=count),
        deal=deal_nothing,
        expect=partial(expect_other_metrics, count=count),
        world_sizes=(world_size,),
    )


# Early stopping: all ranks stop with the first that stops.

NAN = float("nan")
RISING, FALLING, NONE = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6], [0.9, 0.8, 0.7, 0.6, 0.5, 0.4], [None] * 6
OUT, FINITE, REACHED, NOT = "PATIENCE_EXHAUSTED", "NON_FINITE_METRIC", "STOPPING_THRESHOLD", "NOT_STOPPED"
UP, BROKEN = [0.1, 0.2, 0.6], [0.5, 0.4, NAN]
LATE, LATER = [0.5, None, 0.4, None, 0.3, None], [0.9, None, None, 0.8, None, None]
LENIENT = {"strict": False}


def deal_values(values: Sequence[Any], world_size: int) -> list[Any]:
    """Give each rank its logged values; a third rank has those of the second."""
    return [*values, *[values[-1]] * (world_size - len(values))]


def stop_early(job: Job, **arguments: Any) -> tuple[str, int, int, int]:
    """Return why and when a training stopped, how long it waited, and its last epoch."""
    stopping = BERTScoreEarlyStopping("score", **{"patience": 2} | arguments)
    run = trainer(job.resources.folder, [stopping], max_epochs=6, **options_on_ranks(job.world_size))
    run.fit(Logs(job.batches, "score"))
    return stopping.stopping_reason.name, stopping.stopped_epoch, stopping.wait_count, run.current_epoch


def stopping_case(
    values: Sequence[Any], arguments: dict[str, Any], ends: Sequence[tuple[str, int]], epoch: int
) -> Case:
    """Return the case of two ranks that log values: the reason and the wait count of each, and the common epoch."""
    is_stopped = any(reason != NOT for reason, _ in ends)
    last_epoch = epoch + 1 if is_stopped else 6

    def expect(job: Job) -> tuple[str, int, int, int]:
        reason, waited = ends[min(job.rank, len(ends) - 1)]
        return reason, epoch, waited, last_epoch

    compute = partial(stop_early, **arguments)
    return Case(compute=compute, deal=partial(deal_values, values), expect=expect, differs_by_rank=True)


def stop_or_fail(job: Job) -> int | str:
    """Return the last epoch of a training, or "missing" if the callback did not find the key."""
    try:
        return stop_early(job)[-1]
    except RuntimeError as error:
        is_missing = "`score` which is not available. Pass in" in str(error)
        return "missing" if is_missing else str(error)


def missing_case(values: Sequence[Any], ends: Sequence[int | str]) -> Case:
    """Return the case of ranks of which some lack the key."""
    return Case(
        compute=stop_or_fail,
        deal=partial(deal_values, values),
        expect=lambda job: ends[min(job.rank, len(ends) - 1)],
        differs_by_rank=True,
    )


# Files of all ranks.


def log_samples(folder: Path, model: str, **options: Any) -> tuple[list[dict[str, str]], int]:
    """Return the rows of a sample table, and the number of its pictures."""
    samples = SampleLogger(3, 1, inputs=inputs_of, follow=[5])
    scorer = BERTScoreCallback(BERTScore(load_encoder(model), idf=True))
    run = trainer(folder, [samples, scorer], logger=CSVLogger(folder, "csv"), max_epochs=1, **options)
    run.fit(mixed(PAIRS), loader(2), loader(9, batch_size=2))
    if dist.is_initialized():
        dist.barrier()
    pictures = [name for name in files(folder) if name.endswith(".png")]
    return table(folder, "val_samples_step_0"), len(pictures)


def log_samples_on_ranks(job: Job) -> tuple[list[dict[str, str]], int]:
    folder = job.resources.folder / "samples"
    return log_samples(folder, job.resources.model, **options_on_ranks(job.world_size))


def expect_samples(job: Job) -> tuple[list[dict[str, str]], int]:
    """Return the table of one process, whose rows test_sample_logger.py compares with a plain sort."""
    rows, num_pictures = log_samples(job.resources.folder / "one_process", job.resources.model, devices=1)
    assert len(rows) == 10
    assert num_pictures == 4
    return rows, num_pictures


class Sourced(Quality):
    """A Quality whose validation step returns the inputs of the examples, too."""

    def evaluation_step(self, batch, batch_idx, dataloader_idx=0):
        inputs = [f"source {number}" for number in batch.tolist()]
        return super().evaluation_step(batch, batch_idx, dataloader_idx) | {"inputs": inputs}


def write_report(job: Job) -> dict[str, Any]:
    """Train with a page and samples: 5 of 7 texts are right in the first epoch and 3 in the second, others empty."""
    folder = job.resources.folder / "report"
    shown: list[Any] = []
    callbacks = [
        BERTScoreCallback(BERTScore(load_encoder(job.resources.model), idf=True)),
        BERTScoreReport(folder / "report.html", folder / "texts", num_alignments=2),
        SampleLogger(1, writer=lambda _, samples: shown.append(samples)),
    ]
    run = trainer(folder, callbacks, **options_on_ranks(job.world_size))
    run.fit(chooser(([*CANDIDATES[1:], ""], REFERENCES), [5, 3], kind=Sourced, count=COUNT))
    dist.barrier()
    data = read_data(folder / "report.html")
    last_file = max((folder / "texts").iterdir(), key=lambda path: path.stat().st_mtime_ns)
    return {
        "has samples": len(shown) > 0,
        "empty": run.callback_metrics["val_bertscore_empty"].item(),
        "validations": len(data["names"]),
        "references": data["references"],
        "sources": data["sources"],
        "F1": data["summary"][1]["f1"]["mean"],
        "alignments": len(data["alignments"]),
        "sources in the file": [row["source"] for row in read_rows(last_file)],
    }


def expect_report(job: Job) -> dict[str, Any]:
    """Identical texts score 1 and empty ones 0; the sampler's repeated examples count once."""
    sources = [f"source {number}" for number in range(7)]
    return {
        "has samples": job.rank == 0,
        "empty": 4 / 7,
        "validations": 2,
        "references": [[text] for text in REFERENCES[:7]],
        "sources": sources,
        "F1": 3 / 7,
        "alignments": 1,
        "sources in the file": sources,
    }


def fit_twice(job: Job) -> list[tuple[str, list[int]]]:
    """Return the folder of the texts of two runs, and the number of right texts in each of its files."""
    folder = job.resources.folder / "runs"
    folders = []
    for _ in range(2):
        checkpoint = ModelCheckpoint(save_last=True)
        scorer = BERTScoreCallback(BERTScore(load_encoder(job.resources.model)))
        callbacks = [scorer, ScoredTextWriter(), SampleLogger(1), checkpoint]
        logger = CSVLogger(folder, "csv")
        run = trainer(folder, callbacks, max_epochs=2, logger=logger, **options_on_ranks(job.world_size))
        run.fit(chooser(PAIRS, [7, 0], kind=Quality))
        dist.barrier()
        texts = Path(checkpoint.dirpath).parent / "texts"
        counts = [count_right(path) for path in sorted(texts.iterdir())]
        folders.append((texts.relative_to(folder).as_posix(), counts))
    return folders


def count_right(path: Path) -> int:
    """Return how many texts of a file equal their reference."""
    return sum(row["candidate"] in row["references"] for row in read_rows(path))


TABLE = {
    **{f"scores, {run.name}": run_case(run) for run in RUNS},
    **{f"refused, {run.name}": unindexed_case(run, sampler) for run, sampler in REFUSED},
    "refused, 2 predictions for 3 examples": fewer_case(2, generate_fewer),
    "refused, no predictions for 3 examples": fewer_case(0, generate_none),
    **{f"other metrics, {count} texts": others_case(count, world_size) for count, world_size in OTHERS},
    "stops, the second is out of patience": stopping_case((RISING, FALLING), {}, [(NOT, 0), (OUT, 2)], 2),
    "stops, each for another reason": stopping_case(
        (UP, BROKEN), {"stopping_threshold": 0.55}, [(REACHED, 0), (FINITE, 1)], 2
    ),
    "stops, the second never logs": stopping_case((FALLING, NONE), LENIENT, [(OUT, 2), (NOT, 0)], 2),
    "stops, the first never logs": stopping_case((NONE, FALLING), LENIENT, [(NOT, 0), (OUT, 2)], 2),
    "stops, none logs": stopping_case((NONE, NONE), LENIENT, [(NOT, 0), (NOT, 0)], 0),
    "stops, different epochs": stopping_case((LATE, LATER), {}, [(OUT, 2), (NOT, 1)], 4),
    "stops, last epoch": stopping_case(([0.9] * 5 + [0.1], RISING), {"patience": 5}, [(OUT, 5), (NOT, 0)], 5),
    "missing key on all ranks": missing_case((NONE, NONE), ["missing", "missing"]),
    # The other ranks stop, because one has failed.
    "missing key on one rank": missing_case((RISING, NONE), [1, "missing"]),
    "samples": Case(compute=log_samples_on_ranks, deal=deal_nothing, expect=expect_samples, world_sizes=(2,)),
    "report": Case(compute=write_report, deal=deal_nothing, expect=expect_report, differs_by_rank=True, tolerance=6e-5),
    "folders of two runs": Case(
        compute=fit_twice,
        deal=deal_nothing,
        expect=lambda job: [("csv/version_0/texts", [7, 0]), ("csv/version_1/texts", [7, 0])],
    ),
}


@every_case(TABLE)
def test_each_rank_has_the_results_of_one_process(ran, name):
    ran.check(name)
