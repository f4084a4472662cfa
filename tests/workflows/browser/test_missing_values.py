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


WRONG = re.compile(r"\b(?:undefined|NaN|null|Infinity|None|nan)\b|\[object|\b1 pairs")
# What the page says now: its markup, its headings that are seen, and the number of tables without rows.
LOOK = """() => {
  const headings = [...document.querySelectorAll("h1, h2, th, caption, figcaption, option")];
  const seen = headings.filter((heading) => heading.tagName !== "TH" || heading.getClientRects().length > 0);
  return {
    content: document.body.innerHTML.split("<script")[0] + document.title,
    headings: seen.map((heading) => heading.innerText),
    headless: document.querySelectorAll("thead:not(:has(~ tbody > tr))").length,
  };
}"""
# What it says after each choice of each control.
LOOK_AT_CHOICES = f"""() => {{
  const look = {LOOK};
  const looks = [];
  for (const name of ["a", "b", "filter", "order"]) {{
    const values = [...document.querySelectorAll(`#${{name}} option`)].map((option) => option.value);
    for (const value of values) {{
      const select = document.getElementById(name);
      select.value = value;
      select.dispatchEvent(new Event("change"));
      looks.push(look());
    }}
  }}
  return looks;
}}"""


def check_words(look):
    """Check that no missing value of the script is shown, or read aloud, and that headings are not empty."""
    content = look["content"]
    places = [content[max(0, match.start() - 60) : match.end() + 60] for match in WRONG.finditer(content)]
    assert places == []
    assert [text for text in look["headings"] if not text.strip()] == []
    assert look["headless"] == 0


@pytest.mark.filterwarnings("ignore:.*scored 0")
@pytest.mark.parametrize("name", PAGES)
def test_no_page_shows_a_missing_value(show, encoder, name):
    page = show(PAGES[name](encoder))

    assert page.locator("h1").inner_text().startswith("BERTScore")
    check_words(page.evaluate(LOOK))
    if "alignment" in name:
        return
    page.evaluate("document.querySelectorAll('#pairs tr.row button').forEach((button) => button.click())")
    check_words(page.evaluate(LOOK))
    if not page.is_visible("#controls"):
        return
    for look in page.evaluate(LOOK_AT_CHOICES):
        check_words(look)
    page.select_option("#filter", "all")
    page.fill("#search", "no such text")
    expect_rows(page, 0)
    check_words(page.evaluate(LOOK))


def test_a_page_of_the_shell_and_a_frame_show_no_missing_value(show, browser, encoder, minilm, tmp_path):
    assert main(["show", "a cat", "the kitten", "-m", minilm, "-l", "5", "-o", str(tmp_path / "pair.html")]) == 0

    notebook = browser.new_page()
    notebook.set_content(align("a cat", "the kitten", encoder)._repr_html_())
    frame = notebook.frames[1]
    frame.wait_for_selector("body[data-ready]")
    written = show(SimpleNamespace(to_html=(tmp_path / "pair.html").read_text))

    for page in (frame, written):
        check_words(page.evaluate(LOOK))
        assert page.locator("h2").all_inner_texts() == ["candidate", "reference"]

    notebook.close()
