"""Files that the shell command reads, and one-line errors for bad input that name file and line."""

import gzip
import io
import json
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertscore_tm.cli import main
from bertscore_tm.cli.errors import CommandError, replace_arguments_with_options
from bertscore_tm.cli.inputs import read_parts, read_table, read_texts
from bertscore_tm.cli.text_arguments import read_references

pytestmark = pytest.mark.usefixtures("one_thread")

# Lines that Python's str.splitlines would split.
ODD = ["one\u2028line", "two\x0bthree\x0cfour", "next\x85line", "a\rb", "", "  blanks ", "\ufeffnot at the start"]


def from_stdin(monkeypatch, data: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data), encoding="utf-8"))


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_lines_end_at_line_feeds_only(tmp_path, end, mark):
    path = tmp_path / "texts.txt"
    for last in ("", end):
        path.write_bytes(mark + (end.join(["first", *ODD]) + last).encode())
        assert read_texts(str(path)) == ["first", *ODD]
    path.write_bytes(mark + (end * 3).encode())
    assert read_texts(str(path)) == ["", "", ""]


texts = st.lists(
    st.text(st.characters(codec="utf-8", exclude_characters="\n")).filter(lambda text: not text.endswith("\r")),
    min_size=1,
).filter(lambda lines: not lines[0].startswith("\ufeff"))


@settings(max_examples=30)
@given(lines=texts)
def test_written_texts_are_read_back(tmp_path_factory, lines):
    folder = tmp_path_factory.mktemp("written")
    with (folder / "a.txt").open("w", encoding="utf-8", newline="") as file:
        file.writelines(line + "\n" for line in lines)
    assert read_texts(str(folder / "a.txt")) == lines
    with (folder / "a.jsonl").open("w", encoding="utf-8", newline="") as file:
        file.writelines(json.dumps({"text": line}, ensure_ascii=False) + "\n" for line in lines)
    assert read_texts(str(folder / "a.jsonl")) == lines
    cells = [line.replace("\t", " ") for line in lines]
    with gzip.open(folder / "a.tsv.gz", "wt", encoding="utf-8", newline="") as file:
        file.writelines(f"{number}\t{cell}\n" for number, cell in enumerate(cells))
    assert read_texts(str(folder / "a.tsv.gz"), column="2") == cells


def test_the_format_is_the_suffix_unless_it_is_given(tmp_path, monkeypatch):
    path = tmp_path / "texts.JSONL"
    path.write_text('{"text": "a cat"}\n')
    assert read_texts(str(path)) == ["a cat"]
    assert read_texts(str(path), "txt") == ['{"text": "a cat"}']
    from_stdin(monkeypatch, path.read_bytes())
    assert read_texts("-") == ['{"text": "a cat"}']
    from_stdin(monkeypatch, path.read_bytes())
    assert read_texts("-", "jsonl") == ["a cat"]


@pytest.mark.parametrize("end", ["", "\n", "\n\n", "\r\n", "\n \t\r\n\n"])
def test_blank_lines_at_the_end_of_json_lines_are_no_texts(tmp_path, end):
    path = tmp_path / "texts.jsonl"
    path.write_text('{"text": "a cat"}\n{"text": ""}' + end, newline="")
    assert read_texts(str(path)) == ["a cat", ""]
    for size in (1, 2, 3):
        parts = list(read_parts(str(path), size))
        assert [text for part in parts for text in part.texts("text")] == ["a cat", ""]
    # In the middle they are errors, wherever a part ends.
    path.write_text('{"text": "a cat"}\n{"text": ""}' + end + '\n\n{"text": "a dog"}\n', newline="")
    for parts in ([read_table(str(path))], *(read_parts(str(path), size) for size in (1, 2, 3))):
        with pytest.raises(CommandError, match=r"texts.jsonl:3: not valid JSON"):
            [part.texts("text") for part in parts]


def test_blank_lines_at_the_end_of_tsv_are_no_rows(tmp_path):
    path = tmp_path / "pairs.tsv"
    path.write_text("candidate\treference\na cat\tthe cat\n\n \n")
    assert read_table(str(path)).columns(["candidate", "reference"]) == [["a cat"], ["the cat"]]


def test_csv_has_quoted_cells_of_several_lines(tmp_path):
    path = tmp_path / "pairs.csv"
    path.write_bytes(b'\xef\xbb\xbfcandidate,reference\r\n"a ""cat"", sat\nthere",the cat\r\n,"a, dog"\r\n\r\n')
    table = read_table(str(path))
    assert table.columns(["candidate", "reference"]) == [['a "cat", sat\nthere', ""], ["the cat", "a, dog"]]
    path.write_text("a cat,the cat\na dog,the dog\n")
    assert read_texts(str(path), column="2") == ["the cat", "the dog"]
    long = "word " * 50_000
    path.write_text(f"text\n{long}\n")
    assert read_texts(str(path)) == [long]


def test_json_is_an_array_of_objects_or_of_texts(tmp_path):
    path = tmp_path / "pairs.json"
    path.write_text(
        json.dumps([{"candidate": "a\n", "references": ["b", "c"]}, {"candidate": "", "reference": "d"}], indent=2)
    )
    table = read_table(str(path))
    assert table.texts("candidate") == ["a\n", ""]
    assert read_references([table], None, table, 2) == [["b", "c"], ["d"]]
    path.write_text('["a cat", "a\\ndog"]\n')
    assert read_texts(str(path)) == ["a cat", "a\ndog"]


def test_parquet(tmp_path):
    pyarrow, parquet = (pytest.importorskip(name) for name in ("pyarrow", "pyarrow.parquet"))
    path = tmp_path / "pairs.parquet"
    rows = [{"candidate": "a", "references": ["b", "c"]}, {"candidate": "", "references": ["d"]}]
    parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    table = read_table(str(path))
    assert table.texts("candidate") == ["a", ""]
    assert read_references([table], None, table, 2) == [["b", "c"], ["d"]]
    path.write_bytes(b"PAR1")
    with pytest.raises(CommandError, match=r"pairs\.parquet: not a valid Parquet file"):
        read_table(str(path))


def test_parquet_needs_pyarrow(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (tmp_path / "pairs.parquet").write_bytes(b"PAR1")
    with pytest.raises(
        CommandError, match=r"pairs\.parquet: Parquet files need pyarrow: pip install 'bertscore-tm\[parq"
    ):
        read_table(str(tmp_path / "pairs.parquet"))


def test_files_without_a_suffix_are_plain_lines(tmp_path):
    (tmp_path / "hyps").write_text("a cat\n")
    assert read_texts(str(tmp_path / "hyps")) == ["a cat"]


def test_columns_by_name_and_by_number(tmp_path):
    path = tmp_path / "table.tsv"
    path.write_text("id\tsystem\thuman\n1\ta cat\tthe cat\n2\t\tthe dog\n")
    table = read_table(str(path))
    assert table.columns(["human", "system"]) == [["the cat", "the dog"], ["a cat", ""]]
    assert table.columns(["human", "1"]) == [["the cat", "the dog"], ["1", "2"]]
    assert table.columns(["3"]) == [["human", "the cat", "the dog"]]


PAIRS = [("a cat", ["the cat", "cats"]), ("", ["nothing"]), ("x\u2028y", ["z", "z", ""])]


def scored_pairs(monkeypatch, *arguments: str):
    """Return the pairs that the command would score."""
    seen = []

    def stop(arguments):
        from bertscore_tm.cli import text_arguments

        seen.append(text_arguments.read_pairs(arguments))
        return 0

    monkeypatch.setattr("bertscore_tm.cli.score.run", stop)
    assert main(["score", *arguments]) == 0
    return list(zip(seen[0].candidates, seen[0].references, strict=True))


def test_json_lines_hold_pairs_with_any_number_of_references(tmp_path, monkeypatch):
    both = tmp_path / "pairs.jsonl"
    both.write_text("".join(json.dumps({"candidate": c, "references": r}) + "\n" for c, r in PAIRS))
    assert scored_pairs(monkeypatch, "-c", str(both)) == PAIRS
    hyps, refs = tmp_path / "hyps.jsonl", tmp_path / "refs.jsonl"
    hyps.write_text("".join(json.dumps({"hyp": c}) + "\n" for c, _ in PAIRS))
    refs.write_text("".join(json.dumps({"reference": r[0], "other": r[1:]}) + "\n" for _, r in PAIRS))
    apart = ["-c", str(hyps), "-r", str(refs), "--candidate-column", "hyp"]
    assert scored_pairs(monkeypatch, *apart) == [(c, r[:1]) for c, r in PAIRS]
    refs.write_text("".join(json.dumps({"reference": r[0], "other": r[1:] or r[0]}) + "\n" for _, r in PAIRS))
    named = ["--reference-column", "reference", "--reference-column", "other"]
    wanted = [(c, r if len(r) > 1 else r * 2) for c, r in PAIRS]
    assert scored_pairs(monkeypatch, *apart, *named) == wanted


def test_files_and_columns_add_references(tmp_path, monkeypatch):
    hyps, first, second = (tmp_path / name for name in ("hyps.txt", "first.txt", "second.txt.gz"))
    hyps.write_text("a cat\na dog\n")
    first.write_text("the cat\nthe dog\n")
    second.write_bytes(gzip.compress(b"cats\ndogs\n"))
    wanted = [("a cat", ["the cat", "cats"]), ("a dog", ["the dog", "dogs"])]
    assert scored_pairs(monkeypatch, "-c", str(hyps), "-r", str(first), "-r", str(second)) == wanted
    assert scored_pairs(monkeypatch, "-r", str(first), str(second), "-c", str(hyps)) == wanted
    table = tmp_path / "table.tsv"
    table.write_text("reference\tcandidate\tmore\nthe cat\ta cat\tcats\nthe dog\ta dog\tdogs\n")
    assert scored_pairs(monkeypatch, "-c", str(table)) == [(c, r[:1]) for c, r in wanted]
    several = ["--reference-column", "reference", "--reference-column", "more"]
    assert scored_pairs(monkeypatch, "-c", str(table), *several) == wanted
    from_stdin(monkeypatch, table.read_bytes().split(b"\n", 1)[1])
    numbers = ["--candidate-column", "2", "--reference-column", "1", "--reference-column", "3"]
    assert scored_pairs(monkeypatch, "-c", "-", "--format", "tsv", *numbers) == wanted


def test_texts_on_the_command_line(monkeypatch):
    given = ["--candidate-text", "a cat", "--reference-text", "the cat", "--reference-text", "-"]
    assert scored_pairs(monkeypatch, *given) == [("a cat", ["the cat", "-"])]


GOOD = b"a cat\na dog\n"
# Content of the files, arguments, and the error message; {} is the folder of the files.
BAD = {
    "missing file": ({}, ["-c", "{}/no.txt", "-r", "{}/no.txt"], "{}/no.txt: No such file or directory"),
    "a folder": ({}, ["-c", "{}", "-r", "{}"], "{}: Is a directory"),
    "no texts": ({}, [], "no texts: give -c FILE -r FILE, or --candidate-text TEXT --reference-text TEXT"),
    "empty file": (
        {"c.txt": b"", "r.txt": b""},
        ["-c", "{}/c.txt", "-r", "{}/r.txt"],
        "{}/c.txt:1: the file contains no texts",
    ),
    "no references": (
        {"c.txt": GOOD},
        ["-c", "{}/c.txt"],
        "no references: give -r FILE, or --format tsv or jsonl if {}/c.txt also contains the references",
    ),
    "fewer references": (
        {"c.txt": GOOD, "r.txt": b"one\n"},
        ["-c", "{}/c.txt", "-r", "{}/r.txt"],
        "{}/r.txt:1: the file ends here, but {}/c.txt has 2 texts",
    ),
    "fewer candidates": (
        {"c.txt": GOOD, "r.txt": GOOD, "s.txt": GOOD + b"a bird\n"},
        ["-c", "{}/c.txt", "-r", "{}/r.txt", "{}/s.txt"],
        "{}/c.txt:2: the file ends here, but {}/s.txt has 3 texts",
    ),
    "fewer rows below a header": (
        {"c.txt": GOOD, "r.tsv": b"reference\nthe cat\n"},
        ["-c", "{}/c.txt", "-r", "{}/r.tsv"],
        "{}/r.tsv:2: the file ends here, but {}/c.txt has 2 texts",
    ),
    "not UTF-8": (
        {"c.txt": GOOD, "r.txt": "a\r\nd\u00e9j\u00e0\n".encode("latin-1")},
        ["-c", "{}/c.txt", "-r", "{}/r.txt"],
        "{}/r.txt:2: not valid UTF-8: byte 2 of the line is 0xe9; convert the file to UTF-8",
    ),
    "not UTF-8 after a byte order mark": (
        {"c.txt": b"\xef\xbb\xbfa\n\xff"},
        ["-c", "{}/c.txt", "-r", "{}/c.txt"],
        "{}/c.txt:2: not valid UTF-8: byte 1 of the line is 0xff; convert the file to UTF-8",
    ),
    "cut gzip": (
        {"c.txt.gz": gzip.compress(GOOD)[:-9]},
        ["-c", "{}/c.txt.gz", "-r", "{}/c.txt.gz"],
        "{}/c.txt.gz: not a valid gzip file: Compressed file ended before the end-of-stream marker was reached",
    ),
    "not gzip": (
        {"c.txt.gz": GOOD},
        ["-c", "{}/c.txt.gz", "-r", "{}/c.txt.gz"],
        "{}/c.txt.gz: not a valid gzip file: Not a gzipped file (b'a ')",
    ),
    "no column": (
        {"c.tsv": b"cand\tref\na\tb\n"},
        ["-c", "{}/c.tsv"],
        "{}/c.tsv:1: no column is named 'candidate'; the header has 'cand', 'ref'",
    ),
    "no numbered column": (
        {"c.tsv": b"a\tb\n"},
        ["-c", "{}/c.tsv", "--candidate-column", "0", "--reference-column", "2"],
        "{}/c.tsv:1: column 0 does not exist: the line has 2, numbered from 1",
    ),
    "column twice": (
        {"c.tsv": b"candidate\tcandidate\na\tb\n"},
        ["-c", "{}/c.tsv"],
        "{}/c.tsv:1: more than one column is named 'candidate'; the header has 'candidate', 'candidate'",
    ),
    "ragged row": (
        {"c.tsv": b"candidate\treference\na\tb\na\tb\tc\n"},
        ["-c", "{}/c.tsv"],
        "{}/c.tsv:3: 3 columns, but the first line has 2",
    ),
    "bad JSON": (
        {"c.jsonl": b'{"candidate": "a", "reference": "b"}\n{"candidate": "a"\n'},
        ["-c", "{}/c.jsonl"],
        "{}/c.jsonl:2: not valid JSON: Expecting ',' delimiter at column 18",
    ),
    "blank line": (
        {"c.jsonl": b'{"candidate": "a", "reference": "b"}\n\n{"candidate": "a", "reference": "b"}\n'},
        ["-c", "{}/c.jsonl"],
        "{}/c.jsonl:2: not valid JSON: Expecting value at column 1",
    ),
    "a number of too many digits": (
        {"c.jsonl": b'{"candidate": "a", "reference": "b"}\n{"candidate": "a", "reference": ' + b"7" * 5000 + b"}\n"},
        ["-c", "{}/c.jsonl"],
        "{}/c.jsonl:2: a number has more than 4300 digits",
    ),
    "not an object": (
        {"c.jsonl": b'["a", "b"]\n'},
        ["-c", "{}/c.jsonl"],
        "{}/c.jsonl:1: the line must be a JSON object, got an array",
    ),
    "nested": (
        {"c.jsonl": b'{"candidate": "a"}\n' + b"[" * 100_000},
        ["-c", "{}/c.jsonl"],
        "{}/c.jsonl:2: the JSON value is nested too deeply",
    ),
    "no key": (
        {"c.jsonl": b'{"candidate": "a", "reference": "b"}\n{"candidate": "a", "ref": "b"}\n'},
        ["-c", "{}/c.jsonl"],
        "{}/c.jsonl:2: no key 'reference'; the object has 'candidate', 'ref'",
    ),
    "null": (
        {"c.jsonl": b'{"candidate": null, "reference": "b"}\n'},
        ["-c", "{}/c.jsonl"],
        "{}/c.jsonl:1: 'candidate' must be a string, got null",
    ),
    "a list of candidates": (
        {"c.jsonl": b'{"candidate": ["a"], "reference": "b"}\n'},
        ["-c", "{}/c.jsonl"],
        "{}/c.jsonl:1: 'candidate' must be a string, got an array",
    ),
    "number among references": (
        {"c.jsonl": b'{"candidate": "a", "references": ["b", 7]}\n'},
        ["-c", "{}/c.jsonl"],
        "{}/c.jsonl:1: 'references[1]' must be a string, got a number",
    ),
    "empty list of references": (
        {"c.jsonl": b'{"candidate": "a", "references": ["b"]}\n{"candidate": "a", "references": []}\n'},
        ["-c", "{}/c.jsonl"],
        "{}/c.jsonl:2: 'references' is an empty array: every candidate needs at least one reference",
    ),
    "unknown suffix": (
        {"c.docx": GOOD},
        ["-c", "{}/c.docx"],
        "{}/c.docx: the suffix .docx is not one of txt, tsv, csv, jsonl, json, parquet: give --format (txt for plain "
        "lines)",
    ),
    "ragged CSV": (
        {"c.csv": b'candidate,reference\n"a\nb",c\na,b,c\n'},
        ["-c", "{}/c.csv"],
        "{}/c.csv:4: 3 columns, but the first line has 2",
    ),
    "bad CSV": (
        {"c.csv": b'candidate,reference\n"a",b\n"a"b,c\n'},
        ["-c", "{}/c.csv"],
        "{}/c.csv:3: not valid CSV: ',' expected after '\"'",
    ),
    "blank line in CSV": (
        {"c.csv": b"candidate,reference\na,b\n\na,b\n"},
        ["-c", "{}/c.csv"],
        "{}/c.csv:3: 0 columns, but the first line has 2",
    ),
    "JSON lines in a JSON file": (
        {"c.json": b'{"candidate": "a", "reference": "b"}\n{"candidate": "a", "reference": "b"}\n'},
        ["-c", "{}/c.json"],
        "{}/c.json:2: not valid JSON: Extra data at column 1; for one object per line give --format jsonl",
    ),
    "no JSON array": (
        {"c.json": b'{"candidate": ["a"], "reference": ["b"]}'},
        ["-c", "{}/c.json"],
        "{}/c.json: the file must contain a JSON array of objects or strings",
    ),
    "a number among JSON objects": (
        {"c.json": b'[{"candidate": "a", "reference": "b"}, 7]'},
        ["-c", "{}/c.json"],
        "{}/c.json: row 2: the element must be a JSON object, got a number",
    ),
    "reference and references in a later row": (
        {
            "c.jsonl": b'{"candidate": "a", "reference": "b"}\n'
            b'{"candidate": "a", "reference": "b", "references": ["c"]}\n'
        },
        ["-c", "{}/c.jsonl"],
        "{}/c.jsonl:2: the columns 'reference' and 'references' both exist: choose with --reference-column",
    ),
    "reference and references": (
        {"c.jsonl": b'{"candidate": "a", "references": ["b"], "reference": "b"}\n'},
        ["-c", "{}/c.jsonl"],
        "{}/c.jsonl:1: the columns 'reference' and 'references' both exist: choose with --reference-column",
    ),
    "half a character": (
        {"c.jsonl": b'{"candidate": "\\ud83d", "reference": "b"}\n'},
        ["-c", "{}/c.jsonl"],
        "{}/c.jsonl:1: 'candidate' contains an unpaired surrogate, which is not a character",
    ),
    "standard input twice": (
        {},
        ["-c", "-", "-r", "-"],
        "standard input (-) can be read only once: put the other texts into a file",
    ),
    "standard input for idf too": (
        {},
        ["-c", "-", "-r", "{}/r.txt", "--idf-file", "-"],
        "standard input (-) can be read only once: put the other texts into a file",
    ),
    "files and texts": (
        {"c.txt": GOOD},
        ["-c", "{}/c.txt", "--reference-text", "a"],
        "give files (-c, -r) or texts (--candidate-text, --reference-text), not both",
    ),
    "one text": ({}, ["--candidate-text", "a"], "--candidate-text and --reference-text need each other: give both"),
    "missing idf file": (
        {"c.txt": GOOD},
        ["-c", "{}/c.txt", "-r", "{}/c.txt", "--idf-file", "{}/no.txt"],
        "{}/no.txt: No such file or directory",
    ),
    "no output folder": ({}, ["-o", "{}/no/scores.json"], "argument --output: the folder {}/no does not exist"),
    "output is a folder": ({}, ["-o", "{}"], "argument --output: {} is a folder"),
    "unknown argument": ({}, ["--lyers", "3"], "unrecognized arguments: --lyers 3 (see bertscore-tm score --help)"),
    "blank last line": (
        {"c.txt": GOOD, "r.txt": GOOD + b"\n"},
        ["-c", "{}/c.txt", "-r", "{}/r.txt"],
        "{}/c.txt:2: the file ends here, but {}/r.txt has 3 texts, as its blank last line is an empty text",
    ),
    "not a number": (
        {},
        ["--num-layers", "five"],
        "argument -l/--num-layers: invalid int value: 'five' (see bertscore-tm score --help)",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_ends_in_one_line(tmp_path, capsys, name):
    files, arguments, message = BAD[name]
    for file, content in files.items():
        (tmp_path / file).write_bytes(content)
    folder = str(tmp_path)
    assert main(["score", *(argument.replace("{}", folder) for argument in arguments)]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err == f"bertscore-tm: error: {message.replace('{}', folder)}\n"


def test_standard_input_is_named(monkeypatch, capsys):
    from_stdin(monkeypatch, b"fine\n\xc3(\n")
    assert main(["score", "-c", "-", "-r", "refs.txt"]) == 2
    assert capsys.readouterr().err.startswith("bertscore-tm: error: standard input:2: not valid UTF-8: byte 1 of")


def test_error_messages_are_joined_to_one_line():
    assert str(CommandError("a\n  b\tc")) == "a b c"


@pytest.mark.parametrize(
    ("message", "printed"),
    [
        ("max_length=9 exceeds", "--max-length 9 exceeds"),
        ("turn rescale_with_baseline off", "turn --rescale off"),
        ("no space left on device", "no space left on device"),
        ("--num-layers=3", "--num-layers=3"),
        ("pass trust_remote_code=True", "pass --trust-remote-code "),
        ("/data/stride/device-1/num_layers.txt", "/data/stride/device-1/num_layers.txt"),
    ],
)
def test_argument_names_are_replaced_with_options(message, printed):
    assert replace_arguments_with_options(message).strip() == printed.strip()
