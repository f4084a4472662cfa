"""BERTScoreCallback: errors that say what to change."""

import re

import pytest
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from torchmetrics import MetricCollection
from torchmetrics.text import BLEUScore, EditDistance, WordErrorRate

from bertscore_tm import BERTScore, FrozenEncoder
from bertscore_tm.callbacks import BERTScoreCallback
from tests.support.lightning_runs import Chooser, Returns, chooser, loader, trainer, weights

LAYERS = "all layers"
# As torchmetrics' own, a metric of the same name.
OtherBERTScore = type("BERTScore", (BLEUScore,), {"__module__": "another_package.text"})


@pytest.mark.parametrize(
    ("metric", "error", "said"),
    [
        ("f1", TypeError, "metric is a str. Pass a bertscore_tm.BERTScore, or a dictionary of BERTScores and"),
        (OtherBERTScore(), TypeError, "metric is a another_package.text.BERTScore"),
        (LAYERS, ValueError, "logs the scores of one layer"),
        ({}, ValueError, "metric is an empty dictionary"),
    ],
)
def test_unsupported_metrics_are_an_error(minilm, metric, error, said):
    if metric is LAYERS:
        metric = {"a": BERTScore(FrozenEncoder(minilm, num_layers=2, all_layers=True))}
    with pytest.raises(error, match=re.escape(said)):
        BERTScoreCallback(metric)


@pytest.mark.parametrize("has_loader", [True, False])
def test_a_training_without_validation_is_an_error_before_it(pairs, encoder, tmp_path, has_loader):
    module, before = chooser(pairs), weights(chooser(pairs))
    if not has_loader:
        module.val_dataloader = super(Chooser, module).val_dataloader
    run = trainer(tmp_path, [BERTScoreCallback(BERTScore(encoder))], limit_val_batches=0 if has_loader else 1.0)
    said = r"this run has no validation. Define validation_step.*limit_val_batches"
    with pytest.raises(MisconfigurationException, match=said):
        run.fit(module)
    assert torch.equal(weights(module), before)


def test_too_few_or_many_loader_names_are_an_error(pairs, encoder, tmp_path):
    run = trainer(tmp_path, [BERTScoreCallback(BERTScore(encoder), loader_names=["news", "books"])])
    with pytest.raises(MisconfigurationException, match=r"2 loader_names .* for 3 dataloaders. Pass one name per"):
        run.validate(chooser(pairs, val_sizes=(2, 2, 2)), verbose=False)


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        (None, "validation_step returned a NoneType. "),
        ({"loss": 1.0, "preds": []}, "validation_step returned a dict with the keys ['loss', 'preds']. "),
    ],
)
def test_a_step_without_texts_is_an_error(pairs, encoder, tmp_path, returned, said):
    module, before = chooser(pairs, returned=returned, kind=Returns), weights(chooser(pairs))
    run = trainer(tmp_path, [BERTScoreCallback(BERTScore(encoder))], num_sanity_val_steps=1)
    remedy = "Return {'preds': [...], 'target': [...]}, set preds_key= and target_key="
    with pytest.raises(MisconfigurationException, match=re.escape(said + remedy)):
        run.fit(module)
    assert torch.equal(weights(module), before)
    with pytest.raises(MisconfigurationException, match=re.escape(said.replace("validation", "test") + remedy)):
        run.test(module)


@pytest.mark.parametrize(
    ("texts", "error", "said"),
    [
        ((["a"], "one text"), TypeError, "target is a single string: pass a list of texts"),
        (("a", ["b"]), TypeError, "preds is a single string: pass a list of texts"),
        (([""] * 3, ["b", [None], "c"]), TypeError, "target[1][0] must be a string, got None"),
        ((["a", "b"], ["a"]), ValueError, "preds and target must have equal lengths, got 2 and 1"),
        ((torch.tensor([1]), ["a"]), TypeError, "preds must be texts, got a tensor of shape (1,)"),
    ],
)
def test_unusable_texts_are_an_error(pairs, encoder, tmp_path, texts, error, said):
    callback = BERTScoreCallback(BERTScore(encoder), lambda pl_module, batch: texts)
    with pytest.raises(error, match=re.escape(said)):
        trainer(tmp_path, [callback]).validate(chooser(pairs), verbose=False)


@pytest.mark.parametrize(
    ("metrics", "key"),
    [
        ({"b_f1": WordErrorRate()}, "b_f1"),
        ({"a": MetricCollection({"wer": WordErrorRate()}), "a_wer": WordErrorRate()}, "a_wer"),
    ],
)
def test_two_metrics_with_one_key_are_an_error(encoder, metrics, key):
    with pytest.raises(ValueError, match=re.escape(f"several metrics log under ['{key}']. Give them different names")):
        BERTScoreCallback({"b": BERTScore(encoder)} | metrics)


@pytest.mark.parametrize(("names", "said"), [("bc", "b_empty', 'b_f1', 'b_precision', 'b_recall"), (["b_f1"], "b_f1")])
def test_two_callbacks_with_one_key_are_an_error(encoder, pairs, tmp_path, names, said):
    other = {name: BERTScore(encoder) if name != "b_f1" else WordErrorRate() for name in names}
    callbacks = [BERTScoreCallback({name: BERTScore(encoder) for name in "ab"}), BERTScoreCallback(other)]
    with pytest.raises(MisconfigurationException, match=re.escape(f"several BERTScoreCallbacks log under ['{said}']")):
        trainer(tmp_path, callbacks, max_epochs=1).fit(chooser(pairs), loader(3), loader(3))


class Halves(WordErrorRate):
    """Two numbers for all texts."""

    def compute(self):
        return super().compute(), super().compute()


@pytest.mark.parametrize(
    ("metric", "said"),
    [(EditDistance(reduction="none"), "EditDistance) returned tensor(["), (Halves(), "Halves) returned (tensor(")],
)
def test_a_metric_of_several_values_is_an_error(encoder, pairs, tmp_path, metric, said):
    metrics = {"bertscore": BERTScore(encoder), "other": metric}
    with pytest.raises(MisconfigurationException, match=f"the metric 'other' .*{re.escape(said)}.*Choose options"):
        trainer(tmp_path, [BERTScoreCallback(metrics)]).validate(chooser(pairs), loader(3), verbose=False)
