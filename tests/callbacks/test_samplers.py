"""The scores of several ranks are those of the whole data set, with every kind of sampler that Lightning accepts."""

from __future__ import annotations

import json

import pytest
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.strategies import DDPStrategy
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler
from torchmetrics.text import EditDistance

from bertscore_tm import BERTScore, FrozenEncoder, bert_score
from bertscore_tm.callbacks import BERTScoreCallback, ScoredTextWriter
from tests.support.lightning_runs import Chooser, chooser, loader, stream, trainer
from tests.support.ranks import on_ranks, results

COUNT = 11
BACKWARDS = range(COUNT - 1, -1, -1)


class Indexed(Chooser):
    """Its prediction is the candidate with the number of the example."""

    def choose(self, numbers):
        numbers = numbers.tolist()
        return [self.choices[i] for i in numbers], [self.references[i] for i in numbers]

    def train_dataloader(self):
        return loader(2)


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
    return DataLoader(range(COUNT), batch_sampler=ByLength(sampler or range(COUNT), 2, False))


# name: (dataloader of a rank of several, key of the indices)
LOADERS = {
    "plain": (lambda rank, world_size: loader(COUNT, batch_size=2), None),
    "shuffled": (lambda rank, world_size: DataLoader(range(COUNT), batch_size=2, shuffle=True), None),
    "own sampler": (lambda rank, world_size: DataLoader(range(COUNT), 2, sampler=BACKWARDS), "index"),
    "bucketing": (lambda rank, world_size: grouped(), "index"),
    "iterable": (lambda rank, world_size: stream(range(rank, COUNT, world_size)), "index"),
}
# On three ranks, examples are dealt out unevenly: by Lightning, and by the data themselves.
KINDS_ON_RANKS = {2: list(LOADERS), 3: ["plain", "iterable"]}
# name: (dataloader of a rank, name in the error, whether Lightning may insert its sampler)
REFUSED = {
    "bucketing": (lambda rank: grouped(), "a ByLength", True),
    "subclass": (lambda rank: DataLoader(range(COUNT), sampler=Unusual(range(COUNT), 2, rank)), "a Unusual", True),
    "own sampler": (lambda rank: DataLoader(range(COUNT), sampler=BACKWARDS), "a DistributedSamplerWra", True),
    "iterable": (lambda rank: stream(range(COUNT)), "a _InfiniteConstantSampler", True),
    "same": (lambda rank: loader(COUNT, batch_size=2), "a Sequ", False),
}


def ranks_of(world_size):
    return {"devices": world_size, "strategy": DDPStrategy(process_group_backend="gloo")}


def fitted(kind, few, encoder, folder, rank, world_size):
    """Scores of a run of two epochs, and the folder of its texts."""
    make, index_key = LOADERS[kind]
    metrics = {"bertscore": BERTScore(encoder), "idf": BERTScore(encoder, idf=True)}
    metrics["edits"] = EditDistance(reduction="sum")
    folder = folder / f"{kind}-{world_size}"
    callbacks = [BERTScoreCallback(metrics, index_key=index_key), ScoredTextWriter(folder)]
    run = trainer(folder, callbacks, **ranks_of(world_size))
    run.fit(chooser(few, count=COUNT, kind=Indexed), val_dataloaders=make(rank, world_size))
    return {key: value.item() for key, value in run.callback_metrics.items()}, folder


def validated(few, encoder, folder, data, index_key, inserts_sampler):
    """F1 of a run."""
    scorer = BERTScoreCallback(BERTScore(encoder), index_key=index_key)
    run = trainer(folder, [scorer], use_distributed_sampler=inserts_sampler, **ranks_of(2))
    run.validate(chooser(few, count=COUNT, kind=Indexed), data, verbose=False)
    return run.callback_metrics["val_bertscore_f1"].item()


def fits(rank, world_size, kinds, few, minilm, folder):
    encoder = FrozenEncoder(minilm, num_layers=2)
    for kind in kinds:
        yield kind, lambda kind=kind: fitted(kind, few, encoder, folder, rank, world_size)


def refusals(rank, few, minilm, folder):
    encoder = FrozenEncoder(minilm, num_layers=2)
    for kind, (make, _, inserts) in REFUSED.items():
        for key in (None, "index"):

            def run(make=make, key=key, inserts=inserts):
                return validated(few, encoder, folder, make(rank), key, inserts)

            yield (kind, key), run


@pytest.fixture(scope="module")
def few(pairs):
    return tuple(side[:COUNT] for side in pairs)


@pytest.fixture(scope="module")
def f1(few, shallow):
    """F1 of each pair."""
    preds, target = few
    return bert_score(preds, target, shallow)["f1"]


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
def test_ranks_score_the_whole_data_set(reports, few, shallow, f1, kind):
    ranks, (preds, target) = results(reports, kind), few
    idf = bert_score(preds, target, shallow, idf=True)["f1"].mean().item()
    for scores, _ in ranks:
        assert scores["val_bertscore_f1"] == pytest.approx(f1.mean().item(), abs=1e-6)
        assert scores["val_idf_f1"] == pytest.approx(idf, abs=1e-6)
        assert scores["val_edits"] == EditDistance(reduction="sum")(preds, target).item()
    # The same example in the same place in both epochs.
    for step in (0, 1):
        path = ranks[0][1] / f"val_step_{step}.jsonl"
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        texts = [(row["candidate"], row["references"]) for row in rows]
        assert texts == [(preds[i], [target[i]]) for i in range(COUNT)]
        assert [row["f1"] for row in rows] == pytest.approx(f1.tolist(), abs=2e-6)


@pytest.mark.slow
@pytest.mark.distributed
@pytest.mark.parametrize("kind", REFUSED)
def test_another_sampler_is_an_error_without_indices(refusal_reports, f1, kind):
    for rank in refusal_reports:
        assert REFUSED[kind][1] in rank[kind, None]
        assert "index_key=" in rank[kind, None]
        assert rank[kind, "index"] == pytest.approx(f1.mean().item(), abs=1e-6)


def test_indices_count_each_example_once_also_on_one_rank(few, shallow, tmp_path):
    """In a dataloader that draws some examples twice."""
    metrics = {"bertscore": BERTScore(shallow, reduction="none"), "edits": EditDistance(reduction="sum")}
    scorer = BERTScoreCallback(metrics, index_key="index")
    run = trainer(tmp_path, [scorer])
    drawn = [3, 1, 4, 1, 5, 9, 3, 6, 5, 3]
    run.validate(chooser(few, count=COUNT, kind=Indexed), DataLoader(range(COUNT), 4, sampler=drawn), verbose=False)
    preds, target = ([side[i] for i in sorted(set(drawn))] for side in few)
    expected = bert_score(preds, target, shallow)["f1"]
    torch.testing.assert_close(scorer.pairs["val_bertscore_f1"], expected, atol=1e-6, rtol=0)
    assert run.callback_metrics["val_edits"].item() == EditDistance(reduction="sum")(preds, target).item()


def test_indices_that_nobody_returns_are_an_error(few, shallow, tmp_path):
    run = trainer(tmp_path, [BERTScoreCallback(BERTScore(shallow), index_key="number")])
    with pytest.raises(MisconfigurationException, match=r"neither the batch nor .* the key index_key='number'"):
        run.validate(chooser(few, count=COUNT, kind=Indexed), loader(6), verbose=False)
