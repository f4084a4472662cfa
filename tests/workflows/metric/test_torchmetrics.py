"""What torchmetrics promises of every metric, for every kind of ours, next to the function."""

import copy
import io
import pickle
from collections.abc import Sequence
from itertools import chain, product
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torchmetrics.utilities.exceptions import TorchMetricsUserError
from torchmetrics.wrappers import MetricTracker

from bertscore_tm import BERTScore
from tests.support.metrics import BATCHES, HELD, KINDS, LAYERS, TOLERANCE, Kind, assert_close, assert_equal, every_kind
from tests.support.ranks import run_ranks

LATER = list(chain(*BATCHES))


# --- a metric's life


def require_constants(metric: BERTScore) -> None:
    """Make sure that what torchmetrics asks of a class is constant, and that a metric has nothing to train or save."""
    for name in ("is_differentiable", "higher_is_better", "full_state_update", "plot_lower_bound"):
        with pytest.raises(RuntimeError, match=name):
            setattr(metric, name, None)
    assert metric.higher_is_better is True
    assert metric.is_differentiable is False
    assert metric.full_state_update is False
    assert list(metric.parameters()) == []
    assert list(metric.buffers()) == []
    assert list(metric.children()) == []
    assert metric.state_dict() == {}


def save_states(metric: BERTScore) -> io.BytesIO:
    """Return a file of a metric's states, which are saved on request only."""
    metric.persistent(True)
    saved = io.BytesIO()
    torch.save(metric.state_dict(), saved)
    metric.persistent(False)
    assert metric.state_dict() == {}
    saved.seek(0)
    return saved


def require_own_results(metric: BERTScore) -> Any:
    """Return a metric's result, and make sure that changing it in place does not change the metric."""
    spoilt = metric.compute()
    result = copy.deepcopy(spoilt)
    for value in spoilt.values() if isinstance(spoilt, dict) else [spoilt]:
        if isinstance(value, Tensor):
            value.zero_()
    assert_equal(metric.compute(), result, 0)
    return result


def live(rank: int, world_size: int, metric: BERTScore, batches: Sequence[tuple[Any, ...]]) -> dict[str, Any]:
    """Take a metric that holds something through all that may happen to one, with every ``world_size``-th batch.

    Returns:
        Its results, which do not depend on whether a batch came by forward or update, nor on what happened between.
    """
    require_constants(metric)
    held = metric.update_count
    saved = save_states(metric)
    by_update = metric.clone()
    assert type(by_update) is BERTScore
    assert by_update is not metric
    empty = metric.clone()
    empty.reset()
    loaded, merged, again = empty.clone(), empty.clone(), empty.clone()
    loaded.load_state_dict(torch.load(saved, weights_only=True))
    merged.merge_state(metric)

    mine = batches[rank::world_size]
    steps = []
    for batch in mine:
        steps.append(metric(*batch))
        by_update.update(*batch)
        loaded.update(*batch)
        part = empty.clone()
        part.update(*batch)
        merged.merge_state(part)
        # What a training loop does to its modules.
        assert metric.set_dtype(torch.float16) is metric
        metric = pickle.loads(pickle.dumps(metric)) if batch is mine[0] else metric.half().to("cpu")
    assert metric.update_count == by_update.update_count == held + len(mine)
    assert isinstance(hash(metric), int)
    assert {metric: "found"}[metric] == "found"
    assert len({metric, by_update, empty}) == 3

    result = require_own_results(metric)
    results = [other.compute() for other in (by_update, loaded, merged)]
    metric.reset()
    assert not metric.update_called
    for other in (metric, again):
        other.update(*mine[-1])
    after_reset = [other.compute() for other in (metric, again)]
    return {"steps": steps, "result": result, "results": results, "reset": after_reset}


# With idf all tokens of a step's single reference weigh 0.
@pytest.mark.filterwarnings("ignore:1 candidate scored 0")
@every_kind
def test_one_process(workshop, name):
    made = KINDS[name]
    metric = workshop.metric(made)
    metric.update(*workshop.batch(made, HELD))

    outcome = live(0, 1, metric, [workshop.batch(made, numbers) for numbers in BATCHES])

    for step, numbers in zip(outcome["steps"], BATCHES, strict=True):
        workshop.check(step, made, numbers)
    workshop.check(outcome["result"], made, HELD + LATER)
    assert_equal(outcome["results"], [outcome["result"]] * 3)
    for other in outcome["reset"]:
        workshop.check(other, made, BATCHES[-1])
    # The metric that was handed over had one batch, and shares nothing with its copies.
    workshop.check(metric.compute(), made, HELD + BATCHES[0])


def by_objects(tensor: Tensor, group: Any = None) -> list[Tensor]:
    """Gather in another way than torchmetrics does."""
    gathered: list[Any] = [None] * torch.distributed.get_world_size(group)
    torch.distributed.all_gather_object(gathered, tensor, group)
    return gathered


def live_in_ranks(rank: int, world_size: int, pickled: bytes, data: dict[str, list[tuple[Any, ...]]]) -> dict[str, Any]:
    report: dict[str, Any] = {}
    metrics: dict[str, list[BERTScore]] = pickle.loads(pickled)
    alone = [torch.distributed.new_group([number]) for number in range(world_size)][rank]
    for name, (by_rank, on_step, local) in metrics.items():
        batches = data[name]
        report[name, "rank"] = live(rank, world_size, by_rank, batches)
        report[name, "step"] = [on_step(*batch) for batch in batches[rank::world_size]], on_step.compute()
        # A metric that never synchronises by itself does so on request.
        for batch in batches[rank::world_size]:
            local.update(*batch)
        report[name, "local"] = local.compute()
        with local.sync_context(dist_sync_fn=by_objects):
            with pytest.raises(TorchMetricsUserError, match="already been synced"):
                local.sync()
            report[name, "synced"] = local.compute()
        assert_equal(local.compute(), report[name, "local"], 0)
        with local.sync_context(process_group=alone):
            assert_equal(local.compute(), report[name, "local"], 0)
        local.sync()
        local.unsync()
        with pytest.raises(TorchMetricsUserError, match="un-synced"):
            local.unsync()
        assert_equal(local.compute(), report[name, "local"], 0)
    return report


# Kinds that hold different states: scores, scores of layers, tokens and frequencies, indices, and given weights. The
# scores of all kinds on ranks are in workflows/ranks/test_metrics.py.
KINDS_ON_RANKS = (
    "plain",
    "several references, idf, per pair",
    "recall, all layers",
    "precision per pair, given weights",
    "idf, indices",
)


# One test for all kinds, as the ranks take longer to start than a kind takes, and each worker would start them.
@pytest.mark.slow
@pytest.mark.distributed
@pytest.mark.filterwarnings("ignore:1 candidate scored 0")
def test_two_processes(workshop):
    metrics, data = {}, {}
    for name in KINDS_ON_RANKS:
        made = KINDS[name]
        data[name] = [workshop.batch(made, numbers) for numbers in BATCHES]
        local: dict[str, Any] = {"sync_on_compute": False, "compute_on_cpu": True}
        on_step: dict[str, Any] = {"dist_sync_on_step": True, "dist_sync_fn": by_objects}
        metrics[name] = [workshop.metric(made, **kwargs) for kwargs in ({}, on_step, local)]
        for metric in metrics[name]:
            metric.update(*workshop.batch(made, HELD))
    # Pickled here, as a tensor takes a file descriptor on its way to a process, of which there are not so many.
    reports = run_ranks(live_in_ranks, 2, 2, pickle.dumps(metrics), data, timeout_s=120)

    shares = [HELD + list(chain(*BATCHES[rank::2])) for rank in range(2)]
    for name, (rank, report) in product(KINDS_ON_RANKS, enumerate(reports)):
        made = KINDS[name]
        outcome, (steps, result) = report[name, "rank"], report[name, "step"]
        for step, (of_rank, of_all) in enumerate(zip(outcome["steps"], steps, strict=True)):
            numbers = BATCHES[2 * step : 2 * step + 2]
            workshop.check(of_rank, made, numbers[rank])
            workshop.check(of_all, made, chain(*numbers))
        workshop.check(outcome["result"], made, chain(*shares))
        assert_equal(outcome["result"], reports[0][name, "rank"]["result"], 0)
        assert_equal([*outcome["results"], result], [outcome["result"]] * 4)
        for other in outcome["reset"]:
            workshop.check(other, made, chain(*BATCHES[-2:]))
        workshop.check(report[name, "local"], made, shares[rank])
        workshop.check(report[name, "synced"], made, chain(*shares))


# --- without or with other processes than there are


@every_kind
def test_compute_before_update(workshop, name):
    kind = KINDS[name]
    metric = workshop.metric(kind)

    with pytest.warns(UserWarning, match="before the ``update``"):
        outcome = metric.compute()

    shape = []
    if kind.all_layers:
        shape.append(LAYERS + 1)
    if kind.options.get("reduction") == "none":
        shape.append(0)
    for value in outcome.values() if isinstance(outcome, dict) else [outcome]:
        assert_close(value, torch.zeros(shape))


@pytest.mark.parametrize("name", ["plain", "idf"])
def test_moves_with_its_owner(workshop, name):
    metric = workshop.metric(KINDS[name])
    metric.update(*workshop.batch(KINDS[name], HELD))
    owner = torch.nn.ModuleDict({"metric": metric})

    owner.to("meta")

    assert metric.device == torch.device("meta")
    for state in metric.metric_state.values():
        parts = state if isinstance(state, list) else [state]
        assert [part for part in parts if part.device.type != "meta"] == []


EPOCHS = [[0, 1, 2], [3, 4], [5, 6, 7], [8]]


# With idf all tokens of a single reference weigh 0.
@pytest.mark.filterwarnings("ignore:1 candidate scored 0")
def test_tracker(workshop):
    tracker = MetricTracker(workshop.metric(Kind(component="f1", idf=True)))
    expected = [workshop.scores(Kind(idf=True), numbers)[2].double().mean().item() for numbers in EPOCHS]

    for step, numbers in enumerate(EPOCHS):
        tracker.increment()
        tracker(*workshop.batch(Kind(), numbers[:1]))
        tracker.update(*workshop.batch(Kind(), numbers[1:]))
        assert tracker.compute().item() == pytest.approx(expected[step], abs=TOLERANCE)

    assert tracker.maximize
    assert tracker.compute_all().tolist() == pytest.approx(expected, abs=TOLERANCE)
    best, step = tracker.best_metric(return_step=True)
    assert best == pytest.approx(max(expected))
    assert step == int(np.argmax(expected))

    tracker.reset()
    tracker.update(*workshop.batch(Kind(), EPOCHS[0]))
    assert tracker.compute().item() == pytest.approx(expected[0], abs=TOLERANCE)
