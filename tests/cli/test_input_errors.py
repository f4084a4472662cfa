"""One-line errors for bad input that name file and line."""

import gzip

import pytest

from bertscore_tm.cli import main
from bertscore_tm.cli.errors import CommandError, use_option_names
from tests.support.shell import from_stdin

pytestmark = pytest.mark.usefixtures("one_thread")

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
        "no references: give -r FILE, or --format if {}/c.txt also contains them",
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
        "{}/c.jsonl:2: 'references' must be an array of at least one text",
    ),
    "unknown suffix": (
        {"c.docx": GOOD},
        ["-c", "{}/c.docx"],
        "{}/c.docx: the suffix .docx is not one of txt, tsv, csv, jsonl, json, parquet: give --format",
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
        ["-c", "-", "-r", "{}/r.txt", "--idf", "-"],
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
        ["-c", "{}/c.txt", "-r", "{}/c.txt", "--idf", "{}/no.txt"],
        "{}/no.txt: No such file or directory",
    ),
    "no output folder": ({}, ["-o", "{}/no/scores.json"], "argument --output: the folder {}/no does not exist"),
    "output is a folder": ({}, ["-o", "{}"], "argument --output: {} is a folder"),
    "unknown argument": (
        {},
        ["--layer", "3"],
        "unknown: --layer: did you mean --num-layers? (see bertscore-tm score --help)",
    ),
    "a text as a file": (
        {},
        ["-c", "it rains", "-r", "rain"],
        "it rains: no such file; a text is given with --candidate-text and --reference-text",
    ),
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
        ("turn prefix_space off", "turn --prefix-space off"),
        ("no space left on device", "no space left on device"),
        ("--num-layers=3", "--num-layers=3"),
        ("pass trust_remote_code=True", "pass --trust-remote-code "),
        ("/data/stride/device-1/num_layers.txt", "/data/stride/device-1/num_layers.txt"),
    ],
)
def test_argument_names_are_replaced_with_options(message, printed):
    assert use_option_names(message).strip() == printed.strip()
