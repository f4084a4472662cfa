"""What torchmetrics promises of every metric, and what its wrappers do with ours, next to the reference package.

One procedure, in the manner of torchmetrics' own tester, takes every kind of metric through its life: in one process
and, handed over with what it holds, in two.
"""

from __future__ import annotations

import copy
import inspect
import io
import math
import pickle
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Any

import bert_score as oracle
import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor
from torchmetrics import Metric, MetricCollection
from torchmetrics.text.bert import BERTScore as TheirBERTScore
from torchmetrics.utilities.exceptions import TorchMetricsUserError
from torchmetrics.wrappers import (
    ClasswiseWrapper,
    LambdaInputTransformer,
    MetricTracker,
    MinMaxMetric,
    MultitaskWrapper,
    Running,
)
from transformers import AutoTokenizer, BertModel

from bertscore_tm import BERTScore, FrozenEncoder
from bertscore_tm.functional import SCORES
from tests.support.ranks import run_ranks
from tests.support.texts import real_pairs, several_references

pytestmark = pytest.mark.usefixtures("one_thread")

TOLERANCE = 1e-6
LAYERS = 2
VOCABULARY = 30522
COUNT = 10
# Weights that no corpus gives, for every id, special ones too.
MAPPING = {token: (token * 37 % 11) / 4 for token in range(VOCABULARY)}
TABLE = [(layer, 0.1 + layer / 40, 0.15 + layer / 50, 0.2 + layer / 60) for layer in range(7)]
# What a metric holds when it is handed over, and its batches after that; some of it comes twice.
HELD = [0, 1]
BATCHES = [[2, 3, 4], [5], [7, 6], [9, 8, 4]]
LATER = list(chain(*BATCHES))


@dataclass(frozen=True)
class Kind:
    """A kind of metric: its encoder, its arguments, and the form of its data."""

    options: dict[str, Any] = field(default_factory=dict)
    layer: int = LAYERS
    # The layers of an encoder of all layers from which one is picked.
    picked_from: int | None = None
    several: bool = False
    indexed: bool = False

    def counted(self, numbers: Iterable[int]) -> list[int]:
        """The pairs that count, in the order of the result."""
        return sorted(set(numbers)) if self.indexed else list(numbers)

    @property
    def all_layers(self) -> bool:
        return self.options.get("all_layers", False)


def kind(**options: Any) -> Kind:
    own = {name: options.pop(name) for name in ("layer", "picked_from", "several", "indexed") if name in options}
    return Kind(options, **own)


# The corpus and the baseline's table are the workshop's.
KINDS = {
    "plain": kind(),
    "idf": kind(idf=True),
    "several references, idf, per pair": kind(several=True, idf=True, reduction="none"),
    "all layers, per pair, idf": kind(all_layers=True, reduction="none", idf=True),
    "recall, all layers": kind(score="recall", all_layers=True),
    "precision per pair, given weights": kind(score="precision", reduction="none", idf=MAPPING),
    "confidence, idf, indices": kind(confidence=0.8, idf=True, indexed=True),
    "rescaled, per pair, several": kind(rescale_with_baseline=True, reduction="none", several=True),
    "indices": kind(indexed=True),
    "indices, per pair, idf of a corpus": kind(indexed=True, reduction="none", idf_sents=...),
    "picked layer, idf, f1": kind(layer=3, picked_from=4, idf=True, score="f1"),
    "picked layer, rescaled": kind(layer=3, picked_from=4, rescale_with_baseline=True),
    "hash": kind(return_hash=True, idf=True),
}
every_kind = pytest.mark.parametrize("name", KINDS)


class Workshop:
    """Makes metrics of every kind, with the expected results."""

    def __init__(self, model: str, table: str) -> None:
        self.model, self.table = model, table
        # Real texts, cut short, as they are encoded many times.
        self.preds, self.target = ([" ".join(text.split()[:9]) for text in texts] for texts in real_pairs(COUNT))
        self.corpus = [*self.target[3:], *self.target[5:8], *self.preds[:4]]
        self._scorers: dict[Any, oracle.BERTScorer] = {}
        self._encoders: dict[Any, FrozenEncoder] = {}
        self._scores: dict[Any, Tensor] = {}

    def texts(self, kind: Kind, numbers: Sequence[int]) -> tuple[list[str], list[Any]]:
        """Candidates and references."""
        target = several_references(self.target) if kind.several else self.target
        return [self.preds[i] for i in numbers], [target[i] for i in numbers]

    def batch(self, kind: Kind, numbers: Sequence[int]) -> tuple[Any, ...]:
        """The arguments of update."""
        return *self.texts(kind, numbers), *([torch.tensor(numbers)] if kind.indexed else [])

    def metric(self, kind: Kind, **kwargs: Any) -> BERTScore:
        """A metric that has seen nothing."""
        layers, every = kind.picked_from or kind.layer, kind.all_layers or kind.picked_from is not None
        if (layers, every) not in self._encoders:
            self._encoders[layers, every] = FrozenEncoder(self.model, num_layers=layers, all_layers=every)
        options = {name: value for name, value in kind.options.items() if name != "all_layers"}
        if kind.picked_from is not None:
            options["num_layers"] = kind.layer
        if "rescale_with_baseline" in options:
            options["baseline_path"] = self.table
        if "idf_sents" in options:
            options["idf_sents"] = self.corpus
        return BERTScore(self._encoders[layers, every], **options, **kwargs)

    def scorer(self, kind: Kind) -> oracle.BERTScorer:
        """The reference package's scorer of such a kind, without the weights of a corpus."""
        rescale = "rescale_with_baseline" in kind.options
        key = kind.layer, kind.all_layers, rescale
        if key not in self._scorers:
            self._scorers[key] = oracle.BERTScorer(
                self.model,
                num_layers=6 if kind.all_layers else kind.layer,
                all_layers=kind.all_layers,
                rescale_with_baseline=rescale,
                baseline_path=self.table if rescale else None,
                lang="en",
                nthreads=0,
                device="cpu",
            )
        return self._scorers[key]

    def scores(self, kind: Kind, numbers: Sequence[int]) -> Tensor:
        """Scores of pairs by the reference package: shape (3, [layers,] pairs)."""
        mapping, of_corpus = kind.options.get("idf", False), "idf_sents" in kind.options
        # Without the idf of the references a pair's score is its own.
        of_references = mapping is True
        weights = tuple(numbers) if of_references else ("given" if mapping else of_corpus)
        key = kind.layer, kind.all_layers, kind.several, "rescale_with_baseline" in kind.options, weights
        if key not in self._scores:
            scorer = self.scorer(kind)
            chosen = list(numbers) if of_references else list(range(COUNT))
            preds, target = self.texts(kind, chosen)
            scorer._idf, scorer._idf_dict = bool(mapping) or of_corpus, None
            if mapping is MAPPING:
                scorer._idf_dict = MAPPING
            elif scorer.idf:
                scorer.compute_idf(self.corpus if of_corpus else flat(target))
            # One pair at a time, since the other package lets padding take part in the matching.
            found = torch.stack(scorer.score(preds, target, batch_size=1))
            # No token of a corpus of one reference has a weight: 0 with us, 0/0 with the other package.
            found = found if len(set(chosen)) > 1 else found.nan_to_num()
            self._scores[key] = found[:, : kind.layer + 1] if kind.all_layers else found
        found = self._scores[key]
        return found if of_references else found[..., list(numbers)]

    def check(self, found: Any, kind: Kind, numbers: Iterable[int]) -> None:
        """Make sure that a result of ours is what the reference package makes of these pairs."""
        counted = kind.counted(numbers)
        options = kind.options
        scores = self.scores(kind, counted)
        shaped = scores if options.get("reduction") == "none" else scores.double().mean(-1).float()
        wanted = dict(zip(SCORES, shaped, strict=True))
        if "score" in options:
            assert_close(found, wanted[options["score"]])
            return
        names = [
            *SCORES,
            *(("f1_low", "f1_high") if "confidence" in options else ()),
            *options.keys() & {"return_hash"},
        ]
        assert list(found) == [name.removeprefix("return_") for name in names]
        for name in SCORES:
            assert_close(found[name], wanted[name])
        if "confidence" in options:
            check_interval(found, scores[2].double().numpy(), options["confidence"])
        if "return_hash" in options:
            assert f"|idf:{len(counted)}|" in found["hash"]


def flat(target: Iterable[Any]) -> list[str]:
    return [text for given in target for text in ([given] if isinstance(given, str) else given)]


def assert_close(found: Tensor, wanted: Tensor) -> None:
    assert (found.dtype, found.shape, found.requires_grad) == (torch.float32, wanted.shape, BERTScore.is_differentiable)
    torch.testing.assert_close(found, wanted, rtol=0, atol=TOLERANCE)


def check_interval(found: dict[str, Tensor], f1: np.ndarray, confidence: float) -> None:
    """The ends from 1000 resamples lie where they do with many more, four deviations apart; of few, Student's."""
    if len(f1) == 1:
        assert [found[name].item() for name in ("f1_low", "f1_high")] == pytest.approx([f1[0]] * 2, abs=TOLERANCE)
        return
    if len(f1) < 20:
        expected = stats.ttest_1samp(f1, 0).confidence_interval(confidence)
        assert [found[name].item() for name in ("f1_low", "f1_high")] == pytest.approx(list(expected), abs=1e-5)
        return
    resampled = stats.bootstrap((f1,), np.mean, n_resamples=50_000, method="percentile").bootstrap_distribution
    outside = (1 - confidence) / 2
    error = 4 * math.sqrt(outside * (1 - outside) / 1000)
    for name, part in (("f1_low", outside), ("f1_high", 1 - outside)):
        assert found[name].shape == ()
        nearest = np.quantile(resampled, [max(part - error, 0), min(part + error, 1)])
        assert nearest[0] - TOLERANCE <= found[name].item() <= nearest[1] + TOLERANCE


def equal(first: Any, second: Any, tolerance: float = 0) -> bool:
    if isinstance(first, Tensor):
        same = isinstance(second, Tensor) and first.shape == second.shape and first.dtype == second.dtype
        return same and torch.allclose(first, second, rtol=0, atol=tolerance)
    if isinstance(first, dict):
        return list(first) == list(second) and all(equal(first[name], second[name], tolerance) for name in first)
    return first == second


@pytest.fixture(scope="module")
def workshop(minilm, tmp_path_factory) -> Workshop:
    path = tmp_path_factory.mktemp("baseline") / "table.csv"
    path.write_text("LAYER,P,R,F\n" + "".join(",".join(map(str, row)) + "\n" for row in TABLE))
    return Workshop(minilm, str(path))


# --- a metric's life


def live(rank: int, world_size: int, metric: BERTScore, batches: Sequence[tuple[Any, ...]]) -> dict[str, Any]:
    """Take a metric that holds something through all that may happen to one, with every ``world_size``-th batch.

    Returns:
        Its results, which do not depend on whether a batch came by forward or update, nor on what happened between.
    """
    found: dict[str, Any] = {"steps": []}
    for name in ("is_differentiable", "higher_is_better", "full_state_update", "plot_lower_bound"):
        with pytest.raises(RuntimeError, match=name):
            setattr(metric, name, None)
    assert metric.state_dict() == {}
    held = metric.update_count
    metric.persistent(True)
    saved = io.BytesIO()
    torch.save(metric.state_dict(), saved)
    metric.persistent(False)
    assert metric.state_dict() == {}

    by_update = metric.clone()
    assert type(by_update) is BERTScore
    assert by_update is not metric
    empty = metric.clone()
    empty.reset()
    loaded, merged, again = empty.clone(), empty.clone(), empty.clone()
    saved.seek(0)
    loaded.load_state_dict(torch.load(saved, weights_only=True))
    merged.merge_state(metric)

    mine = batches[rank::world_size]
    for batch in mine:
        found["steps"].append(metric(*batch))
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

    spoilt = metric.compute()
    found["result"] = copy.deepcopy(spoilt)
    for value in spoilt.values() if isinstance(spoilt, dict) else [spoilt]:
        if isinstance(value, Tensor):
            value.zero_()
    # Changing a result in place does not change the metric.
    assert equal(metric.compute(), found["result"])
    found["results"] = [other.compute() for other in (by_update, loaded, merged)]
    metric.reset()
    assert not metric.update_called
    for other in (metric, again):
        other.update(*mine[-1])
    found["reset"] = [other.compute() for other in (metric, again)]
    return found


@every_kind
def test_one_process(workshop, name):
    made = KINDS[name]
    metric = workshop.metric(made)
    metric.update(*workshop.batch(made, HELD))
    found = live(0, 1, metric, [workshop.batch(made, numbers) for numbers in BATCHES])
    for step, numbers in zip(found["steps"], BATCHES, strict=True):
        workshop.check(step, made, numbers)
        alone = workshop.metric(made)
        alone.update(*workshop.batch(made, numbers))
        assert equal(alone.compute(), step, TOLERANCE)
    workshop.check(found["result"], made, HELD + LATER)
    assert all(equal(other, found["result"], TOLERANCE) for other in found["results"])
    for other in found["reset"]:
        workshop.check(other, made, BATCHES[-1])
    # What became of its copies is nothing to the metric that was handed over and had one batch.
    workshop.check(metric.compute(), made, HELD + BATCHES[0])


def by_objects(tensor: Tensor, group: Any = None) -> list[Tensor]:
    """Gather in another way than torchmetrics does."""
    gathered: list[Any] = [None] * torch.distributed.get_world_size(group)
    torch.distributed.all_gather_object(gathered, tensor, group)
    return gathered


def live_in_ranks(rank: int, world_size: int, pickled: bytes, data: dict[str, list[tuple[Any, ...]]]) -> dict[str, Any]:
    report: dict[str, Any] = {}
    metrics: dict[str, list[BERTScore]] = pickle.loads(pickled)
    alone = [torch.distributed.new_group([one]) for one in range(world_size)][rank]
    for name, (by_rank, on_step, local) in metrics.items():
        batches = data[name]
        report[name, "rank"] = live(rank, world_size, by_rank, batches)
        report[name, "step"] = live(rank, world_size, on_step, batches)
        # A metric that never synchronises by itself does so on request.
        for batch in batches[rank::world_size]:
            local.update(*batch)
        report[name, "local"] = local.compute()
        with local.sync_context(dist_sync_fn=by_objects):
            with pytest.raises(TorchMetricsUserError, match="already been synced"):
                local.sync()
            report[name, "synced"] = local.compute()
        assert equal(local.compute(), report[name, "local"])
        with local.sync_context(process_group=alone):
            assert equal(local.compute(), report[name, "local"])
        local.sync()
        local.unsync()
        with pytest.raises(TorchMetricsUserError, match="un-synced"):
            local.unsync()
        assert equal(local.compute(), report[name, "local"])
    return report


@pytest.fixture(scope="module")
def reports(workshop) -> list[dict[str, Any]]:
    metrics, data = {}, {}
    for name, made in KINDS.items():
        data[name] = [workshop.batch(made, numbers) for numbers in BATCHES]
        on_step: dict[str, Any] = {"dist_sync_on_step": True, "dist_sync_fn": by_objects}
        metrics[name] = [workshop.metric(made, **kwargs) for kwargs in ({}, on_step, {"sync_on_compute": False})]
        for metric in metrics[name]:
            metric.update(*workshop.batch(made, HELD))
    # Pickled here, as a tensor takes a file descriptor on its way to a process, of which there are not so many.
    return run_ranks(live_in_ranks, 2, 2, pickle.dumps(metrics), data, timeout_s=120)


@pytest.mark.slow
@pytest.mark.distributed
@every_kind
def test_two_processes(workshop, reports, name):
    made = KINDS[name]
    shares = [HELD + list(chain(*BATCHES[rank::2])) for rank in range(2)]
    for how in ("rank", "step"):
        for rank, report in enumerate(reports):
            found = report[name, how]
            for step, value in enumerate(found["steps"]):
                numbers = BATCHES[2 * step : 2 * step + 2]
                workshop.check(value, made, chain(*numbers) if how == "step" else numbers[rank])
            workshop.check(found["result"], made, chain(*shares))
            assert equal(found["result"], reports[0][name, how]["result"])
            assert all(equal(other, found["result"], TOLERANCE) for other in found["results"])
            for other in found["reset"]:
                workshop.check(other, made, chain(*BATCHES[-2:]))
    for rank, report in enumerate(reports):
        workshop.check(report[name, "local"], made, shares[rank])
        workshop.check(report[name, "synced"], made, chain(*shares))


# --- without or with other processes than there are


@every_kind
def test_compute_before_update(workshop, name):
    metric = workshop.metric(KINDS[name])
    with pytest.warns(UserWarning, match="before the ``update``"):
        found = metric.compute()
    per_pair = KINDS[name].options.get("reduction") == "none"
    layers = (LAYERS + 1,) if KINDS[name].all_layers else ()
    for value in found.values() if isinstance(found, dict) else [found]:
        if not isinstance(value, str):
            assert_close(value, torch.zeros(*layers, 0) if per_pair else torch.zeros(layers))


def always() -> bool:
    return True


def twice(tensor: Tensor, group: Any = None) -> list[Tensor]:
    """What a rank would get if there were another with just the same."""
    return [tensor, tensor]


@pytest.mark.parametrize("name", [name for name, made in KINDS.items() if not made.indexed])
def test_custom_dist_sync_fn(workshop, name):
    made = KINDS[name]
    kwargs: dict[str, Any] = {"dist_sync_fn": twice, "distributed_available_fn": always}
    metric = pickle.loads(pickle.dumps(workshop.metric(made, **kwargs)))
    on_step = workshop.metric(made, dist_sync_on_step=True, **kwargs)
    for numbers in BATCHES[:2]:
        metric.update(*workshop.batch(made, numbers))
        workshop.check(on_step(*workshop.batch(made, numbers)), made, numbers * 2)
    numbers = list(chain(*BATCHES[:2]))
    for found in (metric.compute(), on_step.compute()):
        workshop.check(found, made, numbers * 2)
    local = workshop.metric(made, sync_on_compute=False, **kwargs)
    local.update(*workshop.batch(made, numbers))
    with local.sync_context(dist_sync_fn=twice):
        workshop.check(local.compute(), made, numbers * 2)
    workshop.check(local.compute(), made, numbers)
    with pytest.raises(KeyError, match="nowhere"), local.sync_context(dist_sync_fn=twice):
        raise KeyError("nowhere")
    workshop.check(local.compute(), made, numbers)


@every_kind
def test_moves_with_its_owner(workshop, name):
    metric = workshop.metric(KINDS[name])
    metric.update(*workshop.batch(KINDS[name], HELD))
    owner = torch.nn.ModuleDict({"metric": metric})
    owner.to("meta")
    assert metric.device == torch.device("meta")
    for state in metric.metric_state.values():
        assert {part.device.type for part in (state if isinstance(state, list) else [state])} <= {"meta"}


# --- one encoding


@contextmanager
def counted_texts() -> Generator[Counter[tuple[int, ...]], None, None]:
    """How often each text, as its token ids, goes through a model."""
    counts: Counter[tuple[int, ...]] = Counter()
    forward = BertModel.forward

    def counted(model: BertModel, input_ids: Tensor, attention_mask: Tensor, **kwargs: Any) -> Any:
        counts.update(tuple(row[real.bool()].tolist()) for row, real in zip(input_ids, attention_mask, strict=True))
        return forward(model, input_ids=input_ids, attention_mask=attention_mask, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BertModel, "forward", counted)
        yield counts


@every_kind
def test_forward_encodes_each_text_of_the_batch_once(workshop, name):
    made = KINDS[name]
    metric = workshop.metric(made, cache_bytes=0)
    for numbers in BATCHES:
        preds, target, *indices = workshop.batch(made, numbers)
        with counted_texts() as encoded:
            metric(preds, target, *indices)
        assert encoded == Counter(set(map(tuple, metric.encoder.tokenizer([*preds, *flat(target)]).ids)))
    with counted_texts() as encoded:
        metric.compute()
    assert not encoded


# --- wrappers


def f1_of(workshop: Workshop, numbers: Sequence[int], **options: Any) -> float:
    return workshop.scores(kind(**options), list(numbers))[2].double().mean().item()


EPOCHS = [[0, 1, 2], [3, 4], [5, 6, 7], [8]]


@pytest.mark.parametrize("idf", [False, True])
def test_tracker(workshop, idf):
    tracker = MetricTracker(workshop.metric(kind(score="f1", idf=idf)))
    expected = [f1_of(workshop, numbers, idf=idf) for numbers in EPOCHS]
    for numbers, value in zip(EPOCHS, expected, strict=True):
        tracker.increment()
        assert tracker(*workshop.batch(kind(), numbers[:1])).item() == pytest.approx(
            f1_of(workshop, numbers[:1], idf=idf), abs=1e-6
        )
        if numbers[1:]:
            tracker.update(*workshop.batch(kind(), numbers[1:]))
        assert tracker.compute().item() == pytest.approx(value, abs=TOLERANCE)
    assert tracker.n_steps == len(EPOCHS)
    assert tracker.compute_all().tolist() == pytest.approx(expected, abs=TOLERANCE)
    best, step = tracker.best_metric(return_step=True)
    assert (best, step) == (pytest.approx(max(expected), abs=TOLERANCE), int(np.argmax(expected)))
    tracker.reset()
    tracker.update(*workshop.batch(kind(), EPOCHS[0]))
    assert tracker.compute().item() == pytest.approx(expected[0], abs=TOLERANCE)


def test_tracker_of_all_scores(workshop):
    plain, hashed = MetricTracker(workshop.metric(kind())), MetricTracker(workshop.metric(kind(return_hash=True)))
    # torchmetrics has a best value per key for collections only, and then wants to know what is best.
    collected = MetricTracker(MetricCollection([workshop.metric(kind())]), maximize=True)
    for numbers in EPOCHS:
        for tracker in (plain, hashed, collected):
            tracker.increment()
            tracker.update(*workshop.batch(kind(), numbers))
    expected = {
        name: [workshop.scores(kind(), numbers)[place].double().mean().item() for numbers in EPOCHS]
        for place, name in enumerate(SCORES)
    }
    for tracker in (plain, collected):
        found = tracker.compute_all()
        assert {name: value.tolist() for name, value in found.items()} == {
            name: pytest.approx(values, abs=TOLERANCE) for name, values in expected.items()
        }
    best, step = collected.best_metric(return_step=True)
    assert best == pytest.approx({name: max(values) for name, values in expected.items()}, abs=TOLERANCE)
    assert step == {name: int(np.argmax(values)) for name, values in expected.items()}
    # Text cannot be stacked.
    assert [value["f1"].item() for value in hashed.compute_all()] == pytest.approx(expected["f1"], abs=TOLERANCE)


def test_layers_by_name(workshop):
    layers = [f"layer{layer}" for layer in range(LAYERS + 1)]
    wrapped = ClasswiseWrapper(workshop.metric(kind(all_layers=True, score="f1")), layers, prefix="f1_")
    wrapped.update(*workshop.batch(kind(), EPOCHS[0]))
    expected = workshop.scores(kind(all_layers=True), EPOCHS[0])[2].double().mean(-1)
    assert {name: value.item() for name, value in wrapped.compute().items()} == {
        f"f1_{name}": pytest.approx(value, abs=TOLERANCE) for name, value in zip(layers, expected.tolist(), strict=True)
    }


def test_minimum_and_maximum(workshop):
    wrapped = MinMaxMetric(workshop.metric(kind(score="f1")))
    seen: list[float] = []
    for numbers in EPOCHS:
        wrapped._base_metric.reset()
        wrapped.update(*workshop.batch(kind(), numbers))
        seen.append(f1_of(workshop, numbers))
        found = {name: value.item() for name, value in wrapped.compute().items()}
        assert found == pytest.approx({"raw": seen[-1], "max": max(seen), "min": min(seen)}, abs=TOLERANCE)
    assert len(set(seen)) > 2


@pytest.mark.parametrize("options", [{"idf": True}, {"rescale_with_baseline": True}], ids=str)
def test_running_window(workshop, options):
    running = Running(workshop.metric(kind(score="f1", **options)), window=2)
    for step, numbers in enumerate(BATCHES):
        if step % 2:
            running.update(*workshop.batch(kind(), numbers))
        else:
            assert running(*workshop.batch(kind(), numbers)).item() == pytest.approx(
                f1_of(workshop, numbers, **options), abs=TOLERANCE
            )
        window = list(chain(*BATCHES[max(step - 1, 0) : step + 1]))
        assert running.compute().item() == pytest.approx(f1_of(workshop, window, **options), abs=TOLERANCE)


def test_arithmetic_of_metrics(workshop):
    batches = [workshop.batch(kind(), numbers) for numbers in EPOCHS[:2]]
    numbers = EPOCHS[0] + EPOCHS[1]
    f1, recall = (workshop.scores(kind(), numbers)[place].double().mean().item() for place in (2, 1))
    composed = {
        "gap": (workshop.metric(kind(score="f1")) - workshop.metric(kind(score="recall")), f1 - recall),
        "percent": (100 * workshop.metric(kind(score="f1")), 100 * f1),
        "picked": (workshop.metric(kind())["f1"], f1),
    }
    for name, (metric, wanted) in composed.items():
        for batch in batches:
            metric.update(*batch)
        assert metric.compute().item() == pytest.approx(wanted, abs=1e-4 if name == "percent" else TOLERANCE)


def test_inputs_transformed_and_by_task(workshop):
    metric = workshop.metric(kind(score="f1"))
    tokenizer = AutoTokenizer.from_pretrained(workshop.model)
    preds, target = workshop.texts(kind(), HELD)
    # What generate() returns, decoded by the wrapper.
    ids = tokenizer(preds, padding=True, return_tensors="pt").input_ids
    decoded = tokenizer.batch_decode(ids, skip_special_tokens=True)
    transformed = LambdaInputTransformer(metric.clone(), partial(tokenizer.batch_decode, skip_special_tokens=True))
    assert transformed(ids, target).item() == metric(decoded, target).item()
    tasks = MultitaskWrapper({"title": metric.clone(), "summary": metric.clone()})
    tasks.reset()
    of_task = {"title": workshop.texts(kind(), [0, 1]), "summary": workshop.texts(kind(), [2, 3])}
    tasks.update(*({task: texts[side] for task, texts in of_task.items()} for side in (0, 1)))
    found = {task: value.item() for task, value in tasks.compute().items()}
    assert found == pytest.approx({"title": f1_of(workshop, [0, 1]), "summary": f1_of(workshop, [2, 3])}, abs=TOLERANCE)


def test_plots(workshop):
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    single, interval = workshop.metric(kind(score="f1")), workshop.metric(kind(confidence=0.9))
    steps = [single(*workshop.batch(kind(), numbers)) for numbers in EPOCHS]
    interval.update(*workshop.batch(kind(), HELD))
    collection = MetricCollection({"plain": single.clone(), "recall": workshop.metric(kind(score="recall"))})
    tracker = MetricTracker(single.clone())
    for numbers in EPOCHS:
        tracker.increment()
        tracker.update(*workshop.batch(kind(), numbers))
    collection.update(*workshop.batch(kind(), HELD))
    drawn = {
        "single": single.plot()[1],
        "steps": single.plot(steps)[1],
        "interval": interval.plot()[1],
        "tracker": tracker.plot()[1],
        "collection": collection.plot()[1][1],
    }
    for name, axes in drawn.items():
        heights = np.concatenate([np.asarray(line.get_ydata(), dtype=float) for line in axes.lines])
        assert np.isfinite(heights).all(), name
    (line,) = drawn["steps"].lines
    assert list(line.get_ydata()) == pytest.approx([f1_of(workshop, numbers) for numbers in EPOCHS], abs=TOLERANCE)
    assert [single.plot(ax=drawn["single"])[1], single.plot(steps, ax=drawn["steps"])[1]] == [
        drawn["single"],
        drawn["steps"],
    ]
    plt.close("all")


# --- a script that is written for torchmetrics


SCRIPT = """
from torchmetrics import MetricCollection
from torchmetrics.text.bert import BERTScore
from torchmetrics.functional.text.bert import bert_score


def run(path, table, preds, target):
    settings = {"model_name_or_path": path, "num_layers": 2, "max_length": 64, "truncation": True, "batch_size": 4}
    found = {}

    metric = BERTScore(**settings, idf=True, lang="en", device="cpu", num_threads=0, verbose=False, return_hash=True)
    for start in range(0, len(preds), 2):
        metric.update(preds[start : start + 2], target[start : start + 2])
    scores = metric.compute()
    found["idf"] = {name: scores[name] if name == "hash" else scores[name].mean() for name in scores}

    metric = BERTScore(**settings, idf=False, rescale_with_baseline=True, baseline_path=table)
    found["steps"] = [metric([pred], [ref]) for pred, ref in zip(preds, target)]
    found["rescaled"] = {name: value.mean() for name, value in metric.compute().items()}
    metric.reset()
    metric.update(preds=preds[0], target=target[0])
    found["string"] = metric.clone().compute()

    metric = BERTScore(path, None, True, max_length=64, truncation=True)
    metric.update(preds[-1:], target[-1:])
    found["all layers"] = metric.compute()

    metric = BERTScore(**settings)
    metric.update(preds[-1:], [target[2:]])
    found["references"] = {name: value.mean() for name, value in metric.compute().items()}

    collection = MetricCollection([BERTScore(**settings)], prefix="val_", postfix="_bert")
    found["collection step"] = collection(preds[:1], target[:1])
    collection.update(preds[1:], target[1:])
    found["collection"] = {name: value.mean().item() for name, value in collection.compute().items()}

    found["function"] = bert_score(preds, target, path, num_layers=2, max_length=64, truncation=True, return_hash=True)
    found["facts"] = (metric.higher_is_better, metric.is_differentiable, metric.full_state_update)
    return found
"""
# Growing on both sides, since torchmetrics sorts candidates and references by length, each for themselves.
GROWING = (
    [
        "cats",
        "good morning",
        "it rains in Paris",
        "the train was very late today",
        "a dog barked at the small cat there",
    ],
    [
        "cat",
        "hello there",
        "rain falls in Paris",
        "today the train came too late",
        "the little cat heard how a dog barked",
    ],
)


def run_script(script: str, *args: Any) -> dict[str, Any]:
    names: dict[str, Any] = {}
    exec(compile(script, "script.py", "exec"), names)
    return names["run"](*args)


def described(value: Any) -> Any:
    """Keys and types, all the way down."""
    if isinstance(value, dict):
        return {name: described(part) for name, part in value.items()}
    return [described(part) for part in value] if isinstance(value, list) else type(value)


def numbers_in(value: Any) -> list[float]:
    if isinstance(value, Tensor):
        return value.flatten().tolist()
    if isinstance(value, dict | list):
        return [
            number for part in (value.values() if isinstance(value, dict) else value) for number in numbers_in(part)
        ]
    return [value] if isinstance(value, float) else []


@pytest.mark.filterwarnings("ignore::UserWarning:torchmetrics")
def test_only_the_import_changes(workshop, minilm):
    ours = SCRIPT
    for module in ("torchmetrics.functional.text.bert", "torchmetrics.text.bert"):
        ours = ours.replace(f"from {module} import", "from bertscore_tm import")
    changed = [line for line in zip(SCRIPT.splitlines(), ours.splitlines(), strict=True) if line[0] != line[1]]
    assert len(changed) == 2
    arguments = minilm, workshop.table, *GROWING
    theirs, found = run_script(SCRIPT, *arguments), run_script(ours, *arguments)
    assert described(found) == described(theirs)
    assert list(found["idf"]) == list(theirs["idf"])
    assert found["facts"] == theirs["facts"]
    # The other one cannot match special tokens, which is all that is between the two where its pairs are right.
    for name, value in found.items():
        assert len(numbers_in(value)) == len(numbers_in(theirs[name]))
        assert numbers_in(value) == pytest.approx(numbers_in(theirs[name]), abs=0.05), name

    preds, target = GROWING
    one = {"model_type": minilm, "batch_size": 1, "nthreads": 0}
    plain = oracle.score(preds, target, num_layers=LAYERS, **one)
    weighted = oracle.score(preds, target, num_layers=LAYERS, idf=True, **one)
    rescaled = oracle.score(
        preds, target, num_layers=LAYERS, lang="en", rescale_with_baseline=True, baseline_path=workshop.table, **one
    )
    layers = oracle.score(preds[-1:], target[-1:], num_layers=6, all_layers=True, **one)
    best = oracle.score(preds[-1:], [target[2:]], num_layers=LAYERS, **one)
    for place, name in enumerate(SCORES):
        assert_close(found["function"][name], plain[place])
        assert_close(found["idf"][name], weighted[place].mean())
        assert_close(torch.stack([step[name] for step in found["steps"]]), rescaled[place])
        assert_close(found["rescaled"][name], rescaled[place].mean())
        assert_close(found["string"][name], rescaled[place][0])
        assert_close(found["all layers"][name], layers[place][:, 0])
        assert_close(found["references"][name], best[place][0])
        assert_close(found["collection step"][f"val_{name}_bert"], plain[place][0])
        assert found["collection"][f"val_{name}_bert"] == pytest.approx(plain[place].mean().item(), abs=TOLERANCE)


@pytest.mark.parametrize("method", ["__init__", "update", "compute", "merge_state", "plot", "reset"])
def test_arguments_have_torchmetrics_names_and_places(method):
    def arguments(owner: type[Metric]) -> list[tuple[str, Any]]:
        function: Callable[..., Any] = getattr(owner, method)
        return [(name, one.kind) for name, one in inspect.signature(function).parameters.items()]

    theirs = [one for one in arguments(TheirBERTScore) if one[1] is inspect.Parameter.POSITIONAL_OR_KEYWORD]
    assert arguments(BERTScore)[: len(theirs)] == theirs
