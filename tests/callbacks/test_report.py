"""The callback that writes the page of a training."""

import json
from pathlib import Path

import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

from bertscore_tm import Baseline, BERTScore, Report
from bertscore_tm.callbacks import BERTScoreCallback, BERTScoreReport, SampleLogger
from bertscore_tm.cli import main
from bertscore_tm.report import history
from bertscore_tm.scoring.settings import ScoreSettings
from tests.support.lightning_runs import (
    Quality,
    Record,
    Steady,
    chooser,
    loader,
    trainer,
    weights,
)
from tests.support.report_pages import read_data

COUNT = 7


def scorer(encoder, **options):
    return BERTScoreCallback(BERTScore(encoder), **options)


def test_every_validation_is_added(pairs, encoder, tmp_path):
    page, record = tmp_path / "pages" / "report.html", Record()
    module = chooser(pairs, [3, 1, 6], kind=Quality)
    callbacks = [BERTScoreReport(page, num_alignments=3), scorer(encoder), record]
    trainer(tmp_path, callbacks, max_epochs=3, num_sanity_val_steps=1).fit(module)
    data = read_data(page)
    assert (data["names"], data["kind"]) == (["step 2", "step 5", "step 8"], "history")
    assert [means["f1"]["mean"] for means in data["summary"]] == pytest.approx(record.scores, abs=6e-5)
    assert data["references"] == [[text] for text in pairs[1][:COUNT]]
    for right, texts in zip([3, 1, 6], data["candidates"], strict=True):
        assert texts == pairs[1][:right] + [pairs[0][8]] * (COUNT - right)
    # A third of the pairs, in the first, the best and the last two validations.
    assert [list(systems) for systems in data["alignments"].values()] == [["0", "1", "2"]]
    assert data["comparisons"] == 3
    assert list(page.parent.iterdir()) == [page]
    # Other runs add nothing.
    before = page.read_bytes()
    run = trainer(tmp_path, callbacks, max_epochs=3)
    run.test(module, verbose=False)
    run.validate(module, verbose=False)
    assert page.read_bytes() == before
    # A checkpoint has the names of the files, not the texts.
    (state,) = callbacks[0].state_dict().values()
    assert [Path(path).name for path in state[""]] == [f"val_step_{step}.jsonl" for step in (2, 5, 8)]


def test_a_resumed_training_goes_on_with_its_history(pairs, encoder, tmp_path):
    pages, ended = [], []
    for name in ("whole", "parts"):
        page = tmp_path / name / "report.html"
        last = None
        for epochs in (4,) if name == "whole" else (2, 4):
            module = chooser(pairs, kind=Steady, lr=0.05)
            checkpoint = ModelCheckpoint(tmp_path / name, save_last=True)
            callbacks = [scorer(encoder), BERTScoreReport(page, name="bertscore"), checkpoint]
            # The path of the page is part of the state's key.
            trainer(tmp_path, callbacks, max_epochs=epochs).fit(module, ckpt_path=last)
            last = str(tmp_path / name / "last.ckpt")
        pages.append(read_data(page))
        ended.append(weights(module))
    assert pages[0] == pages[1]
    assert len(pages[0]["names"]) == 4
    assert ended[0].equal(ended[1])


def test_validations_whose_files_are_gone_are_left_out(pairs, encoder, tmp_path):
    page = tmp_path / "report.html"

    def train(epochs, last=None):
        callbacks = [scorer(encoder), BERTScoreReport(page), ModelCheckpoint(tmp_path, save_last=True)]
        trainer(tmp_path, callbacks, max_epochs=epochs).fit(chooser(pairs, kind=Steady, lr=0.05), ckpt_path=last)

    train(3)
    (tmp_path / "texts" / "val_step_5.jsonl").unlink()
    with pytest.warns(
        UserWarning, match=r"leaves out validations whose files are gone: \S*val_step_5\.jsonl$"
    ) as caught:
        train(5, tmp_path / "last.ckpt")
    assert sum("leaves out" in str(warning.message) for warning in caught) == 1
    assert read_data(page)["names"] == ["step 2", "step 8", "step 11", "step 14"]


def test_a_file_that_was_emptied_is_left_out_of_the_page(pairs, encoder, tmp_path):
    page = tmp_path / "report.html"

    def train(epochs, last=None):
        callbacks = [scorer(encoder), BERTScoreReport(page), ModelCheckpoint(tmp_path, save_last=True)]
        trainer(tmp_path, callbacks, max_epochs=epochs).fit(chooser(pairs, kind=Steady, lr=0.05), ckpt_path=last)

    train(2)
    (tmp_path / "texts" / "val_step_2.jsonl").write_text("")
    with pytest.warns(UserWarning, match=r"left out because their files have no rows: 1 \(step 2\)$"):
        train(3, tmp_path / "last.ckpt")
    assert read_data(page)["names"] == ["step 5", "step 8"]


def test_validations_between_two_optimizer_steps_are_all_kept(pairs, encoder, tmp_path):
    page, record, callback = tmp_path / "report.html", Record(), BERTScoreReport(tmp_path / "report.html")
    data = loader(8, batch_size=1), loader(7)
    intervals = {"accumulate_grad_batches": 4, "val_check_interval": 2}
    checkpoint = ModelCheckpoint(tmp_path, save_last=True)
    run = trainer(tmp_path, [scorer(encoder), callback, record, checkpoint], max_epochs=1, **intervals)
    run.fit(chooser(pairs, kind=Steady), *data)
    assert len(record.scores) == 4
    names = ["step 0", "step 0, validation 2", "step 1", "step 1, validation 4"]
    shown = read_data(page)
    assert shown["names"] == names
    assert [means["f1"]["mean"] for means in shown["summary"]] == pytest.approx(record.scores, abs=6e-5)
    # Also after the training is resumed, and by the shell.
    callbacks = [scorer(encoder), BERTScoreReport(page), record]
    run = trainer(tmp_path, callbacks, max_epochs=2, **intervals)
    run.fit(chooser(pairs, kind=Steady), *data, ckpt_path=tmp_path / "last.ckpt")
    shown = read_data(page)
    assert [means["f1"]["mean"] for means in shown["summary"]] == pytest.approx(record.scores, abs=6e-5)
    assert shown["names"] == [*names, "step 2", "step 2, validation 6", "step 3", "step 3, validation 8"]
    assert main(["report", str(tmp_path / "texts"), "-o", str(tmp_path / "again.html")]) == 0
    assert read_data(tmp_path / "again.html")["summary"] == shown["summary"]


def test_intervals_of_rescaled_scores_are_those_of_the_shell(pairs, encoder, tmp_path):
    """Scores of 1 and -.5, whose t interval goes down to -9.3, are cut at -2."""
    table = Baseline(torch.full((6, 3), 1 / 3, dtype=torch.float64), "mine")
    module = chooser((["", ""], pairs[1]), [1], count=2, kind=Quality)
    callbacks = [BERTScoreCallback(BERTScore(encoder, rescale=table)), BERTScoreReport(tmp_path / "report.html")]
    trainer(tmp_path, callbacks, max_epochs=1).fit(module, val_dataloaders=loader(2))
    data = read_data(tmp_path / "report.html")
    assert data["summary"][0]["f1"] == pytest.approx({"mean": 0.25, "low": -2, "high": 1}, abs=1e-4)
    assert data["bounds"] == pytest.approx({"low": -2, "high": 1}, abs=1e-4)


def test_loaders_have_their_pages_and_old_texts_are_dropped(pairs, encoder, tmp_path, monkeypatch):
    monkeypatch.setattr(history, "_MOST_CHARACTERS", 0)
    module = chooser(pairs, val_sizes=(4, 3))
    callbacks = [scorer(encoder, loader_names=["news", "books"]), BERTScoreReport(tmp_path / "r.html")]
    trainer(tmp_path, callbacks, max_epochs=4).fit(module)
    assert sorted(path.name for path in tmp_path.glob("*.html")) == ["r_books.html", "r_news.html"]
    data = read_data(tmp_path / "r_news.html")
    means = [means["f1"]["mean"] for means in data["summary"]]
    with_texts = [number for number, texts in enumerate(data["candidates"]) if texts is not None]
    assert with_texts == sorted({0, means.index(max(means)), 3})
    assert len(data["references"]) == 4


def test_empty_texts_of_all_kept_validations_are_counted(pairs, encoder, tmp_path, monkeypatch):
    module = chooser(pairs, [3, 1, 6, 0], kind=Quality)
    module.choices[-1] = "\u200b"  # without tokens
    trainer(tmp_path, [scorer(encoder), BERTScoreReport(tmp_path / "r.html")], max_epochs=4).fit(module)
    data = read_data(tmp_path / "r.html")
    assert data["empty"] == [list(range(right, COUNT)) for right in (3, 1, 6, 0)]
    cells = "<td>0</td><td>{}</td>".format
    page = (tmp_path / "r.html").read_text(encoding="utf-8")
    assert [page.count(cells(COUNT - right)) for right in (3, 1, 6, 0)] == [1] * 4
    monkeypatch.setattr(history, "_MOST_CHARACTERS", 0)
    page = Report.from_files(list((tmp_path / "texts").iterdir()), settings=ScoreSettings.create(encoder)).to_html()
    assert read_data(page)["empty"] == [list(range(right, COUNT)) if right != 1 else [] for right in (3, 1, 6, 0)]
    assert page.count("<td>–</td><td>–</td>") == 1


def test_other_references_start_a_new_history(pairs, encoder, tmp_path):
    page = BERTScoreReport(tmp_path / "r.html")
    for first in (0, 1):
        module = chooser(tuple(side[first:] for side in pairs))
        trainer(tmp_path, [scorer(encoder), page], max_epochs=1).fit(module)
    assert len(read_data(tmp_path / "r.html")["names"]) == 1


class Sourced(Steady):
    """Its validation step returns the inputs of the examples, too."""

    inputs_of = staticmethod(lambda batch: [f"source {number}" for number in batch.tolist()])

    def evaluation_step(self, batch, batch_idx, dataloader_idx=0):
        return super().evaluation_step(batch, batch_idx, dataloader_idx) | {"inputs": self.inputs_of(batch)}


def fit_with_sources(folder, pairs, encoder, kind=Sourced, **options):
    """Fit for two epochs, and return the worst sample of the last validation."""
    tables = []
    samples = SampleLogger(1, writer=lambda _, table: tables.append(table))
    page = BERTScoreReport(folder / "report.html", folder / "texts")
    trainer(folder, [scorer(encoder), page, samples], **options).fit(chooser(pairs, kind=kind))
    return tables[-1].samples[0] if tables else None


def read_rows(folder):
    """Return the rows of the last validation."""
    return [json.loads(line) for line in max((folder / "texts").iterdir()).read_text().splitlines()]


def test_inputs_that_the_step_returns_are_the_sources(pairs, encoder, tmp_path):
    sample, rows, page = fit_with_sources(tmp_path, pairs, encoder), read_rows(tmp_path), tmp_path / "report.html"
    expected = [f"source {number}" for number in range(COUNT)]
    assert [row["source"] for row in rows] == read_data(page)["sources"] == expected
    assert sample.input == f"source {sample.number - 1}"
    # Also where the shell makes the page, unless other sources are given.
    assert main(["report", str(tmp_path), "-o", str(tmp_path / "again.html")]) == 0
    assert read_data(tmp_path / "again.html")["sources"] == expected
    files = sorted((tmp_path / "texts").iterdir())
    assert read_data(Report.from_files(files, sources=["x"] * COUNT).to_html())["sources"] == ["x"] * COUNT


class Numbered(Sourced):
    inputs_of = staticmethod(lambda batch: batch)


@pytest.mark.parametrize("kind", [Steady, Numbered])
def test_token_ids_are_no_sources(pairs, encoder, tmp_path, kind):
    sample = fit_with_sources(tmp_path, pairs, encoder, kind)
    assert {tuple(row) for row in read_rows(tmp_path)} == {
        ("example", "candidate", "references", "precision", "recall", "f1", "signature")
    }
    assert (sample.input, read_data(tmp_path / "report.html")["sources"]) == (None, None)
