"""The page on libraries names a test or a script in each row, and each script names the page."""

import re

from tests.support.markdown_blocks import ROOT

PAGE = (ROOT / "examples/docs/library_behaviour.md").read_text(encoding="utf-8")
ROWS = [line for line in PAGE.splitlines() if line.startswith("| ") and not line.startswith("| library")]


def test_the_tests_in_the_table_exist():
    names = re.findall(r"`([\w/]+\.py)::(\w+)`", PAGE)

    assert len(names) > 10
    for file, name in names:
        assert re.search(rf"^def {name}\(", (ROOT / "tests" / file).read_text(encoding="utf-8"), re.MULTILINE), name


def test_the_page_is_short_and_its_rows_are_complete():
    assert len(PAGE.splitlines()) <= 150
    for row in ROWS:
        assert row.count(" | ") == 3, row
        # Nothing can be done about a model that returns vectors without context.
        assert ".py::" in row or ".sh)" in row or "MRA" in row, row


def test_every_script_has_a_row_and_names_the_page():
    scripts = sorted((ROOT / "examples/upstream").glob("*.sh"))

    assert len(scripts) >= 14
    for script in scripts:
        assert sum(f"(../upstream/{script.name})" in row for row in ROWS) == 1, script.name
        assert "../docs/library_behaviour.md" in script.read_text(encoding="utf-8"), script.name
