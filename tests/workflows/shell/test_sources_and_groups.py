"""Sources of the candidates, the worst pairs with their texts, and scores of groups."""

import json
import re

import pytest

from tests.support.oracle import oracle_scores
from tests.support.report_pages import read_data
from tests.support.shell import check_error, numbers_in, run_here, write_lines, write_records
from tests.support.texts import real_pairs

CANDIDATES, REFERENCES = real_pairs(9, words=8)
OTHERS = CANDIDATES[1:] + CANDIDATES[:1]
SOURCES = ["die Katze", f" {CANDIDATES[1]}\t", "ein Hund", CANDIDATES[3], "es\x1b[2J regnet\njetzt", "", "f", "g", "h"]
DOMAINS = ["news", "chat", "news", "news", "chat", "news", "chat", "news", "web"]
DOCUMENTS = [1, 2, 1, 3, 4, 5, 2, 5, 6]
COPIES = [*CANDIDATES[:5], "", *CANDIDATES[6:]]
NAMES = ("precision", "recall", "f1")
MOVED = [4, 2, 8, 0, 1, 3, 5, 7, 6]


@pytest.fixture
def command(minilm, tmp_path, monkeypatch, capsys):
    """Run a command in a folder with the texts; returns what it printed."""
    monkeypatch.chdir(tmp_path)
    write_lines(tmp_path / "hyps.txt", COPIES)
    write_lines(tmp_path / "others.txt", OTHERS)
    write_lines(tmp_path / "refs.txt", REFERENCES)
    write_records(tmp_path / "pairs.jsonl", [record(i) for i in range(9)])
    write_records(tmp_path / "sources.jsonl", [{"id": i, "source": SOURCES[i]} for i in MOVED])
    return lambda *words, **options: run_here(capsys, *words, "-m", minilm, "-l", 1, "--device", "cpu", **options)


def record(i):
    texts = {"id": i, "candidate": COPIES[i], "references": ["x", REFERENCES[i]]}
    return {**texts, "domain": DOMAINS[i], "document": DOCUMENTS[i], "source": SOURCES[i]}


@pytest.fixture
def worst(minilm):
    """Rows and F1 of all pairs by the reference package, the worst first.

    Of two references the second is the better one everywhere. An empty text scores 0.
    """
    rows = [i for i in range(9) if COPIES[i]]
    candidates = [COPIES[i] for i in rows]
    references = [REFERENCES[i] for i in rows]
    f1 = oracle_scores(minilm, candidates, references, 1)[2].tolist()
    scores = dict.fromkeys(range(9), 0.0) | dict(zip(rows, f1, strict=True))
    return sorted(scores.items(), key=lambda item: item[1])


WORST = ["score", "pairs.jsonl", "--sources", "sources.jsonl", "--worst"]


def test_the_worst_pairs_of_a_document_have_their_texts(command, worst):
    document = json.loads(command(*WORST, 5, "--json").out)

    for pair, (i, f1) in zip(document["worst"], worst[:5], strict=True):
        assert pair.pop("f1") == pytest.approx(f1, abs=2e-6)
        reference = REFERENCES[i] if COPIES[i] else "x"
        texts = {"candidate_text": COPIES[i], "reference_text": reference, "source_text": SOURCES[i]}
        assert pair == {"row": i + 1, **texts}


def test_each_text_of_a_worst_pair_is_one_line(command, worst):
    _, *blocks = command(*WORST, 9).out.split("\n\n")

    assert len(blocks) == 9
    (block,) = [block for block in blocks if block.startswith("row 5,")]
    assert block.splitlines() == [
        f"row 5, F1 {dict(worst)[4]:.4f}",
        f"candidate: {COPIES[4]}",
        f"reference: {REFERENCES[4]}",
        r"source: es\u001b[2J regnet\u000ajetzt",
    ]


def test_the_worst_pairs_of_a_table_are_comments(command):
    lines = command("score", "hyps.txt", "refs.txt", "--worst", 1, "--per-segment").out.splitlines()

    place = lines.index("# row 6, F1 0.0000")
    assert lines[place + 1 : place + 3] == ["# candidate: ", f"# reference: {REFERENCES[5]}"]
    assert lines[place + 3].startswith("segment\t")


@pytest.fixture
def rows_with_ids(tmp_path):
    """Candidates and references with an id in one order, and sources as plain lines."""
    write_records(tmp_path / "hyps.jsonl", [{"id": i, "candidate": text} for i, text in enumerate(CANDIDATES)])
    references = [{"id": i, "reference": text} for i, text in enumerate(REFERENCES)]
    write_records(tmp_path / "refs.jsonl", references)
    write_records(tmp_path / "moved.jsonl", [references[i] for i in MOVED])
    write_lines(tmp_path / "plain.txt", PLAIN)


PLAIN = [f"source {i}" for i in range(9)]


@pytest.mark.usefixtures("rows_with_ids")
@pytest.mark.parametrize(("file", "sources"), [("plain.txt", PLAIN), ("sources.jsonl", SOURCES)])
def test_sources_do_not_change_how_references_are_joined(command, file, sources):
    words = ["score", "hyps.jsonl", "refs.jsonl", "--worst", 9, "--json"]
    alone = json.loads(command(*words).out)

    document = json.loads(command(*words, "--sources", file).out)

    for pair in document["worst"]:
        assert pair.pop("source_text") == sources[pair["row"] - 1]
    assert document == alone


@pytest.mark.usefixtures("rows_with_ids")
def test_plain_sources_follow_no_other_order(command):
    printed = command("score", "hyps.jsonl", "moved.jsonl", "--sources", "plain.txt", exit_code=2)

    check_error(printed, "plain.txt has no column 'id', and the order of moved.jsonl is not that of hyps.jsonl")


@pytest.fixture
def samples(command, tmp_path):
    """Function that scores two candidates of each of five inputs, of which a file has the texts."""
    records = [{"id": i // 2, "candidate": text, "reference": "a"} for i, text in enumerate(CANDIDATES)]
    write_records(tmp_path / "samples.jsonl", records)

    def score(inputs, **options):
        write_records(tmp_path / "inputs.jsonl", inputs)
        words = ["score", "samples.jsonl", "--key", "id", "--worst", 9, "--json"]
        return command(*words, "--sources", "inputs.jsonl", "--source-column", "text", **options)

    return score


INPUTS = [{"id": i, "text": f"input {i}"} for i in (4, 3, 2, 1, 0)]


@pytest.mark.parametrize("inputs", [INPUTS, INPUTS + INPUTS[:2]], ids=["once", "repeated"])
def test_candidates_of_one_input_have_its_source(samples, inputs):
    worst = json.loads(samples(inputs).out)["worst"]

    for pair in worst:
        assert pair["source_text"] == f"input {(pair['row'] - 1) // 2}"


def test_two_sources_of_one_input_are_an_error(samples):
    printed = samples([*INPUTS, {"id": 1, "text": "input 2"}], exit_code=2)

    error = "error: inputs.jsonl:6: the source is 'input 2', and that of line 4 is 'input 1'. Give rows"
    assert error in printed.err


def test_the_page_of_a_comparison_has_the_sources(command, tmp_path):
    write_lines(tmp_path / "sources.txt", OTHERS)
    words = ["compare", "others.txt", "hyps.txt", "-r", "refs.txt", "--sources", "sources.txt"]

    command(*words, "--report", "page.html")

    assert read_data(tmp_path / "page.html")["sources"] == OTHERS


def test_the_systems_of_one_file_have_its_sources(command, tmp_path):
    rows = []
    for name, texts in (("a", CANDIDATES), ("b", OTHERS)):
        for text, reference, source in zip(texts, REFERENCES, CANDIDATES, strict=True):
            rows.append({"system": name, "candidate": text, "reference": reference, "source": source})
    write_records(tmp_path / "both.jsonl", rows)

    command("compare", "both.jsonl", "--system-column", "system", "--sources", "both.jsonl", "--report", "page.html")

    assert read_data(tmp_path / "page.html")["sources"] == CANDIDATES


GROUPS = ["news", "chat", "web"]
# Rows of each group.
ROWS = {"news": [0, 2, 3, 5, 7], "chat": [1, 4, 6], "web": [8]}
BY_DOCUMENT = pytest.mark.parametrize("documents", [[], ["--document-column", "document"]], ids=["texts", "documents"])


@BY_DOCUMENT
def test_groups_have_the_scores_of_filtered_files(command, tmp_path, documents):
    words = ["--confidence", "0.9", *documents, "--json", "--sources"]
    whole = json.loads(command("score", "pairs.jsonl", *words, "pairs.jsonl").out)

    document = json.loads(command("score", "pairs.jsonl", "--group-column", "domain", *words, "pairs.jsonl").out)

    groups = document.pop("groups")
    assert document == whole
    assert [group.pop("group") for group in groups] == GROUPS
    for name, group in zip(GROUPS, groups, strict=True):
        write_records(tmp_path / "part.jsonl", [record(i) for i in ROWS[name]])
        part = json.loads(command("score", "part.jsonl", *words, "part.jsonl").out)
        for key in ("signature", "paired_by", "key"):
            del part[key]
        assert group == pytest.approx(part, abs=2e-6, nan_ok=True)


@pytest.fixture
def labelled(tmp_path):
    """A file of references with their groups."""
    rows = zip(REFERENCES, DOMAINS, strict=True)
    write_records(tmp_path / "labelled.jsonl", [{"reference": text, "domain": domain} for text, domain in rows])
    return ["hyps.txt", "labelled.jsonl", "--group-column", "domain"]


def test_the_means_of_a_file_with_groups_have_intervals(command, labelled):
    document = json.loads(command("score", *labelled, "--json").out)
    expected = [document[f"{name}{end}"] for name in NAMES for end in ("", "_low", "_high")]

    means, caption, *_ = command("score", *labelled).out.splitlines()

    assert re.sub(r"\d\.\d{4}", "#", means) == "P # [#, #]  R # [#, #]  F1 # [#, #]"
    assert numbers_in(means) == pytest.approx(expected, abs=6e-5)
    assert caption == "95% intervals of the means"


def test_the_table_of_groups_has_intervals(command, labelled):
    groups = json.loads(command("score", *labelled, "--json").out)["groups"]

    table = command("score", *labelled).out.rpartition("group ")[2].splitlines()

    assert table[0].split() == ["texts", "P", "R", "F1", "95%", "interval", "of", "F1"]
    for line, group in zip(table[1:], groups, strict=True):
        expected = [group[name] for name in NAMES]
        if group["group"] == "web":
            # A single text has no interval.
            assert line.endswith("  -")
            assert group["f1_low"] is group["f1_high"] is None
        else:
            expected += [group["f1_low"], group["f1_high"]]
        assert line.split()[:2] == [group["group"], str(len(ROWS[group["group"]]))]
        assert numbers_in(line) == pytest.approx(expected, abs=6e-5)


def test_the_page_has_the_groups(command, labelled, tmp_path):
    command("score", *labelled, "--report", "page.html")

    assert read_data(tmp_path / "page.html")["labels"] == DOMAINS


@pytest.fixture
def both(command, tmp_path):
    """Run compare on two systems in one file, of the texts with these numbers."""

    def compare(rows, *words, **options):
        records = []
        for name, texts in (("a", COPIES), ("b", OTHERS)):
            records += [{**record(i), "system": name, "candidate": texts[i]} for i in rows]
        write_records(tmp_path / "both.jsonl", records)
        return command("compare", "both.jsonl", "--system-column", "system", "--confidence", "0.9", *words, **options)

    return compare


EVERY = range(9)
GROUPED = ["--group-column", "domain"]


@BY_DOCUMENT
def test_compare_has_the_differences_of_filtered_files(both, documents):
    words = [*documents, "--sources", "both.jsonl", "--component", "recall", "--json"]
    whole = json.loads(both(EVERY, *words).out)

    document = json.loads(both(EVERY, *GROUPED, *words).out)

    groups = document.pop("groups")
    assert document == whole
    assert [group.pop("group") for group in groups] == GROUPS
    for name, group in zip(("news", "chat"), groups, strict=False):
        part = json.loads(both(ROWS[name], *words).out)
        # The p-values of a group are not adjusted for the number of groups.
        for key in ("signature", "paired_by", "key", "verdict"):
            del part[key]
        for key in ("systems", "differences"):
            for values, expected in zip(group.pop(key), part.pop(key), strict=True):
                assert values == pytest.approx(expected, abs=2e-6)
        assert group == part


def test_a_group_of_one_text_has_no_differences(both):
    *_, alone = json.loads(both(EVERY, *GROUPED, "--json").out)["groups"]

    assert alone["group"] == "web"
    assert alone["num_texts"] == 1
    assert alone["differences"] == []
    assert [system["low"] for system in alone["systems"]] == [None, None]


def test_the_tables_of_compare_have_groups(both):
    groups = json.loads(both(EVERY, *GROUPED, "--json").out)["groups"]

    tables = [table.splitlines() for table in both(EVERY, *GROUPED).out.split("\n\n")]

    assert tables[2][0].split() == ["group", "texts", "system", "P", "R", "F1", "90%", "interval", "of", "F1"]
    assert re.split(" {2,}", tables[3][0]) == ["group", "texts", "difference in F1", "mean", "90% interval"]
    for lines, key, names in ((tables[2][1:], "systems", NAMES), (tables[3][1:], "differences", ["difference"])):
        remaining = iter(lines)
        for group in groups:
            for values in group[key]:
                line = next(remaining)
                assert line.split()[:2] == [group["group"], str(len(ROWS[group["group"]]))]
                numbers = [values[name] for name in (*names, "low", "high") if values[name] is not None]
                assert numbers_in(line) == pytest.approx(numbers, abs=6e-5)
        assert list(remaining) == []


def test_the_page_of_a_comparison_has_the_groups(both, tmp_path):
    both(EVERY, *GROUPED, "--report", "page.html")

    assert read_data(tmp_path / "page.html")["labels"] == DOMAINS


def test_texts_that_are_alone_in_their_groups_are_compared(both):
    table = both([1, 8], *GROUPED).out.split("\n\n")[3]

    assert table.startswith("group ")


def test_a_comparison_needs_two_texts_and_a_column(command, both):
    printed = both([8], *GROUPED, exit_code=2)
    check_error(printed, "^a comparison needs at least two texts, got one. Give files with more texts$")

    printed = command("compare", "hyps.txt", "others.txt", "-r", "refs.txt", *GROUPED, exit_code=2)
    check_error(printed, "^argument --group-column: there are no columns in ")
