"""Several metrics at once: each with its own numbers, from one encoding of a batch; and logged by Lightning."""

import csv
from collections import Counter
from collections.abc import Sequence
from itertools import chain
from typing import Any

import pytest
import torch
from lightning.pytorch.loggers import CSVLogger
from torch import Tensor
from torch.utils.data import DataLoader
from torchmetrics import MetricCollection

from bertscore_tm import BERTScore, FrozenEncoder
from bertscore_tm.compat import torchmetrics as drop_in
from bertscore_tm.functional import SCORE_NAMES
from tests.support.lightning_runs import trainer
from tests.support.logged_metrics import LOGGED, VALIDATED, Logging, key_at_end_of_epoch
from tests.support.markdown_blocks import ROOT, blocks
from tests.support.metrics import SECOND, THIRD, TOLERANCE, Kind, Workshop, assert_equal, mean, per_pair
from tests.support.models import counted_texts

# Kinds that are logged together, on two encoders: one of a single layer, one of all layers.
KINDS = {
    "plain": Kind(),
    "idf": Kind(idf=True),
    "f1": Kind(component="f1"),
    "recall_idf": Kind(component="recall", idf=True),
    "corpus": Kind(idf=..., component="precision"),
    "pairs": Kind(reduction="none"),
    "layer1": Kind(layer=1, picked_from=3),
    "layer3": Kind(layer=3, picked_from=3, component="f1"),
    "layer3_idf": Kind(layer=3, picked_from=3, idf=True, reduction="none"),
}
ENCODERS = 2
BATCHES = [[0, 1, 2], [3], [5, 4, 0], [6, 7, 8, 9]]


def check(workshop: Workshop, result: dict[str, Any], numbers: Sequence[int]) -> None:
    """Make sure that every metric of a collection gives what the function does, and nothing else."""
    left = dict(result)
    for name, made in KINDS.items():
        single = "component" in made.options
        scores: Any = left.pop(name) if single else {key: left.pop(f"{name}_{key}") for key in SCORE_NAMES}
        workshop.check(scores, made, numbers)
    assert not left


def ids_of(encoder: FrozenEncoder, texts: Sequence[str]) -> set[tuple[int, ...]]:
    return set(map(tuple, encoder.tokenizer(texts).rows()))


# --- collections


# With idf all tokens of a step's single reference weigh 0.
@pytest.mark.filterwarnings("ignore:1 candidate scored 0")
@pytest.mark.parametrize(("how", "cached"), [("update", True), ("forward", False)])
def test_each_has_its_own_numbers_from_one_encoding(minilm, workshop, how, cached):
    if cached:
        # Texts of this test alone, so that the cache does not know them.
        workshop = Workshop(minilm, "")
        workshop.target = [f"{text}, {how}" for text in workshop.target]
    settings = {} if cached else {"cache_bytes": 0}
    collection = MetricCollection({name: workshop.metric(made, **settings) for name, made in KINDS.items()})
    encoder = collection["plain"].encoder
    for metric in collection.values():
        # Load the models before texts are counted, because a model that is loaded encodes random texts as a trial.
        metric.encoder.backbone("cpu")

    for epoch in range(2 if cached else 1):
        cached_texts: set[tuple[int, ...]] = set()
        for numbers in BATCHES:
            preds, target = workshop.batch(Kind(), numbers)
            with counted_texts() as encoded:
                result = getattr(collection, how)(preds, target)
            expected = ids_of(encoder, [*preds, *target])
            if cached:
                references = ids_of(encoder, target)
                expected -= references if epoch else references & cached_texts
                cached_texts |= references
            assert encoded == Counter(dict.fromkeys(expected, ENCODERS))
            if how == "forward":
                check(workshop, result, numbers)
        with counted_texts() as encoded:
            result = collection.compute()
        assert not encoded
        check(workshop, result, list(chain(*BATCHES)))
        collection.reset()
    if how == "update":
        # The members of a group hold the same; only what is made of it differs.
        groups = [["f1", "pairs", "plain"], ["idf", "recall_idf"]]
        groups += [[name] for name in ("corpus", "layer1", "layer3", "layer3_idf")]
        assert sorted(map(sorted, collection.compute_groups.values())) == sorted(groups)


# --- which share their states

# Scores of identical texts are 1 at any layer and with any weights, so that even the states are equal.
SAME = (["a cat"], ["a cat"])
# Precision and recall of the last layer have different signs, between which F1 has its pole.
POLE = (["Construct a Ttk Panedwindow"], ["Return all members of"])


@pytest.mark.parametrize(("first", "how"), [(([], []), "update"), (SAME, "forward")])
def test_collection_keeps_different_metrics_apart(encoder, first, how):
    last = BERTScore(FrozenEncoder(encoder.name, num_layers=6))
    kinds = {
        "plain": BERTScore(encoder),
        "idf": BERTScore(encoder, idf=True),
        "layer": last,
        "selection": last.for_selection(),
    }
    collection = MetricCollection({name: metric.clone() for name, metric in kinds.items()})

    for batch in (first, SECOND, THIRD, POLE):
        getattr(collection, how)(*batch)
        for metric in kinds.values():
            metric.update(*batch)
    result = collection.compute()

    assert len(collection.compute_groups) == 4
    for name, metric in kinds.items():
        # Other texts are encoded together.
        assert_equal({score: result[f"{name}_{score}"] for score in SCORE_NAMES}, metric.compute())
    assert result["plain_f1"] != result["layer_f1"] > result["selection_f1"] + 0.1

    # A metric for selection computes another F1, so that their states do not mix.
    with pytest.raises(ValueError, match=r"differs in f1 \(selection_f1 instead of default\)\. Create"):
        last.merge_state(kinds["selection"])


class Lowercased(BERTScore):
    """A metric that edits texts before the update, if so requested."""

    def __init__(self, encoder: FrozenEncoder, lowers: bool = True) -> None:
        super().__init__(encoder)
        self.lowers = lowers

    def update(self, preds: Any, target: Any, indices: Any = None) -> None:
        edited = [text.replace("?", "") for text in preds] if self.lowers else preds
        super().update(edited, target, indices)


@pytest.mark.parametrize("first", [([], []), SAME])
def test_metrics_of_other_classes_share_no_states(minilm, first):
    """Their first updates may be equal although the next ones are not."""
    blank = (["rain in Paris?"], [["rain falls on Paris", " "]])
    encoder = FrozenEncoder(minilm, num_layers=3)

    def create() -> dict[str, BERTScore]:
        of_torchmetrics = drop_in.BERTScore(minilm, num_layers=3, idf=True, truncation=True)
        return {
            "package": BERTScore(encoder),
            "package_idf": BERTScore(encoder, idf=True, reduction="none"),
            "torchmetrics_idf": of_torchmetrics,
            "edited": Lowercased(encoder),
            "unedited": Lowercased(encoder, lowers=False),
        }

    collection, alone = MetricCollection(create()), create()
    for batch in (first, SECOND, blank):
        collection.update(*batch)
        for metric in alone.values():
            metric.update(*batch)
    assert len(collection.compute_groups) == len(alone)
    result = collection.compute()
    for name, metric in alone.items():
        expected = metric.compute()
        assert_equal({score: result[f"{name}_{score}"] for score in SCORE_NAMES}, expected)
    assert result["package_f1"] == result["unedited_f1"] != result["edited_f1"]
    assert not torch.equal(result["package_idf_f1"], result["torchmetrics_idf_f1"])


# --- logged by Lightning


def mean_of(workshop: Workshop, name: str, numbers: Sequence[int]) -> float:
    made = LOGGED[name]
    place = SCORE_NAMES.index(made.options["component"])
    return pytest.approx(workshop.scores(made, numbers)[place].double().mean().item(), abs=TOLERANCE)


def check_logged(workshop: Workshop, metrics: dict[str, Tensor]) -> None:
    for name in LOGGED:
        result = metrics[key_at_end_of_epoch(name)]
        assert result.item() == mean_of(workshop, name, range(VALIDATED))


def test_logged(workshop, tmp_path):
    module = Logging(workshop)
    run = trainer(tmp_path, logger=CSVLogger(tmp_path, name="", version="log"))

    for _ in range(2):
        run.validate(module, verbose=False)
        check_logged(workshop, run.callback_metrics)
        # Lightning has reset what it logged.
        assert not any(metric.update_called for metric in (module.f1, *module.collection.values()))

    with (tmp_path / "log" / "metrics.csv").open() as file:
        steps = [float(row["val_f1_step"]) for row in csv.DictReader(file) if row.get("val_f1_step")]
    expected = [mean_of(workshop, "f1", batch) for batch in ([0, 1, 2], [3, 4, 5], [6])]
    assert steps == expected * 2


@pytest.mark.parametrize("kind", ["one metric per loader", "a shared metric"])
def test_two_loaders_as_on_the_page(encoder, tmp_path, kind):
    block = next(block for block in blocks(ROOT / "examples/docs/metric.md") if "TwoLoaders" in block.content)
    names: dict[str, Any] = {"BERTScore": BERTScore, "encoder": encoder}
    block.run(names)
    module = names["TwoLoaders"]()
    if kind == "a shared metric":
        module.f1[1] = module.f1[0]
    loaders = []
    for preds, target in (SECOND, THIRD):
        batch = {"texts": preds, "references": target, "index": list(range(len(preds)))}
        # As by DistributedSampler, which repeats the first examples.
        repeated = {name: column[:1] for name, column in batch.items()}
        loaders.append(DataLoader([batch, repeated], batch_size=None))
    run = trainer(tmp_path)

    run.validate(module, loaders, verbose=False)

    result = [run.callback_metrics[f"val_f1/dataloader_idx_{i}"].item() for i in range(2)]
    expected = [mean(per_pair(encoder, batch))["f1"].item() for batch in (SECOND, THIRD)]
    # What the page says of a shared metric.
    assert (result == pytest.approx(expected, abs=TOLERANCE)) == (kind == "one metric per loader")
