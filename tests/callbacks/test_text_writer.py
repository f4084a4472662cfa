"""Files of scored texts: their contents, and the shell's commands that read them."""

import csv
import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.utils.data import DataLoader

from bertscore_tm import BERTScore, bert_score
from bertscore_tm.callbacks import BERTScoreCallback, BERTScoreReport, SampleLogger, ScoredTextWriter, Seq2SeqGenerate
from bertscore_tm.callbacks import report as report_module
from bertscore_tm.cli import main
from tests.support.lightning_runs import (
    LAYER,
    Chooser,
    Returns,
    WithModel,
    chooser,
    generator,
    loader,
    texts_of,
    trainer,
)
from tests.support.report_pages import read_data
from tests.support.sample_tables import COUNT, mixed
from tests.support.texts import several_references


def rows(path):
    return [json.loads(line) for line in Path(path).read_text(encoding="utf-8").splitlines()]


def run_shell(capsys, *arguments):
    """Run a command of the shell with the encoder of the fixture ``shallow``, and return what it printed as JSON."""
    capsys.readouterr()
    assert main(list(map(str, arguments))) == 0
    return json.loads(capsys.readouterr().out)


def model_options(minilm):
    return ["--model", minilm, "--num-layers", LAYER, "--json"]


def test_every_validation_writes_a_file_of_its_texts(pairs, shallow, tmp_path):
    references = several_references(pairs[1][:COUNT])
    module = mixed(pairs, references=references)
    run = trainer(
        tmp_path,
        [BERTScoreCallback(BERTScore(shallow)), ScoredTextWriter()],
        logger=CSVLogger(tmp_path, "csv"),
        num_sanity_val_steps=1,
    )

    with pytest.warns(UserWarning, match="^2 candidates scored 0"):
        run.fit(module)

    folder = Path(run.log_dir) / "texts"
    paths = [folder / f"val_step_{step}.jsonl" for step in (2, 5)]
    assert sorted(folder.iterdir()) == paths
    lines = rows(paths[1])
    preds = [row["candidate"] for row in lines]
    assert [row["example"] for row in lines] == list(range(1, COUNT + 1))
    assert [row["references"] for row in lines] == references
    assert preds == texts_of(module.seen)[0]
    scores = bert_score([pred or "." for pred in preds], references, shallow)
    for name in ("precision", "recall", "f1"):
        expected = [score if pred else 0 for score, pred in zip(scores[name].tolist(), preds, strict=True)]
        assert [row[name] for row in lines] == pytest.approx(expected, abs=2e-6)
    (signature,) = {row["signature"] for row in lines}
    assert signature.replace("|f1:selection_f1|", "|") == str(BERTScore(shallow).signature())


@pytest.mark.filterwarnings("ignore:[0-9]+ candidates scored 0")
def test_the_shells_commands_read_the_files(pairs, minilm, shallow, tmp_path, capsys):
    module = mixed(pairs, references=several_references(pairs[1][:COUNT]))
    run = trainer(tmp_path, [BERTScoreCallback(BERTScore(shallow)), ScoredTextWriter(tmp_path / "texts")])
    run.fit(module)
    files = [tmp_path / "texts" / f"val_step_{step}.jsonl" for step in (2, 5)]
    lines = rows(files[1])
    candidates, best = tmp_path / "candidates.jsonl", tmp_path / "best.jsonl"
    candidates.write_text("".join(json.dumps({"candidates": [row["candidate"]]}) + "\n" for row in lines))
    model = model_options(minilm)

    scored = run_shell(capsys, "score", "-c", files[1], *model)
    compared = run_shell(capsys, "compare", "-c", *files, "-r", files[0], *model)
    ranking = ["rank", candidates, "-r", files[1], "--references-reduce", "max", *model, "-o", best]
    assert main(list(map(str, ranking))) == 0

    expected = pytest.approx(run.callback_metrics["val_bertscore_f1"].item(), abs=2e-6)
    assert scored["f1"] == expected
    assert compared["systems"][1]["f1"] == expected
    assert [row["scores"][0] for row in rows(best)] == pytest.approx([row["f1"] for row in lines], abs=2e-6)


def test_loaders_and_metrics_have_files_of_their_own(pairs, encoder, tmp_path):
    metrics = {"plain": BERTScore(encoder), "idf": BERTScore(encoder, idf=True)}
    scorers = [BERTScoreCallback({name: metrics[name]}, loader_names=["news", "books"]) for name in metrics]
    writers = [ScoredTextWriter(tmp_path), ScoredTextWriter(tmp_path, name="idf")]
    run = trainer(tmp_path, [*scorers, *writers])

    run.test(chooser(pairs, val_sizes=(4, 3)), verbose=False)

    names = sorted(path.name for path in tmp_path.glob("*.jsonl"))
    assert names == [
        "idf_test_books_step_0.jsonl",
        "idf_test_news_step_0.jsonl",
        "test_books_step_0.jsonl",
        "test_news_step_0.jsonl",
    ]
    for start, metric in (("", "plain"), ("idf_", "idf")):
        f1 = [row["f1"] for row in rows(tmp_path / f"{start}test_news_step_0.jsonl")]
        assert len(f1) == 4
        assert sum(f1) / 4 == pytest.approx(run.callback_metrics[f"test_{metric}_f1_news"].item(), abs=2e-6)


# Each validation warns, and the test looks at the first warning.
@pytest.mark.filterwarnings("ignore:ScoredTextWriter could not write")
def test_unwritable_files_are_warned_of(pairs, encoder, tmp_path):
    (tmp_path / "file").touch()
    callbacks = [BERTScoreCallback(BERTScore(encoder)), ScoredTextWriter(tmp_path / "file" / "texts")]

    with pytest.warns(UserWarning, match=r"ScoredTextWriter could not write .*val_step_2\.jsonl"):
        trainer(tmp_path, callbacks).fit(chooser(pairs))


@pytest.mark.filterwarnings("ignore:.*candidates? scored 0")
def test_a_pair_without_a_reference_scores_0_everywhere(pairs, encoder, tmp_path):
    module = mixed(pairs, references=["", *pairs[1][1:COUNT]])
    report = BERTScoreReport(tmp_path / "report.html", num_alignments=0)
    writers = [ScoredTextWriter(tmp_path / "texts"), SampleLogger(2), report]
    run = trainer(tmp_path, [BERTScoreCallback(BERTScore(encoder)), *writers])

    run.fit(module)

    first, *others = rows(tmp_path / "texts" / "val_step_5.jsonl")
    assert first["references"] == [""]
    assert first["f1"] == 0
    preds = [row["candidate"] for row in others]
    target = [row["references"] for row in others]
    mean = bert_score(preds, target, encoder)["f1"].sum().item() / COUNT
    assert run.callback_metrics["val_bertscore_f1"].item() == pytest.approx(mean, abs=2e-6)
    _, worst, *_ = (tmp_path / "samples" / "val_samples_step_5.csv").read_text(encoding="utf-8").splitlines()
    assert worst.startswith("worst,1,")
    # The page has the means of both validations and their comparison.
    data = read_data(tmp_path / "report.html")
    assert data["summary"][-1]["f1"]["mean"] == pytest.approx(mean, abs=1e-4)
    assert data["comparisons"] == 1
    zeros = [number for number, row in enumerate(others, start=1) if row["f1"] == 0]
    assert data["empty"][-1] == [0, *zeros]


HALF = "half \ud83d of a pair"


@pytest.mark.filterwarnings("ignore:[0-9]+ candidates scored 0")
def test_half_a_surrogate_pair_is_written_as_its_escape(pairs, minilm, shallow, tmp_path, capsys):
    loggers = [CSVLogger(tmp_path, "csv"), TensorBoardLogger(tmp_path, "board")]
    report = BERTScoreReport(tmp_path / "report.html", num_alignments=1)
    writers = [ScoredTextWriter(), SampleLogger(3, 1), report]
    module = mixed(pairs, references=[HALF, *pairs[1][1:COUNT]])
    run = trainer(tmp_path, [BERTScoreCallback(BERTScore(shallow)), *writers], logger=loggers, max_epochs=1)

    run.fit(module)

    path = Path(run.log_dir) / "texts" / "val_step_2.jsonl"
    assert rows(path)[0]["references"] == [HALF]
    scored = run_shell(capsys, "score", "-c", path, *model_options(minilm))
    assert scored["f1"] == pytest.approx(run.callback_metrics["val_bertscore_f1"].item(), abs=2e-6)
    escaped = HALF.encode(errors="backslashreplace").decode()
    assert read_data(tmp_path / "report.html")["references"][0] == [escaped]
    assert escaped in (Path(run.log_dir) / "samples" / "val_samples_step_2.csv").read_text(encoding="utf-8")
    board = EventAccumulator(str(next(tmp_path.glob("board/*")))).Reload()
    table = board.Tensors("val_samples/text_summary")[-1].tensor_proto.string_val[0].decode()
    assert escaped.replace("\\", "\\\\") in table


@pytest.mark.filterwarnings("ignore:.*has files of an earlier run")
def test_files_are_written_as_by_the_shell(pairs, encoder, tmp_path, monkeypatch):
    page, target = tmp_path / "report.html", tmp_path / "elsewhere.html"
    target.write_text("old")
    page.symlink_to(target)
    synced = []
    fsync = os.fsync
    monkeypatch.setattr("os.fsync", lambda file: (synced.append(file), fsync(file)))

    for name in (page.as_uri(), str(page)):
        report = BERTScoreReport(name, tmp_path / "texts", num_alignments=0)
        trainer(tmp_path, [BERTScoreCallback(BERTScore(encoder)), report]).fit(chooser(pairs))

    assert page.is_symlink()
    assert len(read_data(target)["names"]) == 2
    assert len(synced) == 2 * (2 + 2)  # a page and a file at each of two validations


def test_a_page_in_the_root_folder(pairs, encoder, tmp_path, monkeypatch):
    written = []
    monkeypatch.setattr(report_module, "write_file", lambda path, *rest: written.append(path))
    callbacks = [BERTScoreCallback(BERTScore(encoder)), BERTScoreReport("/report.html", num_alignments=0)]

    trainer(tmp_path, callbacks, max_epochs=1).fit(chooser(pairs))

    assert written == ["/report.html"]


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

    lines = rows(tmp_path / "texts" / "test_step_0.jsonl")
    assert len(lines) == 7
    assert all("source" not in row for row in lines)


class Vision(torch.nn.Module):
    """Generates one token per image."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)

    def generate(self, pixel_values, **options):
        return pixel_values.long()[:, :1] + 5


# The tiny tokenizer does not know all characters of the texts.
@pytest.mark.filterwarnings("ignore:12% of the characters are unknown")
@pytest.mark.parametrize("has_inputs", [False, True])
def test_models_without_input_ids_show_the_inputs_of_the_step(encoder, tmp_path, has_inputs):
    class Captions(WithModel):
        def validation_step(self, batch, batch_idx):
            return {"inputs": [f"image of {text}" for text in batch["labels"]]} if has_inputs else None

    examples = [{"pixel_values": torch.full((3,), float(number)), "labels": f"text {number}"} for number in range(4)]
    scorer = BERTScoreCallback(BERTScore(encoder), Seq2SeqGenerate(generator("bart")[1]))

    run = trainer(tmp_path, [scorer, SampleLogger(1)])
    run.validate(Captions(Vision()), DataLoader(examples, batch_size=2), verbose=False)

    (path,) = (tmp_path / "samples").iterdir()
    for row in read_table(path):
        expected = f"image of {row['reference']}" if has_inputs else None
        assert row.get("input") == expected


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
