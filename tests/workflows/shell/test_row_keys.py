"""Results keep the ids of their rows, so that files that a command writes can be joined again."""

import csv
import json

import pytest

from tests.support.models import save_tiny_model
from tests.support.shell import check_error, run_here, write_lines, write_records

TEXTS = ["a cat sat", "it rains", "the dog ran home", "go"]
SAMPLES = [["a cat", "cats sit"], ["rain", "it rained"], ["a dog ran", "dogs"], ["go away", "went"]]
IDS = ["d", "b", "a", "c"]


@pytest.fixture
def command(tmp_path, monkeypatch, capsys):
    """Run a command in a folder with a model; returns what it printed."""
    monkeypatch.chdir(tmp_path)
    save_tiny_model("bert", tmp_path / "model")

    def run(*words, exit_code=0):
        return run_here(capsys, *words, "-m", "model", "-l", 2, "--device", "cpu", exit_code=exit_code)

    return run


def read_records(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_ranked_texts_are_joined_with_their_references(command, tmp_path):
    write_records(tmp_path / "samples.jsonl", [{"id": i, "candidates": c} for i, c in zip(IDS, SAMPLES, strict=True)])
    references = [{"id": i, "reference": text} for i, text in zip(IDS, TEXTS, strict=True)]
    write_records(tmp_path / "refs.jsonl", references[::-1])

    printed = command("rank", "samples.jsonl", "refs.jsonl", "-o", "best.jsonl", "--json")

    assert json.loads(printed.out)["key"] == "id"
    best = read_records(tmp_path / "best.jsonl")
    assert [row["id"] for row in best] == IDS
    assert all(next(iter(row)) == "id" for row in best)
    document = json.loads(command("score", "best.jsonl", "refs.jsonl", "--json").out)
    # Scored again in the order of the candidates.
    write_lines(tmp_path / "best.txt", [row["candidate"] for row in best])
    write_lines(tmp_path / "refs.txt", TEXTS)
    assert document["f1"] == json.loads(command("score", "best.txt", "refs.txt", "--json").out)["f1"]


@pytest.mark.parametrize("suffix", ["csv", "tsv", "json"])
def test_scores_of_segments_keep_the_key_first(command, tmp_path, suffix):
    names = ["x, y", 'say "b"', "a\tb", "c"]
    write_records(tmp_path / "hyps.jsonl", [{"image_id": i, "candidate": t} for i, t in zip(names, TEXTS, strict=True)])
    references = [{"image_id": i, "reference": text} for i, text in zip(names, TEXTS, strict=True)]
    write_records(tmp_path / "refs.jsonl", references)

    command("score", "hyps.jsonl", "refs.jsonl", "--per-segment", "-o", f"scores.{suffix}")

    written = (tmp_path / f"scores.{suffix}").read_text()
    if suffix == "json":
        segments = json.loads(written)["segments"]
        assert next(iter(segments)) == "image_id"
        assert segments["image_id"] == names
        return
    lines = [line for line in written.splitlines(keepends=True) if not line.startswith("#")]
    header, *rows = csv.reader(lines, delimiter="," if suffix == "csv" else "\t")
    assert header[:3] == ["image_id", "segment", "layer"]
    assert [row[0] for row in rows] == names


def test_a_single_file_has_the_key_of_its_rows(command, tmp_path):
    rows = [{"doc": i // 2, "uid": name, "segment": f"s{i}"} for i, name in enumerate(IDS)]
    rows = [{**row, "candidate": text, "reference": text} for row, text in zip(rows, TEXTS, strict=True)]
    write_records(tmp_path / "pairs.jsonl", rows)
    words = ["score", "pairs.jsonl", "--per-segment", "--json"]

    found = json.loads(command(*words).out)
    named = json.loads(command(*words, "--key", "segment").out)
    none = json.loads(command(*words, "--key", "none").out)

    assert found["segments"]["uid"] == IDS
    assert (found["paired_by"], found["key"]) == ("order", None)
    assert list(named["segments"]) == ["segment", "precision", "recall", "f1", "best_reference"]
    assert "uid" not in none["segments"]
    # A name that the output has already.
    table = command(*words[:-1], "--key", "segment").out.splitlines()
    assert table[-5].split("\t")[:2] == ["key", "segment"]
    assert table[-4].split("\t")[:2] == ["s0", "1"]


def test_one_null_does_not_turn_a_comparison_around(command, tmp_path):
    """The rows of a file in another order were compared with the references of other texts."""
    texts = [*TEXTS, "my name is Ann", "see you", "no more rain today"]
    good = [{"id": i, "candidate": text} for i, text in enumerate(texts)]
    write_records(tmp_path / "good.jsonl", good[::-1])
    write_records(tmp_path / "bad.jsonl", [{"id": i, "candidate": "a"} for i in range(len(texts))])
    write_records(tmp_path / "refs.jsonl", [{"id": i, "reference": text} for i, text in enumerate(texts)])
    words = ["compare", "bad.jsonl", "good.jsonl", "-r", "refs.jsonl", "--json"]
    assert json.loads(command(*words).out)["systems"][1]["f1"] == pytest.approx(1)

    write_records(tmp_path / "good.jsonl", [*good[:0:-1], {**good[0], "id": None}])

    printed = command(*words, exit_code=2)
    message = "bad.jsonl and good.jsonl differ in 'id': 6 of 8 values are in both"
    check_error(printed, message)


def test_an_id_of_the_rows_of_a_file_does_not_join_its_systems(command, tmp_path):
    rows = [
        {"id": number, "system": name, "seg": i} for number, (name, i) in enumerate((n, i) for n in "ab" for i in IDS)
    ]
    texts = dict(zip(IDS, TEXTS, strict=True))
    rows = [{**row, "candidate": texts[row["seg"]], "reference": texts[row["seg"]]} for row in rows]
    write_records(tmp_path / "all.jsonl", rows)
    words = ["compare", "-c", "all.jsonl", "--system-column", "system", "--json"]

    assert json.loads(command(*words).out)["paired_by"] == "order"

    write_records(tmp_path / "all.jsonl", rows[:4] + rows[:3:-1])
    check_error(command(*words, exit_code=2), "'seg' of .* have the same 4 values in another order")
    document = json.loads(command(*words, "--key", "seg").out)
    assert document["key"] == "seg"
    assert [system["f1"] for system in document["systems"]] == pytest.approx([1, 1])


def test_parts_of_a_corpus_are_no_references(command, tmp_path):
    for number in range(3):
        write_records(tmp_path / f"part-{number}.jsonl", [{"candidate": "a", "reference": "b"}])
    parts = [f"part-{number}.jsonl" for number in range(3)]

    printed = command("score", *parts, exit_code=2)

    check_error(printed, "part-0.jsonl, part-1.jsonl, part-2.jsonl have candidates and references each")
    command("score", parts[0], "-r", *parts[1:])


@pytest.mark.parametrize("option", ["--document-column", "--group-column"])
def test_rows_with_one_key_have_one_label(command, tmp_path, option):
    write_records(tmp_path / "hyps.jsonl", [{"id": i, "candidate": text} for i, text in enumerate(TEXTS)])
    references = [{"id": i % 4, "reference": TEXTS[i % 4], "domain": "news"} for i in range(8)]
    write_records(tmp_path / "refs.jsonl", references)
    words = ["score", "hyps.jsonl", "refs.jsonl", option, "domain", "--confidence", 0.9]
    command(*words)
    references[6]["domain"] = "chat"
    write_records(tmp_path / "refs.jsonl", references)

    noun = option.removeprefix("--").removesuffix("-column")
    check_error(
        command(*words, exit_code=2), rf"refs.jsonl:7: the {noun} is .*\. Give rows with the same key one {noun}$"
    )
