"""The metric on several ranks: few bytes, updates after compute, errors, calls by hand.

The scores themselves are compared with bert-score in workflows/ranks/test_metrics.py.
"""

import re
import shutil
import warnings
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torchmetrics import Metric, SumMetric
from torchmetrics.utilities.distributed import gather_all_tensors
from torchmetrics.utilities.exceptions import TorchMetricsUserError
from torchmetrics.utilities.prints import rank_zero_only

from bertscore_tm import BERTScore, FrozenEncoder
from bertscore_tm.functional import bert_score
from bertscore_tm.metric.states import Collectives
from tests.support.models import save_tiny_model
from tests.support.ranks import run_ranks
from tests.support.texts import real_pairs

pytestmark = [
    pytest.mark.distributed,
    # With idf all tokens of a single reference weigh 0.
    pytest.mark.filterwarnings("ignore:1 candidate scored 0"),
]

TOLERANCE = 1e-6
LAYERS = 2


def texts(count: int) -> tuple[list[str], list[str]]:
    """Return short pairs, because what is compared depends on numbers of texts and not on their lengths."""
    return real_pairs(count, words=8)


def part(data: tuple[list[str], list[Any]], numbers: list[int]) -> tuple[list[str], list[Any]]:
    return [data[0][i] for i in numbers], [data[1][i] for i in numbers]


def num_pairs(metric: BERTScore) -> int:
    """How many pairs this rank holds."""
    return sum(map(len, metric.metric_state.get("reference_counts", metric.scores)))


# --- what is sent


@pytest.mark.parametrize("indexed", [False, True])
@pytest.mark.parametrize("idf", [False, True])
@pytest.mark.parametrize(("count", "repeats"), [(4, 1), (12, 1), (12, 3)])
def test_bytes_grow_with_pairs_and_vocabulary_alone(minilm, idf, indexed, count, repeats):
    sizes: list[int] = []

    def gather(tensor: Tensor, group: Any) -> list[Tensor]:
        sizes.append(tensor.numel() * tensor.element_size())
        return [tensor]

    encoder = FrozenEncoder(minilm, num_layers=1)
    metric = BERTScore(encoder, idf=idf, dist_sync_fn=gather, distributed_available_fn=lambda: True)
    preds, target = ([text * repeats for text in side] for side in texts(count))
    metric.update(preds, target, indices=range(count) if indexed else None)

    metric.compute()

    # What a rank holds after compute is its own share.
    assert num_pairs(metric) == count
    # Four counts and the settings; an index and three scores per pair.
    header = 8 * (4 + len(metric.metric_state["fingerprint"]))
    per_index, per_score, per_token_id = 8, 3 * 4, 8
    frequencies = per_token_id * (encoder.tokenizer.vocab_size + 1) if idf else 0
    assert sum(sizes) == header + frequencies + (per_score + per_index * indexed) * count


def test_frequencies_are_reduced_instead_of_gathered(monkeypatch):
    monkeypatch.setattr(dist, "all_reduce", lambda tensor, group: tensor.mul_(2))
    collectives = Collectives(torch.device("cpu"), gather_all_tensors)
    counts = torch.tensor([3])

    total = collectives.sum(counts)

    assert total.item() == 6
    assert counts.item() == 3


# --- models of the same name


def compute_with(rank: int, folders: list[str]) -> Any:
    metric = BERTScore(FrozenEncoder(folders[rank], num_layers=1))
    metric.update(["a cat"], ["a cat"])
    try:
        return metric.compute()["f1"].item()
    except ValueError as error:
        return str(error)


def compute_with_each(rank: int, cases: list[list[str]]) -> list[Any]:
    return [compute_with(rank, folders) for folders in cases]


def test_ranks_have_models_of_the_same_contents(tmp_path):
    first, second = (str(tmp_path / run / "checkpoint-500") for run in ("run1", "run2"))
    save_tiny_model("bert", Path(first))
    save_tiny_model("electra", Path(second))
    copied = str(shutil.copytree(first, tmp_path / "another name"))

    reports = run_ranks(compute_with_each, 2, [[first, copied], [first, second]])

    for score, error in reports:
        assert score == pytest.approx(1)
        assert re.match(r"the metrics of the ranks differ in model \(\S+ instead of \S+\)\. Create them", error)


# --- as in training


def use_as_in_training(rank: int, model: str, data: tuple[list[str], list[str]]) -> dict[str, Any]:
    report: dict[str, Any] = {}
    encoder = FrozenEncoder(model, num_layers=LAYERS)
    for idf in (False, True):
        result = report[f"idf={idf}"] = {}
        # The first rank alone asks again, as for a file of results that it writes.
        cached = BERTScore(encoder, idf=idf, reduction="none")
        cached.update(*part(data, [0, 1] if rank == 0 else [2]))
        result["cached"] = cached.compute()
        if rank == 0:
            result["cached again"] = cached.compute()

        metric = BERTScore(encoder, idf=idf, reduction="none", compute_with_cache=False)
        metric.update(*part(data, [0, 1] if rank == 0 else [2]))
        result["first"] = metric.compute()
        # An update on one rank only: the other has an unchanged state, and must still take part.
        if rank == 1:
            metric.update(*part(data, [3, 4]))
        result["second"] = metric.compute()
        result["third"] = metric.compute()
        metric.update(*part(data, [5 + rank]))
        result["fourth"] = metric.compute()

        # Some ranks pass indices and others do not: an error on every rank, after which all continue.
        mixed = BERTScore(encoder, idf=idf, reduction="none")
        mixed.update(*part(data, [rank]), indices=[rank] if rank == 0 else None)
        with pytest.raises(ValueError, match="some ranks passed indices"):
            mixed.compute()
        assert num_pairs(mixed) == 1

    # Set by Lightning or the environment of torchrun.
    rank_zero_only.rank = rank
    with warnings.catch_warnings(record=True, action="always") as caught:
        blank = BERTScore(FrozenEncoder(model, num_layers=LAYERS, max_length=6))
        blank.update([""], ["a long text that must be cut somewhere"])
        blank.compute()
    report["warnings"] = [str(warning.message) for warning in caught]
    nothing = BERTScore(encoder, idf=True)
    nothing.update([], [])
    report["nothing"] = nothing.compute()
    return report


# The pairs of both ranks at each call.
NUMBERS_BY_CALL = {
    "cached": [0, 1, 2],
    "cached again": [0, 1, 2],
    "first": [0, 1, 2],
    "second": [0, 1, 2, 3, 4],
    "third": [0, 1, 2, 3, 4],
    "fourth": [0, 1, 5, 2, 3, 4, 6],
}


@pytest.mark.slow
def test_as_in_training(minilm):
    reports = run_ranks(use_as_in_training, 2, minilm, texts(7))

    encoder = FrozenEncoder(minilm, num_layers=LAYERS)
    assert set(reports[0]["idf=True"]) == set(NUMBERS_BY_CALL)
    assert set(reports[1]["idf=True"]) == set(NUMBERS_BY_CALL) - {"cached again"}
    for idf in (False, True):
        for name, numbers in NUMBERS_BY_CALL.items():
            expected = bert_score(*part(texts(7), numbers), encoder, idf=idf)
            for report in reports:
                # The second rank does not ask for the cached result again.
                if name in report[f"idf={idf}"]:
                    result = report[f"idf={idf}"][name]
                    torch.testing.assert_close(result, expected, atol=TOLERANCE, rtol=0)
    # Only the first rank speaks, with the counts of all.
    assert [text.split()[:2] for text in reports[0]["warnings"]] == [["2", "candidates"], ["2", "texts"]]
    assert reports[1]["warnings"] == []
    assert all(report["nothing"]["f1"] == 0 for report in reports)


# --- calls by hand

# Calls after an update; "again" is another update.
CALLS = ["sync compute unsync compute", "sync compute compute", "sync sync unsync unsync compute"]
CALLS += ["sync unsync again compute"]


def gather_twice(tensor: Tensor, group: Any) -> list[Tensor]:
    """Gather as if another rank had the same pairs."""
    return [tensor, tensor]


def try_calls(metric: Metric, calls: str, pair: tuple[Any, ...]) -> list[Any]:
    """Return what each call returned, or the type of its error."""
    metric.update(*pair)
    methods = {
        "again": partial(metric.update, *pair),
        "sync": partial(metric.sync, dist_sync_fn=gather_twice, distributed_available=lambda: True),
    }
    results: list[Any] = []
    for name in calls.split():
        try:
            results.append(methods.get(name, getattr(metric, name, None))())
        except TorchMetricsUserError as error:
            results.append(type(error))
    return results


@pytest.mark.parametrize(("calls", "on_compute"), [*product(CALLS, (True, False)), ("compute sync compute", True)])
def test_sync_and_compute_by_hand_as_in_torchmetrics(minilm, calls, on_compute):
    settings: dict[str, Any] = {"dist_sync_fn": gather_twice, "distributed_available_fn": lambda: True}
    settings["sync_on_compute"] = on_compute
    counts = try_calls(SumMetric(**settings), calls, (1.0,))

    metric = BERTScore(FrozenEncoder(minilm, num_layers=LAYERS), reduction="none", **settings)

    for count, scores in zip(counts, try_calls(metric, calls, (["a cat"], ["the cat"])), strict=True):
        assert len(scores["f1"]) == count if isinstance(count, Tensor) else scores == count


def test_a_warning_as_an_error_leaves_the_pairs_of_this_rank(minilm):
    settings: dict[str, Any] = {"dist_sync_fn": gather_twice, "distributed_available_fn": lambda: True}
    metric = BERTScore(FrozenEncoder(minilm, num_layers=LAYERS), reduction="none", **settings)
    metric.update([""], ["the cat"])

    with warnings.catch_warnings(action="error"), pytest.raises(UserWarning, match=r"^2 candidates scored 0"):
        metric.compute()

    metric.update(["a cat"], ["a cat"])
    with pytest.warns(UserWarning, match=r"^2 candidates scored 0"):
        assert metric.compute()["f1"].tolist() == pytest.approx([0, 1] * 2)
    assert num_pairs(metric) == 2
