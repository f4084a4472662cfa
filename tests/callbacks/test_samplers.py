"""The scores of several ranks are those of the whole data set, with every kind of sampler that Lightning accepts."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import lightning.pytorch as pl
import pytest
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.strategies import DDPStrategy
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, Sampler
from torchmetrics.text import EditDistance

from bertscore_tm import BERTScore, FrozenEncoder, bert_score
from bertscore_tm.callbacks import BERTScoreCallback, SampleLogger, ScoredTextWriter
from tests.support.callback_ranks import on_ranks, results
from tests.support.callback_runs import stream
from tests.support.lightning_modules import Chooser, Numbers, chooser, loader, trainer

COUNT = 11
FOLLOWED, FOLLOWED_IN = 4, ("shuffled", "own sampler")
# The order of the others is that of a DistributedSampler.
INDEXED = ("own sampler", "bucketing", "iterable")


class Indexed(Chooser):
    """Its prediction is the candidate with the number of the example, and its steps return the numbers."""

    def choose(self, numbers):
        numbers = numbers.tolist()
        return [self.choices[i] for i in numbers], [self.references[i] for i in numbers]

    def evaluation_step(self, batch, batch_idx, dataloader_idx=0):
        return {**super().evaluation_step(batch, batch_idx), "index": batch}

    validation_step = evaluation_step

    def train_dataloader(self):
        return loader(2)


class Backwards(Sampler):
    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __iter__(self):
        return iter(range(self.count - 1, -1, -1))


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


def grouped(sampler=None):
    return DataLoader(Numbers(COUNT), batch_sampler=ByLength(sampler or range(COUNT), 2, False))


LOADERS = {
    "plain": lambda rank, world_size: loader(COUNT, batch_size=2),
    "shuffled": lambda rank, world_size: DataLoader(Numbers(COUNT), batch_size=2, shuffle=True),
    "own sampler": lambda rank, world_size: DataLoader(Numbers(COUNT), batch_size=2, sampler=Backwards(COUNT)),
    "bucketing": lambda rank, world_size: grouped(),
    "iterable": lambda rank, world_size: stream(range(rank, COUNT, world_size)),
}
# On three ranks, examples are dealt out unevenly: by Lightning, and by the data themselves.
KINDS_ON_RANKS = {2: list(LOADERS), 3: ["plain", "iterable"]}
REFUSED = {
    "bucketing": (lambda rank: grouped(), "ByLength"),
    "subclass": (lambda rank: DataLoader(Numbers(COUNT), sampler=Unusual(range(COUNT), 2, rank)), "Unusual"),
    "own sampler": (lambda rank: DataLoader(Numbers(COUNT), sampler=Backwards(COUNT)), "DistributedSamplerWrapper"),
    "iterable": (lambda rank: stream(range(COUNT)), "Stream, which is read in order"),
}


def ranks_of(world_size):
    return {"devices": world_size, "strategy": DDPStrategy(process_group_backend="gloo")}


def shown(folder, key):
    """Texts of the followed example in the tables of a run."""
    paths = sorted(Path(folder).rglob(f"{key}_step_*.csv"))
    tables = [list(csv.DictReader(path.open(encoding="utf-8", newline=""))) for path in paths]
    return [row["reference"] for table in tables for row in table if row["kind"] == "followed"]


class PairsOfEpochs(pl.Callback):
    def __init__(self, scorer):
        self.scorer, self.pairs = scorer, []

    def on_validation_end(self, trainer, pl_module):
        self.pairs.append(self.scorer.pairs["val_bertscore_f1"])


def fitted(kind, few, encoder, folder, rank, world_size):
    """Scores, pairs and followed examples of a run of two epochs."""
    metrics = {
        "bertscore": BERTScore(encoder, reduction="none"),
        "idf": BERTScore(encoder, idf=True),
        "edits": EditDistance(reduction="sum"),
    }
    index_key = "index" if kind in INDEXED else None
    scorer = BERTScoreCallback(metrics, index_key=index_key)
    pairs = PairsOfEpochs(scorer)
    callbacks = [scorer, pairs]
    if kind in FOLLOWED_IN:
        callbacks.append(SampleLogger(1, 0, follow=[FOLLOWED]))
    folder = folder / f"{kind}-{world_size}"
    callbacks.append(ScoredTextWriter(folder / "texts"))
    run = trainer(folder, callbacks, logger=CSVLogger(folder, "csv", version=0), **ranks_of(world_size))
    run.fit(chooser(few, count=COUNT, kind=Indexed), val_dataloaders=LOADERS[kind](rank, world_size))
    scores = {key: value.item() for key, value in run.callback_metrics.items() if key.startswith("val_")}
    return scores, pairs.pairs, shown(folder, "val_samples"), folder / "texts"


def validated(few, encoder, folder, data, index_key=None, **options):
    """F1 of a run."""
    scorer = BERTScoreCallback(BERTScore(encoder), index_key=index_key)
    run = trainer(folder, [scorer], **options, **ranks_of(2))
    run.validate(chooser(few, count=COUNT, kind=Indexed), data, verbose=False)
    return run.callback_metrics["val_bertscore_f1"].item()


def fits(rank, world_size, kinds, few, minilm, folder):
    encoder = FrozenEncoder(minilm, num_layers=2)
    for kind in kinds:
        yield kind, lambda kind=kind: fitted(kind, few, encoder, folder, rank, world_size)


def refusals(rank, few, minilm, folder):
    rest = few, FrozenEncoder(minilm, num_layers=2), folder
    for kind, (make, _) in REFUSED.items():
        for key in (None, "index"):
            yield (kind, key), lambda make=make, key=key: validated(*rest, make(rank), key)
    data = LOADERS["plain"](rank, 2)
    for key in (None, "index"):
        yield ("same", key), lambda key=key: validated(*rest, data, key, use_distributed_sampler=False)


@pytest.fixture(scope="module")
def few(pairs):
    return tuple(side[:COUNT] for side in pairs)


@pytest.fixture(scope="module")
def expected(few, shallow):
    """F1 of each pair, and their mean with idf."""
    return bert_score(*few, shallow)["f1"], bert_score(*few, shallow, idf=True)["f1"].mean().item()


@pytest.fixture(scope="module")
def reports(request, few, minilm, tmp_path_factory):
    world_size = request.param
    kinds = KINDS_ON_RANKS[world_size]
    folder = tmp_path_factory.mktemp("fits")
    return on_ranks(fits, world_size, kinds, few, minilm, folder, world_size=world_size)


@pytest.fixture(scope="module")
def refusal_reports(few, minilm, tmp_path_factory):
    return on_ranks(refusals, few, minilm, tmp_path_factory.mktemp("refusals"))


@pytest.mark.slow
@pytest.mark.distributed
@pytest.mark.parametrize(
    ("reports", "kind"),
    [(world_size, kind) for world_size, kinds in KINDS_ON_RANKS.items() for kind in kinds],
    indirect=["reports"],
    scope="module",
)
def test_ranks_score_the_whole_data_set(reports, few, expected, kind):
    ranks = results(reports, kind)
    f1, idf = expected
    for scores, pairs, _, _ in ranks:
        assert scores["val_bertscore_f1"] == pytest.approx(f1.mean().item(), abs=1e-6)
        assert scores["val_idf_f1"] == pytest.approx(idf, abs=1e-6)
        assert scores["val_edits"] == EditDistance(reduction="sum")(*few).item()
        # The same example in the same place in both epochs.
        assert len(pairs) == 2
        for one in pairs:
            torch.testing.assert_close(one, f1, atol=1e-6, rtol=0)
    if kind in FOLLOWED_IN:
        assert ranks[0][2] == [few[1][FOLLOWED]] * 2
    paths = sorted(ranks[0][3].iterdir())
    assert [path.name for path in paths] == ["val_step_0.jsonl", "val_step_1.jsonl"]
    rows = [json.loads(line) for line in paths[1].read_text(encoding="utf-8").splitlines()]
    assert [(row["candidate"], row["references"]) for row in rows] == [(few[0][i], [few[1][i]]) for i in range(COUNT)]
    assert [row["f1"] for row in rows] == pytest.approx(f1.tolist(), abs=2e-6)


@pytest.mark.slow
@pytest.mark.distributed
@pytest.mark.parametrize(("kind", "name"), [*((kind, name) for kind, (_, name) in REFUSED.items()), ("same", "Sequ")])
def test_another_sampler_is_an_error_without_indices(refusal_reports, expected, kind, name):
    f1 = expected[0].mean().item()
    for rank in refusal_reports:
        assert f"got a {name}" in rank[kind, None]
        assert "index_key=" in rank[kind, None]
        assert rank[kind, "index"] == pytest.approx(f1, abs=1e-6)


def test_indices_count_each_example_once_also_on_one_rank(few, shallow, tmp_path):
    """In a dataloader that draws some examples twice."""
    metrics = {"bertscore": BERTScore(shallow, reduction="none"), "edits": EditDistance(reduction="sum")}
    scorer = BERTScoreCallback(metrics, index_key="index")
    run = trainer(tmp_path, [scorer])
    drawn = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3]
    run.validate(chooser(few, count=COUNT, kind=Indexed), DataLoader(Numbers(COUNT), 4, sampler=drawn), verbose=False)
    once = [[side[i] for i in sorted(set(drawn))] for side in few]
    expected = bert_score(*once, shallow)["f1"]
    torch.testing.assert_close(scorer.pairs["val_bertscore_f1"], expected, atol=1e-6, rtol=0)
    assert run.callback_metrics["val_edits"].item() == EditDistance(reduction="sum")(*once).item()


class BadIndices(Indexed):
    def evaluation_step(self, batch, batch_idx, dataloader_idx=0):
        return {**super().evaluation_step(batch, batch_idx), "few": batch[1:], "texts": ["a"] * len(batch)}

    validation_step = evaluation_step


@pytest.mark.parametrize(
    ("index_key", "message"),
    [
        ("number", "no index_key='number' in the batch or in the step's outputs, which have the keys"),
        ("few", "index_key='few' must hold 3 integers, one per prediction"),
        ("texts", "index_key='texts' must hold 3 integers, one per prediction, got ['a', 'a', 'a']"),
    ],
)
def test_unusable_indices_are_an_error(few, shallow, tmp_path, index_key, message):
    run = trainer(tmp_path, [BERTScoreCallback(BERTScore(shallow), index_key=index_key)])
    with pytest.raises(MisconfigurationException, match=re.escape(message)):
        run.validate(chooser(few, count=COUNT, kind=BadIndices), loader(6), verbose=False)


def test_followed_examples_of_shuffled_data_need_indices(few, shallow, tmp_path):
    def run(index_key):
        callbacks = [BERTScoreCallback(BERTScore(shallow), index_key=index_key), SampleLogger(1, 0, follow=[FOLLOWED])]
        logger = CSVLogger(tmp_path, "csv", version=0)
        data = DataLoader(Numbers(COUNT), batch_size=2, shuffle=True)
        trainer(tmp_path, callbacks, logger=logger).validate(
            chooser(few, count=COUNT, kind=Indexed), data, verbose=False
        )

    with pytest.raises(MisconfigurationException, match=r"follow=\[4\], but examples of dataloader 0 have no fixed"):
        run(None)
    run("index")
    assert shown(tmp_path, "val_samples") == [few[1][FOLLOWED]]
