"""The command ``rank``: the library's scores, part by part, on several ranks, resumed, and its errors."""

import gzip
import json
from functools import partial
from operator import attrgetter

import pytest

from bertscore_tm.cli import resume
from bertscore_tm.encoder import FrozenEncoder
from bertscore_tm.functional import rank_candidates
from tests.support.shell import run_here, write_lines, write_records
from tests.support.shell_cases import MODEL, ShellCase, check_case
from tests.support.texts import real_pairs

NUM_ITEMS = 7


@pytest.fixture(scope="module")
def layer(minilm):
    return FrozenEncoder(minilm, num_layers=1)


@pytest.fixture(scope="module")
def items():
    """Candidates of each item and two references of it."""
    texts = real_pairs(30, words=8)[0]
    candidates = [texts[3 * i : 3 * i + 2 + i % 3] for i in range(NUM_ITEMS)]
    return candidates, [[texts[i], texts[-i - 1]] for i in range(NUM_ITEMS)]


@pytest.fixture(params=[2, 100])
def command(request, minilm, monkeypatch, capsys):
    """Run the command in steps of so many lines, as of a long input; returns what it printed."""
    monkeypatch.setattr(resume, "ITEMS_PER_STEP", request.param)
    return partial(run_here, capsys, "rank", "-m", minilm, "-l", 1, "--device", "cpu")


@pytest.fixture
def folder(tmp_path, items):
    candidates, references = items
    write_records(tmp_path / "samples.jsonl", [{"id": i, "candidates": texts} for i, texts in enumerate(candidates)])
    for number in (0, 1):
        write_lines(tmp_path / f"refs{number}.txt", [wanted[number] for wanted in references])
    return tmp_path


def assert_equals(path, ranked, candidates):
    records = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert [record["candidate"] for record in records] == ranked.best
    assert [record["index"] for record in records] == [int(order[0]) for order in ranked.order]
    for record, scores, texts in zip(records, ranked.scores, candidates, strict=True):
        assert record["scores"] == pytest.approx(scores.tolist(), abs=1e-6)
        assert record["score"] == record["scores"][record["index"]]
        assert len(record["scores"]) == len(texts)


def test_consensus(folder, items, layer, command):
    output = folder / "best.jsonl"
    printed = command(folder / "samples.jsonl", "-o", output)

    ranked = rank_candidates(items[0], encoder=layer)

    assert_equals(output, ranked, items[0])

    mean = sum(float(scores.max()) for scores in ranked.scores) / NUM_ITEMS
    assert printed.out.splitlines() == [
        f"f1 of the best candidates: {mean:.4f} (mean)",
        f"7 lines, {sum(map(len, items[0]))} candidates, paired by order",
        f"signature: {ranked.signature}",
    ]
    assert not (folder / "best.jsonl.partial").exists()


def test_references_from_files_or_the_same_file(folder, items, layer, command):
    candidates, references = items
    ranked = rank_candidates(candidates, references, layer, component="recall", references_reduce="max")
    options = ["--component", "recall", "--references-reduce", "max", "--json"]
    files = ["-r", folder / "refs0.txt", folder / "refs1.txt"]
    command(folder / "samples.jsonl", *files, "-o", folder / "best.jsonl", *options)
    assert_equals(folder / "best.jsonl", ranked, candidates)

    records = [{"samples": c, "refs": r} for c, r in zip(candidates, references, strict=True)]
    with gzip.open(folder / "both.jsonl.gz", "wt") as file:
        file.writelines(json.dumps(record) + "\n" for record in records)
    columns = ["--candidate-column", "samples", "--reference-column", "refs"]
    printed = command(folder / "both.jsonl.gz", *columns, "-o", folder / "same.jsonl", *options)
    assert (folder / "same.jsonl").read_text() == (folder / "best.jsonl").read_text()
    summary = json.loads(printed.out)
    assert summary["num_items"] == NUM_ITEMS
    assert summary["signature"] == str(ranked.signature)
    assert summary["mean_best"] == pytest.approx(sum(float(s.max()) for s in ranked.scores) / NUM_ITEMS, abs=1e-6)


TWO = [{"candidates": ["a"]}, {"candidates": []}]
THREE = [{"candidates": ["a"]}] * 3
# Found before the first line is scored, so that nothing is left that the corrected files would not resume.
BAD_COMMANDS = [
    ShellCase(
        f"rank c.jsonl -o best.jsonl {MODEL}",
        {"c.jsonl": TWO},
        error="c.jsonl:2: 'candidates' must be a text or an array of...",
    ),
    ShellCase(
        f"rank c.jsonl -r r.txt -o best.jsonl {MODEL}",
        {"c.jsonl": THREE, "r.txt": "a\nb\n"},
        error="c.jsonl and r.txt must have equal numbers of texts, got 3...",
    ),
]


@pytest.mark.parametrize("case", BAD_COMMANDS, ids=attrgetter("arguments"))
def test_a_bad_ranking_leaves_no_file(tmp_path, capsys, minilm, case):
    check_case(case, tmp_path, capsys, minilm)


def test_truncated_texts_are_a_warning_with_a_remedy(folder, command):
    """The warning of other commands said what to do, and that of this command did not."""
    printed = command(folder / "samples.jsonl", "-o", folder / "best.jsonl", "--max-length", "3")
    remedy = "Set the encoder's long_text (--long-text) to 'window' to score whole texts"

    assert f"texts are longer than 3 tokens and were truncated. {remedy}" in printed.err
