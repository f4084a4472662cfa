"""The scores of several ranks are those of the whole data set, however its examples are dealt out to them."""

import json
from functools import partial

import lightning.pytorch as pl
import pytest
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.utilities import CombinedLoader
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, SequentialSampler
from torchmetrics.text import EditDistance

from bertscore_tm import BERTScore, FrozenEncoder, bert_score
from bertscore_tm.callbacks import BERTScoreCallback, ScoredTextWriter
from bertscore_tm.callbacks.trainer import list_loaders
from tests.support.lightning_runs import Chooser, Returns, chooser, generate, loader, strategy_on_cpu, stream, trainer
from tests.support.ranks import on_ranks, results

COUNT = 11
BACKWARDS = range(COUNT - 1, -1, -1)


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


def of_all(make):
    """A dataloader of all examples, and their numbers."""
    return lambda rank, world_size: [make(rank, world_size)], [range(COUNT)]


def dealt(*parts, make=stream):
    """Dataloaders of the given examples of the first and of the second rank, and their numbers."""
    return lambda rank, world_size: [make(part[rank]) for part in parts], [[*first, *second] for first, second in parts]


GROUPS = ByLength(range(COUNT), 2, False)
NONE_ON_THE_FIRST, EACH_A_LOADER = [([], range(7))], [(range(5), []), ([], [5, 6]), ([8, 2, 3, 4], [7])]
BY_INDEX = {"index_key": "index"}
# name: ((dataloaders of a rank of several, the numbers of their examples), options of the run)
RUNS = {
    "plain": (of_all(lambda *_: loader(COUNT, batch_size=2)), {}),
    "shuffled": (of_all(lambda *_: DataLoader(range(COUNT), 2, shuffle=True)), {}),
    "own sampler": (of_all(lambda *_: DataLoader(range(COUNT), 2, sampler=BACKWARDS)), BY_INDEX),
    "bucketing": (of_all(lambda *_: DataLoader(range(COUNT), batch_sampler=GROUPS)), BY_INDEX),
    "subclass": (of_all(lambda rank, _: DataLoader(range(COUNT), sampler=Unusual(range(COUNT), 2, rank))), BY_INDEX),
    "same": (of_all(lambda *_: loader(COUNT, batch_size=2)), BY_INDEX | {"inserts_sampler": False}),
    "iterable": (of_all(lambda rank, world_size: stream(range(rank, COUNT, world_size))), BY_INDEX),
    "none on the first": (dealt(*NONE_ON_THE_FIRST), BY_INDEX),
    "none generated": (dealt(*NONE_ON_THE_FIRST), BY_INDEX | {"call": "validate", "generate": generate}),
    "each a loader": (dealt(*EACH_A_LOADER), BY_INDEX | {"call": "test"}),
    # If all lengths are known to be 0, Lightning skips the run of that rank without calling callbacks.
    "known lengths": (dealt(*EACH_A_LOADER, make=DataLoader), BY_INDEX | {"inserts_sampler": False}),
}
# On three ranks, examples are dealt out unevenly: by Lightning, and by the data themselves.
RUNS_ON = {2: list(RUNS), 3: ["plain", "iterable"]}
# Errors of runs without a key of the indices.
REFUSED = {
    "own sampler": ".DistributedSamplerWra",
    "bucketing": ".ByLength",
    "subclass": ".Unusual",
    "same": ".Sequ",
    "iterable": "._InfiniteConstantSampler",
}
FEWER = {2: lambda *args: [side[1:] for side in generate(*args)], 0: lambda *args: ([], [])}


def scores_of(pairs, encoder, folder, loaders, *, world_size, call="fit", inserts_sampler=True, **options):
    """The logged scores of a run of two epochs, a validation or a test; texts are written to the folder."""
    metrics = {"bertscore": BERTScore(encoder), "idf": BERTScore(encoder, idf=True, reduction="none")}
    scorer = BERTScoreCallback(metrics | {"edits": EditDistance(reduction="sum")}, **options)
    ranks = {"devices": world_size, "strategy": strategy_on_cpu("ddp"), "use_distributed_sampler": inserts_sampler}
    run = trainer(folder, [scorer, ScoredTextWriter(folder)], **ranks)
    module = chooser(pairs, count=COUNT, kind=Indexed)
    module.allow_zero_length_dataloader_with_multiple_devices = True
    if call == "fit":
        run.fit(module, loader(2), loaders)
    else:
        getattr(run, call)(module, loaders, verbose=False)
    return {key: value.item() for key, value in run.callback_metrics.items() if "loss" not in key}


def cases(rank, world_size, pairs, minilm, folder):
    run = partial(scores_of, pairs, FrozenEncoder(minilm, num_layers=2), world_size=world_size)
    for name in RUNS_ON[world_size]:
        (make, _), options = RUNS[name]
        yield name, partial(run, folder / f"{name}-{world_size}", make(rank, world_size), **options)
        if world_size == 2 and name in REFUSED:
            yield (name, None), partial(run, folder, make(rank, world_size), **options | {"index_key": None})
    for count, make in FEWER.items() if world_size == 2 else ():
        yield count, partial(run, folder, [loader(7)], call="validate", generate=make)


@pytest.fixture(scope="module")
def reports(request, pairs, minilm, tmp_path_factory):
    """Of all ranks, and the folder of their texts."""
    folder = tmp_path_factory.mktemp("ranks")
    return on_ranks(cases, request.param, pairs, minilm, folder, world_size=request.param), folder


@pytest.mark.slow
@pytest.mark.distributed
@pytest.mark.parametrize(
    ("reports", "name"),
    [(world_size, name) for world_size, names in RUNS_ON.items() for name in names],
    indirect=["reports"],
    scope="module",
)
def test_ranks_score_the_whole_data_set(reports, pairs, shallow, name):
    ranks, folder = reports
    scores, *others = results(ranks, name)
    assert all(other == scores for other in others)
    (_, loaders), options = RUNS[name]
    call = options.get("call", "fit")
    stage = "test" if call == "test" else "val"
    ends = [f"_dataloader_idx_{i}" for i in range(len(loaders))] if len(loaders) > 1 else [""]
    values = {"bertscore_f1": [], "idf_f1": [], "edits": []}
    for end, numbers in zip(ends, loaders, strict=True):
        preds, target = ([side[i] for i in sorted(numbers)] for side in pairs)
        f1 = bert_score(preds, target, shallow)["f1"]
        values["bertscore_f1"].append(f1.mean().item())
        values["idf_f1"].append(bert_score(preds, target, shallow, idf=True)["f1"].mean().item())
        values["edits"].append(EditDistance(reduction="sum")(preds, target).item())
        # The same example in the same place in both epochs.
        run = "val" if call == "fit" else call
        for step in (0, 1) if call == "fit" else (0,):
            path = next(folder.glob(f"{name}-*")) / f"{run}{end}_step_{step}.jsonl"
            rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
            texts = [(row["candidate"], *row["references"]) for row in rows]
            assert texts == list(zip(preds, target, strict=True))
            assert [row["f1"] for row in rows] == pytest.approx(f1.tolist(), abs=2e-6)
    for key, of_loaders in values.items():
        assert scores[f"{stage}_{key}"] == pytest.approx(sum(of_loaders) / len(loaders), rel=1e-6)
        for end, value in zip(ends, of_loaders, strict=True):
            assert scores[f"{stage}_{key}{end}"] == pytest.approx(value, rel=1e-6)


@pytest.mark.slow
@pytest.mark.distributed
@pytest.mark.parametrize("reports", [2], indirect=True, scope="module")
def test_unknown_examples_of_a_rank_are_an_error(reports):
    for rank in reports[0]:
        for name, sampler in REFUSED.items():
            assert sampler in rank[name, None]
            assert "index_key=" in rank[name, None]
        for count in FEWER:
            assert f"MisconfigurationException: got {count} predictions for a batch of 3 examples" in rank[count]
            assert "return one prediction per example" in rank[count]


def test_indices_count_each_example_once_also_on_one_rank(pairs, shallow, tmp_path):
    """In a dataloader that draws some examples twice."""
    metrics = {"bertscore": BERTScore(shallow, reduction="none"), "edits": EditDistance(reduction="sum")}
    scorer = BERTScoreCallback(metrics, index_key="index")
    run = trainer(tmp_path, [scorer])
    drawn = [3, 1, 4, 1, 5, 9, 3, 6, 5, 3]
    run.validate(chooser(pairs, count=COUNT, kind=Indexed), DataLoader(range(COUNT), 4, sampler=drawn), verbose=False)
    preds, target = ([side[i] for i in sorted(set(drawn))] for side in pairs)
    expected = bert_score(preds, target, shallow)["f1"]
    torch.testing.assert_close(scorer.pairs["val_bertscore_f1"], expected, atol=1e-6, rtol=0)
    assert run.callback_metrics["val_edits"].item() == EditDistance(reduction="sum")(preds, target).item()


def test_indices_that_nobody_returns_are_an_error(pairs, shallow, tmp_path):
    run = trainer(tmp_path, [BERTScoreCallback(BERTScore(shallow), index_key="number")])
    with pytest.raises(MisconfigurationException, match=r"neither the batch nor .* the key index_key='number'"):
        run.validate(chooser(pairs, count=COUNT, kind=Indexed), loader(6), verbose=False)


@pytest.mark.parametrize("value", [[0, 1], torch.tensor([0, 1])])
def test_another_number_of_indices_than_predictions_is_an_error(pairs, shallow, tmp_path, value):
    scorer = BERTScoreCallback({"edits": EditDistance()}, index_key="index")
    module = chooser(pairs, kind=Returns, returned={"preds": ["a"] * 3, "target": ["b"] * 3, "index": value})
    with pytest.raises(MisconfigurationException, match="got 2 indices under index_key='index' for 3 predictions"):
        trainer(tmp_path, [scorer]).validate(module, verbose=False)


class ListsLoaders(pl.Callback):
    """Asks for the examples' numbers, as on several ranks."""

    def on_validation_start(self, trainer, pl_module):
        list_loaders(trainer, with_numbers=True)


def test_combined_loaders_are_refused_by_their_mode(pairs, tmp_path):
    both = CombinedLoader([loader(3), loader(3)], "max_size")
    with pytest.raises(MisconfigurationException) as caught:
        trainer(tmp_path, [ListsLoaders()]).validate(chooser(pairs), both, verbose=False)
    assert "because a CombinedLoader with mode='max_size' mixes dataloaders" in str(caught.value)
    assert "BatchSampler" not in str(caught.value)


def test_a_sampler_of_an_equal_name_is_refused_with_its_module(pairs, tmp_path):
    class DistributedSampler(SequentialSampler):
        pass

    data = DataLoader(range(4), sampler=DistributedSampler(range(4)))
    with pytest.raises(MisconfigurationException, match=r"test_trainer.*DistributedSampler instead of torch's"):
        trainer(tmp_path, [ListsLoaders()]).validate(chooser(pairs), data, verbose=False)
