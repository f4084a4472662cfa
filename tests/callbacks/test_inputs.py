"""Inputs in samples and files: those of their texts, found in any kind of batch."""

import csv
import json

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from bertscore_tm import BERTScore
from bertscore_tm.callbacks import BERTScoreCallback, SampleLogger, ScoredTextWriter, Seq2SeqGenerate
from tests.support.lightning_runs import Chooser, Returns, WithModel, chooser, generator, loader, trainer


def returned(inputs, **others):
    return {"preds": ["a", "b", "c"], "target": ["a", "b", "d"], "inputs": inputs} | others


@pytest.mark.parametrize(
    ("step", "samples"),
    [
        (returned(["x"] * 2), SampleLogger(1)),
        (returned(["x"] * 4), SampleLogger(1)),
        (returned(None, source=["x"] * 2), SampleLogger(1, inputs="source")),
        (returned(None), SampleLogger(1, inputs=lambda batch: ["x"])),
        (returned(np.array(["x"] * 2)), ScoredTextWriter()),
    ],
)
def test_another_number_of_inputs_than_predictions_is_an_error(pairs, encoder, tmp_path, step, samples):
    module = chooser(pairs, kind=Returns, returned=step)
    run = trainer(tmp_path, [BERTScoreCallback(BERTScore(encoder)), samples])
    with pytest.raises(ValueError, match=r"one text per prediction, got \d inputs for 3 predictions of a batch"):
        run.validate(module, loader(3), verbose=False)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (["a", None, "b"], r"inputs\[1\] must be a string, got None"),
        (np.array(["a", 5, "b"], dtype=object), r"inputs\[1\] must be a string, got 5"),
        (np.array([["a"], ["b"], ["c"]]), "inputs must have one text per row"),
        ("a b c", "inputs is a single string: pass a list of texts"),
    ],
)
def test_inputs_of_which_some_are_texts_are_an_error(pairs, encoder, tmp_path, inputs, message):
    module = chooser(pairs, kind=Returns, returned=returned(inputs))
    run = trainer(tmp_path, [BERTScoreCallback(BERTScore(encoder)), SampleLogger(1)])
    with pytest.raises(TypeError, match=message):
        run.validate(module, loader(3), verbose=False)


@pytest.mark.parametrize(
    ("inputs", "shown"),
    [
        (np.array(["x", "y", "z"]), {"x", "y", "z"}),
        (np.array(["x", "y", "z"], dtype=object), {"x", "y", "z"}),
        (("x", "y", "z"), {"x", "y", "z"}),
        (torch.ones(3, 4), {None}),
        ([[5, 6], [7], [8]], {None}),
        (np.ones(3), {None}),
        ([], {None}),
        (b"abc", {None}),
    ],
    ids=["array", "array of objects", "tuple", "tensor", "ids", "array of numbers", "nothing", "bytes"],
)
def test_inputs_without_a_text_are_not_shown(pairs, encoder, tmp_path, inputs, shown):
    module = chooser(pairs, kind=Returns, returned=returned(inputs))
    run = trainer(tmp_path, [BERTScoreCallback(BERTScore(encoder)), SampleLogger(1)])
    run.validate(module, loader(3), verbose=False)
    (path,) = (tmp_path / "samples").iterdir()
    assert {row.get("input") for row in read_table(path)} == shown


class Sourced(Chooser):
    """Returns inputs, unless a batch of a test; those of the training name its epoch.

    In the epoch ``fails_in`` its validation fails at the last batch.
    """

    fails_in = None

    def validation_step(self, batch, batch_idx):
        if self.current_epoch == self.fails_in and batch_idx == 2:
            raise RuntimeError("failed")
        inputs = [f"input {number} of epoch {self.current_epoch}" for number in batch.tolist()]
        return self.evaluation_step(batch, batch_idx) | {"inputs": inputs}

    def test_step(self, batch, batch_idx):
        return self.evaluation_step(batch, batch_idx)


def read_table(path):
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def read_lines(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_a_run_without_inputs_shows_none_of_an_earlier_run(pairs, encoder, tmp_path):
    callbacks = [BERTScoreCallback(BERTScore(encoder)), SampleLogger(1, every_n_validations=2)]
    module, run = chooser(pairs, kind=Sourced), trainer(tmp_path, callbacks, max_epochs=3)
    run.fit(module)
    run.test(module, verbose=False)
    (written,) = (tmp_path / "samples").glob("val_samples_*.csv")
    assert all(row["input"].endswith("of epoch 1") for row in read_table(written))
    (tested,) = (tmp_path / "samples").glob("test_samples_*.csv")
    assert "input" not in read_table(tested)[0]


def test_inputs_of_a_failed_validation_are_forgotten(pairs, encoder, tmp_path):
    callbacks = [BERTScoreCallback(BERTScore(encoder)), ScoredTextWriter(tmp_path / "texts")]
    module = chooser(pairs, kind=Sourced)
    module.fails_in = 0
    with pytest.raises(RuntimeError, match="failed"):
        trainer(tmp_path, callbacks, max_epochs=1).fit(module)
    run = trainer(tmp_path, callbacks)
    run.test(module, verbose=False)
    rows = read_lines(tmp_path / "texts" / "test_step_0.jsonl")
    assert len(rows) == 7
    assert all("source" not in row for row in rows)


class Vision(torch.nn.Module):
    """Generates one token per image."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)

    def generate(self, pixel_values, **options):
        return pixel_values.long()[:, :1] + 5


@pytest.mark.parametrize("has_inputs", [False, True])
def test_models_without_input_ids_show_the_inputs_of_the_step(encoder, tmp_path, has_inputs):
    class Captions(WithModel):
        def validation_step(self, batch, batch_idx):
            return {"inputs": [f"image of {text}" for text in batch["labels"]]} if has_inputs else None

    rows = [{"pixel_values": torch.full((3,), float(number)), "labels": f"text {number}"} for number in range(4)]
    scorer = BERTScoreCallback(BERTScore(encoder), Seq2SeqGenerate(generator("bart")[1]))
    run = trainer(tmp_path, [scorer, SampleLogger(1)])
    run.validate(Captions(Vision()), DataLoader(rows, batch_size=2), verbose=False)
    (path,) = (tmp_path / "samples").iterdir()
    table = read_table(path)
    assert [row.get("input") for row in table] == [
        f"image of {row['reference']}" if has_inputs else None for row in table
    ]


def test_a_validation_outside_of_training_has_its_own_names(pairs, encoder, tmp_path):
    callbacks = [BERTScoreCallback(BERTScore(encoder)), ScoredTextWriter(), SampleLogger(1)]
    module, run = chooser(pairs), trainer(tmp_path, callbacks, max_epochs=1, num_sanity_val_steps=1)
    run.fit(module)
    run.validate(module, verbose=False)
    run.test(module, verbose=False)
    names = {path.name for path in (tmp_path / "samples").iterdir()}
    assert names == {"val_samples_step_2.csv", "validate_samples_step_3.csv", "test_samples_step_3.csv"}
    names = {path.name for path in (tmp_path / "texts").iterdir()}
    assert names == {"val_step_2.jsonl", "validate_step_3.jsonl", "test_step_3.jsonl"}
