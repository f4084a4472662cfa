"""Unusual scores in headless Chromium: no page shows a missing value."""

import re
from types import SimpleNamespace

import pytest
import torch

from bertscore_tm import align
from bertscore_tm.cli import main
from bertscore_tm.report import Report
from bertscore_tm.scoring.settings import ScoreSettings
from bertscore_tm.utilities.checks import SCORE_NAMES
from tests.support.browser import expect_rows

NAN = float("nan")
SOME = ["a cat sat", "", "it rains", "\u200b", "he works late", "x", "dogs"]
LISTS = [["the cat sat", ""], ["a dog"], ["", " "], ["y"], ["", "she works"], ["x"], ["a", "cats and dogs"]]
FEW = {"b": ["a cat", ""], "a": ["", "it rained"], "c": ["", ""]}


def fixed(*f1):
    return {name: list(f1) for name in SCORE_NAMES}


# Every kind of page, with texts or tables that are empty.
PAGES = {
    "alignment": lambda encoder: align("a cat sleeps", "the kitten is sleeping", encoder),
    "weighted alignment": lambda encoder: align("a cat", "the kitten", encoder, idf=["a cat", "a dog"]),
    "one system": lambda encoder: Report.from_texts(SOME, LISTS, encoder),
    "one pair": lambda encoder: Report.from_texts(["a cat"], ["a dog"], encoder),
    "one blank pair": lambda encoder: Report.from_texts([""], [" "], encoder),
    "no pairs": lambda encoder: Report([], [], fixed()),
    "scores alone": lambda encoder: Report(["x", "y"], ["x", "z"], fixed(0.5, NAN)),
    "two systems": lambda encoder: Report.from_texts({"a": SOME, "b": SOME[::-1]}, LISTS, encoder),
    "equal systems": lambda encoder: Report.from_texts({"a": SOME, "b": SOME}, LISTS, encoder),
    "several systems of few pairs": lambda encoder: Report.from_texts(FEW, ["a cat", "it rains"], encoder),
    "several systems without scores": lambda encoder: Report(
        {name: ["x"] for name in "abc"}, ["y"], dict.fromkeys("abc", fixed(NAN))
    ),
    "several systems of documents": lambda encoder: Report(
        dict.fromkeys("abc", SOME),
        LISTS,
        {name: fixed(*[i / 9] * 6, NAN if i else 1) for i, name in enumerate("abc")},
        groups=list("aabbcde"),
    ),
    "history": lambda encoder: Report(
        {"step 1": None, "step 2": SOME, "step 3": SOME[::-1]},
        LISTS,
        {f"step {i}": fixed(*torch.linspace(0, i / 3, 7)) for i in (1, 2, 3)},
        is_history=True,
        settings=ScoreSettings.create(encoder),
    ),
    "history of one validation": lambda encoder: Report(
        {"step 1": ["x"]}, ["y"], {"step 1": fixed(NAN)}, is_history=True
    ),
}


def expect_words(page):
    """Check that no value of the script that is missing is shown, or read aloud, and that headings are not empty."""
    content = page.locator("body").inner_html().partition("<script")[0] + page.title()
    wrong = re.finditer(r"\b(undefined|NaN|null|Infinity|None|nan)\b|\[object|\b1 pairs", content)
    assert [content[max(0, match.start() - 60) : match.end() + 60] for match in wrong] == []
    headings = page.locator("h1, h2, th:visible, caption, figcaption, option").all_inner_texts()
    assert [text for text in headings if not text.strip()] == []
    assert page.locator("thead:not(:has(~ tbody > tr))").count() == 0


@pytest.mark.filterwarnings("ignore:.*scored 0")
@pytest.mark.parametrize("name", PAGES)
def test_no_page_shows_a_missing_value(show, encoder, name):
    page = show(PAGES[name](encoder))
    assert page.locator("h1").inner_text().startswith("BERTScore")
    expect_words(page)
    if "alignment" in name:
        return
    for number in range(page.locator("#pairs tr.row").count()):
        page.locator("#pairs tr.row button").nth(number).click()
    expect_words(page)
    if not page.is_visible("#controls"):
        return
    for control in ("a", "b", "filter", "order"):
        for option in page.locator(f"#{control} option").all():
            page.locator(f"#{control}").evaluate(
                "(select, value) => { select.value = value; select.dispatchEvent(new Event('change')); }",
                option.get_attribute("value"),
            )
            expect_words(page)
    page.select_option("#filter", "all")
    page.fill("#search", "no such text")
    expect_rows(page, 0)
    expect_words(page)


def test_a_page_of_the_shell_and_a_frame_show_no_missing_value(show, browser, encoder, minilm, tmp_path):
    assert main(["show", "a cat", "the kitten", "-m", minilm, "-l", "5", "-o", str(tmp_path / "pair.html")]) == 0
    notebook = browser.new_page()
    notebook.set_content(align("a cat", "the kitten", encoder)._repr_html_())
    frame = notebook.frames[1]
    frame.wait_for_selector("body[data-ready]")
    written = show(SimpleNamespace(to_html=(tmp_path / "pair.html").read_text))
    for page in (frame, written):
        expect_words(page)
        assert page.locator("h2").all_inner_texts() == ["candidate", "reference"]
    notebook.close()
