"""An opened pair in headless Chromium: its tokens, matches and marks."""

import re

import pytest
import torch
from playwright.sync_api import expect

from bertscore_tm import Baseline, align
from bertscore_tm.report import Report
from tests.support.browser import CANDIDATES, REFERENCES, column, keep_page
from tests.support.report_pages import EVIL, TEXTS, scored_report


def test_a_pair_opens_by_keyboard_and_shows_matches(show, report):
    page = show(report)
    page.focus("#pair-1")

    page.keyboard.press("Enter")

    assert page.get_attribute("#pair-1", "aria-expanded") == "true"

    base, other = page.locator(".pair").all()
    assert base.locator("h2").first.inner_text().startswith("base: P ")

    marks = base.locator("mark")
    # The second reference is the better one.
    assert marks.all_inner_texts() == ["a", "cat", "sleeps", "the", "kitten", "is", "sleeping"]

    # What lowers the score is named, the worst first.
    side = align(CANDIDATES["base"][0], REFERENCES[0][1], report.settings.encoder, idf=["a cat", "the dog"]).candidate
    cost = side.weights * (1 - side.best)
    lowest = [f"{side.tokens[i]} {side.best[i]:.3f}" for i in cost.argsort(descending=True).tolist()]

    assert base.locator("small").first.inner_text() == f"lowers P most: {' · '.join(lowest)}"

    marks.nth(2).hover()
    assert base.locator("mark.on").all_inner_texts() == ["sleeps"]
    assert base.locator("mark.match").all_inner_texts() == ["sleeping"]
    assert base.locator(".link line").count() == 1

    said = base.locator("output").inner_text()
    assert re.match(r"sleeps matches sleeping: similarity 0\..*, weight .*, adds 0\.", said)

    # Arrow keys move between the tokens of a text.
    marks.nth(0).focus()
    page.keyboard.press("ArrowRight")

    assert base.locator("mark.on").all_inner_texts() == ["cat"]
    assert other.locator("mark.on").count() == 0

    page.click("#pair-1")
    assert page.locator(".pair").count() == 0


BASELINE = torch.full((7, 3), 0.4, dtype=torch.float64)


@pytest.mark.parametrize(
    ("rescale", "f1", "note"),
    [
        (False, "0.0000", "empty: scored 0"),
        # The baseline is 0.4, so that 0 becomes -0.4 / 0.6.
        (Baseline(BASELINE, "mine"), "-0.6667", "empty: scored 0 before rescaling"),
    ],
    ids=["raw", "rescaled"],
)
def test_a_blank_text_is_scored_0_before_rescaling(show, encoder, rescale, f1, note):
    with pytest.warns(UserWarning, match="1 candidate scored 0"):
        page = show(Report.from_texts(["", "a cat"], ["a dog", "a cat"], encoder, rescale=rescale))

    page.click("#pair-1")

    assert column(page, 2)[0] == f1
    assert page.locator(".pair small").all_inner_texts() == [note]


def test_an_alignment_has_the_words_of_a_report(show, report, encoder):
    pair = show(align(CANDIDATES["base"][0], REFERENCES[0][1], encoder, idf=["a cat", "the dog"])).locator(".pair")
    marks = pair.locator("mark")

    assert marks.all_inner_texts() == ["a", "cat", "sleeps", "the", "kitten", "is", "sleeping"]

    marks.nth(2).hover()
    assert pair.locator("mark.match").all_inner_texts() == ["sleeping"]
    assert pair.locator("output").inner_text().startswith("sleeps matches sleeping: similarity 0.")


def test_texts_are_shown_as_they_are(show):
    texts = list(TEXTS.values())
    scores = {name: torch.linspace(0, 1, len(texts)) for name in ("precision", "recall", "f1")}
    page = show(Report({EVIL: texts, "b": texts}, texts, {EVIL: scores, "b": scores}))

    for row in range(1, len(texts) + 1):
        page.click(f"#pair-{row}")

    assert page.title() == f"BERTScore: {EVIL}, b".replace("  ", " ")
    assert page.locator("img").count() == 0

    shown = [part.text_content() for part in page.locator(".pair .words").all()]
    assert shown.count(EVIL) == 4
    assert shown.count(texts[5]) == 4
    assert len([text for text in column(page, 6) if len(text) > 310]) == 0

    arabic = page.locator(".pair .words", has_text="السلام").first
    assert arabic.evaluate("element => getComputedStyle(element).direction") == "rtl"


def test_pairs_of_unknown_tokens_are_found_and_say_so(show, encoder):
    texts = ["a cat sat", "\u16a0\u16a2\u16a6 \u16a8\u16b1", "it rains"]

    with pytest.warns(UserWarning, match="of the characters are unknown to the encoder"):
        page = show(Report.from_texts({"a": texts, "b": texts[::-1]}, ["the cat", "a dog", "rain"], encoder))

    page.select_option("#filter", "unknown")
    assert column(page, 1) == ["2"]

    page.click("#pair-2")
    notes = page.locator(".detail").get_by_text("candidate has 5 unknown of 5 characters")
    expect(notes).to_have_count(2)


# The encoder does not know the Chinese characters.
@pytest.mark.filterwarnings("ignore:16% of the characters are unknown")
def test_a_text_is_shown_as_it_was_scored(show, encoder):
    texts = ["def f(x):\n    return x + 1\n", "नमस्ते दुनिया", "我喜欢猫", "a 👩‍👩‍👧 family 😀", "السلام عليكم"]
    page = show(Report.from_texts(texts, texts[::-1], encoder))

    for row in range(1, len(texts) + 1):
        page.click(f"#pair-{row}")

    shown = [part.text_content() for part in page.locator(".pair .words").all()]
    assert sorted(shown) == sorted(texts + texts)


LONG = "x" * 3000
CUT = "x" * 50 + "…"


@pytest.fixture(scope="module")
def long_texts(encoder):
    """An alignment and a report of texts with a token of 3,000 characters, which is unknown."""
    candidates = [f"a {LONG} cat", "a cat"] * 2
    references = [f"the {LONG}y dog", "cats"] * 2
    systems = {"a" * 300: candidates, "b": candidates[::-1]}
    with pytest.warns(UserWarning, match="one unknown token"):
        pair = align(candidates[0], references[0], encoder)
    with pytest.warns(UserWarning, match="characters are unknown"):
        report = Report.from_texts(systems, references, encoder)
    return {"pair": pair, "report": keep_page(report)}


@pytest.mark.parametrize("width", [390, 1200])
@pytest.mark.parametrize("kind", ["pair", "report"])
def test_a_token_of_thousands_of_characters_fits_the_window(show, long_texts, width, kind):
    page = show(long_texts[kind], width=width)
    if kind == "report":
        page.click("#pair-1")
        page.locator("#words button", has_text="xxx").first.click()

    page.locator("mark", has_text="xxx").first.hover(position={"x": 5, "y": 5})

    assert page.locator("output").first.inner_text().startswith(f"{CUT} matches ")
    assert page.evaluate("document.documentElement.scrollWidth") == width
    assert page.locator("mark", has_text="xxx").first.inner_text() == LONG
    cut = page.locator("bdi", has_text="xxx").all()
    assert cut
    for part in cut:
        assert part.inner_text() == CUT
        assert part.get_attribute("title") in (LONG, LONG + "y")


def test_a_page_without_token_matches_promises_none(show, encoder):
    """Its hints hold for a page of the shell, too, which has no argument for the number of alignments."""
    page = show(scored_report(3, 2, is_history=True))
    page.click("#pair-1")

    assert page.locator(".pairs caption").inner_text() == "3 of 3 pairs, page 1 of 1"

    note = "Token matches of these texts are not stored. See them with bertscore_tm.align or bertscore-tm show."
    assert page.locator(".pair small").all_inner_texts() == [note] * 2

    page = show(Report.from_texts(["a cat", "a dog"], ["cats", "dogs"], encoder, num_alignments=1))
    hint = "2 of 2 pairs, page 1 of 1; a bold number opens to tokens"

    assert page.locator(".pairs caption").inner_text() == hint
    assert page.locator("button.tokens").count() == 1


@pytest.mark.filterwarnings("ignore:.*scored 0")
def test_a_blank_pair_is_not_marked_as_one_with_tokens(show, encoder):
    page = show(Report.from_texts(["", "a cat"], ["a dog", "cats"], encoder))

    assert page.locator("button.tokens").all_inner_texts() == ["2"]

    page.select_option("#filter", "aligned")
    assert column(page, 1) == ["2"]
