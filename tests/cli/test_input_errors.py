"""One-line errors for bad input that name file and line."""

import gzip
import shlex
from pathlib import Path

import pytest

from bertscore_tm.cli import main
from tests.support.shell import check_error, from_stdin, run_here

GOOD = b"a cat\na dog\n"
ROW = b'{"candidate": "a", "reference": "b"}\n'
NOT_TEXTS = "must be a text or an array of texts, got"
# A file of candidates and references, its content, and the error message after the file's name.
BAD_FILES = [
    ("c.tsv", b"cand\tref\na\tb\n", "2: no column or key 'candidate'; there are 'cand', 'ref'"),
    ("c.tsv", b"candidate\treference\na\tb\na\tb\tc\n", "3: 3 columns, but the first line has 2: ['candidate', ..."),
    ("c.csv", b'candidate,reference\n"a\nb",c\na,b,c\n', "4: 3 columns, but the first line has 2: ['candidate', ..."),
    ("c.csv", b"candidate,reference,candidate\na,b,c\n", "1: more than one column is named 'candidate'"),
    ("c.csv", b"candidate;reference\na;b\n", "1: one column, 'candidate;reference', whose columns seem to be ..."),
    ("c.csv", b"candidate;reference\na;b, c\n", "2: 2 columns, but the first line has 1: ['candidate;reference']"),
    ("c.csv", b'candidate,reference\n"a",b\n"a"b,c\n', "3: not valid CSV: ',' expected after '\"'"),
    ("c.jsonl", ROW + b'{"candidate": "a"\n', "2: not valid JSON: Expecting ',' delimiter at column 18"),
    ("c.jsonl", ROW + b"\n" + ROW, "2: not valid JSON: Expecting value at column 1"),
    ("c.jsonl", b'["a", "b"]\n', "1: must be an object, got ['a', 'b']"),
    ("c.jsonl", b'{"candidate": null, "reference": "b"}\n', f"1: 'candidate' {NOT_TEXTS} None"),
    ("c.jsonl", b'{"candidate": ["a", "b"]}\n', "1: 'candidate' must be a single text, got an array of 2"),
    ("c.jsonl", b'{"candidate": "a", "references": ["b", 7]}\n', f"1: 'reference' {NOT_TEXTS} ['b', 7]"),
    ("c.jsonl", b'{"candidate": [], "reference": "b"}\n', f"1: 'candidate' {NOT_TEXTS} []"),
    (
        "c.jsonl",
        ROW + b'{"candidate": "a", "reference": "b", "references": ["c"]}\n',
        "2: the columns 'reference' and 'references' both exist: choose with --reference-column",
    ),
    ("c.jsonl", ROW + b'"a cat"\n', "2: must be an object, got 'a cat'"),
    (
        "c.jsonl",
        b'{"candidate": "a", "reference": "b", "reference": "c"}\n',
        "1: more than one key of an object is ...",
    ),
    ("c.parquet", GOOD, " not a valid Parquet file: ..."),
    ("c.xlsx", GOOD, " a spreadsheet: save it as CSV"),
    ("c.json", b'{"data": [{"candidate": "a"}]}', " the objects are within 'data': save that array as a file"),
    ("c.json", ROW * 2, "2: not valid JSON: Extra data at column 1"),
    ("c.json", b'{"version": 1}', " the file must contain a JSON array of objects or strings, or an object of texts"),
    ("c.json", b'[{"candidate": "a", "reference": "b"}, 7]', " row 2: must be an object, got 7"),
    ("c.sgm", GOOD, " the suffix .sgm is not one of txt, tsv, csv, jsonl, json, parquet: give --format"),
    ("c.txt", "a\nb\nc\n".encode("utf-16-le"), " NUL bytes: the file seems to be UTF-16; convert the file to UTF-8"),
    ("c.txt", b"\xef\xbb\xbfa\n\xff", "2: not valid UTF-8: invalid start byte; convert the file to UTF-8"),
]
TEXTS = "give either -c FILE -r FILE, or --candidate-text TEXT --reference-text TEXT"
# Content of the files, arguments, and the error message, in which {} is the folder of the files.
BAD = [
    ({}, "-c no.txt -r no.txt", "no.txt: No such file or directory"),
    ({}, "-c . -r .", ".: Is a directory"),
    ({}, "", TEXTS),
    ({}, "--candidate-text a", TEXTS),
    ({"c.txt": GOOD}, "-c c.txt --reference-text a", TEXTS),
    ({"c.txt": b"", "r.txt": b""}, "-c c.txt -r r.txt", "c.txt: the file contains no texts"),
    ({"c.txt": GOOD}, "-c c.txt", "no references: give -r FILE, or --format if c.txt also contains them"),
    (
        {"c.txt": GOOD, "r.txt": GOOD, "s.txt": b"one\n"},
        "c.txt r.txt s.txt",
        "c.txt and s.txt must have equal numbers of texts, got 2 and 1. ...",
    ),
    ({"c.txt.gz": gzip.compress(GOOD)[:-9]}, "c.txt.gz c.txt.gz", "c.txt.gz: not a valid gzip file: Compressed ..."),
    ({"c.txt.gz": GOOD}, "c.txt.gz c.txt.gz", "c.txt.gz: not a valid gzip file: Not a gzipped file (b'a ')"),
    (
        {"c.tsv": b"a\tb\n"},
        "-c c.tsv --candidate-column 0 --reference-column 2",
        "c.tsv:1: no column or key '0'; there are '1', '2'",
    ),
    ({}, "- -", "standard input can be read once: give - for one file"),
    ({"c.txt": GOOD}, "-c - -r c.txt --idf-from -", "standard input can be read once: give - for one file"),
    (
        {"c.csv": b"candidate,doc,doc\na,1,2\n", "r.txt": b"a\n"},
        "-c c.csv -r r.txt --confidence 0.9 --document-column doc",
        "c.csv:1: more than one column is named 'doc'",
    ),
    ({"c.txt": GOOD}, "c.txt c.txt --idf-from c.dat", "c.dat: No such file or directory"),
    ({}, "-o no/scores.json", "argument --output: the folder {}/no does not exist"),
    ({}, "-o .", "argument --output: . must end with .txt or .json or .tsv or .csv"),
    ({}, "-o a.csv", "argument --output: a .csv file lists the scores of each pair: add --per-segment"),
    ({}, "-o a.txt --json", "--json and --output a.txt exclude each other: name the file .json, or remove --json"),
    ({}, "--layer=3", "unrecognized arguments: --layer=3 (see bertscore-tm --help)"),
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
    printed = run_here(capsys, "score", "-c", "-", "-r", tmp_path / "refs.txt", exit_code=2)
    check_error(printed, "^standard input:2: not valid UTF-8: invalid continuation byte")


GIVEN_TWICE = [
    ("score -c a.txt -c b.txt -r r.txt", "-c/--candidates: takes one value, but -c a.txt was given before. Remove one"),
    ("score --cand a.txt -c b.txt -r r.txt", "-c/--candidates: takes one value, but --cand a.txt was given before"),
    ("score a.txt r.txt --sources s.txt --sources t.txt", "--sources: takes one value, but --sources s.txt was"),
    ("score a.txt r.txt --idf-from s.txt --idf-from t.txt", "--idf-from: takes one value, but --idf-from s.txt was"),
    ("score --candidate-text a --candidate-text b", "--candidate-text: takes one value, but --candidate-text a was"),
    ("score a.txt r.txt --dtype float32 --dtype float32", "--dtype: takes one value, but --dtype float32 was"),
    ("compare a.txt b.txt -r r.txt --key id --key n", "--key: takes one value, but --key id was given before"),
]


@pytest.mark.parametrize(("arguments", "message"), GIVEN_TWICE, ids=[case[0] for case in GIVEN_TWICE])
def test_an_option_with_one_value_is_given_once(capsys, arguments, message):
    """The first file was dropped without a word."""
    check_error(run_here(capsys, *arguments.split(), exit_code=2), f"argument {message}")
