"""Pages that the shell writes."""

import json
import re

import pytest

from bertscore_tm import BERTScore, Report, bert_score
from bertscore_tm.callbacks import BERTScoreCallback, BERTScoreReport
from bertscore_tm.cli import main
from tests.support.lightning_runs import chooser, trainer
from tests.support.report_pages import read_data


@pytest.fixture
def command(pairs, minilm, tmp_path, monkeypatch, capsys):
    """Function that runs a command in a folder with texts, and returns what it prints."""
    monkeypatch.chdir(tmp_path)
    for name, texts in {"a": pairs[0][:7], "b": [*pairs[1][:3], *pairs[0][3:7]], "refs": pairs[1][:7]}.items():
        (tmp_path / f"{name}.txt").write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    documents = [{"candidate": a, "reference": b, "doc": i // 2} for i, (a, b) in enumerate(zip(*pairs, strict=True))]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in documents[:7]), encoding="utf-8")

    def run(*arguments):
        code = main([*arguments, "--model", minilm, "--num-layers", "5"])
        return code, capsys.readouterr()

    return run


def test_score_and_compare_write_the_page_of_the_report(command, pairs, encoder, tmp_path):
    assert command("score", "a.txt", "refs.txt", "--idf", "--report", "page.html")[0] == 0
    data = read_data((tmp_path / "page.html").read_text(encoding="utf-8"))
    expected = Report.from_texts({"a.txt": pairs[0][:7]}, pairs[1][:7], encoder, idf=True)
    assert data == read_data(expected.to_html())
    code, printed = command("compare", "a.txt", "b.txt", "-r", "refs.txt", "--report", "page.html", "--json")
    assert code == 0
    data = read_data((tmp_path / "page.html").read_text(encoding="utf-8"))
    assert data["names"] == ["a.txt", "b.txt"]
    assert data["scores"][1][2] == pytest.approx(
        bert_score(data["candidates"][1], pairs[1][:7], encoder)["f1"].tolist(), abs=6e-5
    )
    (test,) = json.loads(printed.out)["differences"]
    for name, other in (("difference", "difference"), ("low", "low"), ("high", "high"), ("p_value_holm", "p")):
        assert data["comparisons"][0][other] == pytest.approx(test[name], abs=2e-6)


def test_the_page_of_a_training_is_made_again(command, pairs, encoder, tmp_path):
    folder, page = tmp_path / "texts", tmp_path / "page.html"
    callbacks = [BERTScoreCallback(BERTScore(encoder)), BERTScoreReport(page, folder)]
    trainer(tmp_path, callbacks, max_epochs=2).fit(chooser(pairs))
    expected = read_data(page.read_text(encoding="utf-8"))
    code, printed = command("report", "texts", "-o", "again.html")
    assert (code, printed.err) == (0, "bertscore-tm: wrote again.html\n")
    assert read_data((tmp_path / "again.html").read_text(encoding="utf-8")) == expected
    # Without the model there are no matches.
    assert main(["report", "texts", "-o", "again.html"]) == 0
    data = read_data((tmp_path / "again.html").read_text(encoding="utf-8"))
    assert data["alignments"] == {}
    assert data["scores"] == expected["scores"]


def test_a_folder_without_validations_is_an_error(command, tmp_path):
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "val_a_step_1.jsonl").touch()
    code, printed = command("report", "texts", "-o", "page.html")
    assert code == 2
    assert "texts has no files val_step_*.jsonl, as ScoredTextWriter writes them: give --prefix" in printed.err


def test_intervals_are_those_of_documents(command, tmp_path):
    options = ("--confidence", "0.95", "--document-column", "doc", "--json", "--report", "page.html")
    _, printed = command("score", "pairs.jsonl", *options)
    printed, data = json.loads(printed.out), read_data((tmp_path / "page.html").read_text(encoding="utf-8"))
    expected = [printed[name] for name in ("f1", "f1_low", "f1_high")]
    assert data["summary"][0][2] == pytest.approx(expected, abs=6e-5)


@pytest.mark.parametrize(("path", "message"), [("page.txt", "must end with .html"), ("-", "give a file, not -")])
def test_files_are_checked_first(command, path, message):
    code, printed = command("score", "a.txt", "refs.txt", "--report", path)
    assert code == 2
    assert re.search(f"argument --report: .*{message}", printed.err)
