"""One-line errors for bad input that name file and line."""

import gzip
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from bertscore_tm.cli import main
from tests.support.shell import from_stdin
from tests.support.texts import ROOT

pytestmark = pytest.mark.usefixtures("one_thread")

GOOD = b"a cat\na dog\n"
LONG = "it rains " * 99 + "always"
# A file of candidates and references, its content, and the error message after the file's name.
ROW = b'{"candidate": "a", "reference": "b"}\n'
BAD_FILES = [
    ("c.tsv", b"cand\tref\na\tb\n", "1: no column is named 'candidate'; the file has 'cand', 'ref'"),
    (
        "c.tsv",
        b"candidate\tcandidate\na\tb\n",
        "1: more than one column is named 'candidate'; the file has 'candidate', 'candidate'",
    ),
    ("c.tsv", b"candidate\treference\na\tb\na\tb\tc\n", "3: 3 columns, but the first line has 2"),
    ("c.jsonl", ROW + b'{"candidate": "a"\n', "2: not valid JSON: Expecting ',' delimiter at column 18"),
    ("c.jsonl", ROW + b'\n{"candidate": "a", "reference": "b"}\n', "2: not valid JSON: Expecting value at column 1"),
    (
        "c.jsonl",
        ROW + b'{"candidate": "a", "reference": ' + b"7" * 5000 + b"}\n",
        "2: JSON that cannot be read: Exceeds the limit (4300 digits) ...",
    ),
    ("c.jsonl", b'["a", "b"]\n', "1: the line must be a JSON object, got an array"),
    ("c.jsonl", ROW + b"[" * 100000, "2: JSON that cannot be read: maximum recursion depth exceeded ..."),
    ("c.jsonl", ROW + b'{"candidate": "a", "ref": "b"}\n', "2: no key 'reference'; the object has 'candidate', 'ref'"),
    ("c.jsonl", b'{"candidate": null, "reference": "b"}\n', "1: 'candidate' must be a string, got null"),
    ("c.jsonl", b'{"candidate": "a", "references": ["b", 7]}\n', "1: 'references[1]' must be a string, got a number"),
    ("c.jsonl", b'{"candidate": "a", "references": []}\n', "1: 'references' must be an array of at least one text"),
    ("c.docx", GOOD, " the suffix .docx is not one of txt, tsv, csv, jsonl, json, parquet: give --format"),
    ("c.csv", b'candidate,reference\n"a\nb",c\na,b,c\n', "4: 3 columns, but the first line has 2"),
    ("c.csv", b'candidate,reference\n"a",b\n"a"b,c\n', "3: not valid CSV: ',' expected after '\"'"),
    (
        "c.csv",
        b"candidate;reference\na;b\n",
        "1: no column is named 'candidate'; the file has 'candidate;reference' (its columns seem to be separated by "
        "';': separate them by commas in .csv, by tabs in .tsv)",
    ),
    (
        "c.csv",
        b"candidate;reference\na;b, c\n",
        "2: 2 columns, but the first line has 1 (its columns seem to be separated by ';': separate them by ...",
    ),
    (
        "c.tsv",
        b"candidate,reference\na,b\n",
        "1: no column is named 'candidate'; the file has 'candidate,reference' (...",
    ),
    ("c.txt", "a\nb\nc\n".encode("utf-16-le"), "1: a NUL byte: the file seems to be UTF-16; convert the file to UTF-8"),
    ("c.txt", "a\nb\n".encode("utf-16"), "1: not valid UTF-8: the file seems to be UTF-16; convert the file to UTF-8"),
    ("c.txt", b"a\nb\0c\n", "2: a NUL byte: the file seems to be UTF-16; convert the file to UTF-8"),
    ("c.jsonl", b'{"candidate": ["a", "b"], "reference": "c"}\n', "1: 'candidate' must be a string, got an array"),
    ("c.json", ROW * 2, "2: not valid JSON: Extra data at column 1; for one object per line give --format jsonl"),
    ("c.json", b'{"candidate": ["a"]}', " the file must contain a JSON array of objects or strings"),
    ("c.json", b'[{"candidate": "a", "reference": "b"}, 7]', " row 2: the element must be a JSON object, got a number"),
    (
        "c.jsonl",
        ROW + b'{"candidate": "a", "reference": "b", "references": ["c"]}\n',
        "2: the columns 'reference' and 'references' both exist: choose with --reference-column",
    ),
    ("c.jsonl", b'{"candidate": "\\ud83d", "reference": "b"}\n', "1: 'candidate' contains an unpaired surrogate, ..."),
]
# Content of the files, arguments, and the error message, in which {} is the folder of the files.
BAD = [
    ({}, "-c no.txt -r no.txt", "no.txt: No such file or directory"),
    ({}, "-c . -r .", ".: Is a directory"),
    ({}, "", "give either -c FILE -r FILE, or --candidate-text TEXT --reference-text TEXT"),
    ({"c.txt": b"", "r.txt": b""}, "-c c.txt -r r.txt", "c.txt:1: the file contains no texts"),
    ({"c.txt": GOOD}, "-c c.txt", "no references: give -r FILE, or --format if c.txt also contains them"),
    ({"c.txt": GOOD, "r.txt": b"one\n"}, "-c c.txt -r r.txt", "r.txt:1: the file ends here, but c.txt has 2 texts"),
    (
        {"c.txt": GOOD, "r.txt": GOOD, "s.txt": GOOD + b"a bird\n"},
        "-c c.txt -r r.txt s.txt",
        "c.txt:2: the file ends here, but s.txt has 3 texts",
    ),
    (
        {"c.txt": GOOD, "r.tsv": b"reference\nthe cat\n"},
        "-c c.txt -r r.tsv",
        "r.tsv:2: the file ends here, but c.txt has 2 texts",
    ),
    (
        {"c.txt": GOOD, "r.txt": "a\r\ndéjà\n".encode("latin-1")},
        "-c c.txt -r r.txt",
        "r.txt:2: not valid UTF-8: byte 2 of the line is 0xe9; convert the file to UTF-8",
    ),
    (
        {"c.txt": b"\xef\xbb\xbfa\n\xff"},
        "-c c.txt -r c.txt",
        "c.txt:2: not valid UTF-8: byte 1 of the line is 0xff; convert the file to UTF-8",
    ),
    (
        {"c.txt.gz": gzip.compress(GOOD)[:-9]},
        "-c c.txt.gz -r c.txt.gz",
        "c.txt.gz: not a valid gzip file: Compressed file ended before the end-of-stream marker was reached",
    ),
    ({"c.txt.gz": GOOD}, "-c c.txt.gz -r c.txt.gz", "c.txt.gz: not a valid gzip file: Not a gzipped file (b'a ')"),
    (
        {"c.tsv": b"a\tb\n"},
        "-c c.tsv --candidate-column 0 --reference-column 2",
        "c.tsv:1: no column is named '0'; the file has '1', '2'",
    ),
    ({}, "-c - -r -", "standard input (-) can be read only once: put the other texts into a file"),
    (
        {"c.txt": GOOD},
        "-c c.txt --reference-text a",
        "give either -c FILE -r FILE, or --candidate-text TEXT --reference-text TEXT",
    ),
    ({}, "--candidate-text a", "give either -c FILE -r FILE, or --candidate-text TEXT --reference-text TEXT"),
    ({"c.txt": GOOD}, "-c c.txt -r c.txt --idf no.txt", "no.txt: No such file or directory"),
    ({}, "-o no/scores.json", "argument --output: the folder {}/no does not exist"),
    ({}, "-o .", "argument --output: . must end with .txt, .json, .tsv or .csv, which selects the format"),
    ({}, "--layer=3", "unknown: --layer=3: did you mean --num-layers? (see bertscore-tm score --help)"),
    ({}, "--score f1", "unknown: --score (see bertscore-tm score --help)"),
    ({}, "-c 'it rains' -r rain", "it rains: no such file; a text is given with --candidate-text and --reference-text"),
    (
        {},
        f"-c '{LONG}' -r rain",
        f"{LONG}: no such file; a text is given with --candidate-text and --reference-text",
    ),
    (
        {"c.txt": GOOD, "r.txt": GOOD + b"\n"},
        "-c c.txt -r r.txt",
        "c.txt:2: the file ends here, but r.txt has 3 texts, as its blank last line is an empty text",
    ),
    ({}, "--num-layers five", "argument -l/--num-layers: invalid int value: 'five' (see bertscore-tm score --help)"),
]


@pytest.mark.parametrize(
    ("files", "arguments", "message"),
    [*BAD, *(({name: content}, f"-c {name}", f"{name}:{message}") for name, content, message in BAD_FILES)],
)
def test_bad_files_and_arguments_end_in_one_line(tmp_path, monkeypatch, capsys, files, arguments, message):
    monkeypatch.chdir(tmp_path)
    for file, content in files.items():
        Path(file).write_bytes(content)
    assert main(["score", *shlex.split(arguments)]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    expected = f"bertscore-tm: error: {message.replace('{}', str(tmp_path))}"
    # The rest of what Python says differs between its versions.
    start = expected.removesuffix("...")
    assert printed.err.startswith(start)
    assert printed.err.count("\n") == 1
    assert start != expected or printed.err == f"{expected}\n"


def test_standard_input_is_named(monkeypatch, capsys, tmp_path):
    from_stdin(monkeypatch, b"fine\n\xc3(\n")
    (tmp_path / "refs.txt").touch()
    assert main(["score", "-c", "-", "-r", str(tmp_path / "refs.txt")]) == 2
    assert capsys.readouterr().err.startswith("bertscore-tm: error: standard input:2: not valid UTF-8: byte 1 of")


@pytest.mark.parametrize(
    "command", ["score c.txt r.txt", "rank c.txt -o o.jsonl", "compare c.txt d.txt -r r.txt", "baseline c.txt -o o.csv"]
)
def test_a_missing_file_is_found_before_torch_is_imported(command, tmp_path):
    code = f"from bertscore_tm.cli import main; code = main({command.split()})"
    code = f"import sys; {code}; sys.exit(code + 10 * ('torch' in sys.modules))"
    ended = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert (ended.returncode, ended.stderr) == (2, "bertscore-tm: error: c.txt: No such file or directory\n")
