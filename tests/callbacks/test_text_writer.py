"""Files of scored texts: their contents, and the shell's commands that read them."""

import json
import os
from pathlib import Path

import pytest
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from bertscore_tm import BERTScore, bert_score
from bertscore_tm.callbacks import BERTScoreCallback, BERTScoreReport, SampleLogger, ScoredTextWriter
from bertscore_tm.callbacks import report as report_module
from bertscore_tm.cli import main
from tests.support.lightning_runs import chooser, trainer
from tests.support.report_pages import read_data
from tests.support.sample_tables import COUNT, mixed
from tests.support.texts import several_references


def rows(path):
    return [json.loads(line) for line in Path(path).read_text(encoding="utf-8").splitlines()]


def test_every_validation_writes_a_file_that_the_shell_reads(pairs, minilm, encoder, tmp_path, capsys):
    references = several_references(pairs[1][:COUNT])
    module = mixed(pairs, references=references)
    callbacks = [BERTScoreCallback(BERTScore(encoder)), ScoredTextWriter(), SampleLogger(1)]
    run = trainer(tmp_path, callbacks, logger=CSVLogger(tmp_path, "csv"), num_sanity_val_steps=1)
    run.fit(module)
    folder = Path(run.log_dir) / "texts"
    paths = [folder / f"val_step_{step}.jsonl" for step in (2, 5)]
    assert sorted(folder.iterdir()) == paths
    lines = rows(paths[1])
    preds, target = [row["candidate"] for row in lines], [row["references"] for row in lines]
    assert [row["example"] for row in lines] == list(range(1, COUNT + 1))
    assert target == references
    assert preds == [text for _, texts, _ in module.seen for text in texts]
    scores = bert_score(preds, target, encoder)
    for name in ("precision", "recall", "f1"):
        assert [row[name] for row in lines] == pytest.approx(scores[name].tolist(), abs=2e-6)
    (signature,) = {row["signature"] for row in lines}
    assert signature.replace("|f1:selection_f1|", "|") == str(BERTScore(encoder).signature())
    model = ["--model", str(minilm), "--num-layers", "5", "--json"]
    files = [str(path) for path in paths]
    expected = pytest.approx(run.callback_metrics["val_bertscore_f1"].item(), abs=2e-6)
    capsys.readouterr()
    assert main(["score", "-c", files[1], *model]) == 0
    assert json.loads(capsys.readouterr().out)["f1"] == expected
    assert main(["compare", "-c", *files, "-r", files[0], *model]) == 0
    assert json.loads(capsys.readouterr().out)["systems"][1]["f1"] == expected
    candidates, best = tmp_path / "candidates.jsonl", tmp_path / "best.jsonl"
    candidates.write_text("".join(json.dumps({"candidates": [text]}) + "\n" for text in preds))
    assert main(["rank", str(candidates), "-r", files[1], "--references-reduce", "max", *model, "-o", str(best)]) == 0
    assert [row["scores"][0] for row in rows(best)] == pytest.approx([row["f1"] for row in lines], abs=2e-6)


def test_loaders_and_metrics_have_files_of_their_own(pairs, encoder, tmp_path):
    metrics = {"plain": BERTScore(encoder), "idf": BERTScore(encoder, idf=True)}
    scorers = [BERTScoreCallback({name: metrics[name]}, loader_names=["news", "books"]) for name in metrics]
    callbacks = [*scorers, ScoredTextWriter(tmp_path), ScoredTextWriter(tmp_path, name="idf")]
    module = chooser(pairs, val_sizes=(4, 3))
    run = trainer(tmp_path, callbacks)
    run.test(module, verbose=False)
    names = [f"{start}test_{loader}_step_0.jsonl" for start in ("", "idf_") for loader in ("books", "news")]
    assert sorted(path.name for path in tmp_path.glob("*.jsonl")) == sorted(names)
    for start, metric in (("", "plain"), ("idf_", "idf")):
        f1 = [row["f1"] for row in rows(tmp_path / f"{start}test_news_step_0.jsonl")]
        assert len(f1) == 4
        assert sum(f1) / 4 == pytest.approx(run.callback_metrics[f"test_{metric}_f1_news"].item(), abs=2e-6)


def test_unwritable_files_are_warned_of(pairs, encoder, tmp_path):
    (tmp_path / "file").touch()
    callbacks = [BERTScoreCallback(BERTScore(encoder)), ScoredTextWriter(tmp_path / "file" / "texts")]
    with pytest.warns(UserWarning, match=r"ScoredTextWriter could not write .*val_step_2\.jsonl"):
        trainer(tmp_path, callbacks).fit(chooser(pairs))


@pytest.mark.filterwarnings("ignore:.*candidates? scored 0")
def test_a_pair_without_a_reference_scores_0_everywhere(pairs, encoder, tmp_path):
    module = mixed(pairs, references=["", *pairs[1][1:COUNT]])
    writers = [ScoredTextWriter(tmp_path / "texts"), SampleLogger(2), BERTScoreReport(tmp_path / "report.html")]
    run = trainer(tmp_path, [BERTScoreCallback(BERTScore(encoder)), *writers])
    run.fit(module)
    first, *others = rows(tmp_path / "texts" / "val_step_5.jsonl")
    assert (first["references"], first["f1"]) == ([""], 0)
    preds, target = zip(*((row["candidate"], row["references"]) for row in others), strict=True)
    f1 = bert_score(preds, target, encoder)["f1"].sum().item() / COUNT
    assert run.callback_metrics["val_bertscore_f1"].item() == pytest.approx(f1, abs=2e-6)
    _, worst, *_ = (tmp_path / "samples" / "val_samples_step_5.csv").read_text(encoding="utf-8").splitlines()
    assert worst.startswith("worst,1,")
    # The page has the means of both validations and their comparison.
    data = read_data(tmp_path / "report.html")
    assert data["summary"][-1]["f1"]["mean"] == pytest.approx(f1, abs=1e-4)
    assert data["comparisons"] == 1
    assert data["empty"][-1] == [0, *(i for i, row in enumerate(others, 1) if row["f1"] == 0)]


HALF = "half \ud83d of a pair"


def test_half_a_surrogate_pair_is_written_as_its_escape(pairs, minilm, encoder, tmp_path, capsys):
    loggers = [CSVLogger(tmp_path, "csv"), TensorBoardLogger(tmp_path, "board")]
    writers = [ScoredTextWriter(), SampleLogger(3, 1), BERTScoreReport(tmp_path / "report.html")]
    module = mixed(pairs, references=[HALF, *pairs[1][1:COUNT]])
    run = trainer(tmp_path, [BERTScoreCallback(BERTScore(encoder)), *writers], logger=loggers)
    run.fit(module)
    path = Path(run.log_dir) / "texts" / "val_step_5.jsonl"
    assert rows(path)[0]["references"] == [HALF]
    capsys.readouterr()
    assert main(["score", "-c", str(path), "--model", str(minilm), "--num-layers", "5", "--json"]) == 0
    f1 = run.callback_metrics["val_bertscore_f1"].item()
    assert json.loads(capsys.readouterr().out)["f1"] == pytest.approx(f1, abs=2e-6)
    escaped = HALF.encode(errors="backslashreplace").decode()
    assert read_data(tmp_path / "report.html")["references"][0] == [escaped]
    assert escaped in (Path(run.log_dir) / "samples" / "val_samples_step_5.csv").read_text(encoding="utf-8")
    board = EventAccumulator(str(next(tmp_path.glob("board/*")))).Reload()
    table = board.Tensors("val_samples/text_summary")[-1].tensor_proto.string_val[0].decode()
    assert escaped.replace("\\", "\\\\") in table


def test_files_are_written_as_by_the_shell(pairs, encoder, tmp_path, monkeypatch):
    page, target = tmp_path / "report.html", tmp_path / "elsewhere.html"
    target.write_text("old")
    page.symlink_to(target)
    synced, fsync = [], os.fsync
    monkeypatch.setattr("os.fsync", lambda file: (synced.append(file), fsync(file)))
    texts = tmp_path / "texts"
    for name in (page.as_uri(), str(page)):
        trainer(tmp_path, [BERTScoreCallback(BERTScore(encoder)), BERTScoreReport(name, texts)]).fit(chooser(pairs))
    assert page.is_symlink()
    assert len(read_data(target)["names"]) == 2
    assert len(synced) == 2 * (2 + 2)  # a page and a file at each of two validations


def test_a_page_in_the_root_folder(pairs, encoder, tmp_path, monkeypatch):
    written = []
    monkeypatch.setattr(report_module, "write_file", lambda path, *rest: written.append(path))
    callbacks = [BERTScoreCallback(BERTScore(encoder)), BERTScoreReport("/report.html")]
    trainer(tmp_path, callbacks, max_epochs=1).fit(chooser(pairs))
    assert written == ["/report.html"]
