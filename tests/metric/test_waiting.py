"""Texts of small updates wait to be encoded together, and nobody can tell: nothing is lost, nothing counts twice."""

from __future__ import annotations

import copy
import pickle
import warnings
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

import pytest
import torch
from torch import Tensor
from torchmetrics import MetricCollection
from torchmetrics.wrappers import MetricTracker, MinMaxMetric, Running

from bertscore_tm import BERTScore, FrozenEncoder, bert_score
from bertscore_tm.functional import SCORES
from bertscore_tm.metric import waiting
from bertscore_tm.metric.shared_batch import forget_batch
from examples.benchmarks.encoders import CountingEncoder, MadeUpEncoder
from tests.support.lightning_modules import Quality, chooser, trainer
from tests.support.ranks import run_ranks
from tests.support.texts import real_pairs, several_references

pytestmark = pytest.mark.usefixtures("one_thread")

TOLERANCE = 1e-6
LAYERS = 2
COUNT = 12
PREDS, TARGET = ([" ".join(text.split()[:9]) for text in side] for side in real_pairs(COUNT))
SEVERAL = several_references(TARGET)
BATCHES = [[0, 1, 2], [3], [4, 5, 6, 7], [8, 9], [10, 11]]
STATES = ["scores", "indices", "totals", "num_truncated"]


@pytest.fixture(scope="module")
def counting(minilm: str) -> CountingEncoder:
    """The real encoder, two layers of it, which counts what it encodes."""
    return CountingEncoder(minilm, num_layers=LAYERS)


@pytest.fixture(autouse=True)
def _nothing_known(counting: CountingEncoder) -> None:
    forget_batch(counting, torch.device("cpu"))


@pytest.fixture
def few_characters(monkeypatch: pytest.MonkeyPatch) -> int:
    """Let texts wait only until there are so many characters of them, some batches of these texts."""
    monkeypatch.setattr(waiting, "_CHARACTERS", {"cpu": 500})
    return 500


def batch(numbers: Sequence[int], target: Sequence[Any] = TARGET) -> tuple[list[str], list[Any]]:
    return [PREDS[i] for i in numbers], [target[i] for i in numbers]


def fed(encoder: FrozenEncoder, batches: Sequence[Sequence[int]] = BATCHES, **settings: Any) -> BERTScore:
    """A metric with small batches that wait."""
    metric = BERTScore(encoder, cache_bytes=0, **settings)
    for numbers in batches:
        metric.update(*batch(numbers))
    return metric


def check(found: dict[str, Tensor], encoder: FrozenEncoder, numbers: Sequence[int], **settings: Any) -> None:
    """Make sure that the scores are those of the function, which knows no waiting."""
    wanted = bert_score(*batch(numbers, settings.pop("target", TARGET)), encoder, **settings)
    for name in SCORES:
        mean = found[name].ndim == 0
        torch.testing.assert_close(found[name], wanted[name].mean() if mean else wanted[name], rtol=0, atol=TOLERANCE)


def num_distinct(*sides: Sequence[str]) -> int:
    return len(set(chain(*sides)))


class Encoded:
    """How many texts an encoder has encoded since this was made."""

    def __init__(self, encoder: CountingEncoder | MadeUpEncoder) -> None:
        self.encoder, self.start = encoder, encoder.counts

    @property
    def texts(self) -> int:
        return (self.encoder.counts - self.start).texts


# --- when texts are encoded


def test_small_updates_are_encoded_in_compute(counting):
    encoded = Encoded(counting)
    metric = fed(counting, reduction="none")
    assert encoded.texts == 0
    assert metric.update_count == len(BATCHES)
    check(metric.compute(), counting, range(COUNT))
    encoded = Encoded(counting)
    check(metric.compute(), FrozenEncoder(counting.name, num_layers=LAYERS), range(COUNT))
    assert encoded.texts == 0


def test_texts_are_encoded_as_soon_as_there_are_enough(counting, few_characters):
    encoded = Encoded(counting)
    metric, texts, size = BERTScore(counting, cache_bytes=0), 0, 0
    for i in range(COUNT - 1):
        metric.update(*batch([i]))
        size += len(PREDS[i]) + len(TARGET[i])
        if size >= few_characters:
            texts, size = 2 * (i + 1), 0
        assert encoded.texts == texts
    # Some were encoded on the way, and some wait still.
    assert 0 < texts < 2 * (COUNT - 1)
    check(metric.compute(), counting, range(COUNT - 1))


def test_a_large_batch_does_not_wait(counting, few_characters):
    metric = fed(counting, [[0]])
    encoded = Encoded(counting)
    metric.update(*batch(range(1, COUNT)))
    assert encoded.texts == num_distinct(PREDS, TARGET)
    check(metric.compute(), counting, range(COUNT))


def test_layers_share_the_room_for_waiting_texts(minilm, monkeypatch):
    size = len(PREDS[0]) + len(TARGET[0])
    monkeypatch.setattr(waiting, "_CHARACTERS", {"cpu": 3 * size})
    for num_layers, waits in ((1, True), (2, False)):
        encoder = CountingEncoder(minilm, num_layers=num_layers, all_layers=True)
        metric = fed(encoder, [[0]])
        assert (encoder.counts.texts == 0) is waits
        assert metric.compute()["f1"].shape == (num_layers + 1,)


@pytest.mark.parametrize("options", [{}, {"idf": True}, {"reduction": "none"}], ids=str)
def test_few_texts_wait_however_many_come(options):
    encoder = MadeUpEncoder(tokens=(3, 9))
    metric = BERTScore(encoder, cache_bytes=0, **options)
    sizes: list[int] = []
    most = 0
    for start in range(0, 4000, 8):
        preds, target = ([f"{name} {i} of texts that mean nothing" for i in range(start, start + 8)] for name in "xy")
        metric.update(preds, target)
        sizes += [len(text) for text in (*preds, *target)]
        unknown = sum(sizes[encoder.counts.texts :])
        most = max(most, unknown)
    limit = waiting._CHARACTERS["cpu"]
    assert limit / 2 < most < limit
    assert len(metric.compute()["f1"].flatten()) == (4000 if "reduction" in options else 1)
    assert encoder.counts.texts == len(sizes)


# --- the scores


@pytest.mark.parametrize(("idf", "reduction"), [(False, "mean"), (True, "mean"), (False, "none"), (True, "none")])
@pytest.mark.parametrize(("several", "indexed"), [(False, False), (True, True)])
@pytest.mark.parametrize("how", ["update", "mixed", "limited"])
def test_scores_are_those_of_the_function(counting, monkeypatch, idf, reduction, several, indexed, how):
    if how == "limited":
        monkeypatch.setattr(waiting, "_CHARACTERS", {"cpu": 500})
    target = SEVERAL if several else TARGET
    plain = FrozenEncoder(counting.name, num_layers=LAYERS)
    metric = BERTScore(counting, idf=idf, reduction=reduction, cache_bytes=0)
    # With numbers the pairs come in another order, some of them twice.
    batches = [*BATCHES[::-1], [3, 0, 11]] if indexed else BATCHES
    encoded = Encoded(counting)
    for step, numbers in enumerate(batches):
        given = (*batch(numbers, target), *([numbers] if indexed else []))
        if how == "mixed" and step % 2:
            check(metric(*given), plain, sorted(numbers) if indexed else numbers, idf=idf, target=target)
        else:
            metric.update(*given)
    found = metric.compute()
    texts = [num_distinct(PREDS, TARGET)] if how == "update" else range(num_distinct(PREDS, TARGET), 200)
    assert encoded.texts in texts
    check(found, counting, range(COUNT), idf=idf, target=target)


def test_warnings_come_once(minilm):
    encoder = FrozenEncoder(minilm, num_layers=LAYERS, max_length=6)
    metric = BERTScore(encoder)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for preds, target in (([""], ["some text"]), ([PREDS[0]], ["a cat"]), (["a cat"], [PREDS[0]])):
            metric.update(preds, target)
        assert not caught
        metric.compute()
    said = [str(one.message) for one in caught if one.category is UserWarning]
    assert len(said) == 2
    assert any(message.startswith("1 candidate scored 0") for message in said)
    assert any("longer than 6 tokens" in message for message in said)


# --- readers of states


READERS: dict[str, Callable[[BERTScore], Any]] = {
    **{name: lambda metric, name=name: getattr(metric, name) for name in STATES},
    "metric_state": lambda metric: metric.metric_state,
    "pickle": pickle.dumps,
    "deepcopy": copy.deepcopy,
    "shallow copy": copy.copy,
    "clone": lambda metric: metric.clone(),
    "state_dict": lambda metric: metric.state_dict(),
    "other device": lambda metric: torch.nn.ModuleList([metric]).to("meta"),
    "another's merge_state": lambda metric: metric.per_pair().merge_state(metric),
}


@pytest.mark.parametrize("how", READERS)
@pytest.mark.parametrize("idf", [False, True])
def test_readers_find_everything_encoded(counting, how, idf):
    metric = fed(counting, reduction="none", idf=idf)
    metric.persistent(True)
    encoded = Encoded(counting)
    READERS[how](metric)
    assert encoded.texts == num_distinct(PREDS, TARGET)
    if metric.device.type != "meta":
        check(metric.compute(), counting, range(COUNT), idf=idf)


def test_a_state_that_a_kind_of_metric_lacks(counting):
    plain, idf = BERTScore(counting), BERTScore(counting, idf=True)
    assert not hasattr(plain, "candidate_ids")
    assert idf.candidate_ids == []
    with pytest.raises(AttributeError, match="candidate_ids"):
        _ = plain.candidate_ids


COPIES: dict[str, Callable[[BERTScore], BERTScore]] = {
    "pickle": lambda metric: pickle.loads(pickle.dumps(metric)),
    "deepcopy": copy.deepcopy,
    "shallow copy": copy.copy,
    "clone": lambda metric: metric.clone(),
}


@pytest.mark.parametrize("how", COPIES)
@pytest.mark.parametrize("idf", [False, True])
def test_copies_go_their_own_way(counting, how, idf):
    metric = fed(counting, BATCHES[:2], reduction="none", idf=idf)
    other = COPIES[how](metric)
    metric.update(*batch(BATCHES[2]))
    other.update(*batch(BATCHES[3]))
    check(metric.compute(), counting, list(chain(*BATCHES[:3])), idf=idf)
    check(other.compute(), counting, list(chain(*BATCHES[:2], BATCHES[3])), idf=idf)


def test_saved_and_loaded(counting):
    metric, other = fed(counting, BATCHES[:2]), fed(counting, BATCHES[2:3])
    # Nothing is in such a dictionary, so that what waits stays.
    other.load_state_dict(metric.state_dict())
    check(other.compute(), counting, BATCHES[2])
    metric.persistent(True)
    other.update(*batch(BATCHES[4]))
    other.load_state_dict(metric.state_dict())
    other.update(*batch(BATCHES[3]))
    check(other.compute(), counting, list(chain(*BATCHES[:2], BATCHES[3])))


@pytest.mark.parametrize("idf", [False, True])
@pytest.mark.parametrize("state_only", [False, True])
def test_merged(counting, idf, state_only):
    first = fed(counting, BATCHES[:2], reduction="none", idf=idf)
    second = fed(counting, BATCHES[2:4], reduction="none", idf=idf)
    first.merge_state(second.metric_state if state_only else second)
    for metric in (first, second):
        metric.update(*batch(BATCHES[4]))
    check(first.compute(), counting, range(COUNT), idf=idf)
    check(second.compute(), counting, list(chain(*BATCHES[2:])), idf=idf)


def test_indices_are_compared_with_those_that_wait(counting):
    encoded = Encoded(counting)
    indexed, plain = BERTScore(counting), fed(counting, [[0]])
    indexed.update(*batch([0]), indices=[0])
    with pytest.raises(ValueError, match="every update or to none"):
        indexed.update(*batch([1]))
    with pytest.raises(ValueError, match="every update or to none"):
        plain.update(*batch([1]), indices=[1])
    assert encoded.texts == 0
    with pytest.raises(ValueError, match="one metric got indices"):
        indexed.merge_state(plain)
    check(indexed.compute(), counting, [0])
    check(plain.compute(), counting, [0])


def test_reset_drops_what_waits(counting):
    encoded = Encoded(counting)
    metric = fed(counting, BATCHES[:2])
    metric.reset()
    assert not any(len(state) for state in (metric.scores, metric.indices))
    assert metric.totals.tolist() == [0] * 5
    metric.update(*batch(BATCHES[2]))
    found = metric.compute()
    assert encoded.texts == 2 * len(BATCHES[2])
    check(found, counting, BATCHES[2])


def test_what_only_looks_at_modules_encodes_nothing(counting):
    metric = fed(counting, compute_on_cpu=True)
    owner = torch.nn.ModuleDict({"metric": metric})
    encoded = Encoded(counting)
    before = hash(metric)
    for _ in (owner.named_modules(), owner.parameters(), owner.named_buffers(), owner.children()):
        assert metric in set(owner.modules())
    owner.to("cpu").half().train().eval().requires_grad_(False)
    owner.state_dict()
    metric.set_dtype(torch.float16)
    repr(owner)
    metric.update(*batch([0]))
    assert hash(metric) == before != hash(metric.per_pair())
    assert encoded.texts == num_distinct(PREDS, TARGET)


# --- errors


def test_texts_that_cannot_be_scored_are_refused_at_once(minilm):
    encoder = CountingEncoder(minilm, num_layers=LAYERS, max_length=20, long_text="error")
    mapping = dict.fromkeys(range(10_000), 1.0)
    known = ["a cat", "the man"]
    assert all(max(ids) < 10_000 for ids in encoder.tokenizer(known).ids)
    for metric, wrong, said in (
        (BERTScore(encoder), (["a cat"], [["a dog", "word " * 30]]), "30|32 tokens"),
        (BERTScore(encoder, idf=mapping), (["a cat"], ["zebras"]), "no weight for token"),
        (BERTScore(encoder), (["a cat", 3], ["a dog", "a cow"]), r"preds\[1\]"),
        (BERTScore(encoder), (["a cat"], ["a dog", "a cow"]), "equal lengths"),
    ):
        unbothered = metric.clone()
        encoded = Encoded(encoder)
        metric.update(known[:1], known[1:])
        with pytest.raises((TypeError, ValueError), match=said):
            metric.update(*wrong)
        assert encoded.texts == 0
        with pytest.raises((TypeError, ValueError), match=said):
            metric(*wrong)
        metric.update(known[1:], known[:1])
        unbothered.update(known, known[::-1])
        assert metric.compute()["f1"].item() == pytest.approx(unbothered.compute()["f1"].item(), abs=TOLERANCE)


ERRORS = [ValueError("not finite"), torch.OutOfMemoryError("too much"), KeyboardInterrupt(), AttributeError("no such")]


@pytest.fixture
def failing(counting, monkeypatch) -> Callable[[BaseException], None]:
    """Has the encoder fail once, the next time."""
    encode = counting.encode

    def fail(error: BaseException) -> None:
        def failing_once(*args: Any) -> Any:
            monkeypatch.setattr(counting, "encode", encode)
            raise error

        monkeypatch.setattr(counting, "encode", failing_once)

    return fail


@pytest.mark.parametrize("error", ERRORS, ids=repr)
@pytest.mark.parametrize("idf", [False, True])
@pytest.mark.parametrize("how", ["compute", "pickle", "merge", "load", "move", "forward"])
def test_a_reader_that_fails_loses_nothing(counting, failing, error, idf, how):
    metric = fed(counting, BATCHES[:2], reduction="none", idf=idf)
    other = BERTScore(counting, reduction="none", idf=idf)
    other.persistent(True)
    ways = {
        "compute": metric.compute,
        "pickle": lambda: pickle.dumps(metric),
        "merge": lambda: other.merge_state(metric),
        "load": lambda: metric.load_state_dict(other.state_dict()),
        "move": lambda: metric.to("meta"),
        "forward": lambda: metric(*batch(BATCHES[2])),
    }
    failing(error)
    kinds = (RuntimeError, AttributeError) if isinstance(error, AttributeError) else type(error)
    with pytest.raises(kinds, match=str(error)):
        ways[how]()
    assert metric._is_synced is False
    metric.update(*batch(BATCHES[2]))
    check(metric.compute(), counting, list(chain(*BATCHES[:3])), idf=idf)


@pytest.mark.parametrize("error", ERRORS, ids=repr)
@pytest.mark.parametrize("again", [False, True])
def test_an_update_that_fails_is_left_out(counting, failing, few_characters, error, again):
    metric = fed(counting, [[0]], reduction="none")
    failing(error)
    with pytest.raises(type(error), match=str(error)):
        metric.update(*batch(range(1, COUNT)))
    kept = [0]
    if again:
        metric.update(*batch(range(1, COUNT)))
        kept += range(1, COUNT)
    check(metric.compute(), counting, kept)


def test_a_step_that_fails_is_left_out(counting, failing):
    metric = fed(counting, [[0]], reduction="none")
    metric.compute()
    failing(ValueError("not finite"))
    with pytest.raises(ValueError, match="not finite"):
        metric(*batch([1]))
    metric.update(*batch([2]))
    check(metric.compute(), counting, [0, 2])
    metric.update(*batch([3]))
    failing(ValueError("not finite"))
    with pytest.raises(ValueError, match="not finite"):
        metric.compute()
    metric.reset()
    metric.update(*batch([4]))
    check(metric.compute(), counting, [4])


# --- several metrics on one encoder


def feed(metrics: Sequence[Any], how: Sequence[str]) -> None:
    for numbers in BATCHES:
        for metric, name in zip(metrics, how, strict=True):
            getattr(metric, name)(*batch(numbers))


@pytest.mark.parametrize("forwarded", [None, 0, 2])
@pytest.mark.parametrize("limit", [500, None])
def test_several_metrics_encode_once(counting, monkeypatch, forwarded, limit):
    if limit:
        monkeypatch.setattr(waiting, "_CHARACTERS", {"cpu": limit})
    kinds: list[dict[str, Any]] = [{}, {"idf": True}, {"reduction": "none"}]
    metrics = [BERTScore(counting, cache_bytes=0, **settings) for settings in kinds]
    encoded = Encoded(counting)
    feed(metrics, ["forward" if place == forwarded else "update" for place in range(3)])
    found = []
    for metric in metrics:
        found.append(metric.compute())
        metric.reset()
    assert encoded.texts == num_distinct(PREDS, TARGET)
    for scores, idf in zip(found, (False, True, False), strict=True):
        check(scores, counting, range(COUNT), idf=idf)


def test_layers_of_one_encoder_encode_once(minilm):
    encoder = CountingEncoder(minilm, num_layers=LAYERS, all_layers=True)
    metrics = [BERTScore(encoder, num_layers=layer, cache_bytes=0) for layer in (1, 2)]
    feed(metrics, ["update"] * 2)
    found = [metric.compute() for metric in metrics]
    assert encoder.counts.texts == num_distinct(PREDS, TARGET)
    for layer, scores in enumerate(found, start=1):
        check(scores, FrozenEncoder(minilm, num_layers=layer), range(COUNT))


@pytest.mark.parametrize("groups", [True, False, [["f1", "recall"], ["idf"]]], ids=str)
@pytest.mark.parametrize("how", ["update", "forward"])
def test_a_collection_encodes_once(counting, groups, how):
    kinds: dict[str, dict[str, Any]] = {
        "f1": {"score": "f1"},
        "recall": {"score": "recall"},
        "idf": {"idf": True, "score": "f1"},
    }
    metrics = {name: BERTScore(counting, cache_bytes=0, **settings) for name, settings in kinds.items()}
    collection = MetricCollection(metrics, compute_groups=groups)
    for _ in range(2):
        encoded = Encoded(counting)
        feed([collection], [how])
        found = collection.compute()
        assert encoded.texts == num_distinct(PREDS, TARGET)
        for name, settings in kinds.items():
            wanted = bert_score(PREDS, TARGET, counting, idf=settings.get("idf", False))[settings["score"]]
            assert found[name].item() == pytest.approx(wanted.mean().item(), abs=TOLERANCE)
        collection.reset()


def test_unlike_metrics_do_not_hold_each_others_texts(counting):
    first, second = fed(counting, BATCHES[:3]), fed(counting, BATCHES[1:])
    check(first.compute(), counting, list(chain(*BATCHES[:3])))
    check(second.compute(), counting, list(chain(*BATCHES[1:])))


# --- wrappers


def values_of(wrapped: Any, how: str = "update", given: Callable[..., Any] = batch) -> list[float]:
    found = []
    for numbers in BATCHES:
        if isinstance(wrapped, MetricTracker):
            wrapped.increment()
        getattr(wrapped, how)(*given(numbers))
        value = wrapped.compute()
        found += [one.item() for one in (value.values() if isinstance(value, dict) else [value])]
    return found


WRAPPERS: dict[str, Callable[[BERTScore], list[float]]] = {
    "running": lambda metric: values_of(Running(metric, window=2)),
    "running steps": lambda metric: values_of(Running(metric, window=3), "forward"),
    "tracker": lambda metric: values_of(MetricTracker(metric)),
    "minimum and maximum": lambda metric: values_of(MinMaxMetric(metric)),
    "arithmetic": lambda metric: values_of(metric + BERTScore(metric.encoder, score="recall", cache_bytes=0)),
}


@pytest.mark.parametrize("name", WRAPPERS)
@pytest.mark.parametrize("idf", [False, True])
def test_wrapped_metrics_give_what_they_give_without_waiting(counting, monkeypatch, name, idf):
    found = []
    for limit in (waiting._CHARACTERS["cpu"], 0):
        monkeypatch.setattr(waiting, "_CHARACTERS", {"cpu": limit})
        torch.manual_seed(0)
        found.append(WRAPPERS[name](BERTScore(counting, idf=idf, score="f1", cache_bytes=0)))
    assert len(set(found[0])) > 2
    assert found[0] == pytest.approx(found[1], abs=TOLERANCE)


# --- Lightning


class Logged(Quality):
    """Logs a metric object at every step, and leaves computing and resetting to Lightning."""

    def __init__(self, *args: Any, metric: BERTScore) -> None:
        super().__init__(*args)
        self.metric = metric
        self.encoded: list[int] = []

    def validation_step(self, batch: Tensor, batch_idx: int) -> None:
        self.metric.update(*self.choose(batch))
        self.log("val_f1", self.metric, on_step=False, on_epoch=True, prog_bar=True)

    def on_validation_batch_end(self, *args: Any) -> None:
        self.encoded.append(self.metric.encoder.counts.texts)


def test_logging_encodes_nothing_before_the_end(minilm, tmp_path):
    counting = CountingEncoder(minilm, num_layers=LAYERS)
    module = chooser((PREDS, TARGET), [5], count=COUNT, kind=Logged, metric=BERTScore(counting, score="f1"))
    run = trainer(tmp_path, [], enable_progress_bar=True)
    found = run.validate(module, verbose=False)
    assert module.encoded == [0, 0, 0]
    assert counting.counts.texts > 0
    assert 0 < found[0]["val_f1"] <= 1


# --- ranks


def score_shares(rank: int, model: str, shares: list[list[list[int]]]) -> dict[str, Any]:
    """Uneven updates, of which some wait and some do not; every rank calls the same collectives."""
    waiting._CHARACTERS = {"cpu": 500}
    calls: list[str] = []
    for name in ("all_gather", "all_reduce", "barrier"):
        setattr(torch.distributed, name, noted(name, getattr(torch.distributed, name), calls))
    report: dict[str, Any] = {"calls": calls}
    encoder = CountingEncoder(model, num_layers=LAYERS)
    for idf in (False, True):
        metric = BERTScore(encoder, idf=idf, reduction="none", cache_bytes=0)
        indexed = BERTScore(encoder, idf=idf, reduction="none", cache_bytes=0)
        for numbers in shares[rank]:
            metric.update(*batch(numbers))
            indexed.update(*batch(numbers), indices=numbers)
        calls.append("updated")
        report[f"idf={idf}"] = [metric.compute(), indexed.compute()]
        local = BERTScore(encoder, idf=idf, reduction="none", sync_on_compute=False, cache_bytes=0)
        local.update(*batch([rank]))
        with local.sync_context():
            report[f"idf={idf}"].append(local.compute())
        report[f"idf={idf}"].append(local.compute())
    report["encoded"] = encoder.counts.texts
    return report


def noted(name: str, function: Callable[..., Any], calls: list[str]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        calls.append(name)
        return function(*args, **kwargs)

    return call


@pytest.mark.distributed
def test_two_ranks_equal_one_process(minilm):
    shares = [[[0], [1, 2], [3, 4, 5, 6], [7]], [[11, 10], [9], [8]]]
    reports = run_ranks(score_shares, 2, minilm, shares, fresh=True)
    encoder = FrozenEncoder(minilm, num_layers=LAYERS)
    in_order = list(chain(*chain(*shares)))
    assert reports[0]["calls"] == reports[1]["calls"]
    # No collective before both had all their texts.
    assert reports[0]["calls"][0] == "updated"
    for rank, report in enumerate(reports):
        for idf in (False, True):
            found = report[f"idf={idf}"]
            for scores, numbers in zip(found, (in_order, range(COUNT), [0, 1], [rank]), strict=True):
                check(scores, encoder, numbers, idf=idf)
        # Its own share for each idf, and the one of the local metric.
        assert report["encoded"] == 2 * (2 * len(list(chain(*shares[rank]))) + 2)
