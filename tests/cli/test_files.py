"""Files that the shell command reads."""

import csv
import gzip
import json
import subprocess
import sys
from contextlib import nullcontext

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertscore_tm.cli import main
from bertscore_tm.cli.errors import CommandError
from bertscore_tm.cli.files import read_table, read_texts
from tests.support.markdown_blocks import ROOT, anchors
from tests.support.shell import check_error, from_stdin, run_here, write_records
from tests.support.shell_cases import write_file, write_parquet

# Lines that Python's str.splitlines would split.
ODD = ["one\u2028line", "two\x0bthree\x0cfour", "next\x85line", "a\rb", "", "  blanks ", "\ufeffnot at the start"]


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
    st.text(st.characters(codec="utf-8", exclude_characters="\0\n")).filter(lambda text: not text.endswith("\r")),
    min_size=1,
).filter(lambda lines: not lines[0].startswith("\ufeff"))


@settings(max_examples=20)
@given(lines=texts)
def test_written_texts_are_read_back(tmp_path_factory, lines):
    folder = tmp_path_factory.mktemp("written")
    with (folder / "a.txt").open("w", encoding="utf-8", newline="") as file:
        file.writelines(line + "\n" for line in lines)

    assert read_texts(str(folder / "a.txt")) == lines

    with (folder / "a.jsonl").open("w", encoding="utf-8", newline="") as file:
        file.writelines(json.dumps({"text": line}, ensure_ascii=False) + "\n" for line in lines)
    assert read_texts(str(folder / "a.jsonl")) == lines

    # csv.writer does not quote a carriage return.
    cells = [line.replace("\t", " ").replace("\r", " ") for line in lines]
    with gzip.open(folder / "a.tsv.gz", "wt", encoding="utf-8", newline="") as file:
        csv.writer(file, delimiter="\t", lineterminator="\n").writerows(enumerate(cells))

    assert read_texts(str(folder / "a.tsv.gz"), column="2") == cells


def test_the_format_is_the_suffix_unless_it_is_given(tmp_path, monkeypatch):
    path = tmp_path / "texts.JSONL"
    path.write_text('{"text": "a cat"}\n')

    assert read_texts(str(path)) == ["a cat"]
    assert read_texts(str(path), "txt") == ['{"text": "a cat"}']

    without_suffix = path.rename(tmp_path / "texts_v1.2")
    assert read_texts(str(without_suffix)) == ['{"text": "a cat"}']

    from_stdin(monkeypatch, without_suffix.read_bytes())
    assert read_texts("-") == ['{"text": "a cat"}']

    from_stdin(monkeypatch, without_suffix.read_bytes())
    assert read_texts("-", "jsonl") == ["a cat"]


@pytest.mark.parametrize("end", ["", "\n", "\n\n", "\r\n", "\n \t\r\n\n"])
def test_blank_lines_at_the_end_of_json_lines_are_no_texts(tmp_path, end):
    path = tmp_path / "texts.jsonl"
    path.write_text('{"text": "a cat"}\n{"text": ""}' + end, newline="")

    assert read_texts(str(path)) == ["a cat", ""]

    # In the middle they are errors.
    path.write_text('{"text": "a cat"}\n{"text": ""}' + end + '\n\n{"text": "a dog"}\n', newline="")
    with pytest.raises(CommandError, match=r"texts.jsonl:3: not valid JSON"):
        read_texts(str(path))


def columns_of(path, *columns):
    """The values of columns that are read together, by default of candidates and references."""
    columns = columns or ("candidate", "reference")
    table = read_table(str(path), columns=columns)
    return [table.values(column) for column in columns]


def test_tables_end_before_blank_lines(tmp_path):
    path = tmp_path / "pairs.tsv"
    path.write_text("candidate\treference\na cat\tthe cat\n\t\n\n \n")

    # A row of empty cells is a row.
    with pytest.warns(UserWarning, match="pairs.tsv:3: all cells are empty from this line on"):
        assert columns_of(path) == [["a cat", ""], ["the cat", ""]]

    path = tmp_path / "pairs.csv"
    path.write_bytes(b'\xef\xbb\xbfcandidate,reference\r\n"a ""cat"", sat\nthere",the cat\r\n,"a, dog"\r\n\r\n')

    assert columns_of(path) == [['a "cat", sat\nthere', ""], ["the cat", "a, dog"]]

    path.write_text("a cat,the cat\na dog,the dog\n")
    assert read_texts(str(path), column="2") == ["the cat", "the dog"]

    long = "word " * 50_000
    path.write_text(f"text\n{long}\n")

    assert read_texts(str(path)) == [long]


def test_empty_rows_of_spreadsheets_name_their_first_line(tmp_path, recwarn):
    path = tmp_path / "pairs.csv"
    path.write_text('candidate,reference\n"a\ncat",the cat\n,\n, \n')

    with pytest.warns(
        UserWarning, match="pairs.csv:4: all cells are empty from this line on, and count as empty texts"
    ):
        assert columns_of(path) == [["a\ncat", "", ""], ["the cat", "", " "]]

    # An empty text of a single column, and empty cells in one column, are no rows of this kind.
    recwarn.clear()
    path.write_text('text\na cat\n""\n')

    assert read_texts(str(path)) == ["a cat", ""]

    path.write_text("candidate,reference\na cat,the cat\n,\n,the dog\n")
    assert columns_of(path) == [["a cat", "", ""], ["the cat", "", "the dog"]]
    assert not recwarn


QUOTED = [["candidate", "reference"], ['a "b" c', "NA"], ["two\nlines", "null"], ["tab\tbed", "1.50"], ["", " é "]]


def write_with_csv(path, rows):
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, delimiter="\t").writerows(rows)


def write_with_pandas(path, rows):
    table = pytest.importorskip("pandas").DataFrame(rows[1:], columns=rows[0])
    table.to_csv(path, sep="\t", index=False)


@pytest.mark.parametrize("write", [write_with_csv, write_with_pandas])
def test_tables_with_tabs_are_quoted_like_their_writers_do(tmp_path, write):
    path = tmp_path / "pairs.tsv"
    write(path, QUOTED)

    assert columns_of(path) == [list(column) for column in zip(*QUOTED[1:], strict=True)]


# Quotes of speech, as in the files of WMT, which do not parse as quoting or only by joining lines.
LITERAL = [
    'He said "no".\t"No", he said.\n',
    '"He said so\tthe first\nand left."\tthe second\n',
    '"an open one\tthe last\n',
    '"No"\t"No" was all.\n',
    '"one\rtwo\t"\n',
]


@pytest.mark.parametrize("rows", LITERAL)
def test_other_quotes_in_tables_with_tabs_are_characters(tmp_path, rows):
    path = tmp_path / "pairs.tsv"
    path.write_text(f"candidate\treference\n{rows}", encoding="utf-8", newline="")
    expected = [list(column) for column in zip(*(line.split("\t") for line in rows.split("\n")[:-1]), strict=True)]
    whole = any(cell.startswith('"') and cell.endswith('"') for column in expected for cell in column if cell != '"')

    with pytest.warns(UserWarning, match="quotes") if whole else nullcontext():
        assert columns_of(path) == expected


@pytest.mark.parametrize("suffix", ["json", "parquet"])
def test_json_and_parquet_have_any_number_of_references(tmp_path, monkeypatch, suffix):
    path = tmp_path / f"pairs.{suffix}"
    write_file(path, [{"candidate": "a\n", "references": ["b", "c"]}, {"candidate": "", "references": ["d"]}])

    assert scored_pairs(monkeypatch, "-c", str(path)) == [("a\n", ["b", "c"]), ("", ["d"])]


def test_an_array_of_texts_is_a_file_of_texts(tmp_path):
    path = tmp_path / "texts.json"
    path.write_text('["a cat", "a\\ndog"]\n')

    assert read_texts(str(path)) == ["a cat", "a\ndog"]


def test_a_process_ends_normally_after_reading_parquet(tmp_path):
    path = tmp_path / "texts.parquet"
    write_parquet(path, [{"text": "a cat"}])
    script = f"import sys; from bertscore_tm.cli.files import read_table; read_table({str(path)!r}); sys.exit(2)"

    for _ in range(2):
        assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 2


def test_a_missing_library_is_named_with_the_remedy(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (tmp_path / "pairs.parquet").write_bytes(b"PAR1")

    printed = run_here(capsys, "score", tmp_path / "pairs.parquet", exit_code=1)

    check_error(printed, r"pyarrow.*: pip install 'bertscore-tm\[cli,report,parquet\]'")


def test_columns_by_name_and_by_number(tmp_path):
    path = tmp_path / "table.tsv"
    path.write_text("id\tsystem\thuman\n1\ta cat\tthe cat\n2\t\tthe dog\n")

    assert columns_of(path, "human", "system") == [["the cat", "the dog"], ["a cat", ""]]
    assert columns_of(path, "3", "1") == [["human", "the cat", "the dog"], ["id", "1", "2"]]
    with pytest.raises(CommandError, match=r"table.tsv:2: no column or key '1'; there are 'id'"):
        columns_of(path, "human", "1")


PAIRS = [("a cat", ["the cat", "cats"]), ("", ["nothing"]), ("x\u2028y", ["z", "z"])]


def scored_pairs(monkeypatch, *arguments: str):
    """Return the pairs that the command would score."""
    seen = []

    def note(ranks, choice, systems, *_, **__):
        seen.append(systems)

    monkeypatch.setattr("bertscore_tm.cli.scoring.score_systems", note)
    assert main(["score", *arguments]) == 0
    (candidates,) = seen[0].texts.values()
    return list(zip(candidates, seen[0].references, strict=True))


def test_json_lines_hold_pairs_with_any_number_of_references(tmp_path, monkeypatch):
    both = tmp_path / "pairs.jsonl"
    write_records(both, [{"candidate": c, "references": r} for c, r in PAIRS])

    assert scored_pairs(monkeypatch, "-c", str(both)) == PAIRS

    hyps, refs = tmp_path / "hyps.jsonl", tmp_path / "refs.jsonl"
    write_records(hyps, [{"hyp": c} for c, _ in PAIRS])
    write_records(refs, [{"reference": r[0], "other": r[1:]} for _, r in PAIRS])
    apart = ["-c", str(hyps), "-r", str(refs), "--candidate-column", "hyp"]

    assert scored_pairs(monkeypatch, *apart) == [(c, r[:1]) for c, r in PAIRS]

    write_records(refs, [{"reference": r[0], "other": r[1:] or r[0]} for _, r in PAIRS])
    named = ["--reference-column", "reference", "--reference-column", "other"]
    wanted = [(c, r if len(r) > 1 else r * 2) for c, r in PAIRS]

    assert scored_pairs(monkeypatch, *apart, *named) == wanted


def test_an_array_of_one_candidate_is_this_text(tmp_path, monkeypatch):
    """As in the sample files of lm-evaluation-harness."""
    path = tmp_path / "samples.jsonl"
    path.write_text('{"filtered_resps": ["a cat"], "target": "the cat"}\n')
    columns = ["--candidate-column", "filtered_resps", "--reference-column", "target"]

    assert scored_pairs(monkeypatch, "-c", str(path), *columns) == [("a cat", ["the cat"])]


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

    columns = ["--reference-column", "reference", "--reference-column", "more"]
    assert scored_pairs(monkeypatch, "-c", str(table), *columns) == wanted

    from_stdin(monkeypatch, table.read_bytes().split(b"\n", 1)[1])
    numbers = ["--candidate-column", "2", "--reference-column", "1", "--reference-column", "3"]

    assert scored_pairs(monkeypatch, "-c", "-", "--format", "tsv", *numbers) == wanted

    texts = ["--candidate-text", "a cat", "--reference-text", "the cat", "--reference-text", "-"]
    assert scored_pairs(monkeypatch, *texts) == [("a cat", ["the cat", "-"])]


MARKED = {
    "SGML": "<doc>\n<seg>a cat</seg>\n<seg>a dog</seg>\nthe end\n",
    "fairseq": "S-0\tein Hund\nT-0\tthe dog\nH-0\t-0.5\ta dog\nthe end\n",
}


@pytest.mark.parametrize("text", MARKED.values(), ids=MARKED)
def test_a_warning_on_marks_names_the_page(tmp_path, text):
    path = tmp_path / "hyps.txt"
    path.write_text(text)

    with pytest.warns(UserWarning, match="hyps.txt: most lines have marks of SGML or fairseq") as warned:
        assert read_texts(str(path)) == text.splitlines()

    page, _, anchor = str(warned[0].message).rpartition("/main/")[2].partition("#")
    assert anchor in anchors(ROOT / page)


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_nulls_are_references_that_a_candidate_lacks(tmp_path, monkeypatch, suffix):
    path = tmp_path / f"pairs.{suffix}"
    rows = [("a", "b", "c"), ("d", None, "e"), ("f", "g", None)]
    records = [dict(zip(("candidate", "first", "second"), row, strict=True)) for row in rows]
    write_file(path, records)
    columns = ["--reference-column", "first", "--reference-column", "second"]

    assert scored_pairs(monkeypatch, str(path), *columns) == [("a", ["b", "c"]), ("d", ["", "e"]), ("f", ["g", ""])]


def test_columns_of_one_name_in_parquet_are_an_error(tmp_path, capsys):
    pyarrow, parquet = (pytest.importorskip(name) for name in ("pyarrow", "pyarrow.parquet"))
    table = pyarrow.table([["a"], ["b"], ["c"]], names=["candidate", "reference", "reference"])
    parquet.write_table(table, tmp_path / "c.parquet")

    printed = run_here(capsys, "score", tmp_path / "c.parquet", exit_code=2)

    check_error(printed, "c.parquet: more than one column is named 'reference'")
