"""The callback that writes the page of a training. On several ranks: workflows/ranks/test_callbacks.py."""

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
# Means on a page have four decimals.
ROUNDING = 6e-5
# Drawing alignments would take most of the time.
WITHOUT_ALIGNMENTS = {"num_alignments": 0}


def scorer(encoder, **options):
    return BERTScoreCallback(BERTScore(encoder), **options)


def means_of(data):
    """Return the mean F1 of each validation on a page."""
    return [means["f1"]["mean"] for means in data["summary"]]


def test_every_validation_is_added(pairs, encoder, tmp_path):
    page = tmp_path / "pages" / "report.html"
    record = Record()
    module = chooser(pairs, [3, 1, 6], kind=Quality)
    callbacks = [BERTScoreReport(page, num_alignments=3), scorer(encoder), record]

    trainer(tmp_path, callbacks, max_epochs=3, num_sanity_val_steps=1).fit(module)

    data = read_data(page)
    assert data["kind"] == "history"
    assert data["names"] == ["step 2", "step 5", "step 8"]
    assert means_of(data) == pytest.approx(record.scores, abs=ROUNDING)
    assert data["references"] == [[text] for text in pairs[1][:COUNT]]
    for right, texts in zip([3, 1, 6], data["candidates"], strict=True):
        assert texts == pairs[1][:right] + [pairs[0][8]] * (COUNT - right)
    # A third of the pairs, in the first, the best and the last two validations.
    (systems,) = data["alignments"].values()
    assert list(systems) == ["0", "1", "2"]
    assert data["comparisons"] == 3
    assert list(page.parent.iterdir()) == [page]


def test_other_runs_add_nothing(pairs, encoder, tmp_path):
    page = tmp_path / "report.html"
    module = chooser(pairs, [3], kind=Quality)
    callbacks = [BERTScoreReport(page, **WITHOUT_ALIGNMENTS), scorer(encoder)]
    trainer(tmp_path, callbacks, max_epochs=1).fit(module)
    before = page.read_bytes()

    run = trainer(tmp_path, callbacks, max_epochs=1)
    run.test(module, verbose=False)
    run.validate(module, verbose=False)

    assert page.read_bytes() == before


def test_a_checkpoint_has_names_of_files_and_no_texts(pairs, encoder, tmp_path):
    report = BERTScoreReport(tmp_path / "report.html", **WITHOUT_ALIGNMENTS)

    trainer(tmp_path, [report, scorer(encoder)], max_epochs=2).fit(chooser(pairs))

    (state,) = report.state_dict().values()
    assert [Path(path).name for path in state[""]] == ["val_step_2.jsonl", "val_step_5.jsonl"]


def fit_steadily(folder, pairs, encoder, max_epochs, last=None, name=None):
    """Train up to an epoch, with a page and a checkpoint of the last one in a folder, and return the module."""
    report = BERTScoreReport(folder / "report.html", name=name, **WITHOUT_ALIGNMENTS)
    callbacks = [scorer(encoder), report, ModelCheckpoint(folder, save_last=True)]
    module = chooser(pairs, kind=Steady, lr=0.05)
    trainer(folder, callbacks, max_epochs=max_epochs).fit(module, ckpt_path=last)
    return module


# Lightning's ModelCheckpoint says so of each folder that has files.
GOES_ON = pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists and is not empty")


@GOES_ON
def test_a_resumed_training_goes_on_with_its_history(pairs, encoder, tmp_path):
    whole, parts = tmp_path / "whole", tmp_path / "parts"

    unbroken = fit_steadily(whole, pairs, encoder, max_epochs=4, name="bertscore")
    fit_steadily(parts, pairs, encoder, max_epochs=2, name="bertscore")
    last = parts / "last.ckpt"
    resumed = fit_steadily(parts, pairs, encoder, max_epochs=4, last=last, name="bertscore")

    data = read_data(parts / "report.html")
    assert data == read_data(whole / "report.html")
    assert len(data["names"]) == 4
    assert weights(resumed).equal(weights(unbroken))


@GOES_ON
@pytest.mark.parametrize(
    ("spoil", "warning"),
    [
        (Path.unlink, r"leaves out validations whose files are gone: \S*val_step_5\.jsonl$"),
        (Path.write_text, r"left out because their files have no rows: 1 \(step 5\)$"),
    ],
    ids=["gone", "empty"],
)
def test_validations_without_their_texts_are_left_out(pairs, encoder, tmp_path, spoil, warning):
    fit_steadily(tmp_path, pairs, encoder, max_epochs=3)
    arguments = [""] if spoil is Path.write_text else []
    spoil(tmp_path / "texts" / "val_step_5.jsonl", *arguments)

    with pytest.warns(UserWarning, match=warning) as caught:
        fit_steadily(tmp_path, pairs, encoder, max_epochs=5, last=tmp_path / "last.ckpt")

    assert read_data(tmp_path / "report.html")["names"] == ["step 2", "step 8", "step 11", "step 14"]
    if spoil is Path.unlink:
        # A file that is gone is told of once, an empty one with each page.
        assert sum("leaves out" in str(warning.message) for warning in caught) == 1


@GOES_ON
def test_validations_between_two_optimizer_steps_are_all_kept(pairs, encoder, tmp_path):
    page = tmp_path / "report.html"
    record = Record()
    data = loader(8, batch_size=1), loader(COUNT)
    intervals = {"accumulate_grad_batches": 4, "val_check_interval": 2}

    def fit(max_epochs, ckpt_path=None):
        report = BERTScoreReport(page, **WITHOUT_ALIGNMENTS)
        callbacks = [scorer(encoder), report, record, ModelCheckpoint(tmp_path, save_last=True)]
        run = trainer(tmp_path, callbacks, max_epochs=max_epochs, **intervals)
        run.fit(chooser(pairs, kind=Steady), *data, ckpt_path=ckpt_path)
        return read_data(page)

    first = fit(max_epochs=1)
    resumed = fit(max_epochs=2, ckpt_path=tmp_path / "last.ckpt")
    by_shell = main(["report", str(tmp_path / "texts"), "-o", str(tmp_path / "again.html")])

    names = ["step 0", "step 0, validation 2", "step 1", "step 1, validation 4"]
    more = ["step 2", "step 2, validation 6", "step 3", "step 3, validation 8"]
    assert first["names"] == names
    assert means_of(first) == pytest.approx(record.scores[:4], abs=ROUNDING)
    assert resumed["names"] == [*names, *more]
    assert means_of(resumed) == pytest.approx(record.scores, abs=ROUNDING)
    assert by_shell == 0
    assert read_data(tmp_path / "again.html")["summary"] == resumed["summary"]


def test_intervals_of_rescaled_scores_are_those_of_the_shell(pairs, encoder, tmp_path):
    """Scores of 1 and -.5, whose t interval goes down to -9.3, are cut at -2."""
    table = Baseline(torch.full((6, 3), 1 / 3, dtype=torch.float64), "mine")
    module = chooser((["", ""], pairs[1]), [1], count=2, kind=Quality)
    callbacks = [BERTScoreCallback(BERTScore(encoder, rescale=table)), BERTScoreReport(tmp_path / "report.html")]

    with pytest.warns(UserWarning, match="^1 candidate scored 0"):
        trainer(tmp_path, callbacks, max_epochs=1).fit(module, val_dataloaders=loader(2))

    data = read_data(tmp_path / "report.html")
    assert data["summary"][0]["f1"] == pytest.approx({"mean": 0.25, "low": -2, "high": 1}, abs=1e-4)
    assert data["bounds"] == pytest.approx({"low": -2, "high": 1}, abs=1e-4)


def test_loaders_have_their_pages_and_old_texts_are_dropped(pairs, encoder, tmp_path, monkeypatch):
    monkeypatch.setattr(history, "_MOST_CHARACTERS", 0)
    module = chooser(pairs, val_sizes=(4, 3))
    report = BERTScoreReport(tmp_path / "r.html", **WITHOUT_ALIGNMENTS)

    trainer(tmp_path, [scorer(encoder, loader_names=["news", "books"]), report], max_epochs=4).fit(module)

    assert sorted(path.name for path in tmp_path.glob("*.html")) == ["r_books.html", "r_news.html"]
    data = read_data(tmp_path / "r_news.html")
    means = means_of(data)
    with_texts = [number for number, texts in enumerate(data["candidates"]) if texts is not None]
    assert with_texts == sorted({0, means.index(max(means)), 3})
    assert len(data["references"]) == 4


# Without tokens, so that it scores 0.
BLANK = "\u200b"


@pytest.mark.filterwarnings("ignore:[0-9]+ candidates? scored 0")
def test_empty_texts_of_all_kept_validations_are_counted(pairs, encoder, tmp_path, monkeypatch):
    qualities = (3, 1, 6, 0)
    module = chooser(pairs, qualities, kind=Quality)
    module.choices[-1] = BLANK
    report = BERTScoreReport(tmp_path / "r.html", **WITHOUT_ALIGNMENTS)

    trainer(tmp_path, [scorer(encoder), report], max_epochs=4).fit(module)
    page = (tmp_path / "r.html").read_text(encoding="utf-8")
    monkeypatch.setattr(history, "_MOST_CHARACTERS", 0)
    files = list((tmp_path / "texts").iterdir())
    shortened = Report.from_files(files, settings=ScoreSettings.create(encoder)).to_html()

    empty = [list(range(right, COUNT)) for right in qualities]
    assert read_data(page)["empty"] == empty
    for places in empty:
        assert page.count(f"<td>0</td><td>{len(places)}</td>") == 1
    # The second validation is neither the first, the best nor one of the last two.
    assert read_data(shortened)["empty"] == [empty[0], [], *empty[2:]]
    assert shortened.count("<td>–</td><td>–</td>") == 1


def test_other_references_start_a_new_history(pairs, encoder, tmp_path):
    report = BERTScoreReport(tmp_path / "r.html", **WITHOUT_ALIGNMENTS)
    others = [side[1:] for side in pairs]

    trainer(tmp_path, [scorer(encoder), report], max_epochs=1).fit(chooser(pairs))
    with pytest.warns(UserWarning, match="has files of an earlier run"):
        trainer(tmp_path, [scorer(encoder), report], max_epochs=1).fit(chooser(others))

    assert len(read_data(tmp_path / "r.html")["names"]) == 1


class Sourced(Steady):
    """Its validation step returns the inputs of the examples, too."""

    inputs_of = staticmethod(lambda batch: [f"source {number}" for number in batch.tolist()])

    def evaluation_step(self, batch, batch_idx, dataloader_idx=0):
        return super().evaluation_step(batch, batch_idx, dataloader_idx) | {"inputs": self.inputs_of(batch)}


class Numbered(Sourced):
    """Its inputs are numbers."""

    inputs_of = staticmethod(lambda batch: batch)


def fit_with_sources(folder, pairs, encoder, kind):
    """Fit for two epochs, and return the worst sample and the rows of the last validation."""
    tables = []
    samples = SampleLogger(1, writer=lambda _, table: tables.append(table))
    page = BERTScoreReport(folder / "report.html", folder / "texts", **WITHOUT_ALIGNMENTS)
    trainer(folder, [scorer(encoder), page, samples]).fit(chooser(pairs, kind=kind))
    last_file = folder / "texts" / "val_step_5.jsonl"
    rows = [json.loads(line) for line in last_file.read_text(encoding="utf-8").splitlines()]
    return tables[-1].samples[0], rows


def test_inputs_that_the_step_returns_are_the_sources(pairs, encoder, tmp_path):
    sample, rows = fit_with_sources(tmp_path, pairs, encoder, Sourced)

    expected = [f"source {number}" for number in range(COUNT)]
    assert [row["source"] for row in rows] == expected
    assert read_data(tmp_path / "report.html")["sources"] == expected
    assert sample.input == f"source {sample.number - 1}"
    # The shell's page has them, too, unless other sources are given.
    assert main(["report", str(tmp_path), "-o", str(tmp_path / "again.html")]) == 0
    assert read_data(tmp_path / "again.html")["sources"] == expected
    files = sorted((tmp_path / "texts").iterdir())
    others = ["x"] * COUNT
    assert read_data(Report.from_files(files, sources=others).to_html())["sources"] == others


@pytest.mark.parametrize("kind", [Steady, Numbered])
def test_token_ids_are_no_sources(pairs, encoder, tmp_path, kind):
    sample, rows = fit_with_sources(tmp_path, pairs, encoder, kind)

    names = ("example", "candidate", "references", "precision", "recall", "f1", "signature")
    for row in rows:
        assert tuple(row) == names
    assert sample.input is None
    assert read_data(tmp_path / "report.html")["sources"] is None
