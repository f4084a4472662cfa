"""Files of runs: next to the checkpoints of their run, and never in place of another run's."""

import json
import re
import warnings
from contextlib import nullcontext
from pathlib import Path

import pytest
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger, WandbLogger

from bertscore_tm import BERTScore
from bertscore_tm.callbacks import BERTScoreCallback, BERTScoreReport, SampleLogger, ScoredTextWriter
from tests.support.lightning_runs import Quality, chooser, trainer
from tests.support.report_pages import read_data

EARLIER = "has files of an earlier run, which stay"


def callbacks_of(encoder, page, folder=None):
    """The scorer and all callbacks that write, with a checkpoint in the folder that Lightning chooses."""
    writers = [ScoredTextWriter(folder), BERTScoreReport(page, folder, num_alignments=0), SampleLogger(1)]
    return [BERTScoreCallback(BERTScore(encoder)), *writers, ModelCheckpoint(save_last=True)]


def fit(folder, callbacks, pairs, qualities, last=None, **options):
    """Train one epoch per quality: the number of predictions that are right."""
    run = trainer(folder, callbacks, max_epochs=len(qualities), **options)
    run.fit(chooser(pairs, qualities, kind=Quality), ckpt_path=last)
    return run


def contents(folder):
    return {path: path.read_bytes() for path in Path(folder).rglob("*") if path.suffix in {".jsonl", ".csv", ".html"}}


def count_right(path):
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return sum(row["candidate"] in row["references"] for row in rows)


@pytest.mark.parametrize("kind", [CSVLogger, TensorBoardLogger, pytest.param(WandbLogger, marks=pytest.mark.slow)])
def test_each_run_of_a_logger_has_its_folder(pairs, encoder, tmp_path, monkeypatch, kind):
    if kind is WandbLogger:
        wandb = pytest.importorskip("wandb")
        monkeypatch.setenv("WANDB_SILENT", "true")
    for name, qualities in {"a": [1, 2], "b": [3, 4]}.items():
        logger = kind(save_dir=tmp_path, **({"offline": True} if kind is WandbLogger else {"name": "run"}))
        callbacks = callbacks_of(encoder, tmp_path / f"{name}.html")
        with warnings.catch_warnings():
            warnings.filterwarnings("error", f".*{EARLIER}")
            fit(tmp_path, callbacks, pairs, qualities, logger=logger)
        if kind is WandbLogger:
            wandb.finish()
        folder = Path(callbacks[-1].dirpath).parent / "texts"
        assert {path.name: count_right(path) for path in folder.iterdir()} == {
            "val_step_2.jsonl": qualities[0],
            "val_step_5.jsonl": qualities[1],
        }
    assert len(list(tmp_path.rglob("val_step_*.jsonl"))) == 4


@pytest.mark.parametrize("is_named", [False, True], ids=["default", "folder="])
def test_runs_without_a_name_stay_apart(pairs, encoder, tmp_path, is_named):
    # Hydra gives folders such names.
    texts = str(tmp_path / "lr=[1]") if is_named else None
    base = tmp_path / ("lr=[1]" if is_named else "texts")
    parts = [(tmp_path / name / "report.html", qualities) for name, qualities in {"a": [7, 6], "b": [0, 0, 0]}.items()]
    states = []
    for number, (page, qualities) in enumerate(parts):
        callbacks = callbacks_of(encoder, page, texts)
        before = contents(tmp_path)
        with pytest.warns(UserWarning, match=rf"{re.escape(str(base))} {EARLIER}") if number else nullcontext():
            run = fit(tmp_path, callbacks, pairs, qualities)
        assert contents(tmp_path).items() >= before.items()
        states.append(tmp_path / f"{number}.ckpt")
        run.save_checkpoint(states[-1])
    other = contents(f"{base}-v1")
    assert [path.name for path in sorted(other)] == [f"val_step_{step}.jsonl" for step in (2, 5, 8)]
    # The first training goes on in its folder, the second one in its own.
    fit(tmp_path, callbacks_of(encoder, parts[0][0], texts), pairs, [7, 6, 5], states[0])
    assert {path.name: count_right(path) for path in base.iterdir()} == {
        f"val_step_{step}.jsonl": right for step, right in ((2, 7), (5, 6), (8, 5))
    }
    assert contents(f"{base}-v1") == other
    assert [means["f1"]["mean"] == 1 for means in read_data(parts[0][0])["summary"]] == [True, False, False]
    fit(tmp_path, callbacks_of(encoder, parts[1][0], texts), pairs, [0, 0, 0, 5], states[1])
    assert contents(f"{base}-v1").items() > other.items()
    assert not Path(f"{base}-v2").exists()
    assert read_data(parts[1][0])["names"] == ["step 2", "step 5", "step 8", "step 11"]


def test_callbacks_start_anew_with_each_training(pairs, encoder, tmp_path):
    callbacks = callbacks_of(encoder, tmp_path / "report.html")[:-1]
    for number, qualities in enumerate(([7, 6, 5], [1, 2])):
        # Loggers that name their runs differ in folders.
        fit(tmp_path, callbacks, pairs, qualities, logger=CSVLogger(tmp_path, "csv", number))
        assert read_data(tmp_path / "report.html")["names"] == ["step 2", "step 5", "step 8"][: len(qualities)]
    assert not list(tmp_path.rglob("*-v1*"))


def test_later_validations_and_tests_add_files_only(pairs, encoder, tmp_path):
    callbacks = callbacks_of(encoder, tmp_path / "report.html")[:-1]
    run = fit(tmp_path, callbacks, pairs, [7, 6])
    module = chooser(pairs, [1] * 3, kind=Quality)
    before = contents(tmp_path)
    for _ in range(2):
        run.validate(module, verbose=False)
        run.test(module, verbose=False)
    trainer(tmp_path, callbacks_of(encoder, tmp_path / "report.html")[:-1]).validate(module, verbose=False)
    after = contents(tmp_path)
    assert after.items() >= before.items()
    names = [f"{stage}_step_6{end}.jsonl" for stage in ("test", "validate") for end in ("-v1", "")]
    added = sorted(path.name for path in after.keys() - before.keys() if path.suffix == ".jsonl")
    assert added == sorted([*names, "validate_step_0.jsonl"])
    # A training after them needs no other folder.
    (tmp_path / "texts" / "val_step_2.jsonl").unlink()
    (tmp_path / "texts" / "val_step_5.jsonl").unlink()
    fit(tmp_path, callbacks, pairs, [7])
    assert (tmp_path / "texts" / "val_step_2.jsonl").exists()
