"""The rule for rows of several files: joined by an id, paired by their order, or refused."""

import re

import pytest

from bertscore_tm.cli.errors import CommandError
from bertscore_tm.cli.join import KeyColumns, find_join, normalize_key

IDS = list(range(10))
BACK = IDS[::-1]
DOCUMENTS = ["d1"] * 5 + ["d2"] * 5
SEGMENTS = [1, 2, 3, 4, 5] * 2
IMAGES = [f"img{i}.jpg" for i in IDS]
IN_ORDER = [[row] for row in IDS]
REVERSED = [[row] for row in BACK]


def make_file(name, num_rows=10, object_keys=None, **columns):
    """Return a file with these columns; without any it has plain lines."""
    normalized = {column: [normalize_key(value) for value in values] for column, values in columns.items()}
    if object_keys is not None:
        object_keys = [normalize_key(key) for key in object_keys]
    for values in normalized.values():
        num_rows = len(values)
    return KeyColumns(name, num_rows, normalized, object_keys)


def join(*files, systems=1, key=None):
    return find_join(files, systems, key)


JOINED = {
    "one order": (make_file("h", id=IDS), make_file("r", id=IDS), "id", IN_ORDER),
    "another order": (make_file("h", id=IDS), make_file("r", id=BACK), "id", REVERSED),
    "floats and integers": (make_file("h", id=IDS), make_file("r", id=[float(i) for i in BACK]), "id", REVERSED),
    "1.0 in a CSV": (make_file("h", id=IDS), make_file("r", id=[f"{i}.0" for i in BACK]), "id", REVERSED),
    "numbers of articles": (
        make_file("h", article_id=[f"2101.{i}" for i in IDS]),
        make_file("r", article_id=[f"2101.{i}" for i in BACK]),
        "article_id",
        REVERSED,
    ),
    "an equal index": (make_file("h", index=IDS, id=IDS), make_file("r", index=IDS, id=BACK), "id", REVERSED),
    "captions of images": (
        make_file("h", image_id=IDS, id=IDS),
        make_file("r", image_id=[*BACK, *BACK], id=list(range(100, 120))),
        "image_id",
        [[row, row + 10] for row in BACK],
    ),
    "an object and a column": (make_file("h", object_keys=IDS), make_file("r", image_id=BACK), "image_id", REVERSED),
    "two objects": (make_file("h", object_keys=IMAGES), make_file("r", object_keys=IMAGES[::-1]), "id", REVERSED),
    "two references": (make_file("h", id=IDS), make_file("r", id=[*IDS, *BACK]), "id", [[i, 19 - i] for i in IDS]),
}


@pytest.mark.parametrize(("first", "second", "column", "rows"), JOINED.values(), ids=JOINED)
def test_an_id_that_fits_joins(first, second, column, rows):
    found = join(first, second)

    assert found.description == f"paired by {column!r}"
    assert found.rows == [IN_ORDER, rows]
    is_moved = rows != sorted(rows)
    assert bool(found.message) == is_moved
    if is_moved:
        assert found.message == f"rows are joined by {column!r}: the order of r is not that of h"


BY_ORDER = {
    "plain lines": (make_file("h"), make_file("r")),
    "an id in one file": (make_file("h", id=IDS), make_file("r")),
    "an object and plain lines": (make_file("h", object_keys=IDS), make_file("r")),
    "ids of two names": (make_file("h", id=IDS), make_file("r", study_id=IDS)),
    "documents and segments": (
        make_file("h", doc_id=DOCUMENTS, seg_id=SEGMENTS),
        make_file("r", doc_id=DOCUMENTS, seg_id=SEGMENTS),
    ),
    "languages": (make_file("h", lang=["de", "en"] * 5), make_file("r", lang=["de", "en"] * 5)),
    "scores": (make_file("h", score=[f"{i / 7:.4f}" for i in IDS]), make_file("r", score=[f"{i / 9}" for i in IDS])),
    "flags": (make_file("h", correct=[1, 0, 1]), make_file("r", correct=[0, 1, 1])),
    "numbers of tokens": (make_file("h", tokens=[4, 5, 6]), make_file("r", tokens=[5, 4, 6])),
    "names of systems": (make_file("h", system=["a"] * 10), make_file("r", system=["b"] * 10)),
}


@pytest.mark.parametrize(("first", "second"), BY_ORDER.values(), ids=BY_ORDER)
def test_rows_without_ids_are_paired_by_order(first, second):
    found = join(first, second)

    assert found.description == "paired by order"
    assert found.message == ""
    assert found.rows == [[[row] for row in range(first.num_rows)]] * 2


REFUSED = {
    "a null": (
        make_file("h", id=[None, *IDS[1:]]),
        make_file("r", id=BACK),
        "h and r differ in 'id': 9 of 11 values are in both "
        "(an empty value in row 1 of h only, '0' in row 10 of r only).",
    ),
    "a null next to an index": (
        make_file("h", index=IDS, id=[None, *IDS[1:]]),
        make_file("r", index=IDS, id=BACK),
        "9 of 11 values are in both",
    ),
    "leading zeros": (make_file("h", id=[f"{i:03d}" for i in IDS]), make_file("r", id=BACK), "0 of 20 values"),
    "names with a suffix": (
        make_file("h", imageId=IMAGES),
        make_file("r", imageId=[f"img{i}" for i in BACK]),
        "0 of 20 values are in both ('img0.jpg' in row 1 of h only, 'img9' in row 1 of r only)",
    ),
    "a third shared": (
        make_file("h", id=IDS),
        make_file("r", id=[i if i < 3 else i + 90 for i in BACK]),
        "3 of 17 values are in both",
    ),
    "documents in another order": (
        make_file("h", doc_id=DOCUMENTS, seg_id=SEGMENTS),
        make_file("r", doc_id=DOCUMENTS[::-1], seg_id=SEGMENTS),
        "2 of 2 values are in both (some are repeated, or in another order)",
    ),
    "several candidates": (make_file("h", id=[*IDS, *BACK]), make_file("r", id=IDS), "some are repeated"),
    "two names": (
        make_file("h", id=IDS),
        make_file("r", study_id=BACK),
        "'id' of h and 'study_id' of r have the same 10 values in another order: '0' in row 1 and '9' in row 1",
    ),
    "file names": (
        make_file("h", file=IMAGES),
        make_file("r", file=IMAGES[::-1]),
        "the same 10 values in another order",
    ),
    "languages in another order": (
        make_file("h", lang=["de", "en"] * 5),
        make_file("r", lang=["en", "de"] * 5),
        "'lang' of h and 'lang' of r have the same 2 values in another order: 'de' in row 1 and 'en' in row 1",
    ),
    "numbers of rows": (
        make_file("h"),
        make_file("r", num_rows=9),
        "h and r must have equal numbers of texts, got 10 and 9.",
    ),
    "two pairings": (
        make_file("h", id=IDS, key=IDS),
        make_file("r", id=IDS, key=BACK),
        "'id' and 'key' pair the rows of h and r differently.",
    ),
}


@pytest.mark.parametrize(("first", "second", "message"), REFUSED.values(), ids=REFUSED)
def test_ids_that_do_not_fit_are_an_error(first, second, message):
    with pytest.raises(CommandError, match=re.escape(message)) as raised:
        join(first, second)

    assert "--key NAME" in str(raised.value)
    assert "--key none" in str(raised.value)
    assert join(first, make_file("r", num_rows=first.num_rows), key="none").column is None


def test_a_file_without_the_id_follows_one_order():
    sources = make_file("s")

    found = join(make_file("h", id=IDS), make_file("r", id=IDS), sources)

    assert found.rows == [IN_ORDER] * 3
    assert found.column == "id"


@pytest.mark.parametrize("third", [make_file("s"), make_file("s", lang=["de"] * 10)], ids=["lines", "columns"])
def test_a_file_without_the_id_does_not_follow_two_orders(third):
    files = [make_file("h", id=IDS), make_file("r", id=BACK), third]

    with pytest.raises(CommandError, match="s has no column 'id', and the order of r is not that of h"):
        join(*files)

    # The systems have no ids either.
    with pytest.raises(CommandError, match="h has no column 'id', and the order of s is not that of r"):
        join(make_file("h"), make_file("r", id=IDS), make_file("s", id=BACK))


def test_every_pair_of_files_is_compared():
    with pytest.raises(CommandError, match="'lang' of r and 'lang' of s"):
        join(make_file("h"), make_file("r", lang=["de", "en"] * 5), make_file("s", lang=["en", "de"] * 5))


def test_ids_name_the_rows_of_every_system():
    files = [make_file("a", id=IDS), make_file("b", id=BACK), make_file("r", id=IDS)]
    assert join(*files, systems=2).rows == [IN_ORDER, REVERSED, IN_ORDER]

    repeated = make_file("b", id=[0, *IDS[:-1]])
    with pytest.raises(CommandError, match="9 of 10 values are in both"):
        join(files[0], repeated, files[2], systems=2)


def test_a_named_key_joins_several_candidates_and_a_subset():
    found = join(make_file("h", id=[2, 1, 2]), make_file("r", id=BACK), key="id")

    assert found.rows == [[[0], [1], [2]], [[7], [8], [7]]]
    assert found.message == "left out 8 of 10 rows of r: h has no such 'id'"


NAMED_ERRORS = {
    "no column": ([make_file("h", id=IDS), make_file("r")], 1, "r has no column 'id'"),
    "no value": ([make_file("h", id=IDS), make_file("r", id=[*IDS[:9], ""])], 1, "r: row 10 has no value of 'id'"),
    "a missing row": (
        [make_file("h", id=IDS), make_file("r", id=IDS[:8])],
        1,
        "r has no row with the id '8': it lacks 2 of 10 values of h. Add these rows, or",
    ),
    "repeated in a system": (
        [make_file("a", id=IDS), make_file("b", id=[*IDS, 3])],
        2,
        "b: row 4 and row 11 have the same 'id', '3'",
    ),
    "other texts of a system": (
        [make_file("a", id=IDS), make_file("b", id=[*IDS, 10])],
        2,
        "a has no row with the id '10', as b has",
    ),
}


@pytest.mark.parametrize(("files", "systems", "message"), NAMED_ERRORS.values(), ids=NAMED_ERRORS)
def test_a_named_key_that_does_not_fit_is_an_error(files, systems, message):
    with pytest.raises(CommandError, match=re.escape(message)):
        join(*files, systems=systems, key="id")


def test_one_file_is_paired_with_itself():
    samples = make_file("h", id=[1, 1, 2])

    assert join(samples).column is None
    assert join(samples, key="id").rows == [[[0], [1], [2]]]
