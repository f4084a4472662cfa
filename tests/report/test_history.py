"""Pages of the validations of a training, from files."""

import json

import pytest

from bertscore_tm import Report
from tests.support.report_pages import read_data
from tests.support.shell import check_error, run_here

ROW = {"candidate": "a", "references": ["b"], "precision": 0.5, "recall": 0.5, "f1": 0.5}
SIGNATURES = ["model:a|layer:5|rescale:no|transformers:5", "model:a|layer:6|rescale:no|transformers:5"]


def write(path, f1=0.5, reference="the cat", end="\n", **more):
    """Write the file of a validation of one pair."""
    row = {"candidate": path.stem, "references": [reference], "precision": f1, "recall": f1, "f1": f1, **more}
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(row) + end)
    return path


@pytest.fixture
def make_page(tmp_path, monkeypatch, capsys):
    """Function that runs the command on the folder, and returns the data of the page and what was printed."""
    monkeypatch.chdir(tmp_path)

    def make(*options):
        printed = run_here(capsys, "report", ".", "-o", "page.html", *options)
        return read_data(tmp_path / "page.html"), printed.err

    return make


def test_files_are_put_in_the_order_of_their_steps(tmp_path):
    scores = {499: 0.25, 999: 0.5, 1000: 0.75, 20000: 1.0}
    paths = sorted(write(tmp_path / f"val_step_{step}.jsonl", f1) for step, f1 in scores.items())
    assert paths[0].name == "val_step_1000.jsonl"

    data = read_data(Report.from_files(paths).to_html())

    assert data["names"] == ["step 499", "step 999", "step 1000", "step 20000"]
    assert [means["f1"]["mean"] for means in data["summary"]] == list(scores.values())
    assert data["candidates"] == [["val_step_499"], ["val_step_999"], ["val_step_1000"], ["val_step_20000"]]


def test_blank_lines_are_skipped(tmp_path):
    path = write(tmp_path / "val_step_2.jsonl", end="\n \n\n")

    data = read_data(Report.from_files([path]).to_html())

    assert data["candidates"] == [["val_step_2"]]


@pytest.mark.parametrize("other", ["run2/val_step_2.jsonl", "run1/val_news_step_2.jsonl"])
def test_two_files_of_one_step_are_refused(tmp_path, other):
    paths = [write(tmp_path / name) for name in ("run1/val_step_5.jsonl", "run1/val_step_2.jsonl", other)]

    with pytest.raises(ValueError, match=r"val_step_2\.jsonl and .*_2\.jsonl are of one step. Give the files of one"):
        Report.from_files(paths)


def test_validations_with_other_references_are_named(tmp_path, make_page):
    for step, reference in {2: "a cat", 5: "the cat", 8: "a dog", 11: "the cat"}.items():
        write(tmp_path / f"val_step_{step}.jsonl", reference=reference)

    data, printed = make_page()

    said = "validations left out because their references differ from those of the last one: 2 (step 2, step 8)"
    assert printed.count(said) == 1
    assert data["names"] == ["step 5", "step 11"]


# The references of the others would have to be those of the last one.
@pytest.mark.parametrize(("empty", "names"), [(2, [5, 8]), (5, [2, 8]), (8, [2, 5])])
@pytest.mark.parametrize("content", ["", "\n \n"])
def test_a_validation_without_rows_is_left_out(tmp_path, make_page, empty, names, content):
    for step in (2, 5, 8):
        write(tmp_path / f"val_step_{step}.jsonl", signature=SIGNATURES[0])
    (tmp_path / f"val_step_{empty}.jsonl").write_text(content)

    data, printed = make_page()

    assert f"validations left out because their files have no rows: 1 (step {empty})\n" in printed
    assert printed.count("left out") == 1
    assert data["names"] == [f"step {step}" for step in names]
    assert data["signature"] == SIGNATURES[0]


def test_validations_with_another_signature_are_named(tmp_path, make_page):
    for step, signature in {2: SIGNATURES[0], 5: SIGNATURES[1], 8: SIGNATURES[0], 11: SIGNATURES[1]}.items():
        write(tmp_path / f"val_step_{step}.jsonl", signature=signature)
    write(tmp_path / "val_step_6.jsonl")

    data, printed = make_page()

    said = "validations left out because their signature differs from that of the last one: 3 (step 2, step 6, step 8)"
    assert printed.count(f"{said}\n") == 1
    assert data["names"] == ["step 5", "step 11"]
    assert data["signature"] == SIGNATURES[1]
    assert f"Signature: <code>{SIGNATURES[1]}</code>" in (tmp_path / "page.html").read_text()


def test_files_of_older_versions_have_an_unknown_signature(tmp_path, recwarn):
    paths = [write(tmp_path / "val_step_2.jsonl"), write(tmp_path / "val_step_5.jsonl")]

    page = Report.from_files(paths).to_html()

    assert "Signature: <code>unknown</code>" in page
    assert read_data(page)["names"] == ["step 2", "step 5"]
    assert not recwarn.list


def test_a_folder_of_a_training_has_its_texts_in_it(tmp_path, make_page):
    for step in (99, 1000, 199):
        write(tmp_path / "texts" / f"val_step_{step}.jsonl")

    data, _ = make_page("--title", "A run")

    assert data["names"] == ["step 99", "step 199", "step 1000"]
    assert data["title"] == "A run"


# A line that is no row, and the error.
BAD_LINES = [
    (b"{'candidate': 'a'}", "not JSON as ScoredTextWriter writes it: Expecting property name"),
    (b"<html>", "not JSON as ScoredTextWriter writes it: Expecting value"),
    (b"\xff\x00\x80", "not JSON as ScoredTextWriter writes it: "),
    (b'["a"]', r"has no 'candidate'\. A row is an object with candidate, references, precision, recall, f1$"),
]
for missing in ROW:
    record = {name: value for name, value in ROW.items() if name != missing}
    BAD_LINES.append((json.dumps(record).encode(), f"has no '{missing}'. A row is an"))


@pytest.mark.parametrize(("line", "message"), BAD_LINES)
def test_what_is_no_row_is_named_with_its_file(tmp_path, monkeypatch, capsys, line, message):
    row = json.dumps(ROW).encode() + b"\n"
    (tmp_path / "val_step_2.jsonl").write_bytes(row * 3)
    (tmp_path / "val_step_5.jsonl").write_bytes(row + b"\n" + line + b"\n")
    error = rf"val_step_5\.jsonl:3: {message}"
    monkeypatch.chdir(tmp_path)

    with pytest.raises(ValueError, match=error):
        Report.from_files(sorted(tmp_path.iterdir()))
    printed = run_here(capsys, "report", ".", "-o", "page.html", exit_code=2)

    check_error(printed, f"^{error}")
