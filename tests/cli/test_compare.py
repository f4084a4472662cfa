"""``bertscore-tm compare``: scores of the reference package, tested as the library tests them."""

import json
import re
from functools import partial
from itertools import combinations
from operator import attrgetter

import pytest
import torch

from bertscore_tm.statistics import compare_paired, holm, mean_interval
from tests.support.oracle import oracle_scores
from tests.support.shell import numbers_in, run_here, write_lines, write_records
from tests.support.shell_cases import ShellCase, check_case
from tests.support.texts import real_pairs

COUNT = 6
LAYER = 1
SCORES = ("precision", "recall", "f1")
# Short texts: the model's time is most of these tests' time.
SUMMARIES, REFERENCES = real_pairs(COUNT, words=16)
# Systems of different quality, one of which has its texts in the wrong order.
SYSTEMS = {
    "summaries": SUMMARIES,
    "shuffled": SUMMARIES[1:] + SUMMARIES[:1],
    "openings": [" ".join(reference.split()[:8]) for reference in REFERENCES],
}


@pytest.fixture
def command(tmp_path, minilm, monkeypatch, capsys):
    """Run the command in a folder with the texts; returns what it printed."""
    for name, texts in SYSTEMS.items():
        write_lines(tmp_path / f"{name}.txt", texts)
    write_lines(tmp_path / "refs.txt", REFERENCES)
    write_lines(tmp_path / "more.txt", REFERENCES[3:] + REFERENCES[:3])
    monkeypatch.chdir(tmp_path)
    return partial(run_here, capsys, "compare", "-m", minilm, "-l", LAYER, "--device", "cpu")


@pytest.fixture(scope="module")
def oracle(minilm):
    """P, R and F1 of the reference package, shape (systems, 3, texts)."""

    def score(references, **options):
        scores = [oracle_scores(minilm, texts, references, LAYER, **options) for texts in SYSTEMS.values()]
        return torch.stack(scores).double()

    return score


FILES = ["-c", "summaries.txt", "-c", "shuffled.txt", "-c", "openings.txt", "-r", "refs.txt"]
TO_FIRST = [("shuffled.txt", "summaries.txt"), ("openings.txt", "summaries.txt")]


def check_document(document, expected, score="f1", **settings):
    """Check a JSON document against scores that others have computed, shape (systems, 3, texts)."""
    values = expected[:, SCORES.index(score)]
    for system, scores, chosen in zip(document["systems"], expected, values, strict=True):
        assert [system[name] for name in SCORES] == pytest.approx(scores.mean(-1).tolist(), abs=2e-6)
        low, high = mean_interval(chosen, bounds=(-1, 1), **settings)
        assert [system["low"], system["high"]] == pytest.approx([low.item(), high.item()], abs=3e-6)

    # Adjusted for all pairs, listed or not.
    pairs = list(combinations(range(len(values)), 2))
    tests = [compare_paired(values[a], values[b], bounds=(-1, 1), **settings) for a, b in pairs]
    adjusted = holm([test.p_value for test in tests])
    names = [system["name"] for system in document["systems"]]
    for difference in document["differences"]:
        pair = (names.index(difference["minus"]), names.index(difference["system"]))
        test = tests[pairs.index(pair)]
        assert document["test"] == test.test
        for key in ("difference", "low", "high"):
            assert difference[key] == pytest.approx(getattr(test, key), abs=3e-6)
        # By rounding, one permutation may fall on the other side.
        assert difference["p_value"] == pytest.approx(test.p_value, abs=3e-4)
        assert difference["p_value_holm"] == pytest.approx(adjusted[pairs.index(pair)], abs=1e-3)


def test_the_document_has_the_scores_of_bert_score(command, oracle):
    document = json.loads(command(*FILES, "--json").out)

    check_document(document, oracle(REFERENCES))
    assert [(test["system"], test["minus"]) for test in document["differences"]] == TO_FIRST
    assert document["differences"][0]["difference"] < 0 < document["differences"][1]["low"]
    expected = {"component": "f1", "confidence": 0.95, "num_documents": None, "num_texts": 6, "num_references": 6}
    assert expected.items() <= document.items()


def test_the_tables_have_the_numbers_of_the_document(command):
    document = json.loads(command(*FILES, "--json").out)

    lines = command(*FILES).out.splitlines()

    assert lines[0].split() == ["system", "P", "R", "F1", "95%", "interval", "of", "F1"]
    for line, system in zip(lines[1:4], document["systems"], strict=True):
        assert line.startswith(system["name"])
        assert numbers_in(line) == pytest.approx([system[key] for key in (*SCORES, "low", "high")], abs=6e-5)
    header = ["difference in F1", "mean", "95% interval", "p", "p (Holm)", "wins", "ties", "losses"]
    assert re.split(" {2,}", lines[5]) == header
    for line, difference in zip(lines[6:8], document["differences"], strict=True):
        assert line.startswith(f"{difference['system']} - {difference['minus']} ")
        expected = [difference[key] for key in ("difference", "low", "high", "p_value", "p_value_holm")]
        assert numbers_in(line) == pytest.approx(expected, abs=6e-5)
        assert line.split()[-3:] == [str(difference[key]) for key in ("wins", "ties", "losses")]
    paired = "6 texts, 6 references, paired by order; paired permutation test, Student's t intervals"
    signature = document["signature"]
    assert signature.startswith("model:")
    holm_note = "p (Holm): adjusted for all 3 pairs of 3 systems"
    assert lines[9:] == [paired, holm_note, f"signature: {signature}", document["verdict"]]


# Each text twice, as a document: the test must not take copies for evidence.
TWICE = [*range(COUNT), *range(COUNT)]
BY_ARTICLE = ["--document-column", "article"]


def write_articles(path, texts, articles):
    """Write references with the articles that they belong to."""
    rows = zip(texts, articles, strict=True)
    write_lines(path, ["reference\tarticle", *(f"{text}\tarticle {article}" for text, article in rows)])


def test_whole_documents_are_compared(command, oracle, tmp_path):
    rows = []
    for name, texts in SYSTEMS.items():
        for i in TWICE:
            rows.append({"system": name, "candidate": texts[i], "reference": REFERENCES[i], "article": i})
    write_records(tmp_path / "outputs.jsonl", rows)
    once = json.loads(command(*FILES, "--json").out)["differences"]

    document = json.loads(command("-c", "outputs.jsonl", "--system-column", "system", *BY_ARTICLE, "--json").out)

    check_document(document, oracle(REFERENCES)[..., TWICE], groups=TWICE)
    assert document["num_texts"] == 2 * COUNT
    assert document["num_documents"] == COUNT
    assert [test["p_value"] for test in document["differences"]] == [test["p_value"] for test in once]


def test_references_have_the_documents_of_several_files(command, tmp_path):
    once = json.loads(command(*FILES, "--json").out)["differences"]
    for name, texts in SYSTEMS.items():
        write_lines(tmp_path / f"{name}.txt", texts * 2)
    write_articles(tmp_path / "refs.tsv", REFERENCES * 2, TWICE)
    words = [*FILES[:-1], "refs.tsv", *BY_ARTICLE]

    document = json.loads(command(*words, "--json").out)
    printed = command(*words).out

    assert [test["p_value"] for test in document["differences"]] == [test["p_value"] for test in once]
    assert "12 texts, 12 references, 6 documents, paired by order; paired permutation test" in printed


@pytest.mark.parametrize(
    ("articles", "test", "has_note"),
    [(list(range(COUNT)), "permutation", False), ([0, *range(COUNT)], "t", True)],
    ids=["one text each", "unequal sizes"],
)
def test_the_test_of_documents_is_named(command, tmp_path, articles, test, has_note):
    """Documents of one text each are compared by permutations, others by a t test."""
    count = len(articles)
    for name, texts in SYSTEMS.items():
        write_lines(tmp_path / f"{name}.txt", (texts * 2)[:count])
    write_articles(tmp_path / "refs.tsv", (REFERENCES * 2)[:count], articles)

    lines = command(*FILES[:-1], "refs.tsv", *BY_ARTICLE).out.splitlines()

    assert lines[9].endswith(f"6 documents, paired by order; paired {test} test, Student's t intervals")
    assert ("t test, because the documents have unequal sizes" in lines) == has_note
    assert "≤" not in "".join(lines)


def test_small_p_values_are_printed_and_marked(command, tmp_path):
    texts = real_pairs(30, words=6)[1]
    write_lines(tmp_path / "bad.txt", ["x"] * 30)
    write_lines(tmp_path / "good.txt", texts)
    write_lines(
        tmp_path / "refs.tsv", ["reference\tarticle", *(f"{text}\t{max(i, 1)}" for i, text in enumerate(texts))]
    )
    files = ["bad.txt", "good.txt", "-r", "refs.tsv"]

    assert "≤0.0002" in command(*files).out

    documents = [*files, "--document-column", "article"]
    assert re.search(r"\] +\d\.\de-\d\d +30 +0 +0\n", command(*documents).out)

    (difference,) = json.loads(command(*documents, "--json").out)["differences"]
    assert 0 < difference["p_value"] < 1e-8
    assert difference["p_value"] == difference["p_value_holm"] == float(f"{difference['p_value']:.6g}")


def test_few_documents_have_no_p_value(command, tmp_path):
    write_lines(tmp_path / "refs.tsv", ["reference\tarticle", *(f"{text}\tnews" for text in REFERENCES)])

    printed = command(*FILES[:-1], "refs.tsv", "--document-column", "article").out

    assert "no p-values: they need at least 6 documents" in printed


def test_options(command, oracle, tmp_path):
    options = ["--component", "recall", "--all-pairs", "--confidence", "0.8", "--idf"]
    printed = command(*FILES, "more.txt", "--json", *options, "--output", "document.json")

    assert printed.out == ""

    document = json.loads((tmp_path / "document.json").read_text())
    to_second = ("openings.txt", "shuffled.txt")

    assert [(x["system"], x["minus"]) for x in document["differences"]] == [*TO_FIRST, to_second]

    both = [[a, b] for a, b in zip(REFERENCES, REFERENCES[3:] + REFERENCES[:3], strict=True)]
    assert document["verdict"].startswith("Best by R: openings.txt. ")
    # The idf counts the references once, not once per system.
    check_document(document, oracle(both, idf=True), "recall", confidence=0.8)
    assert f"|idf:{2 * COUNT}|" in document["signature"]
    assert (document["num_texts"], document["num_references"]) == (COUNT, 2 * COUNT)


def test_few_texts_have_no_p_value(command, tmp_path):
    for name in ("summaries", "openings"):
        write_lines(tmp_path / f"{name}.txt", SYSTEMS[name][:3])
    write_lines(tmp_path / "refs.txt", REFERENCES[:3])
    files = ["summaries.txt", "openings.txt", "-r", "refs.txt"]

    (difference,) = json.loads(command(*files, "--json").out)["differences"]

    assert difference["low"] < difference["difference"] < difference["high"]
    assert difference["p_value"] is difference["p_value_holm"] is None

    summary = command(*files).out
    assert "no p-values: they need at least 6 texts\n" in summary
    assert "paired by order; Student's t intervals\n" in summary
    assert "permutation" not in summary


def test_wins_ties_and_losses(command, oracle, tmp_path):
    mixed = [*SYSTEMS["openings"][:2], *SUMMARIES[2:]]
    write_lines(tmp_path / "mixed.txt", mixed)
    printed = command("-c", "summaries.txt", "mixed.txt", "-r", "refs.txt", "--names", "before", "after", "--json")

    (document,) = json.loads(printed.out)["differences"]

    assert (document["system"], document["minus"]) == ("after", "before")
    # One comparison needs no adjustment.
    assert "Holm" not in command("-c", "summaries.txt", "mixed.txt", "-r", "refs.txt").out

    summaries, _, openings = oracle(REFERENCES)[:, SCORES.index("f1"), :2]
    wins = int((openings > summaries).sum())

    assert [document[key] for key in ("wins", "ties", "losses")] == [wins, COUNT - 2, 2 - wins]


def test_layouts(command, tmp_path):
    names = ["--names", "a_b", "50%", "[c] & d"]
    text = command(*FILES, *names).out
    command(*FILES, *names, "-o", "table.md")
    command(*FILES, *names, "-o", "table.tex")
    markdown, latex = ((tmp_path / name).read_text() for name in ("table.md", "table.tex"))

    header, rule = markdown.splitlines()[:2]

    assert re.split(r" *\| *", header) == ["", "system", "P", "R", "F1", "95% interval of F1", ""]
    assert re.fullmatch(r"\|:?-+(\|-+:){4}\|", rule)
    assert re.search(r"\| 50% - a\\_b +\| ", markdown)
    assert r"\begin{tabular}{lrrrr}" in latex
    assert re.search(r"50\\% - a\\_b +& ", latex)
    assert re.search(r"\n{}\[c\] \\& d +& ", latex)

    signed = r"(\+|\$-\$)0\.\d{4}"
    assert len(re.findall(rf"& +{signed} & +\[{signed}, {signed}\] &", latex)) == 2
    assert not re.search(r"[^$]-0\.", latex.split(r"\end{tabular}")[0])
    # All layouts have the same numbers, and LaTeX compiles what follows the tables as comments.
    for line, other in zip(text.splitlines()[1:4], latex.splitlines()[4:7], strict=True):
        assert re.findall(r"\d\.\d{4}", line) == re.findall(r"\d\.\d{4}", other)
    assert [line[0] for line in latex.splitlines()[-2:]] == ["%", "%"]


TEXTS = {"a.txt": "a cat\nit rains\n", "b.txt": "cats\nrain\n", "r.txt": "the cat\nit rained\n", "one.txt": "a\n"}
NO_COLUMNS = "argument --document-column: there are no columns in a.txt..."
NULL = {**TEXTS, "r.jsonl": [{"reference": "the cat", "article": None}, {"reference": "rain", "article": "news"}]}
# Rows of two systems in one file.
A = {"system": "a", "candidate": "cat", "reference": "cats"}
B = {**A, "system": "b"}
A1 = {**A, "id": 1}
B1 = {**B, "id": 1}
A3 = {**A1, "id": 3}
B2 = {**B1, "id": 2}
B3 = {**B1, "id": 3}
OTHER = {**B, "reference": "dogs"}
COLUMN = "compare -c all.csv --system-column system"
BAD_COMMANDS = [
    ShellCase(
        COLUMN,
        {"all.csv": [A, B, A]},
        error="all.csv (a) and all.csv (b) must have equal numbers of texts, got 2 and 1...",
    ),
    ShellCase(
        COLUMN,
        {"all.csv": [A, OTHER]},
        error="all.csv:3: the references of 'b' are not those of 'a'. Give both the same...",
    ),
    ShellCase(COLUMN, {"all.csv": [B, B]}, error="...has one system, 'b'. Give a file with at least two..."),
    # Lines are those of the file: errors counted the rows of the system.
    ShellCase(
        COLUMN,
        {"all.csv": [A1, B1, B2, A3]},
        error="...'3' in line 5 of all.csv (a) only, '2' in line 4 of all.csv (b) only...",
    ),
    ShellCase(
        f"{COLUMN} --key id",
        {"all.csv": [A1, B1, B2, A3, A3, B3]},
        error="...(a): line 5 and line 6 have the same 'id'...",
    ),
    ShellCase(
        "compare -c all.json --system-column system",
        {"all.json": [A1, B1, B2, A3]},
        error="...'3' in row 4 of all.json (a) only, '2' in row 3 of all.json (b) only...",
    ),
    ShellCase("compare -c a.txt -r r.txt", TEXTS, error="...different files of at least two systems..."),
    ShellCase(
        "compare -c a.txt one.txt -r r.txt", TEXTS, error="a.txt and one.txt must have equal numbers of texts..."
    ),
    ShellCase("compare -c a.txt b.txt", TEXTS, error="there are no references. Give -r FILE..."),
    ShellCase(
        "compare a.txt b.txt -r r.txt --names a b a",
        TEXTS,
        error="argument --names: got 'a b a'. Give 2 different names, one per system",
    ),
    ShellCase(
        "compare a.txt b.txt -r r.txt --system-column system",
        TEXTS,
        error="argument --system-column: got 2 files. Give one file with columns...",
    ),
    ShellCase(
        "compare a.txt b.txt -r r.txt --confidence 95",
        TEXTS,
        error="argument --confidence: must be a number between 0 and 1, ... got '95'...",
    ),
    ShellCase("compare a.txt b.txt -r r.txt --document-column article", TEXTS, error=NO_COLUMNS),
    ShellCase(
        "compare a.txt b.txt -r r.jsonl --document-column article",
        NULL,
        error="r.jsonl:1: 'article' must be a string or a whole number, got None...",
    ),
]


@pytest.mark.parametrize("case", BAD_COMMANDS, ids=attrgetter("arguments"))
def test_a_bad_comparison_ends_in_one_line(tmp_path, capsys, case):
    check_case(case, tmp_path, capsys)
