"""Rows of several files that belong together: by their keys, or by their order where they have none."""

import json
from functools import partial

import pytest

from tests.cli.test_files import scored_pairs
from tests.support.models import save_tiny_model
from tests.support.shell import check_error, run_here, write_lines, write_records
from tests.support.shell_cases import ShellCase, check_case, write_file

CANDIDATES = [{"id": 1, "candidate": "it rains"}, {"id": 2, "candidate": "a cat sat"}, {"id": 3, "candidate": "go"}]
REFERENCES = [{"id": 2, "reference": "the cat"}, {"id": 3, "reference": "went"}, {"id": 1, "reference": "rain"}]
JOINED = [("it rains", ["rain"]), ("a cat sat", ["the cat"]), ("go", ["went"])]


@pytest.fixture
def joined(tmp_path, monkeypatch, capsys):
    """Return the pairs of a command's files, which are written as JSON, and what it printed about them."""
    monkeypatch.chdir(tmp_path)

    def run(files, *arguments):
        for name, content in files.items():
            write_file(tmp_path / name, content)
        pairs = scored_pairs(monkeypatch, *arguments)
        return pairs, capsys.readouterr().err

    return run


@pytest.fixture
def refused(tmp_path, monkeypatch, capsys):
    """Check the error about a command's files, which are written as JSON."""
    monkeypatch.chdir(tmp_path)

    def run(files, arguments, message):
        for name, content in files.items():
            write_file(tmp_path / name, content)
        check_error(run_here(capsys, *arguments, exit_code=2), message)

    return run


@pytest.mark.parametrize("suffix", ["jsonl", "csv", "json", "parquet"])
def test_rows_of_a_shared_column_belong_together(tmp_path, monkeypatch, capsys, suffix):
    monkeypatch.chdir(tmp_path)
    names = [f"c.{suffix}", f"r.{suffix}"]
    for name, rows in zip(names, (CANDIDATES, REFERENCES), strict=True):
        write_file(tmp_path / name, rows)
    assert scored_pairs(monkeypatch, *names) == JOINED
    message = f"rows are joined by 'id': the order of {names[1]} is not that of {names[0]}"
    assert capsys.readouterr().err == f"bertscore-tm: {message}\n"
    # In the same order nothing is said.
    write_file(tmp_path / names[1], sorted(REFERENCES, key=lambda row: row["id"]))
    assert scored_pairs(monkeypatch, *names) == JOINED
    assert capsys.readouterr().err == ""


def test_annotations_of_coco_are_joined_by_image(joined):
    results = [{"image_id": 7, "caption": "a cat"}, {"image_id": 3, "caption": "a dog"}]
    captions = [(3, "the dog"), (7, "the cat"), (7, "cats"), (3, "dogs"), (3, "one dog")]
    annotations = [{"id": i, "image_id": image, "caption": text} for i, (image, text) in enumerate(captions)]
    files = {"c.json": results, "r.json": {"images": [{"id": 3}, {"id": 7}], "annotations": annotations}}
    columns = ["--candidate-column", "caption", "--reference-column", "caption"]
    pairs, printed = joined(files, "c.json", "r.json", *columns)
    assert pairs == [("a cat", ["the cat", "cats"]), ("a dog", ["the dog", "dogs", "one dog"])]
    assert "rows are joined by 'image_id'" in printed


def test_objects_of_texts_are_joined_by_key(joined, refused):
    texts, others = {"b": "a cat", "a": "a dog"}, {"a": ["the dog", "dogs"], "b": ["the cat"]}
    expected = [("a cat", ["the cat"]), ("a dog", ["the dog", "dogs"])]
    assert joined({"c.json": texts, "r.json": others}, "c.json", "r.json")[0] == expected
    # Also with a column of other files, and with a chat.
    chat = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "the dog"}]
    rows = [{"id": "a", "reference": chat}, {"id": "b", "reference": "the cat"}]
    assert joined({"r.json": rows}, "c.json", "r.json")[0] == [("a cat", ["the cat"]), ("a dog", ["the dog"])]
    no_answer = [{"id": "b", "reference": chat[:1]}, {"id": "a", "reference": "x"}]
    message = "r.json: row 1: 'reference' is a chat without a message of the assistant"
    refused({"r.json": no_answer}, ["score", "c.json", "r.json"], message)


def test_a_dotted_name_is_a_column_in_an_object(joined):
    rows = [{"doc": {"highlights": "the cat", "n": 1}, "candidate": "a cat", "a.b": "cats", "a": {"b": "dogs"}}]
    columns = ["--reference-column", "doc.highlights", "--reference-column", "a.b"]
    assert joined({"c.json": rows}, "c.json", *columns)[0] == [("a cat", ["the cat", "cats"])]


def test_a_key_is_named_where_columns_differ(joined, refused):
    """Numbers of lines are equal in both files, and are no ids."""
    candidates = [{"line": i, **row} for i, row in enumerate(CANDIDATES)]
    references = [{"line": i, **row} for i, row in enumerate(REFERENCES)]
    files = {"c.json": candidates, "r.json": references}
    assert joined(files, "c.json", "r.json")[0] == JOINED
    assert joined({}, "c.json", "r.json", "--key", "id")[0] == JOINED
    pairs, _ = joined({}, "c.json", "r.json", "--key", "none")
    assert pairs == [("it rains", ["the cat"]), ("a cat sat", ["went"]), ("go", ["rain"])]
    keys = {"c.json": [{"key": i, **row} for i, row in enumerate(CANDIDATES)]}
    keys["r.json"] = [{"key": i, **row} for i, row in enumerate(REFERENCES)]
    message = "'key' and 'id' pair the rows of c.json and r.json differently"
    refused(keys, ["score", "c.json", "r.json"], message)
    # Several samples of one input, which only a named key joins.
    samples = [*CANDIDATES, {"id": 1, "candidate": "rains"}]
    pairs, _ = joined({"c.json": samples}, "c.json", "r.json", "--key", "id")
    assert pairs == [*JOINED, ("rains", ["rain"])]


OTHERS = [{"id": 4, "reference": ""}, *REFERENCES[1:]]
# Candidates, references, the option for their key, and the error.
UNJOINED = [
    (CANDIDATES, REFERENCES[:2], "", "c.json and r.json differ in 'id': 2 of 3 values are in both..."),
    (CANDIDATES[1:], REFERENCES, "", "c.json and r.json differ in 'id': 2 of 3 values are in both..."),
    (CANDIDATES, OTHERS, "", "...'id': 2 of 4 values are in both..."),
    (CANDIDATES, OTHERS, "--key id", "r.json has no row with the id '2'..."),
    (CANDIDATES, ["a", "b", "c"], "--key id", "r.json has no column 'id'..."),
    (CANDIDATES, REFERENCES, "--key number", "c.json: row 1: no column or key 'number'..."),
]


@pytest.mark.parametrize(("candidates", "references", "key", "error"), UNJOINED)
def test_a_missing_key_is_an_error(tmp_path, capsys, candidates, references, key, error):
    files = {"c.json": candidates, "r.json": references}

    check_case(ShellCase(f"score c.json r.json {key}", files, error=error), tmp_path, capsys)


def test_columns_with_other_values_do_not_join(joined):
    """A number of tokens is no key, even where a value is in both files."""
    candidates = [{"tokens": n, "candidate": text} for n, text in ((4, "a"), (5, "b"), (6, "c"))]
    references = [{"tokens": n, "reference": text} for n, text in ((5, "a"), (8, "b"), (9, "c"))]
    pairs, printed = joined({"c.json": candidates, "r.json": references}, "c.json", "r.json")
    assert pairs == [("a", ["a"]), ("b", ["b"]), ("c", ["c"])]
    assert printed == ""


def test_keys_without_keys_in_the_other_file_are_paired_by_order(joined, tmp_path):
    write_lines(tmp_path / "r.txt", ["the cat", "the dog"])
    pairs, printed = joined({"c.json": {"b": "a cat", "a": "a dog"}}, "c.json", "r.txt")
    assert pairs == [("a cat", ["the cat"]), ("a dog", ["the dog"])]
    assert printed == ""


def test_references_of_the_candidates_file_are_read_or_mentioned(joined, tmp_path):
    write_lines(tmp_path / "more.txt", ["rain", "the cat", "went"])
    rows = [{**row, "reference": row["candidate"]} for row in CANDIDATES]
    named = ["--reference-column", "reference"]
    pairs, printed = joined({"c.json": rows}, "-c", "c.json", "-r", "more.txt", *named)
    assert pairs == [(text, [text, *references]) for text, references in JOINED]
    assert printed == ""
    pairs, printed = joined({}, "-c", "c.json", "-r", "more.txt")
    assert pairs == JOINED
    assert (
        "c.json: the references in 'reference' are not read, because -r has others. To read them, remove -r" in printed
    )


def test_the_candidates_are_not_taken_for_references(joined):
    """Both files have their texts in one column."""
    files = {
        "c.json": [{"caption": "a cat"}, {"caption": "a dog"}],
        "r.json": [{"caption": "the cat"}, {"caption": "the dog"}],
    }
    columns = ["--candidate-column", "caption", "--reference-column", "caption"]
    pairs, printed = joined(files, "c.json", "r.json", *columns)
    assert pairs == [("a cat", ["the cat"]), ("a dog", ["the dog"])]
    assert printed == ""


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
