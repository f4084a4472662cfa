"""Several metrics at once: each with its own numbers, from one encoding of a batch; and logged by Lightning."""

from __future__ import annotations

import copy
import csv
import pickle
from collections import Counter
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch import Tensor
from torchmetrics import MetricCollection
from torchmetrics.text import BLEUScore, CHRFScore

from bertscore_tm import BERTScore, FrozenEncoder
from bertscore_tm.functional import SCORES
from tests.support.lightning_modules import Quality, SpawnedDDP, chooser, trainer
from tests.support.metric_batches import FIRST, SECOND, THIRD, assert_equal, updated
from tests.support.metric_kinds import COUNT, TOLERANCE, Kind, Workshop, flat, kind
from tests.support.models import counted_texts, tiny_model
from tests.support.ranks import run_ranks

pytestmark = pytest.mark.usefixtures("one_thread")

# Kinds that are logged together, on two encoders: one of a single layer, one of all layers.
KINDS = {
    "plain": kind(),
    "idf": kind(idf=True),
    "f1": kind(component="f1"),
    "recall_idf": kind(component="recall", idf=True),
    "corpus": kind(idf=..., component="precision"),
    "pairs": kind(reduction="none"),
    "interval": kind(confidence=0.9),
    "layer1": kind(layer=1, picked_from=3),
    "layer3": kind(layer=3, picked_from=3, component="f1"),
    "layer3_idf": kind(layer=3, picked_from=3, idf=True, reduction="none"),
}
ENCODERS = 2
BATCHES = [[0, 1, 2], [3], [5, 4, 0], [6, 7, 8, 9]]


def collect(workshop: Workshop, **options: Any) -> MetricCollection:
    return MetricCollection({name: workshop.metric(made) for name, made in KINDS.items()}, **options)


def check(
    workshop: Workshop, found: dict[str, Any], numbers: Sequence[int], prefix: str = "", postfix: str = ""
) -> None:
    """Make sure that every metric of a collection gives what the reference package does."""
    left = set(found)
    for name, made in KINDS.items():
        if "component" in made.options:
            keys = [f"{prefix}{name}{postfix}"]
            own = found[keys[0]]
        else:
            names = [*SCORES, *(("f1_low", "f1_high") if "confidence" in made.options else ())]
            keys = [f"{prefix}{name}_{key}{postfix}" for key in names]
            own = dict(zip(names, (found[key] for key in keys), strict=True))
        workshop.check(own, made, numbers)
        left -= set(keys)
    assert not left


def ids_of(encoder: FrozenEncoder, texts: Sequence[str]) -> set[tuple[int, ...]]:
    return set(map(tuple, encoder.tokenizer(texts).ids))


# --- collections


@pytest.mark.parametrize(("how", "cached"), [("update", True), ("forward", False)])
def test_each_has_its_own_numbers_from_one_encoding(minilm, workshop, how, cached):
    if cached:
        # Texts of this test alone, so that the cache does not know them.
        workshop = Workshop(minilm, "")
        workshop.target = [f"{text}, {how}" for text in workshop.target]
    settings = {} if cached else {"cache_bytes": 0}
    collection = MetricCollection({name: workshop.metric(made, **settings) for name, made in KINDS.items()})
    encoder = collection["plain"].encoder
    for epoch in range(2):
        known: set[tuple[int, ...]] = set()
        for numbers in BATCHES:
            preds, target = workshop.batch(kind(), numbers)
            with counted_texts() as encoded:
                found = getattr(collection, how)(preds, target)
            expected = ids_of(encoder, [*preds, *target])
            if cached:
                references = ids_of(encoder, target)
                expected -= references if epoch else references & known
                known |= references
            assert encoded == Counter(dict.fromkeys(expected, ENCODERS))
            if how == "forward":
                check(workshop, found, numbers)
        with counted_texts() as encoded:
            found = collection.compute()
        assert not encoded
        check(workshop, found, list(chain(*BATCHES)))
        collection.reset()


@pytest.mark.parametrize("groups", [False, [["plain", "f1"], ["pairs", "interval"], ["idf", "recall_idf"]]])
def test_groups_of_the_users_own(workshop, groups):
    collection = collect(workshop, compute_groups=groups)
    for numbers in BATCHES[:2]:
        collection.update(*workshop.batch(kind(), numbers))
    check(workshop, collection(*workshop.batch(kind(), BATCHES[2])), BATCHES[2])
    check(workshop, collection.compute(), list(chain(*BATCHES[:3])))


def test_groups_found_by_torchmetrics(workshop):
    collection = collect(workshop)
    collection.update(*workshop.batch(kind(), BATCHES[0]))
    groups = sorted(map(sorted, collection.compute_groups.values()))
    # The members of a group hold the same; only what is made of it differs.
    assert groups == [
        ["corpus"],
        ["f1", "interval", "pairs", "plain"],
        ["idf", "recall_idf"],
        ["layer1"],
        ["layer3"],
        ["layer3_idf"],
    ]


def test_copies_of_a_collection(workshop):
    train = collect(workshop, prefix="train_", postfix="_bert")
    train.update(*workshop.batch(kind(), BATCHES[0]))
    val = train.clone(prefix="val_")
    val.reset()
    val.update(*workshop.batch(kind(), BATCHES[1]))
    pickled = pickle.loads(pickle.dumps(train))
    pickled.update(*workshop.batch(kind(), BATCHES[2]))
    train.persistent(True)
    saved = train.state_dict()
    loaded = collect(workshop)
    loaded.load_state_dict(saved)
    loaded.half().to(torch.float16).update(*workshop.batch(kind(), BATCHES[3]))
    train.set_dtype(torch.bfloat16)
    check(workshop, train.compute(), BATCHES[0], "train_", "_bert")
    check(workshop, val.compute(), BATCHES[1], "val_", "_bert")
    check(workshop, pickled.compute(), BATCHES[0] + BATCHES[2], "train_", "_bert")
    check(workshop, loaded.compute(), BATCHES[0] + BATCHES[3])
    # A metric taken out of a collection is its own.
    train["train_f1_bert"].update(*workshop.batch(kind(), BATCHES[3]))
    workshop.check(train["train_f1_bert"].compute(), KINDS["f1"], BATCHES[0] + BATCHES[3])


def test_collection_with_other_text_metrics(workshop):
    others = {"bleu": BLEUScore(n_gram=2), "chrf": CHRFScore()}
    several = kind(several=True)
    collection = MetricCollection({"bert": workshop.metric(kind(component="f1", several=True)), **others})
    alone = {name: metric.clone() for name, metric in others.items()}
    for numbers in (BATCHES[0], BATCHES[2]):
        preds, target = workshop.batch(several, numbers)
        # Only the one that knows the argument gets it.
        collection.update(preds, target, indices=numbers)
        for metric in alone.values():
            metric.update(preds, target)
    found = collection.compute()
    workshop.check(found["bert"], kind(component="f1", several=True, indexed=True), BATCHES[0] + BATCHES[2])
    for name, metric in alone.items():
        assert found[name] == metric.compute()


# --- which share their states

# Scores of identical texts are 1 at any layer and with any weights, so that even the states are equal.
SAME = (["a cat"], ["a cat"])


@pytest.mark.parametrize(("first", "how"), [(([], []), "update"), (SAME, "forward")])
def test_collection_keeps_different_metrics_apart(encoder, first, how):
    kinds = {
        "plain": BERTScore(encoder),
        "idf": BERTScore(encoder, idf=True),
        "layer": BERTScore(FrozenEncoder(encoder.name, num_layers=3)),
    }
    collection = MetricCollection({name: metric.clone() for name, metric in kinds.items()})
    for batch in (first, SECOND, THIRD):
        getattr(collection, how)(*batch)
        for metric in kinds.values():
            metric.update(*batch)
    assert len(collection.compute_groups) == 3
    found = collection.compute()
    for name, metric in kinds.items():
        # Other texts are encoded together.
        assert_equal({score: found[f"{name}_{score}"] for score in SCORES}, metric.compute())
    assert found["plain_f1"] != found["layer_f1"]


def test_collection_keeps_ready_models_apart():
    kinds = {}
    for seed in (0, 1):
        model, tokenizer = tiny_model("bert")
        model = copy.deepcopy(model)
        torch.nn.init.normal_(model.embeddings.word_embeddings.weight, std=0.3 + seed)
        kinds[f"model{seed}"] = BERTScore(FrozenEncoder(model, tokenizer, num_layers=2))
    collection = MetricCollection({name: metric.clone() for name, metric in kinds.items()})
    for batch in (([], []), FIRST, THIRD):
        updated(collection, batch)
        for metric in kinds.values():
            metric.update(*batch)
    found = collection.compute()
    for name, metric in kinds.items():
        assert_equal({score: found[f"{name}_{score}"] for score in SCORES}, metric.compute(), 0)


def test_collection_keeps_the_f1_for_selection_apart(minilm):
    """Its first batch has equal scores with both, and the second one with the formula's pole has not."""
    metric = BERTScore(FrozenEncoder(minilm, num_layers=6))
    kinds = {"formula": metric, "selection": metric.for_selection()}
    collection = MetricCollection(kinds)
    batches = (FIRST, (["Construct a Ttk Panedwindow"], ["Return all members of"]))
    for batch in batches:
        collection.update(*batch)
    found = collection.compute()
    for name, one in kinds.items():
        alone = one.clone()
        alone.reset()
        for batch in batches:
            alone.update(*batch)
        assert found[f"{name}_f1"] == alone.compute()["f1"]
    assert found["formula_f1"] > found["selection_f1"] + 0.1
    with pytest.raises(ValueError, match="differs in model"):
        kinds["formula"].merge_state(kinds["selection"])


# --- on ranks


def in_ranks(
    rank: int, collection: MetricCollection, batches: list[tuple[Any, ...]], counts: list[set[tuple[int, ...]]]
) -> dict[str, Any]:
    """The first rank has three batches and then one, the other one and then none."""
    report: dict[str, Any] = {"steps": [], "epochs": []}
    for mine in ([[0, 1, 2], [3]][rank], [[1], []][rank]):
        with counted_texts() as encoded:
            for number in mine:
                if number == 1:
                    report["steps"].append(collection(*batches[number]))
                else:
                    collection.update(*batches[number])
            report["epochs"].append(collection.compute())
        come = Counter(chain(*(counts[number] for number in mine)))
        assert all(times <= ENCODERS * come[text] for text, times in encoded.items())
        collection.reset()
    return report


@pytest.mark.slow
@pytest.mark.distributed
def test_two_processes(workshop):
    collection = collect(workshop, prefix="val_")
    collection.update(*workshop.batch(kind(), BATCHES[3]))
    encoder = collection["val_plain"].encoder
    batches = [workshop.batch(kind(), numbers) for numbers in BATCHES]
    counts = [ids_of(encoder, [*preds, *flat(target)]) for preds, target in batches]
    reports = run_ranks(in_ranks, 2, collection, batches, counts, timeout_s=120)
    first = list(chain(BATCHES[3], *BATCHES[:3], BATCHES[3], BATCHES[3]))
    for report in reports:
        check(workshop, report["epochs"][0], first, "val_")
        check(workshop, report["epochs"][1], BATCHES[1], "val_")
    for step in reports[0]["steps"]:
        check(workshop, step, BATCHES[1], "val_")
    assert len(reports[0]["steps"]) == 2


# --- logged by Lightning


class Logging(Quality):
    """Logs metric objects and leaves computing and resetting to Lightning."""

    def __init__(self, *args: Any, metrics: dict[str, BERTScore], stepwise: bool = False) -> None:
        super().__init__(*args)
        self.f1 = metrics.pop("f1")
        self.collection = MetricCollection(metrics, prefix="val_")
        self.stepwise = stepwise

    def validation_step(self, batch: Tensor, batch_idx: int) -> None:
        texts = self.choose(batch)
        if self.stepwise:
            self.f1(*texts, indices=batch)
            self.log("val_f1", self.f1, on_step=True, on_epoch=True)
        else:
            self.f1.update(*texts, indices=batch)
            self.log("val_f1", self.f1)
        self.collection.update(*texts, indices=batch)
        self.log_dict(self.collection)


# How many predictions are right in each epoch; the third is worse than the second, so that there is no fourth.
QUALITIES = [2, 5, 3, 6, 7]
VALIDATED = 7
LOGGED = {name: KINDS[name] for name in ("f1", "recall_idf", "layer3")}


def logging_module(workshop: Workshop, stepwise: bool = False) -> Logging:
    metrics = {name: workshop.metric(made) for name, made in LOGGED.items()}
    pairs = workshop.preds, workshop.target
    return chooser(pairs, QUALITIES, count=COUNT, kind=Logging, metrics=metrics, stepwise=stepwise)


def expected(workshop: Workshop, made: Kind, right: int, numbers: Sequence[int]) -> float:
    """The reference package's score of what is validated when so many predictions are right."""
    truly = Workshop(workshop.model, workshop.table)
    truly.preds = [truly.target[i] if i < right else workshop.preds[-1] for i in range(COUNT)]
    truly._scorers = workshop._scorers
    return truly.scores(made, numbers)[SCORES.index(made.options["component"])].double().mean().item()


def fit(module: Logging, folder: Path, **options: Any) -> tuple[pl.Trainer, dict[int, float]]:
    """Train until the score falls; return the score of each epoch, read from the names of the checkpoints."""
    keep = ModelCheckpoint(
        folder, "{epoch}={val_f1:.8f}", "val_f1", mode="max", save_top_k=-1, auto_insert_metric_name=False
    )
    stop = EarlyStopping("val_f1", mode="max", patience=1)
    run = trainer(folder, [keep, stop], max_epochs=len(QUALITIES), num_sanity_val_steps=1, **options)
    run.fit(module)
    names = [path.stem for path in sorted(folder.glob("*.ckpt"))]
    scores = {int(epoch): float(score) for epoch, score in (name.split("=") for name in names)}
    assert Path(keep.best_model_path).stem == names[1]
    return run, scores


def check_fit(workshop: Workshop, run: pl.Trainer, scores: dict[int, float]) -> None:
    everything = range(VALIDATED)
    wanted = {epoch: expected(workshop, LOGGED["f1"], QUALITIES[epoch], everything) for epoch in range(3)}
    assert scores == pytest.approx(wanted, abs=TOLERANCE)
    last = {f"val_{name}": expected(workshop, made, QUALITIES[2], everything) for name, made in LOGGED.items()}
    assert {name: run.callback_metrics[name].item() for name in last} == pytest.approx(last, abs=TOLERANCE)


def test_logged(workshop, tmp_path):
    module = logging_module(workshop, stepwise=True)
    logger = CSVLogger(tmp_path, name="", version="log")
    run, scores = fit(module, tmp_path, logger=logger)
    check_fit(workshop, run, scores)
    # Lightning has reset what it logged.
    assert not module.f1.update_called
    assert not any(metric.update_called for metric in module.collection.values())
    with (tmp_path / "log" / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    epochs = [float(row["val_f1_epoch"]) for row in rows if row["val_layer3"]]
    assert epochs == pytest.approx(list(scores.values()), abs=TOLERANCE)
    steps = [float(row["val_f1_step"]) for row in rows if row.get("val_f1_step")]
    batches = [[0, 1, 2], [3, 4, 5], [6]]
    wanted = [expected(workshop, LOGGED["f1"], QUALITIES[epoch], batch) for epoch in range(3) for batch in batches]
    assert steps == pytest.approx(wanted, abs=TOLERANCE)


@pytest.mark.slow
@pytest.mark.distributed
def test_logged_in_two_processes(workshop, tmp_path):
    # An odd number of examples, so that the sampler gives one of them to both.
    assert VALIDATED % 2
    run, scores = fit(logging_module(workshop), tmp_path, strategy=SpawnedDDP(), devices=2)
    check_fit(workshop, run, scores)
