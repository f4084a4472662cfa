"""BERTScoreCallback: errors that say what to change."""

from __future__ import annotations

import re

import pytest
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from torchmetrics.text import BLEUScore

from bertscore_tm import BERTScore, FrozenEncoder
from bertscore_tm.callbacks import BERTScoreCallback
from tests.support.lightning_modules import Chooser, Returns, chooser, loader, trainer, weights


class OtherBERTScore(BLEUScore):
    """As torchmetrics' own, a metric of the same name."""


LAYERS, COMPONENT = "all layers", "component"
OtherBERTScore.__qualname__, OtherBERTScore.__module__ = "BERTScore", "another_package.text"


@pytest.mark.parametrize(
    ("metric", "options", "error", "said"),
    [
        ("f1", {}, TypeError, "metric must be a bertscore_tm.BERTScore, or a dictionary of BERTScores and"),
        ({}, {}, ValueError, "empty dictionary"),
        ({"a": "bleu"}, {}, TypeError, "got a str under 'a'"),
        (OtherBERTScore(), {}, TypeError, "got a another_package.text.BERTScore"),
        (LAYERS, {}, ValueError, "one layer and without component="),
        (COMPONENT, {}, ValueError, "one layer and without component="),
        (None, {"generate": "f"}, TypeError, "generate must be a function of (pl_module, batch), got 'f'"),
        (None, {"max_batches": 0}, ValueError, "max_batches must be at least 1, got 0"),
        (None, {"every_n_validations": 0}, ValueError, "every_n_validations must be at least 1, got 0"),
        (None, {"first_validation": 0}, ValueError, "first_validation must be at least 1, got 0"),
    ],
)
def test_unsupported_settings_are_an_error(minilm, metric, options, error, said):
    encoder = FrozenEncoder(minilm, num_layers=2, all_layers=metric is LAYERS)
    if metric is LAYERS or metric is COMPONENT or metric is None:
        single = BERTScore(encoder, component="f1" if metric is COMPONENT else None)
        metric = {"a": single} if metric else single
    with pytest.raises(error, match=re.escape(said)):
        BERTScoreCallback(metric, **options)


@pytest.mark.parametrize("name", ["val/f1", "..\\f1"])
def test_names_with_slashes_are_an_error(encoder, name):
    with pytest.raises(ValueError, match="without slashes"):
        BERTScoreCallback({name: BERTScore(encoder)})
    with pytest.raises(ValueError, match="without slashes"):
        BERTScoreCallback(BERTScore(encoder), name=name)


@pytest.mark.parametrize("has_loader", [True, False])
def test_a_training_without_validation_is_an_error_before_it(pairs, encoder, tmp_path, has_loader):
    module, before = chooser(pairs), weights(chooser(pairs))
    if not has_loader:
        module.val_dataloader = super(Chooser, module).val_dataloader
    run = trainer(tmp_path, [BERTScoreCallback(BERTScore(encoder))], limit_val_batches=0 if has_loader else 1.0)
    said = r"this run has no validation: define validation_step.*limit_val_batches"
    with pytest.raises(MisconfigurationException, match=said):
        run.fit(module)
    assert torch.equal(weights(module), before)


NO_TEXTS = "Return {'preds': [...], 'target': [...]} with one text per example"


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        (None, ["validation_step returned NoneType None", NO_TEXTS, "preds_key=", "generate="]),
        (torch.tensor(0.5), ["validation_step returned Tensor tensor(0.5", NO_TEXTS]),
        ({"loss": 1.0, "preds": []}, ["validation_step returned a dict with the keys ['loss', 'preds']", NO_TEXTS]),
        ({"preds": ["a"], "target": "one text"}, ["target is a single string but preds is a list"]),
        ({"preds": {"a": 1}, "target": ["b"]}, ["preds must be a string or a sequence of strings, got {'a': 1}"]),
        ({"preds": ["a", "b"], "target": {"a", "b"}}, ["target must be a string or a sequence of strings, got {"]),
        ({"preds": 3, "target": ["a"]}, ["preds must be a string or a sequence of strings, got 3"]),
        ({"preds": ["a", "b"], "target": ["a"]}, ["preds and target must have equal lengths, got 2 and 1"]),
        ({"preds": ["a"], "target": [["b", None]]}, ["target[0][1] must be a string, got None"]),
        ({"preds": torch.tensor([1]), "target": ["a"]}, ["preds must be texts, got a tensor of shape (1,)"]),
    ],
)
def test_unusable_step_outputs_are_an_error(pairs, encoder, tmp_path, returned, said):
    module, before = chooser(pairs, returned=returned, kind=Returns), weights(chooser(pairs))
    run = trainer(tmp_path, [BERTScoreCallback(BERTScore(encoder))], num_sanity_val_steps=1)
    with pytest.raises(MisconfigurationException) as caught:
        run.fit(module)
    assert torch.equal(weights(module), before)
    with pytest.raises(MisconfigurationException) as caught_in_test:
        run.test(module)
    assert str(caught.value).replace("validation_step", "test_step") == str(caught_in_test.value)
    for phrase in said:
        assert phrase in str(caught.value)


@pytest.mark.parametrize(
    ("generated", "said"),
    [
        (None, "generate must return (preds, target), two lists of texts; it returned NoneType None"),
        ((["a"], ["b"], ["c"]), "two lists of texts; it returned tuple"),
        (("a", ["b"]), "preds is a single string: pass a list of texts"),
        ((["a"], None), "target must be a string or a sequence of strings, got None"),
    ],
)
def test_unusable_generate_outputs_are_an_error(pairs, encoder, tmp_path, generated, said):
    callback = BERTScoreCallback(BERTScore(encoder), lambda pl_module, batch: generated)
    with pytest.raises(MisconfigurationException, match=re.escape(said)):
        trainer(tmp_path, [callback]).validate(chooser(pairs), verbose=False)


def test_two_callbacks_with_one_name_are_an_error(encoder, pairs, tmp_path):
    callbacks = [BERTScoreCallback({name: BERTScore(encoder) for name in names}) for names in ("ab", "bc")]
    with pytest.raises(MisconfigurationException, match="2 BERTScoreCallbacks log under the name 'b'"):
        trainer(tmp_path, callbacks, max_epochs=1).fit(chooser(pairs), loader(3), loader(3))


class Nested(Chooser):
    """Runs a second trainer with the same callbacks in its validation."""

    def on_validation_batch_end(self, *args):
        inner = trainer(self.trainer.default_root_dir, self.trainer.callbacks)
        inner.validate(Chooser(self.choices, self.references), loader(2), verbose=False)


def test_a_callback_that_two_running_trainers_share_is_an_error(encoder, pairs, tmp_path):
    callback = BERTScoreCallback(BERTScore(encoder))
    with pytest.raises(MisconfigurationException, match=r"run of another trainer, .* pass another BERTScoreCallback"):
        trainer(tmp_path, [callback]).validate(chooser(pairs, kind=Nested), verbose=False)
    trainer(tmp_path, [callback]).validate(chooser(pairs), verbose=False)


def test_texts_that_are_too_long_are_an_error_of_the_run(minilm, tmp_path, pairs):
    metric = BERTScore(FrozenEncoder(minilm, num_layers=1, max_length=8, long_text="error"))
    with pytest.raises(MisconfigurationException, match=r"bertscore cannot score the texts of a batch.*8"):
        trainer(tmp_path, [BERTScoreCallback(metric)]).validate(chooser(pairs), verbose=False)
