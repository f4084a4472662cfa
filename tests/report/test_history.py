"""Pages of the validations of a training, from files."""

import json

import pytest

from bertscore_tm import Report
from bertscore_tm.cli import main
from tests.support.report_pages import read_data
from tests.support.shell import check_error, run_here


def write(path, f1, reference="the cat", end="\n"):
    """Write the file of a validation of one pair."""
    row = {"candidate": path.stem, "references": [reference], "precision": f1, "recall": f1, "f1": f1}
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(row) + end)
    return path


def test_files_are_put_in_the_order_of_their_steps(tmp_path):
    scores = {499: 0.25, 999: 0.5, 1000: 0.75, 20000: 1.0}
    paths = sorted(write(tmp_path / f"val_step_{step}.jsonl", f1) for step, f1 in scores.items())
    assert paths[0].name == "val_step_1000.jsonl"
    data = read_data(Report.from_files(paths).to_html())
    assert data["names"] == [f"step {step}" for step in scores]
    assert [means[2][0] for means in data["summary"]] == list(scores.values())
    assert data["candidates"] == [[f"val_step_{step}"] for step in scores]


def test_blank_lines_are_skipped(tmp_path):
    data = read_data(Report.from_files([write(tmp_path / "val_step_2.jsonl", 0.5, end="\n \n\n")]).to_html())
    assert data["candidates"] == [["val_step_2"]]


@pytest.mark.parametrize("others", ["run2/val_step_2.jsonl", "run1/val_news_step_2.jsonl"])
def test_two_files_of_one_step_are_refused(tmp_path, others):
    paths = [write(tmp_path / name, 0.5) for name in ("run1/val_step_5.jsonl", "run1/val_step_2.jsonl", others)]
    with pytest.raises(ValueError, match=r"val_step_2\.jsonl and .*_2\.jsonl are of one step: give the files of one"):
        Report.from_files(paths)


def test_validations_with_other_references_are_named(tmp_path, monkeypatch, capsys):
    for step, reference in {2: "a cat", 5: "the cat", 8: "a dog", 11: "the cat"}.items():
        write(tmp_path / f"val_step_{step}.jsonl", 0.5, reference)
    monkeypatch.chdir(tmp_path)
    assert main(["report", ".", "-o", "page.html"]) == 0
    said = "validations left out because their references differ from those of the last one: 2 (step 2, step 8)"
    assert capsys.readouterr().err.count(said) == 1
    assert read_data(tmp_path / "page.html")["names"] == ["step 5", "step 11"]


def test_a_folder_with_two_files_of_one_step_is_an_error(tmp_path, monkeypatch, capsys):
    for name in ("val_step_2.jsonl", "val_step_02.jsonl"):
        write(tmp_path / name, 0.5)
    monkeypatch.chdir(tmp_path)
    check_error(run_here(capsys, "report", ".", "-o", "page.html", exit_code=2), "are of one step: give the files of")


def write_runs(folder, runs):
    """Write the validations of trainings: F1 by the step, and a folder of texts in each."""
    for run, scores in runs.items():
        (folder / run).mkdir()
        for step, f1 in scores.items():
            write(folder / run / "texts" / f"val_step_{step}.jsonl", f1)


def test_runs_are_compared_by_their_best_validations(tmp_path, monkeypatch):
    write_runs(tmp_path, {"b": {99: 0.25, 1000: 0.75, 199: 0.5}, "a": {10: 0.5, 20: 0.125}})
    monkeypatch.chdir(tmp_path)
    assert main(["report", "b", "a", "-o", "page.html"]) == 0
    data = read_data(tmp_path / "page.html")
    assert (data["kind"], data["names"]) == ("several", ["b (step 1000)", "a (step 10)"])
    assert [means[2][0] for means in data["summary"]] == [0.75, 0.5]
    assert data["candidates"] == [["val_step_1000"], ["val_step_10"]]
    courses = [["b", [[99, 0.25], [199, 0.5], [1000, 0.75]]], ["a", [[10, 0.5], [20, 0.125]]]]
    assert [[course["name"], course["points"]] for course in data["courses"]] == courses
    files = {run: sorted((tmp_path / run / "texts").iterdir()) for run in ("b", "a")}
    assert read_data(Report.from_files(files).to_html()) == data
    # One folder is that of one training, with its texts in it.
    assert main(["report", "b", "-o", "page.html"]) == 0
    assert read_data(tmp_path / "page.html")["names"] == ["step 99", "step 199", "step 1000"]


def test_runs_that_cannot_be_compared(tmp_path, monkeypatch, capsys):
    write_runs(tmp_path, {"b": {99: 0.25}, "a": {10: 0.5}})
    write(tmp_path / "other" / "val_step_1.jsonl", 0.5, "a dog")
    monkeypatch.chdir(tmp_path)
    for folders, message in (
        (["b", "other"], "other has other references than b: give runs with one validation set"),
        (["b", "b"], "b is given twice"),
        (["b", "."], r"\. has no files val_step_\*\.jsonl"),
    ):
        check_error(run_here(capsys, "report", *folders, "-o", "page.html", exit_code=2), message)


ROW = {"candidate": "a", "references": ["b"], "precision": 0.5, "recall": 0.5, "f1": 0.5}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"{'candidate': 'a'}", "not JSON as ScoredTextWriter writes it: Expecting property name"),
        (b"<html>", "not JSON as ScoredTextWriter writes it: Expecting value"),
        (b"\xff\x00\x80", "not JSON as ScoredTextWriter writes it: "),
        (b'["a"]', "has no 'candidate': a row is an object with candidate, references, precision, recall, f1$"),
        *(
            (json.dumps({name: ROW[name] for name in ROW if name != key}).encode(), f"has no '{key}': a row is an")
            for key in ROW
        ),
    ],
)
def test_what_is_no_row_is_named_with_its_file(tmp_path, monkeypatch, capsys, line, message):
    for step, rows in ((2, [json.dumps(ROW).encode()] * 3), (5, [json.dumps(ROW).encode(), b"", line])):
        (tmp_path / f"val_step_{step}.jsonl").write_bytes(b"\n".join(rows) + b"\n")
    with pytest.raises(ValueError, match=rf"val_step_5\.jsonl:3: {message}"):
        Report.from_files(sorted(tmp_path.iterdir()))
    monkeypatch.chdir(tmp_path)
    check_error(run_here(capsys, "report", ".", "-o", "page.html", exit_code=2), rf"^val_step_5\.jsonl:3: {message}")
