"""One-line errors for bad input that name file and line, and advice that works."""

import gzip
import json
import re
import shlex
import shutil
import subprocess
import sys
from operator import attrgetter
from pathlib import Path

import pytest

from bertscore_tm.cli.files import read_table
from tests.support.markdown_blocks import ROOT, anchors
from tests.support.shell import check_error, from_stdin, run_here, write_records
from tests.support.shell_cases import ShellCase, check_case

GOOD = b"a cat\na dog\n"
ROW = b'{"candidate": "a", "reference": "b"}\n'
ROWS = "Write an array of objects or strings, or an object of texts"
NOT_TEXTS = "must be a text or an array of texts, got"
# A file of candidates and references, its content, and the error after the file's name.
BAD_FILES = [
    (
        "c.tsv",
        b"cand\tref\na\tb\n",
        "2: no column or key 'candidate'; there are 'cand', 'ref'. Choose a column with --candidate-column NAME",
    ),
    ("c.tsv", b"candidate\treference\na\tb\na\tb\tc\n", "3: 3 columns, but the first line has 2: ['candidate', ..."),
    ("c.csv", b'candidate,reference\n"a\nb",c\na,b,c\n', "4: 3 columns, but the first line has 2: ['candidate', ..."),
    (
        "c.csv",
        b"candidate,reference,candidate\na,b,c\n",
        "1: more than one column is named 'candidate'. Rename one of them",
    ),
    (
        "c.csv",
        b"candidate;reference\na;b\n",
        "1: the only column, 'candidate;reference', seems to be separated by ';'. Use commas in .csv and ...",
    ),
    (
        "c.csv",
        b"candidate;reference\na;b, c\n",
        "2: 2 columns, but the first line has 1: ['candidate;reference']. Correct the separators ...",
    ),
    (
        "c.csv",
        b'candidate,reference\n"a",b\n"a"b,c\n',
        "3: not valid CSV: ',' expected after '\"'. Correct the quotes of this row",
    ),
    (
        "c.jsonl",
        ROW + b'{"candidate": "a"\n',
        "2: not valid JSON: Expecting ',' delimiter at column 18. Correct this line",
    ),
    ("c.jsonl", ROW + b"\n" + ROW, "2: not valid JSON: Expecting value at column 1. Correct this line"),
    ("c.jsonl", b'["a", "b"]\n["c"]\n', "1: a row must be an object, got ['a', 'b']. Write it as names and values"),
    ("c.jsonl", b'{"candidate": null, "reference": "b"}\n', f"1: 'candidate' {NOT_TEXTS} None. Correct this row"),
    (
        "c.jsonl",
        b'{"candidate": ["a", "b"]}\n',
        "1: 'candidate' must be a single text, got an array of 2. Keep one of them",
    ),
    (
        "c.jsonl",
        b'{"candidate": "a", "references": ["b", 7]}\n',
        f"1: 'reference' {NOT_TEXTS} ['b', 7]. Correct this row",
    ),
    ("c.jsonl", b'{"candidate": [], "reference": "b"}\n', f"1: 'candidate' {NOT_TEXTS} []. Correct this row"),
    (
        "c.jsonl",
        ROW + b'{"candidate": "a", "reference": "b", "references": ["c"]}\n',
        "2: the columns 'reference' and 'references' both exist. Choose one with --reference-column NAME",
    ),
    ("c.jsonl", ROW + b'"a cat"\n', "2: a row must be an object, got 'a cat'. Write it as names and values"),
    (
        "c.jsonl",
        b'{"candidate": "a", "reference": "b", "reference": "c"}\n',
        "1: more than one key of an object is ...",
    ),
    ("c.parquet", GOOD, " not a valid Parquet file: ..."),
    ("c.xlsx", GOOD, " .xlsx files are not read. Save the spreadsheet as CSV"),
    ("c.json", b'{"a": 1}\n', f" the JSON document is {{'a': 1}}. {ROWS}"),
    ("c.json", b'[{"a": 1},\n{"a": 1}\n', "3: not valid JSON: Expecting ',' delimiter at column 1. Correct this line"),
    ("c.json", b'{"a": "b", "a": "c"}', " more than one key of an object is 'a'. Rename one of them"),
    ("c.json", b'{"version": 1}', f" the JSON document is {{'version': 1}}. {ROWS}"),
    (
        "c.json",
        b'[{"candidate": "a", "reference": "b"}, 7]',
        " row 2: a row must be an object, got 7. Write it as names and values",
    ),
    ("c.dat", GOOD, " the suffix .dat is not one of txt, tsv, csv, jsonl, json, parquet. Give --format NAME"),
    ("c.txt", "a\nb\nc\n".encode("utf-16-le"), " NUL bytes: the file seems to be UTF-16. Convert the file to UTF-8"),
    ("c.txt", b"\xef\xbb\xbfa\n\xff", "2: not valid UTF-8: invalid start byte. Convert the file to UTF-8"),
]
TEXTS = "files or texts are missing, or both are given. Give either -c FILE -r FILE, or --candidate-text TEXT ..."
# Commands whose last word is a file that they read.
REPLACING = [
    "score -c a.txt -r b.txt -o b.txt",
    "score -c a.txt -r c.txt --idf-from b.txt -o link.txt",
    "compare -c a.txt b.txt -r c.txt -o b.txt",
    "show 'a cat' 'the cat' --idf-from b.txt -o ./b.txt",
    "baseline b.txt -o b.txt",
    "score a.txt c.txt --rescale-from b.txt -o b.txt",
    "score a.txt c.txt --rescale_with_baseline --baseline_path b.txt -o b.txt",
    "compare a.txt c.txt -r c.txt --rescale-from b.txt -o link.txt",
]
INPUTS = {"a.txt": GOOD, "b.txt": GOOD, "c.txt": GOOD, "link.txt": Path("b.txt")}
BAD_COMMANDS = [
    ShellCase("score -c no.txt -r no.txt", error="no.txt: No such file or directory"),
    ShellCase("score -c . -r .", error=".: Is a directory"),
    ShellCase("score", error=TEXTS),
    ShellCase("score --candidate-text a", error=TEXTS),
    ShellCase("score -c c.txt --reference-text a", {"c.txt": GOOD}, error=TEXTS),
    ShellCase(
        "score -c c.txt -r r.txt",
        {"c.txt": b"", "r.txt": b""},
        error="c.txt: the file contains no texts. Give a file with at least one",
    ),
    ShellCase(
        "score -c c.txt",
        {"c.txt": GOOD},
        error="no references: c.txt has lines of text only. Give -r FILE, or --format if c.txt also contains them",
    ),
    ShellCase(
        "score c.txt r.txt s.txt",
        {"c.txt": GOOD, "r.txt": GOOD, "s.txt": b"one\n"},
        error="c.txt and s.txt must have equal numbers of texts, got 2 and 1. ...",
    ),
    ShellCase(
        "score c.txt.gz c.txt.gz",
        {"c.txt.gz": gzip.compress(GOOD)[:-9]},
        error="c.txt.gz: not a valid gzip file: Compressed ...",
    ),
    ShellCase(
        "score c.txt.gz c.txt.gz",
        {"c.txt.gz": GOOD},
        error="c.txt.gz: not a valid gzip file: Not a gzipped file (b'a '). Compress it again with gzip",
    ),
    ShellCase(
        "score -c c.tsv --candidate-column 0 --reference-column 2",
        {"c.tsv": b"a\tb\n"},
        error="c.tsv:1: no column or key '0'; there are '1', '2'. Choose a column with --candidate-column NAME",
    ),
    ShellCase("score - -", error="standard input can be read once, got - for 2 files. Give - for one"),
    ShellCase(
        "score -c - -r c.txt --idf-from -",
        {"c.txt": GOOD},
        error="standard input can be read once, got - for 2 files. ...",
    ),
    ShellCase(
        "score -c c.csv -r r.txt --confidence 0.9 --document-column doc",
        {"c.csv": b"candidate,doc,doc\na,1,2\n", "r.txt": b"a\n"},
        error="c.csv:1: more than one column is named 'doc'. Rename one of them",
    ),
    ShellCase("score c.txt c.txt --idf-from c.dat", {"c.txt": GOOD}, error="c.dat: No such file or directory"),
    ShellCase("score -o no/scores.json", error="argument --output: the folder {}/no does not exist. Create it first"),
    ShellCase(
        "score -o .",
        error="argument --output: . has another suffix. Give a file that ends with .txt or .json or .tsv or .csv",
    ),
    ShellCase(
        "score -o a.csv", error="argument --output: a .csv file lists the scores of each pair. Add --per-segment"
    ),
    ShellCase(
        "score -o a.txt --json",
        error="--json and --output a.txt exclude each other. Name the file .json, or remove --json",
    ),
    ShellCase("score --layer=3", error="unrecognized arguments: --layer=3. See bertscore-tm --help"),
    ShellCase(
        "score --num-layers five",
        error="argument -l/--num-layers: invalid int value: 'five'. See bertscore-tm score --help",
    ),
    # An option with one value is given once: the first file was dropped without a word.
    ShellCase(
        "score -c a.txt -c b.txt -r r.txt",
        error="argument -c/--candidates: takes one value, but -c a.txt was given before. Remove one...",
    ),
    ShellCase(
        "score --cand a.txt -c b.txt -r r.txt",
        error="argument -c/--candidates: takes one value, but --cand a.txt was given before...",
    ),
    ShellCase(
        "score a.txt r.txt --sources s.txt --sources t.txt",
        error="argument --sources: takes one value, but --sources s.txt was...",
    ),
    ShellCase(
        "score a.txt r.txt --idf-from s.txt --idf-from t.txt",
        error="argument --idf-from: takes one value, but --idf-from s.txt was...",
    ),
    ShellCase(
        "score --candidate-text a --candidate-text b",
        error="argument --candidate-text: takes one value, but --candidate-text a was...",
    ),
    ShellCase(
        "score a.txt r.txt --dtype float32 --dtype float32",
        error="argument --dtype: takes one value, but --dtype float32 was...",
    ),
    ShellCase(
        "compare a.txt b.txt -r r.txt --key id --key n",
        error="argument --key: takes one value, but --key id was given before...",
    ),
    # Sources and groups.
    ShellCase("score c.txt c.txt --sources none.txt", {"c.txt": GOOD}, error="none.txt: No such file or directory"),
    ShellCase(
        "score c.txt c.txt --sources one.txt",
        {"c.txt": GOOD, "one.txt": b"a\n"},
        error="c.txt and one.txt must have equal numbers...",
    ),
    ShellCase(
        "score c.jsonl --sources c.jsonl --source-column text",
        {"c.jsonl": ROW},
        error="c.jsonl:1: no column or key 'text'...",
    ),
    ShellCase(
        "score c.jsonl --source-column source",
        {"c.jsonl": ROW},
        error="...source needs a file of sources. Give --sources...",
    ),
    ShellCase("score -c - -r r.txt --sources -", {"r.txt": GOOD}, error="standard input can be read once..."),
    ShellCase(
        "score c.txt c.txt --sources r.txt -o r.txt",
        {"c.txt": GOOD, "r.txt": GOOD},
        error="argument --output: r.txt is read too, and would be replaced. Give...",
    ),
    ShellCase(
        "score c.txt r.txt --group-column domain",
        {"c.txt": GOOD, "r.txt": GOOD},
        error="argument --group-column: there are no columns in c.txt, r.txt...",
    ),
    ShellCase("score c.jsonl --group-column kind", {"c.jsonl": ROW}, error="c.jsonl:1: no column or key 'kind'..."),
    ShellCase(
        "score --candidate-text a --reference-text b --sources r.txt",
        {"r.txt": GOOD},
        error="...Give either -c FILE...",
    ),
    ShellCase("score c.jsonl --worst 0", {"c.jsonl": ROW}, error="argument --worst: must be at least 1, got '0'..."),
    # Inputs are never replaced, also by another name.
    *(
        ShellCase(
            arguments,
            INPUTS,
            error=f"argument --output: {arguments.split()[-1]} is read too, and would be replaced. Give another file",
        )
        for arguments in REPLACING
    ),
    # Several files with candidates and references each.
    ShellCase(
        "score a.jsonl b.jsonl",
        {"a.jsonl": ROW, "b.jsonl": ROW},
        error="a.jsonl, b.jsonl have candidates and references each...",
    ),
]


@pytest.mark.parametrize(("name", "content", "message"), BAD_FILES)
def test_a_bad_file_is_named_with_its_line(tmp_path, capsys, name, content, message):
    case = ShellCase(f"score -c {name}", {name: content}, error=f"{name}:{message}")

    check_case(case, tmp_path, capsys)


@pytest.mark.parametrize("case", BAD_COMMANDS, ids=attrgetter("arguments"))
def test_a_bad_command_ends_in_one_line(tmp_path, capsys, case):
    check_case(case, tmp_path, capsys)


def test_standard_input_is_named(monkeypatch, capsys, tmp_path):
    from_stdin(monkeypatch, b"fine\n\xc3(\n")
    (tmp_path / "refs.txt").touch()

    printed = run_here(capsys, "score", "-c", "-", "-r", tmp_path / "refs.txt", exit_code=2)

    check_error(printed, "^standard input:2: not valid UTF-8: invalid continuation byte")


NO_STDIN = "bertscore-tm: error: standard input is closed, so - cannot be read. Give the name of a file\n"


def test_a_shell_that_closes_standard_input_gets_one_line(tmp_path):
    """Python has None in place of a closed stream, and the command ended with a traceback."""
    (tmp_path / "r.txt").write_bytes(GOOD)
    command = f"{shlex.join([sys.executable, '-m', 'bertscore_tm.cli'])} score - r.txt <&-"

    done = subprocess.run(["bash", "-c", command], cwd=tmp_path, capture_output=True, text=True, check=False)

    assert (done.returncode, done.stdout, done.stderr) == (2, "", NO_STDIN)


@pytest.mark.parametrize(
    "words", ["score - r.txt", "compare - r.txt -r r.txt", "baseline - -o table.csv", "rank - -o best.jsonl"]
)
def test_closed_standard_input_is_one_line(tmp_path, monkeypatch, capsys, words):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "stdin", None)
    Path("r.txt").write_bytes(GOOD)

    printed = run_here(capsys, *words.split(), exit_code=2)

    assert printed == ("", NO_STDIN)


# Programs that make the files.
COMPRESS = {
    "bz2": "bzip2",
    "xz": "xz",
    "zst": "zstd -q --rm",
    "zip": "zip -qm c.txt.zip",
    "tar.gz": "tar -czf c.txt.tar.gz",
}
RECORDS = [{"candidate": "a cat", "reference": "the cat"}, {"candidate": "a dog", "reference": "the dog"}]


@pytest.mark.parametrize("suffix", COMPRESS)
def test_compressed_files_name_a_command_that_works(tmp_path, monkeypatch, capsys, suffix):
    words = shlex.split(COMPRESS[suffix])
    if shutil.which(words[0]) is None:
        pytest.skip(f"needs {words[0]}")
    monkeypatch.chdir(tmp_path)
    Path("c.txt").write_bytes(GOOD)
    subprocess.run([*words, "c.txt"], check=True)
    Path("c.txt").unlink(missing_ok=True)
    for option in ([], ["--format", "txt"]):
        printed = run_here(capsys, "score", f"c.txt.{suffix}", f"c.txt.{suffix}", *option, exit_code=2)
        check_error(printed, f"^c.txt.{suffix}: of compressed files only .gz is read. Decompress the file first: ")
    command = printed.err.rpartition(": ")[2]

    subprocess.run(command, shell=True, check=True, capture_output=True)

    assert read_table("c.txt").rows == ["a cat", "a dog"]


@pytest.mark.parametrize("suffix", ["sgm", "xml", "srt", "vtt"])
def test_files_that_must_be_converted_name_the_page(tmp_path, monkeypatch, capsys, suffix):
    monkeypatch.chdir(tmp_path)
    Path(f"c.{suffix}").write_bytes(GOOD)

    printed = run_here(capsys, "score", f"c.{suffix}", f"c.{suffix}", exit_code=2)

    check_error(printed, rf"^c.{suffix}: .{suffix} files are not read. Convert the file to lines: ")
    check_page(printed.err)


def check_page(message):
    """Check that a message ends with the address of a section of a page."""
    page, _, anchor = message.strip().rpartition("/main/")[2].partition("#")
    assert anchor in anchors(ROOT / page)


NAMES = {
    "lines": ("c.json", "".join(json.dumps(row) + "\n" for row in RECORDS), "c.jsonl"),
    "array": ("c.jsonl", json.dumps(RECORDS), "c.json"),
    "indented array": ("c.jsonl", json.dumps(RECORDS, indent=2), "c.json"),
    "texts by key": ("c.jsonl", json.dumps({"a": "a cat", "b": "a dog"}, indent=2), "c.json"),
}


@pytest.mark.parametrize(("path", "content", "renamed"), NAMES.values(), ids=NAMES)
def test_json_under_another_suffix_is_to_be_renamed(tmp_path, monkeypatch, capsys, path, content, renamed):
    monkeypatch.chdir(tmp_path)
    Path(path).write_text(content)
    suffix = Path(renamed).suffix

    printed = run_here(capsys, "score", path, exit_code=2)

    check_error(printed, rf"^{path}: the file .*\. Name it {suffix}, or give --format {suffix[1:]}$")
    assert len(read_table(path, suffix[1:]).rows) == 2

    Path(path).rename(renamed)
    assert len(read_table(renamed).rows) == 2


@pytest.mark.parametrize("other", [{}, {"version": 1.5}, {"config": {"a": 1}}], ids=["alone", "number", "object"])
def test_the_command_for_nested_rows_works(tmp_path, monkeypatch, capsys, other):
    monkeypatch.chdir(tmp_path)
    Path("c.json").write_text(json.dumps({**other, "my-data": RECORDS}))

    printed = run_here(capsys, "score", "c.json", exit_code=2)

    check_error(
        printed, "^c.json: the objects are within 'my-data'. Save that array as a .json file, as jq .* prints it$"
    )

    if shutil.which("jq") is None:
        pytest.skip("needs jq")
    (command,) = re.findall(r"jq '.*'", printed.err)
    subprocess.run(f"{command} c.json > rows.json", shell=True, check=True)

    assert read_table("rows.json").rows == RECORDS


def test_files_like_squad_name_the_page(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    questions = [{"id": "q", "question": "?", "answers": [{"text": "a cat"}]}]
    article = {"title": "t", "paragraphs": [{"context": "c", "qas": questions}]}
    Path("dev.json").write_text(json.dumps({"version": "1.1", "data": [article]}))

    printed = run_here(capsys, "score", "dev.json", "dev.json", exit_code=2)

    check_error(printed, "^dev.json: the texts are nested as in SQuAD. Convert the file first: ")
    check_page(printed.err)


@pytest.mark.parametrize(("suffix", "separator"), [("csv", ","), ("csv", ";"), ("tsv", "\t")])
def test_the_separator_line_of_excel_is_to_be_removed(tmp_path, monkeypatch, capsys, suffix, separator):
    monkeypatch.chdir(tmp_path)
    path = f"c.{suffix}"
    rows = separator.join(["candidate", "reference"]) + "\n" + separator.join(["a cat", "the cat"]) + "\n"
    Path(path).write_text(f"sep={separator}\n{rows}", encoding="utf-8-sig")

    printed = run_here(capsys, "score", path, exit_code=2)

    check_error(printed, f"^{path}:1: the line 'sep=' is for Excel, and not a header. Remove this line$")

    Path(path).write_text(rows)
    if separator == ";":
        check_error(run_here(capsys, "score", path, exit_code=2), "seems to be separated by ';'. Use commas in .csv")
    else:
        assert read_table(path).rows == RECORDS[:1]


def test_the_home_folder_is_found_in_all_paths(tmp_path, monkeypatch, capsys, minilm):
    """Shells leave ~ in --output=~/a.json and in quotes."""
    monkeypatch.setenv("HOME", str(tmp_path))
    Path("~/texts").expanduser().mkdir()
    shutil.copytree(minilm, tmp_path / "model")
    (tmp_path / "texts" / "c.txt").write_bytes(GOOD)
    options = ["-m", "~/model", "-l", "2", "--device", "cpu"]
    files = ["~/texts/c.txt", "~/texts/c.txt", "--sources=~/texts/c.txt", "--idf-from=~/texts/c.txt"]
    written = ["--output=~/texts/scores.json", "--report=~/texts/scores.html"]

    run_here(capsys, "score", *files, *options, *written)

    assert json.loads((tmp_path / "texts" / "scores.json").read_text())["f1"] == pytest.approx(1)
    assert (tmp_path / "texts" / "scores.html").exists()

    run_here(capsys, "baseline", "~/texts/c.txt", "-m", "~/model", "--pairs", "2", "-o", "~/table.csv")
    run_here(capsys, "score", "-c", "~/texts/c.txt", "-r", "~/texts/c.txt", *options, "--rescale-from", "~/table.csv")
    printed = run_here(capsys, "score", "~/no.txt", "~/no.txt", exit_code=2)

    check_error(printed, f"^{tmp_path}/no.txt: No such file or directory")
    check_error(run_here(capsys, "report", "~/no", "-o", "~/r.html", exit_code=2), f"^{tmp_path}/no has no files")


# A command for rows without the column that it reads, and the option that names the column.
MISSING = [
    ("score c.jsonl --candidate-column no", "--candidate-column"),
    ("score c.jsonl --reference-column no", "--reference-column"),
    ("score c.jsonl --sources c.jsonl", "--source-column"),
    ("score c.jsonl --confidence 0.9 --document-column no", "--document-column"),
    ("score c.jsonl --group-column no", "--group-column"),
    ("score -c c.jsonl -r c.jsonl --key no", "--key"),
    ("compare -c c.jsonl --system-column no", "--system-column"),
    ("rank c.jsonl -o best.jsonl", "--candidate-column"),
    ("baseline c.jsonl -o table.csv", "--column"),
]


@pytest.mark.parametrize(("arguments", "option"), MISSING)
def test_a_missing_column_names_its_option(tmp_path, capsys, arguments, option):
    there = "there are 'candidate', 'reference'"
    error = f"c.jsonl:1: no column or key '...'; {there}. Choose a column with {option} NAME"

    check_case(ShellCase(arguments, {"c.jsonl": RECORDS}, error=error), tmp_path, capsys)


def test_a_missing_column_of_the_idf_names_the_column(tmp_path, monkeypatch, capsys, minilm):
    monkeypatch.chdir(tmp_path)
    write_records(Path("c.jsonl"), RECORDS)
    words = ["score", "c.jsonl", "--idf-from", "c.jsonl", "-m", minilm, "-l", "2"]
    message = "^c.jsonl:1: no column or key 'text'; .* Name the column of the texts 'text', which --idf-from reads$"

    check_error(run_here(capsys, *words, exit_code=2), message)


def test_a_name_with_brackets_names_the_dotted_one(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    rows = [{"choices": [{"message": {"content": text}}], "reference": text} for text in ("a cat", "a dog")]
    write_records(Path("c.jsonl"), rows)
    words = ["score", "c.jsonl", "--candidate-column"]

    printed = run_here(capsys, *words, "choices[0].message.content", exit_code=2)

    check_error(
        printed, r"no column or key 'choices\[0\].message.content'.* Write the name as choices.0.message.content$"
    )

    name = printed.err.split()[-1]
    assert read_table("c.jsonl").texts(name) == ["a cat", "a dog"]
    for missing in ("choices.1.message.content", "choices[1].message.content", "choices.0.message.content.0"):
        check_error(run_here(capsys, *words, missing, exit_code=2), "Choose a column with --candidate-column NAME$")
