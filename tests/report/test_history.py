"""Pages of the validations of a training, from files."""

import json

import pytest

from bertscore_tm import Report
from bertscore_tm.cli import main
from tests.support.report_pages import read_data
from tests.support.shell import check_error, run_here


def write(path, f1, reference="the cat", end="\n", **more):
    """Write the file of a validation of one pair."""
    row = {"candidate": path.stem, "references": [reference], "precision": f1, "recall": f1, "f1": f1, **more}
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(row) + end)
    return path


def test_files_are_put_in_the_order_of_their_steps(tmp_path):
    scores = {499: 0.25, 999: 0.5, 1000: 0.75, 20000: 1.0}
    paths = sorted(write(tmp_path / f"val_step_{step}.jsonl", f1) for step, f1 in scores.items())
    assert paths[0].name == "val_step_1000.jsonl"
    data = read_data(Report.from_files(paths).to_html())
    assert data["names"] == [f"step {step}" for step in scores]
    assert [means["f1"]["mean"] for means in data["summary"]] == list(scores.values())
    assert data["candidates"] == [[f"val_step_{step}"] for step in scores]


def test_blank_lines_are_skipped(tmp_path):
    data = read_data(Report.from_files([write(tmp_path / "val_step_2.jsonl", 0.5, end="\n \n\n")]).to_html())
    assert data["candidates"] == [["val_step_2"]]


@pytest.mark.parametrize("others", ["run2/val_step_2.jsonl", "run1/val_news_step_2.jsonl"])
def test_two_files_of_one_step_are_refused(tmp_path, others):
    paths = [write(tmp_path / name, 0.5) for name in ("run1/val_step_5.jsonl", "run1/val_step_2.jsonl", others)]
    with pytest.raises(ValueError, match=r"val_step_2\.jsonl and .*_2\.jsonl are of one step. Give the files of one"):
        Report.from_files(paths)


def test_validations_with_other_references_are_named(tmp_path, monkeypatch, capsys):
    for step, reference in {2: "a cat", 5: "the cat", 8: "a dog", 11: "the cat"}.items():
        write(tmp_path / f"val_step_{step}.jsonl", 0.5, reference)
    monkeypatch.chdir(tmp_path)
    assert main(["report", ".", "-o", "page.html"]) == 0
    said = "validations left out because their references differ from those of the last one: 2 (step 2, step 8)"
    assert capsys.readouterr().err.count(said) == 1
    assert read_data(tmp_path / "page.html")["names"] == ["step 5", "step 11"]


@pytest.mark.parametrize("empty", [2, 5, 8])
@pytest.mark.parametrize("content", ["", "\n \n"])
def test_a_validation_without_rows_is_left_out(tmp_path, monkeypatch, capsys, empty, content):
    """Also the last one, whose references the others would have to have."""
    for step in (2, 5, 8):
        write(tmp_path / f"val_step_{step}.jsonl", 0.5, signature=SIGNATURES[0])
    (tmp_path / f"val_step_{empty}.jsonl").write_text(content)
    monkeypatch.chdir(tmp_path)
    printed = run_here(capsys, "report", ".", "-o", "page.html").err
    assert f"validations left out because their files have no rows: 1 (step {empty})\n" in printed
    assert printed.count("left out") == 1
    data = read_data(tmp_path / "page.html")
    assert data["names"] == [f"step {step}" for step in (2, 5, 8) if step != empty]
    assert data["signature"] == SIGNATURES[0]


SIGNATURES = ["model:a|layer:5|rescale:no|transformers:5", "model:a|layer:6|rescale:no|transformers:5"]


def test_validations_with_another_signature_are_named(tmp_path, monkeypatch, capsys):
    for step, signature in {2: SIGNATURES[0], 5: SIGNATURES[1], 8: SIGNATURES[0], 11: SIGNATURES[1]}.items():
        write(tmp_path / f"val_step_{step}.jsonl", 0.5, signature=signature)
    write(tmp_path / "val_step_6.jsonl", 0.5)
    monkeypatch.chdir(tmp_path)
    assert main(["report", ".", "-o", "page.html"]) == 0
    said = (
        "validations left out because their signature differs from that of the last one: 3 (step 2, step 6, step 8)\n"
    )
    assert capsys.readouterr().err.count(said) == 1
    data = read_data(tmp_path / "page.html")
    assert (data["names"], data["signature"]) == (["step 5", "step 11"], SIGNATURES[1])
    assert f"Signature: <code>{SIGNATURES[1]}</code>" in (tmp_path / "page.html").read_text()


def test_files_of_older_versions_have_an_unknown_signature(tmp_path, recwarn):
    paths = [write(tmp_path / f"val_step_{step}.jsonl", 0.5) for step in (2, 5)]
    page = Report.from_files(paths).to_html()
    assert "Signature: <code>unknown</code>" in page
    assert read_data(page)["names"] == ["step 2", "step 5"]
    assert not recwarn.list


def test_a_folder_of_a_training_has_its_texts_in_it(tmp_path, monkeypatch, capsys):
    for step, f1 in {99: 0.25, 1000: 0.75, 199: 0.5}.items():
        (tmp_path / "run").mkdir(exist_ok=True)
        write(tmp_path / "run" / "texts" / f"val_step_{step}.jsonl", f1)
    monkeypatch.chdir(tmp_path)
    assert main(["report", "run", "-o", "page.html", "--title", "A run"]) == 0
    data = read_data(tmp_path / "page.html")
    assert (data["names"], data["title"]) == (["step 99", "step 199", "step 1000"], "A run")


ROW = {"candidate": "a", "references": ["b"], "precision": 0.5, "recall": 0.5, "f1": 0.5}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"{'candidate': 'a'}", "not JSON as ScoredTextWriter writes it: Expecting property name"),
        (b"<html>", "not JSON as ScoredTextWriter writes it: Expecting value"),
        (b"\xff\x00\x80", "not JSON as ScoredTextWriter writes it: "),
        (b'["a"]', r"has no 'candidate'\. A row is an object with candidate, references, precision, recall, f1$"),
        *(
            (json.dumps({name: ROW[name] for name in ROW if name != key}).encode(), f"has no '{key}'. A row is an")
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
