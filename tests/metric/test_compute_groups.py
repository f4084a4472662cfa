"""Which metrics of a collection share their states, and which are kept apart."""

from __future__ import annotations

import copy

import pytest
import torch
from torchmetrics import MetricCollection

from bertscore_tm import BERTScore, FrozenEncoder
from bertscore_tm.functional import SCORES
from tests.support.metric_batches import FIRST, SECOND, THIRD, assert_equal, updated
from tests.support.models import tiny_model

# Scores of identical texts are 1 at any layer and with any weights, so that even the states are equal.
_SAME = (["a cat"], ["a cat"])


@pytest.mark.parametrize(("first", "how"), [(([], []), "update"), (_SAME, "update"), (_SAME, "forward")])
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
    for kind, metric in kinds.items():
        # Other texts are encoded together.
        assert_equal({name: found[f"{kind}_{name}"] for name in SCORES}, metric.compute())
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
    for kind, metric in kinds.items():
        assert_equal({name: found[f"{kind}_{name}"] for name in SCORES}, metric.compute(), 0)


def test_collection_keeps_the_f1_for_selection_apart(minilm):
    """Its first batch has equal scores with both, and the second one with the formula's pole has not."""
    metric = BERTScore(FrozenEncoder(minilm, num_layers=6))
    kinds = {"formula": metric, "selection": metric.for_selection()}
    collection = MetricCollection(kinds)
    batches = (FIRST, (["Construct a Ttk Panedwindow"], ["Return all members of"]))
    for batch in batches:
        collection.update(*batch)
    found = collection.compute()
    for kind, one in kinds.items():
        alone = one.clone()
        alone.reset()
        for batch in batches:
            alone.update(*batch)
        assert found[f"{kind}_f1"] == alone.compute()["f1"]
    assert found["formula_f1"] > found["selection_f1"] + 0.1
    with pytest.raises(ValueError, match="differs in model"):
        kinds["formula"].merge_state(kinds["selection"])
