"""The metric on several ranks: collectives, encodings, uneven updates and errors."""

from __future__ import annotations

import warnings
from itertools import chain
from typing import Any

import pytest
import torch
from torch import Tensor
from torchmetrics import Metric, MetricCollection, SumMetric
from torchmetrics.utilities.exceptions import TorchMetricsUserError
from torchmetrics.utilities.prints import rank_zero_only
from torchmetrics.wrappers import MetricTracker

from bertscore_tm import BERTScore, FrozenEncoder
from bertscore_tm.encoder.tokenization import TextTokenizer
from bertscore_tm.functional import SCORES, bert_score
from bertscore_tm.scoring.rescaling import LayerBaseline
from tests.support.ranks import run_ranks
from tests.support.texts import real_pairs, several_references

pytestmark = pytest.mark.distributed

TOLERANCE = 1e-6
COUNT = 13
LAYERS = 2
# Whether idf, several references, all layers; test_worlds has more.
KINDS = [(False, False, False), (True, True, True)]


def texts(several: bool) -> tuple[list[str], list[Any]]:
    preds, target = ([" ".join(text.split()[:9]) for text in side] for side in real_pairs(COUNT))
    return preds, several_references(target) if several else target


def part(data: tuple[list[str], list[Any]], numbers: list[int]) -> tuple[list[str], list[Any]]:
    return [data[0][i] for i in numbers], [data[1][i] for i in numbers]


def shares(world_size: int) -> list[list[int]]:
    """Uneven, interleaved, and the last rank has nothing."""
    given = world_size - 1
    uneven = [[i for i in range(COUNT) if (i * i) % given == rank] for rank in range(given)] + [[]]
    assert sorted(chain(*uneven)) == list(range(COUNT))
    return uneven


def expected(kind: tuple[bool, bool, bool], encoder: FrozenEncoder, numbers: list[int]) -> dict[str, Tensor]:
    idf, several, _ = kind
    return bert_score(*part(texts(several), numbers), encoder, idf=idf)


def deviation(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> float:
    assert all(found[name].shape == wanted[name].shape for name in SCORES)
    return max(float((found[name] - wanted[name]).abs().max()) for name in SCORES)


def num_pairs(metric: BERTScore) -> int:
    """How many pairs this rank holds."""
    if "reference_counts" in metric.metric_state:
        return sum(map(len, metric.reference_counts))
    return sum(map(len, metric.scores))


class Counted:
    """Counts what happens in a rank: encoded texts, calls of the tokenizer, and collectives with their sizes."""

    def __init__(self) -> None:
        self.encoded: list[str] = []
        self.tokenized: list[int] = []
        self.collectives: list[tuple[str, int]] = []
        encode, tokenize = FrozenEncoder.encode, TextTokenizer.__call__

        def counted_encode(encoder, given, *args, **kwargs):
            self.encoded += list(given)
            return encode(encoder, given, *args, **kwargs)

        def counted_tokenize(tokenizer, given):
            self.tokenized.append(len(given))
            return tokenize(tokenizer, given)

        FrozenEncoder.encode, TextTokenizer.__call__ = counted_encode, counted_tokenize
        for name in ("all_gather", "all_reduce", "barrier", "broadcast", "all_gather_into_tensor", "gather"):
            setattr(torch.distributed, name, self._counted(name, getattr(torch.distributed, name)))

    def _counted(self, name, function):
        def counted(*args, **kwargs):
            tensors = [value for value in args if isinstance(value, Tensor)]
            self.collectives.append((name, max((value.numel() for value in tensors), default=0)))
            return function(*args, **kwargs)

        return counted

    def during(self, function) -> tuple[Any, list[tuple[str, int]]]:
        """Call the function; it may neither encode nor tokenize. Return its value and its collectives."""
        before = len(self.encoded), len(self.tokenized)
        self.collectives = []
        value = function()
        assert (len(self.encoded), len(self.tokenized)) == before
        return value, self.collectives


def score_all_kinds(rank: int, model: str, uneven: list[list[int]], both: dict[bool, Any]) -> dict[str, Any]:
    """Several kinds of metrics, fed in two updates per rank."""
    counted = Counted()
    report: dict[str, Any] = {"plain": [], "collectives": [], "encoded": []}
    mine = uneven[rank]
    for idf, several, all_layers in KINDS:
        data = both[several]
        encoder = FrozenEncoder(model, num_layers=LAYERS, all_layers=all_layers)
        counted.encoded.clear()
        plain = BERTScore(encoder, reduction="none", idf=idf, cache_bytes=0)
        for numbers in (mine[:2], mine[2:]):
            plain.update(*part(data, numbers))
        report["encoded"].append(list(counted.encoded))
        found, collectives = counted.during(plain.compute)
        report["plain"].append(found)
        report["collectives"].append(collectives)

        # What a rank holds after compute is still its own share.
        assert num_pairs(plain) == len(mine)
    return report


@pytest.mark.slow
def test_collectives_and_encodings(minilm):
    world_size = 3
    uneven = shares(world_size)
    reports = run_ranks(
        score_all_kinds, world_size, minilm, uneven, {several: texts(several) for several in (False, True)}, fresh=True
    )
    largest = 0.0
    for number, kind in enumerate(KINDS):
        encoder = FrozenEncoder(minilm, num_layers=LAYERS, all_layers=kind[2])
        rank_by_rank = expected(kind, encoder, list(chain(*uneven)))
        for report in reports:
            largest = max(largest, deviation(report["plain"][number], rank_by_rank))
            for name in SCORES:
                assert torch.equal(report["plain"][number][name], reports[0]["plain"][number][name])
        # Each rank encodes its own texts, each of them once per update.
        data = texts(kind[1])
        for report, numbers in zip(reports, uneven, strict=True):
            wanted = []
            for preds, target in (part(data, numbers[:2]), part(data, numbers[2:])):
                wanted += {*preds, *chain(*([t] if isinstance(t, str) else t for t in target))}
            assert sorted(report["encoded"][number]) == sorted(wanted)
        # Everyone calls the same collectives; the largest tensor is the vocabulary's or has three numbers per pair.
        names = [[name for name, _ in report["collectives"][number]] for report in reports]
        assert all(calls == names[0] for calls in names)
        assert len(names[0]) <= 20
        vocabulary = 30522 + 1 if kind[0] else 0
        sizes = sorted({size for report in reports for _, size in report["collectives"][number]})
        per_pair = COUNT * 3 * (LAYERS + 1 if kind[2] else 1)
        assert all(size <= per_pair or size == vocabulary for size in sizes), sizes
    print(f"largest deviation over {world_size} processes: {largest:.1e}")
    assert largest <= TOLERANCE


def use_as_in_training(rank: int, model: str, data: tuple[list[str], list[str]]) -> dict[str, Any]:
    report: dict[str, Any] = {}
    encoder = FrozenEncoder(model, num_layers=LAYERS)
    for idf in (False, True):
        found = report[f"idf={idf}"] = {}
        # The first rank alone asks again, as for a file of results that it writes.
        cached = BERTScore(encoder, idf=idf, reduction="none")
        single = BERTScore(encoder, component="f1")
        tracker = MetricTracker(MetricCollection([BERTScore(encoder, idf=True)]) if idf else single, maximize=True)
        for numbers in ([0, 1], [2]):
            tracker.increment()
            tracker.update(*part(data, numbers[rank:]))
            tracker.compute()
        cached.update(*part(data, [0, 1] if rank == 0 else [2]))
        found["cached"] = cached.compute()
        if rank == 0:
            found["cached again"] = cached.compute()
            tracker.best_metric()

        metric = BERTScore(encoder, idf=idf, reduction="none", compute_with_cache=False)
        metric.update(*part(data, [0, 1] if rank == 0 else [2]))
        found["first"] = metric.compute()
        # An update on one rank only: the other has an unchanged state, and must still take part.
        if rank == 1:
            metric.update(*part(data, [3, 4]))
        found["second"] = metric.compute()
        found["third"] = metric.compute()
        metric.update(*part(data, [5 + rank]))
        found["fourth"] = metric.compute()

        on_step = BERTScore(encoder, idf=idf, reduction="none", dist_sync_on_step=True)
        found["steps"] = [on_step(*part(data, [2 * step + rank])) for step in range(2)]
        found["epoch"] = on_step.compute()
        local = BERTScore(encoder, idf=idf, reduction="none", sync_on_compute=False)
        local.update(*part(data, [0, 1] if rank == 0 else [2]))
        found["local"] = local.compute()

        # Some ranks pass indices and others do not: an error on every rank, after which all continue.
        mixed = BERTScore(encoder, idf=idf, reduction="none")
        mixed.update(*part(data, [rank]), indices=[rank] if rank == 0 else None)
        with pytest.raises(ValueError, match="some ranks passed indices"):
            mixed.compute()
        assert num_pairs(mixed) == 1
        # A step with an error loses nothing and leaves the metric synchronising.
        on_step.reset()
        on_step.update(*part(data, [rank]))
        with pytest.raises(TypeError):
            on_step([None], ["a"])
        found["after bad step"] = on_step.compute()

        # An error in the computation itself, after the states were gathered.
        broken = BERTScore(encoder, idf=idf, reduction="none")
        broken.update(*part(data, [rank]))
        broken._baseline = LayerBaseline(torch.zeros(7), "broken")
        with pytest.raises(IndexError):
            broken.compute()
        broken.unsync()
        assert num_pairs(broken) == 1
        broken._baseline = None
        broken.update(*part(data, [rank + 2]))
        found["repaired"] = broken.compute()

    # Set by Lightning or the environment of torchrun.
    rank_zero_only.rank = rank
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        blank = BERTScore(FrozenEncoder(model, num_layers=LAYERS, max_length=6))
        blank.update([""], ["a long text that must be cut somewhere"])
        blank.compute()
    report["warnings"] = [str(warning.message) for warning in caught]
    nothing = BERTScore(encoder, idf=True)
    nothing.update([], [])
    report["nothing"] = nothing.compute()
    return report


@pytest.mark.slow
def test_as_in_training(minilm):
    reports = run_ranks(use_as_in_training, 2, minilm, texts(False))
    encoder = FrozenEncoder(minilm, num_layers=LAYERS)
    for idf in (False, True):
        kind = (idf, False, False)
        for rank, report in enumerate(reports):
            found = report[f"idf={idf}"]
            wanted = {
                "cached": [0, 1, 2],
                **({"cached again": [0, 1, 2]} if rank == 0 else {}),
                "first": [0, 1, 2],
                "second": [0, 1, 2, 3, 4],
                "third": [0, 1, 2, 3, 4],
                "fourth": [0, 1, 5, 2, 3, 4, 6],
                "epoch": [0, 2, 1, 3],
                "local": [[0, 1], [2]][rank],
                "after bad step": [0, 1],
                "repaired": [0, 2, 1, 3],
            }
            for name, numbers in wanted.items():
                assert deviation(found[name], expected(kind, encoder, numbers)) <= TOLERANCE, (idf, rank, name)
            for step, value in enumerate(found["steps"]):
                assert deviation(value, expected(kind, encoder, [2 * step, 2 * step + 1])) <= TOLERANCE
    # Only the first rank speaks, with the counts of all.
    assert [text.split()[:2] for text in reports[0]["warnings"]] == [["2", "candidates"], ["2", "texts"]]
    assert reports[1]["warnings"] == []
    assert all(report["nothing"]["f1"] == 0 for report in reports)


# Calls after an update, and sync_on_compute; "again" is another update.
CALLS = [
    (calls, on_compute)
    for on_compute in (True, False)
    for calls in ("sync compute unsync compute", "sync compute compute", "sync sync unsync unsync compute")
]
CALLS += [("sync unsync again compute", False), ("sync unsync again compute", True), ("compute sync compute", True)]


def try_calls(metric: Metric, calls: str, again: tuple[Any, ...]) -> list[tuple[str, Any]]:
    """Return what each call returned, or the type of its error."""
    found = []
    for name in calls.split():
        try:
            value = metric.update(*again) if name == "again" else getattr(metric, name)()
        except TorchMetricsUserError as error:
            value = type(error)
        found.append((name, value))
    return found


def synchronise_by_hand(rank: int, model: str, data: tuple[list[str], list[Any]]) -> dict[Any, Any]:
    report = {}
    for calls, on_compute in CALLS:
        # Sums of powers of two, which name the pairs that are in them.
        plain = SumMetric(sync_on_compute=on_compute)
        plain.update(2.0**rank)
        ours = BERTScore(FrozenEncoder(model, num_layers=LAYERS), reduction="none", sync_on_compute=on_compute)
        ours.update(*part(data, [rank]))
        found = [try_calls(plain, calls, (2.0 ** (rank + 2),)), try_calls(ours, calls, part(data, [rank + 2]))]
        report[calls, on_compute] = found
    return report


def test_sync_and_compute_by_hand_as_in_torchmetrics(minilm):
    reports = run_ranks(synchronise_by_hand, 2, minilm, texts(False))
    wanted = expected((False, False, False), FrozenEncoder(minilm, num_layers=LAYERS), [0, 1, 2, 3])["f1"]
    for report in reports:
        for calls, (plain, ours) in report.items():
            for (name, sum_of_pairs), (_, scores) in zip(plain, ours, strict=True):
                if isinstance(sum_of_pairs, Tensor):
                    pairs = [pair for pair in (0, 2, 1, 3) if int(sum_of_pairs) >> pair & 1]
                    torch.testing.assert_close(scores["f1"], wanted[pairs], atol=TOLERANCE, rtol=0)
                else:
                    assert scores == sum_of_pairs, (calls, name)
    # As promised: all ranks' scores after sync, where compute does not synchronise by itself.
    for report in reports:
        assert report["sync compute compute", False][1][1][1]["f1"].shape == (2,)
        assert report["sync sync unsync unsync compute", False][1][-1][1]["f1"].shape == (1,)
        assert report["sync compute compute", True][1][1][1] is TorchMetricsUserError
