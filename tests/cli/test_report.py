"""Pages that the shell writes."""

import json
from itertools import combinations
from operator import attrgetter

import pytest

from bertscore_tm import BERTScore, Report, bert_score
from bertscore_tm.callbacks import BERTScoreCallback, BERTScoreReport
from bertscore_tm.cli import main
from tests.support.lightning_runs import chooser, trainer
from tests.support.report_pages import read_data
from tests.support.shell import run_here, write_lines, write_records
from tests.support.shell_cases import ShellCase, check_case


@pytest.fixture
def command(pairs, minilm, tmp_path, monkeypatch, capsys):
    """Function that runs a command in a folder with texts, and returns what it prints."""
    monkeypatch.chdir(tmp_path)
    for name, texts in {"a": pairs[0][:7], "b": [*pairs[1][:3], *pairs[0][3:7]], "refs": pairs[1][:7]}.items():
        write_lines(tmp_path / f"{name}.txt", texts)
    documents = [{"candidate": a, "reference": b, "doc": i // 2} for i, (a, b) in enumerate(zip(*pairs, strict=True))]
    write_records(tmp_path / "pairs.jsonl", documents[:7])
    return lambda *words, **options: run_here(capsys, *words, "--model", minilm, "--num-layers", 5, **options)


def test_score_and_compare_write_the_page_of_the_report(command, pairs, encoder, tmp_path):
    command("score", "a.txt", "refs.txt", "--idf", "--report", "page.html")
    data = read_data(tmp_path / "page.html")
    expected = Report.from_texts({"a.txt": pairs[0][:7]}, pairs[1][:7], encoder, idf=True)
    assert data == read_data(expected.to_html())
    printed = command("compare", "a.txt", "b.txt", "-r", "refs.txt", "--report", "page.html", "--json")
    data = read_data(tmp_path / "page.html")
    assert data["names"] == ["a.txt", "b.txt"]
    assert data["scores"][1]["f1"] == pytest.approx(
        bert_score(data["candidates"][1], pairs[1][:7], encoder)["f1"].tolist(), abs=6e-5
    )
    (test,) = json.loads(printed.out)["differences"]
    check_difference(data["differences"][0][1], test)
    assert data["differences"][0][1]["p"] == f"{test['p_value']:.4f}"


def check_difference(shown, test):
    """Compare a difference of the page with that of the shell."""
    assert shown["wins"] == test["wins"]
    for name, expected in {"mean": "difference", "low": "low", "high": "high"}.items():
        assert shown[name] == pytest.approx(test[expected], abs=6e-5)


@pytest.mark.parametrize("chosen", [[], ["--all-pairs"]])
def test_the_page_has_the_p_values_and_the_verdict_of_the_shell(command, pairs, tmp_path, chosen):
    targets = pairs[1][:12]
    systems = {"a": pairs[0][:12], "b": [text[:-9] for text in targets], "c": pairs[0][1:13], "d": targets}
    systems["e"] = [text[:-9] if i < 4 else text for i, text in enumerate(targets)]
    for name, texts in {**systems, "refs": targets}.items():
        write_lines(tmp_path / f"{name}.txt", texts)
    files = [*(f"{name}.txt" for name in systems), "-r", "refs.txt", "--names", *systems, *chosen]
    document = json.loads(command("compare", *files, "--report", "page.html", "--json").out)
    data = read_data(tmp_path / "page.html")
    compared = [(test["minus"], test["system"]) for test in document["differences"]]
    assert compared == (list(combinations("abcde", 2)) if chosen else [("a", name) for name in "bcde"])
    for (a, b), test in zip(compared, document["differences"], strict=True):
        p = f"{test['p_value_holm']:.4f}"
        assert data["differences"]["abcde".index(a)]["abcde".index(b)]["p"] == p
        assert data["differences"]["abcde".index(b)]["abcde".index(a)]["p"] == p
    means = {system["name"]: system["f1"] for system in document["systems"]}
    order = sorted("abce", key=means.get, reverse=True)
    assert max(means, key=means.get) == "d"
    is_below = {name: float(data["differences"]["abcde".index(name)][3]["p"]) < 0.05 for name in order}
    near, below = (", ".join(name for name in order if is_below[name] is kind) for kind in (False, True))
    assert data["verdict"] == document["verdict"]
    assert data["verdict"] == f"Best: d. Not significantly below it: {near}. Below (p < .05, Holm): {below}."
    printed = command("compare", *files).out
    assert "p (Holm): adjusted for all 10 pairs of 5 systems\n" in printed
    assert printed.endswith(f"\n{data['verdict']}\n")


def test_references_have_the_numbers_of_the_document(command, tmp_path):
    lists = [["", "dogs bark", "the cat sat"], [" ", "it is raining", ""], ["the sun", "cats and dogs", ""]]
    rows = [{"candidate": text, "reference": lists[i]} for i, text in enumerate(["a cat sat", "it rains", "dogs"])]
    write_records(tmp_path / "lists.jsonl", rows)
    printed = command("score", "lists.jsonl", "--report", "page.html", "--per-segment", "--json")
    document, data = json.loads(printed.out), read_data(tmp_path / "page.html")
    assert data["references"] == lists
    assert data["chosen"] == [document["segments"]["best_reference"]] == [[2, 1, 1]]
    assert [data["alignments"][str(row)]["0"]["reference"] for row in range(3)] == [2, 1, 1]
    assert document["num_references"] == 5


def test_intervals_of_rescaled_scores_equal_the_shells(command, tmp_path):
    """Both ends of the range are moved, here to -2 and 1."""
    write_lines(tmp_path / "table.csv", ["LAYER,P,R,F", *(f"{layer},0.3,0.3,0.3333333" for layer in range(7))])
    for name, copies in {"c": [0, 1, 2], "d": [3, 4]}.items():
        lines = [(tmp_path / f"{'refs' if i in copies else 'a'}.txt").read_text().splitlines()[i] for i in range(7)]
        write_lines(tmp_path / f"{name}.txt", ["" if i == 6 else line for i, line in enumerate(lines)])
    options = ("-r", "refs.txt", "--rescale-from", "table.csv", "--report", "page.html", "--json")
    printed = json.loads(command("compare", "c.txt", "d.txt", *options).out)
    data = read_data(tmp_path / "page.html")
    for means, system in zip(data["summary"], printed["systems"], strict=True):
        expected = {"mean": system["f1"], "low": system["low"], "high": system["high"]}
        assert means["f1"] == pytest.approx(expected, abs=6e-5)
    assert printed["systems"][0]["high"] == 1
    assert data["bounds"] == pytest.approx({"low": -2, "high": 1}, abs=1e-4)
    (test,) = printed["differences"]
    check_difference(data["differences"][0][1], test)


def test_the_page_of_a_training_is_made_again_without_alignments(pairs, encoder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder, page = tmp_path / "texts", tmp_path / "page.html"
    callbacks = [BERTScoreCallback(BERTScore(encoder)), BERTScoreReport(page, folder)]
    trainer(tmp_path, callbacks, max_epochs=2).fit(chooser(pairs))
    expected = read_data(page)
    assert expected["alignments"]
    assert main(["report", "texts", "-o", "again.html"]) == 0
    data = read_data(tmp_path / "again.html")
    # What the files do not hold.
    without = {
        "alignments": {},
        "truncated": None,
        "unknown": None,
        "bounds": {"low": None, "high": 1},
        "gainBounds": {"low": None, "high": None},
    }
    assert data == expected | without


def test_intervals_are_those_of_documents(command, tmp_path):
    options = ("--confidence", "0.95", "--document-column", "doc", "--json", "--report", "page.html")
    printed = json.loads(command("score", "pairs.jsonl", *options).out)
    data = read_data(tmp_path / "page.html")
    expected = {"mean": printed["f1"], "low": printed["f1_low"], "high": printed["f1_high"]}
    assert data["summary"][0]["f1"] == pytest.approx(expected, abs=6e-5)


ROW = '{"candidate": "a", "references": ["b"], "precision": 0.5, "recall": 0.5, "f1": 0.5}\n'
TEXTS = {"a.txt": "a cat\n", "r.txt": "the cat\n"}
BAD_COMMANDS = [
    ShellCase(
        "report . -o page.html",
        {"val_a_step_1.jsonl": ROW},
        error="...has no files val_step_*.jsonl, as ScoredTextWriter writes them. Give --prefix NAME...",
    ),
    ShellCase(
        "report . -o page.html",
        {"val_step_2.jsonl": ROW, "val_step_02.jsonl": ROW},
        error="...are of one step. Give the files of...",
    ),
    ShellCase(
        "report . -o page.html",
        {"val_step_2.jsonl": "", "val_step_5.jsonl": "\n"},
        error="no validation has rows. Give a file of ScoredTextWriter with at least one row",
    ),
    # The command prints no summary: the numbers are in the files that it reads.
    ShellCase("report . -o page.html --json", {"val_step_2.jsonl": ROW}, error="unrecognized arguments: --json..."),
    ShellCase(
        "report . . -o page.html", {"val_step_2.jsonl": ROW}, error="unrecognized arguments: .. See bertscore-tm --help"
    ),
    ShellCase(
        "score a.txt r.txt --report page.txt", TEXTS, error="argument --report: ...Give a file that ends with .html"
    ),
    ShellCase("score a.txt r.txt --report -", TEXTS, error="argument --report: - is standard output, ... Give a file"),
]


@pytest.mark.parametrize("case", BAD_COMMANDS, ids=attrgetter("arguments"))
def test_a_bad_report_ends_in_one_line(tmp_path, capsys, case):
    check_case(case, tmp_path, capsys)
