"""Pages that the shell writes."""

import json
from itertools import combinations
from operator import attrgetter

import pytest

from bertscore_tm import BERTScore, FrozenEncoder, Report, bert_score
from bertscore_tm.callbacks import BERTScoreCallback, BERTScoreReport
from bertscore_tm.cli import main
from tests.support.lightning_runs import chooser, trainer
from tests.support.report_pages import read_data
from tests.support.shell import run_here, write_lines, write_records
from tests.support.shell_cases import ShellCase, check_case

# A page encodes each of its pairs once more, which takes a fifth of the time at this layer.
LAYER = 1


@pytest.fixture(scope="module")
def encoder(minilm):
    """The encoder of the commands."""
    return FrozenEncoder(minilm, num_layers=LAYER)


@pytest.fixture
def texts(pairs):
    """Lines of the files: two systems and their references."""
    candidates, references = pairs
    return {"a": candidates[:7], "b": [*references[:3], *candidates[3:7]], "refs": references[:7]}


@pytest.fixture
def command(texts, minilm, tmp_path, monkeypatch, capsys):
    """Function that runs a command in a folder with texts, and returns what it prints."""
    monkeypatch.chdir(tmp_path)
    records = []
    for i, (candidate, reference) in enumerate(zip(texts["a"], texts["refs"], strict=True)):
        records.append({"candidate": candidate, "reference": reference, "doc": i // 2})
    write_records(tmp_path / "pairs.jsonl", records)
    write_texts(tmp_path, texts)
    return lambda *words, **options: run_here(capsys, *words, "--model", minilm, "--num-layers", LAYER, **options)


def write_texts(folder, texts):
    """Write texts by the names of their files."""
    for name, lines in texts.items():
        write_lines(folder / f"{name}.txt", lines)


def check_difference(shown, test):
    """Compare a difference of the page with that of the shell."""
    assert shown["wins"] == test["wins"]
    for name, expected in {"mean": "difference", "low": "low", "high": "high"}.items():
        assert shown[name] == pytest.approx(test[expected], abs=6e-5)


def test_score_writes_the_page_of_the_report(command, texts, encoder, tmp_path):
    expected = Report.from_texts({"a.txt": texts["a"]}, texts["refs"], encoder, idf=True)

    command("score", "a.txt", "refs.txt", "--idf", "--report", "page.html")

    assert read_data(tmp_path / "page.html") == read_data(expected.to_html())


def test_compare_writes_the_page_of_its_document(command, texts, encoder, tmp_path):
    expected = bert_score(texts["b"], texts["refs"], encoder)["f1"]

    printed = command("compare", "a.txt", "b.txt", "-r", "refs.txt", "--report", "page.html", "--json")

    data = read_data(tmp_path / "page.html")
    assert data["names"] == ["a.txt", "b.txt"]
    assert data["scores"][1]["f1"] == pytest.approx(expected.tolist(), abs=6e-5)
    (test,) = json.loads(printed.out)["differences"]
    check_difference(data["differences"][0][1], test)
    assert data["differences"][0][1]["p"] == f"{test['p_value']:.4f}"


FIVE = ["a", "b", "c", "d", "e"]


@pytest.fixture
def compare_five(command, pairs, tmp_path):
    """Run compare on five systems of 12 texts, of which d is the best and e equals it in most texts."""
    candidates, references = pairs[0], pairs[1][:12]
    cut = [text[:-9] for text in references]
    systems = {"a": candidates[:12], "b": cut, "c": candidates[1:13], "d": references, "e": cut[:4] + references[4:]}
    write_texts(tmp_path, systems | {"refs": references})
    files = [f"{name}.txt" for name in FIVE]
    return lambda *options: command("compare", *files, "-r", "refs.txt", "--names", *FIVE, *options)


@pytest.mark.parametrize(
    ("options", "pairs_of_systems"),
    [([], [("a", "b"), ("a", "c"), ("a", "d"), ("a", "e")]), (["--all-pairs"], [*combinations(FIVE, 2)])],
    ids=["with the first", "all"],
)
def test_the_page_has_the_p_values_of_the_shell(compare_five, tmp_path, options, pairs_of_systems):
    document = json.loads(compare_five(*options, "--report", "page.html", "--json").out)

    differences = read_data(tmp_path / "page.html")["differences"]
    assert [(test["minus"], test["system"]) for test in document["differences"]] == pairs_of_systems
    for test in document["differences"]:
        a, b = FIVE.index(test["minus"]), FIVE.index(test["system"])
        assert differences[a][b]["p"] == differences[b][a]["p"] == f"{test['p_value_holm']:.4f}"


def test_the_page_has_the_verdict_of_the_shell(compare_five, tmp_path):
    document = json.loads(compare_five("--report", "page.html", "--json").out)
    means = {system["name"]: system["f1"] for system in document["systems"]}
    best, *others = sorted(means, key=means.get, reverse=True)
    assert best == "d"

    data = read_data(tmp_path / "page.html")

    near, below = [], []
    for name in others:
        p_value = float(data["differences"][FIVE.index(name)][FIVE.index(best)]["p"])
        if p_value < 0.05:
            below.append(name)
        else:
            near.append(name)
    expected = f"Best: d. Not significantly below it: {', '.join(near)}. Below (p < .05, Holm): {', '.join(below)}."
    assert data["verdict"] == document["verdict"] == expected


def test_the_terminal_has_the_verdict_of_the_page(compare_five, tmp_path):
    printed = compare_five("--report", "page.html").out

    assert "p (Holm): adjusted for all 10 pairs of 5 systems\n" in printed
    assert printed.endswith(f"\n{read_data(tmp_path / 'page.html')['verdict']}\n")


def test_references_have_the_numbers_of_the_document(command, tmp_path):
    lists = [["", "dogs bark", "the cat sat"], [" ", "it is raining", ""], ["the sun", "cats and dogs", ""]]
    candidates = ["a cat sat", "it rains", "dogs"]
    rows = zip(candidates, lists, strict=True)
    write_records(tmp_path / "lists.jsonl", [{"candidate": text, "reference": texts} for text, texts in rows])

    printed = command("score", "lists.jsonl", "--report", "page.html", "--per-segment", "--json")

    document = json.loads(printed.out)
    assert document["num_references"] == 5
    assert document["segments"]["best_reference"] == [2, 1, 1]
    data = read_data(tmp_path / "page.html")
    assert data["references"] == lists
    assert data["chosen"] == [[2, 1, 1]]
    assert [data["alignments"][str(row)]["0"]["reference"] for row in range(3)] == [2, 1, 1]


def test_intervals_of_rescaled_scores_equal_the_shells(command, texts, tmp_path):
    """Both ends of the range are moved, here to -2 and 1."""
    write_lines(tmp_path / "table.csv", ["LAYER,P,R,F", *(f"{layer},0.3,0.3,0.3333333" for layer in range(7))])
    candidates, references = texts["a"], texts["refs"]
    # Most texts of c, and some of d, are the references. The last ones are empty.
    write_lines(tmp_path / "c.txt", [*references[:3], *candidates[3:6], ""])
    write_lines(tmp_path / "d.txt", [*candidates[:3], *references[3:5], candidates[5], ""])
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
