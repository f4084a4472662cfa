"""Rows of several files that belong together: by their keys, or by their order where they have none."""

import json
from functools import partial

import pytest

from tests.cli.test_files import scored_pairs
from tests.support.models import save_tiny_model
from tests.support.shell import check_error, run_here, write_records
from tests.support.shell_cases import ShellCase, check_case, check_lines, write_file

CANDIDATES = [{"id": 1, "candidate": "it rains"}, {"id": 2, "candidate": "a cat sat"}, {"id": 3, "candidate": "go"}]
REFERENCES = [{"id": 2, "reference": "the cat"}, {"id": 3, "reference": "went"}, {"id": 1, "reference": "rain"}]
JOINED = [("it rains", ["rain"]), ("a cat sat", ["the cat"]), ("go", ["went"])]


@pytest.mark.parametrize("suffix", ["jsonl", "csv", "json", "parquet"])
def test_rows_of_a_shared_column_belong_together(tmp_path, monkeypatch, capsys, suffix):
    monkeypatch.chdir(tmp_path)
    names = [f"c.{suffix}", f"r.{suffix}"]
    write_file(tmp_path / names[0], CANDIDATES)
    write_file(tmp_path / names[1], REFERENCES)

    pairs = scored_pairs(monkeypatch, *names)

    assert pairs == JOINED
    message = f"rows are joined by 'id': the order of {names[1]} is not that of {names[0]}"
    assert capsys.readouterr().err == f"bertscore-tm: {message}\n"


MOVED = "rows are joined by '{}': the order of r.json is not that of c.json"
COCO = {
    "c.json": [{"image_id": 7, "caption": "a cat"}, {"image_id": 3, "caption": "a dog"}],
    "r.json": {
        "images": [{"id": 3}, {"id": 7}],
        "annotations": [
            {"id": 0, "image_id": 3, "caption": "the dog"},
            {"id": 1, "image_id": 7, "caption": "the cat"},
            {"id": 2, "image_id": 7, "caption": "cats"},
            {"id": 3, "image_id": 3, "caption": "dogs"},
            {"id": 4, "image_id": 3, "caption": "one dog"},
        ],
    },
}
CAPTIONS = "--candidate-column caption --reference-column caption"
# Both files have their texts in one column.
CAPTIONED = {
    "c.json": [{"caption": "a cat"}, {"caption": "a dog"}],
    "r.json": [{"caption": "the cat"}, {"caption": "the dog"}],
}
TEXTS = {"b": "a cat", "a": "a dog"}
ANIMALS = [("a cat", ["the cat"]), ("a dog", ["the dog"])]
CHAT = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "the dog"}]
DOTTED = [{"doc": {"highlights": "the cat", "n": 1}, "candidate": "a cat", "a.b": "cats", "a": {"b": "dogs"}}]
# Numbers of lines are equal in both files, and are no ids.
NUMBERED = {
    "c.json": [{"line": i, **row} for i, row in enumerate(CANDIDATES)],
    "r.json": [{"line": i, **row} for i, row in enumerate(REFERENCES)],
}
BY_ORDER = [("it rains", ["the cat"]), ("a cat sat", ["went"]), ("go", ["rain"])]
# A number of tokens is no key, even where a value is in both files.
TOKENS = {
    "c.json": [{"tokens": 4, "candidate": "a"}, {"tokens": 5, "candidate": "b"}],
    "r.json": [{"tokens": 5, "reference": "x"}, {"tokens": 8, "reference": "y"}],
}
SAMPLES = [*CANDIDATES, {"id": 1, "candidate": "rains"}]
WITH_REFERENCES = {
    "c.json": [{**row, "reference": row["candidate"]} for row in CANDIDATES],
    "more.txt": ["rain", "the cat", "went"],
}
UNREAD = "...c.json: the references in 'reference' are not read, because -r has others. To read them, remove -r..."
# Files, arguments, the pairs that are scored, and what is printed.
PAIRED = {
    "the same order": ({"c.json": CANDIDATES, "r.json": REFERENCES[2:] + REFERENCES[:2]}, "c.json r.json", JOINED, ""),
    "images of COCO": (
        COCO,
        f"c.json r.json {CAPTIONS}",
        [("a cat", ["the cat", "cats"]), ("a dog", ["the dog", "dogs", "one dog"])],
        MOVED.format("image_id"),
    ),
    "one column of both files": (CAPTIONED, f"c.json r.json {CAPTIONS}", ANIMALS, ""),
    "objects of texts": (
        {"c.json": TEXTS, "r.json": {"a": ["the dog", "dogs"], "b": ["the cat"]}},
        "c.json r.json",
        [("a cat", ["the cat"]), ("a dog", ["the dog", "dogs"])],
        MOVED.format("id"),
    ),
    "an object, a column and a chat": (
        {"c.json": TEXTS, "r.json": [{"id": "a", "reference": CHAT}, {"id": "b", "reference": "the cat"}]},
        "c.json r.json",
        ANIMALS,
        MOVED.format("id"),
    ),
    "an object and plain lines": (
        {"c.json": TEXTS, "r.txt": ["the cat", "the dog"]},
        "c.json r.txt",
        ANIMALS,
        "",
    ),
    "dotted names": (
        {"c.json": DOTTED},
        "c.json --reference-column doc.highlights --reference-column a.b",
        [("a cat", ["the cat", "cats"])],
        "",
    ),
    "numbers of lines": (NUMBERED, "c.json r.json", JOINED, MOVED.format("id")),
    "a named key": (NUMBERED, "c.json r.json --key id", JOINED, MOVED.format("id")),
    "no key": (NUMBERED, "c.json r.json --key none", BY_ORDER, ""),
    "several samples of one input": (
        {"c.json": SAMPLES, "r.json": REFERENCES},
        "c.json r.json --key id",
        [*JOINED, ("rains", ["rain"])],
        MOVED.format("id"),
    ),
    "columns with other values": (TOKENS, "c.json r.json", [("a", ["x"]), ("b", ["y"])], ""),
    "references of both files": (
        WITH_REFERENCES,
        "-c c.json -r more.txt --reference-column reference",
        [(text, [text, *references]) for text, references in JOINED],
        "",
    ),
    "references that are not read": (WITH_REFERENCES, "-c c.json -r more.txt", JOINED, UNREAD),
}


@pytest.mark.parametrize(("files", "arguments", "pairs", "message"), PAIRED.values(), ids=PAIRED)
def test_rows_of_two_files_are_paired(tmp_path, monkeypatch, capsys, files, arguments, pairs, message):
    monkeypatch.chdir(tmp_path)
    for name, content in files.items():
        write_file(tmp_path / name, content)

    scored = scored_pairs(monkeypatch, *arguments.split())

    assert scored == pairs
    messages = [f"bertscore-tm: {message}"]
    if not message:
        messages = []
    check_lines(capsys.readouterr().err, messages)


OTHERS = [{"id": 4, "reference": ""}, *REFERENCES[1:]]
# Candidates, references, the option for their key, and the error.
UNJOINED = [
    (CANDIDATES, REFERENCES[:2], "", "c.json and r.json differ in 'id': 2 of 3 values are in both..."),
    (CANDIDATES[1:], REFERENCES, "", "c.json and r.json differ in 'id': 2 of 3 values are in both..."),
    (CANDIDATES, OTHERS, "", "...'id': 2 of 4 values are in both..."),
    (CANDIDATES, OTHERS, "--key id", "r.json has no row with the id '2'..."),
    (CANDIDATES, ["a", "b", "c"], "--key id", "r.json has no column 'id'..."),
    (CANDIDATES, REFERENCES, "--key number", "c.json: row 1: no column or key 'number'..."),
    (
        [{"key": i, **row} for i, row in enumerate(CANDIDATES)],
        [{"key": i, **row} for i, row in enumerate(REFERENCES)],
        "",
        "'key' and 'id' pair the rows of c.json and r.json differently...",
    ),
    (
        TEXTS,
        [{"id": "b", "reference": CHAT[:1]}, {"id": "a", "reference": "x"}],
        "",
        "r.json: row 1: 'reference' is a chat without a message of the assistant...",
    ),
]


@pytest.mark.parametrize(("candidates", "references", "key", "error"), UNJOINED)
def test_a_missing_key_is_an_error(tmp_path, capsys, candidates, references, key, error):
    files = {"c.json": candidates, "r.json": references}

    check_case(ShellCase(f"score c.json r.json {key}", files, error=error), tmp_path, capsys)


def test_documents_and_systems_are_joined_too(tmp_path, monkeypatch, capsys):
    """Two systems with the same texts, of which one is in another order."""
    monkeypatch.chdir(tmp_path)
    save_tiny_model("bert", tmp_path / "model")
    texts = [f"the {noun} sat on a mat" for noun in ("cat", "dog", "man", "sun", "hat", "car", "bird")]
    rows = [{"id": f"{i}", "candidate": text} for i, text in enumerate(texts)]
    write_records(tmp_path / "a.jsonl", rows)
    write_records(tmp_path / "b.jsonl", rows[::-1])
    references = [{"id": f"{i}", "reference": text, "doc": f"{i // 2}"} for i, text in enumerate(texts)]
    write_records(tmp_path / "r.jsonl", references[2:] + references[:2])
    compare = partial(run_here, capsys, "compare", "-m", "model", "-l", "2", "--device", "cpu", "--json")

    document = json.loads(compare("a.jsonl", "b.jsonl", "-r", "r.jsonl", "--document-column", "doc").out)

    assert [system["f1"] for system in document["systems"]] == pytest.approx([1, 1])
    assert document["differences"][0]["ties"] == len(texts)
    assert document["num_documents"] == 4

    # The same from one file with the systems in a column.
    both = [{"system": "a", **row, "reference": row["candidate"]} for row in rows]
    both += [{**row, "system": "b"} for row in both[::-1]]
    write_records(tmp_path / "both.jsonl", both)
    document = json.loads(compare("-c", "both.jsonl", "--system-column", "system").out)

    assert document["differences"][0]["ties"] == len(texts)

    repeated = [*rows[:-1], rows[0]]
    write_records(tmp_path / "b.jsonl", repeated)
    printed = compare("a.jsonl", "b.jsonl", "-r", "r.jsonl", "--key", "id", exit_code=2)

    check_error(printed, "b.jsonl has no row with the id '6': it lacks 1 of 7 values of a.jsonl. Add these rows")
