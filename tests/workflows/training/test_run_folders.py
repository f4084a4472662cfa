"""Files of runs: next to the checkpoints of their run, and never in place of another run's.

On several ranks: workflows/ranks/test_callbacks.py.
"""

import json
import re
import warnings
from pathlib import Path

import pytest
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger, WandbLogger

from bertscore_tm import BERTScore
from bertscore_tm.callbacks import BERTScoreCallback, BERTScoreReport, SampleLogger, ScoredTextWriter
from tests.support.lightning_runs import Quality, chooser, trainer
from tests.support.report_pages import read_data

EARLIER = "has files of an earlier run, which stay"
# Lightning's ModelCheckpoint says so of each folder that has files.
pytestmark = pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists and is not empty")


def callbacks_of(encoder, page, folder=None):
    """The scorer and all callbacks that write, with a checkpoint in the folder that Lightning chooses."""
    return [
        BERTScoreCallback(BERTScore(encoder)),
        ScoredTextWriter(folder),
        BERTScoreReport(page, folder, num_alignments=0),
        SampleLogger(1),
        ModelCheckpoint(save_last=True),
    ]


def fit(folder, callbacks, pairs, qualities, last=None, **options):
    """Train one epoch per quality: the number of predictions that are right."""
    run = trainer(folder, callbacks, max_epochs=len(qualities), **options)
    run.fit(chooser(pairs, qualities, kind=Quality), ckpt_path=last)
    return run


def contents(folder):
    """Return the contents of all tables, texts and pages in a folder by their paths."""
    kinds = {".jsonl", ".csv", ".html"}
    return {path: path.read_bytes() for path in Path(folder).rglob("*") if path.suffix in kinds}


def count_right(path):
    """Return how many texts of a file equal their reference."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return sum(row["candidate"] in row["references"] for row in rows)


def right_by_name(folder):
    """Return how many texts are right in each file of a folder."""
    return {path.name: count_right(path) for path in Path(folder).iterdir()}


def names_of_steps(*steps):
    return [f"val_step_{step}.jsonl" for step in steps]


@pytest.mark.parametrize("kind", [CSVLogger, TensorBoardLogger, pytest.param(WandbLogger, marks=pytest.mark.slow)])
def test_each_run_of_a_logger_has_its_folder(pairs, encoder, tmp_path, monkeypatch, kind):
    options = {"name": "run"}
    if kind is WandbLogger:
        wandb = pytest.importorskip("wandb")
        monkeypatch.setenv("WANDB_SILENT", "true")
        options = {"offline": True}
    found = {}

    for name, qualities in {"a": [1, 2], "b": [3, 4]}.items():
        callbacks = callbacks_of(encoder, tmp_path / f"{name}.html")
        with warnings.catch_warnings():
            warnings.filterwarnings("error", f".*{EARLIER}")
            fit(tmp_path, callbacks, pairs, qualities, logger=kind(save_dir=tmp_path, **options))
        if kind is WandbLogger:
            wandb.finish()
        found[name] = right_by_name(Path(callbacks[-1].dirpath).parent / "texts")

    assert found["a"] == {"val_step_2.jsonl": 1, "val_step_5.jsonl": 2}
    assert found["b"] == {"val_step_2.jsonl": 3, "val_step_5.jsonl": 4}
    assert len(list(tmp_path.rglob("val_step_*.jsonl"))) == 4


@pytest.mark.filterwarnings("ignore:.*SampleLogger writes to names")
@pytest.mark.parametrize("is_named", [False, True], ids=["default", "folder="])
def test_runs_without_a_name_stay_apart(pairs, encoder, tmp_path, is_named):
    # Hydra gives folders such names.
    base = tmp_path / ("lr=[1]" if is_named else "texts")
    folder = str(base) if is_named else None
    other_base = Path(f"{base}-v1")
    page, other_page = (tmp_path / name / "report.html" for name in ("a", "b"))

    def train(page, qualities, last=None):
        return fit(tmp_path, callbacks_of(encoder, page, folder), pairs, qualities, last)

    # Two trainings write to two folders.
    train(page, [7, 6]).save_checkpoint(tmp_path / "first.ckpt")
    first_texts = contents(base)
    with pytest.warns(UserWarning, match=rf"{re.escape(str(base))} {EARLIER}"):
        train(other_page, [0, 0, 0]).save_checkpoint(tmp_path / "second.ckpt")
    assert contents(base) == first_texts
    other_texts = contents(other_base)
    assert [path.name for path in sorted(other_texts)] == names_of_steps(2, 5, 8)

    # The first training goes on in its folder.
    train(page, [7, 6, 5], tmp_path / "first.ckpt")
    assert right_by_name(base) == dict(zip(names_of_steps(2, 5, 8), [7, 6, 5], strict=True))
    assert contents(other_base) == other_texts
    assert [means["f1"]["mean"] == 1 for means in read_data(page)["summary"]] == [True, False, False]

    # The second training goes on in the other folder.
    train(other_page, [0, 0, 0, 5], tmp_path / "second.ckpt")
    assert contents(other_base).items() > other_texts.items()
    assert not Path(f"{base}-v2").exists()
    assert read_data(other_page)["names"] == ["step 2", "step 5", "step 8", "step 11"]


def test_callbacks_start_anew_with_each_training(pairs, encoder, tmp_path):
    page = tmp_path / "report.html"
    callbacks = callbacks_of(encoder, page)[:-1]

    # Loggers that name their runs differ in folders.
    fit(tmp_path, callbacks, pairs, [7, 6, 5], logger=CSVLogger(tmp_path, "csv", 0))
    first = read_data(page)["names"]
    fit(tmp_path, callbacks, pairs, [1, 2], logger=CSVLogger(tmp_path, "csv", 1))
    second = read_data(page)["names"]

    assert first == ["step 2", "step 5", "step 8"]
    assert second == ["step 2", "step 5"]
    assert not list(tmp_path.rglob("*-v1*"))


@pytest.mark.filterwarnings(f"ignore:.*{EARLIER}")
def test_later_validations_and_tests_add_files_only(pairs, encoder, tmp_path):
    page = tmp_path / "report.html"
    callbacks = callbacks_of(encoder, page)[:-1]
    run = fit(tmp_path, callbacks, pairs, [7, 6])
    module = chooser(pairs, [1] * 3, kind=Quality)
    before = contents(tmp_path)

    for _ in range(2):
        run.validate(module, verbose=False)
        run.test(module, verbose=False)
    trainer(tmp_path, callbacks_of(encoder, page)[:-1]).validate(module, verbose=False)

    after = contents(tmp_path)
    assert after.items() >= before.items()
    added = [path.name for path in after.keys() - before.keys() if path.suffix == ".jsonl"]
    assert sorted(added) == [
        "test_step_6-v1.jsonl",
        "test_step_6.jsonl",
        "validate_step_0.jsonl",
        "validate_step_6-v1.jsonl",
        "validate_step_6.jsonl",
    ]


def test_a_training_takes_a_folder_without_files_of_one(pairs, encoder, tmp_path):
    callbacks = callbacks_of(encoder, tmp_path / "report.html")[:-1]
    run = trainer(tmp_path, callbacks)
    run.validate(chooser(pairs, [1], kind=Quality), verbose=False)

    fit(tmp_path, callbacks, pairs, [7])

    assert sorted(right_by_name(tmp_path / "texts")) == ["val_step_2.jsonl", "validate_step_0.jsonl"]
