"""The page in headless Chromium: sort, search, filter, open a pair, see a match; no error and no request."""

import re
import shutil
from itertools import chain, combinations
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from bertscore_tm import Baseline, align, bert_score
from bertscore_tm.cli import main
from bertscore_tm.pages import render
from bertscore_tm.report import Report
from bertscore_tm.scoring.settings import ScoreSettings
from bertscore_tm.statistics import compare_paired, holm, mean_interval
from bertscore_tm.utilities.checks import SCORE_NAMES
from tests.support.report_pages import EVIL, TEXTS, scored_report
from tests.support.texts import real_pairs

sync_api = pytest.importorskip("playwright.sync_api")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")

SCRIPTS = Path(render.__file__).parent
CANDIDATES = {
    "base": ["a cat sleeps", "it is raining now", "he works late", "", "the market is closed", "the dog barked"],
    "next": ["a kitten sleeps", "it rains", "she works late", "a letter", "the market opens at ten", "a dog barks"],
}
OTHERS = ["it is raining", "she works late today", "she wrote a letter", "the market opens at 9", "the dog was barking"]
REFERENCES = [["no cat at all", "the kitten is sleeping"], *OTHERS]


@pytest.fixture(scope="module")
def browser():
    with sync_api.sync_playwright() as playwright:
        yield playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])


@pytest.fixture
def show(browser, tmp_path):
    """Function that opens the page of a report or an alignment; no page may have an error or make a request."""
    wrong, pages = [], []

    def open_page(shown, **options):
        path = tmp_path / "report.html"
        path.write_text(shown.to_html(), encoding="utf-8")
        page = browser.new_page(**options)
        pages.append(page)
        page.on("console", lambda message: wrong.append(message.text))
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("request", lambda request: wrong.append(request.url) if request.url != path.as_uri() else None)
        page.goto(path.as_uri())
        page.wait_for_selector("body[data-ready]")
        return page

    yield open_page
    for page in pages:
        page.close()
    assert wrong == []


@pytest.fixture(scope="module")
def report(encoder):
    with pytest.warns(UserWarning, match="1 candidate scored 0"):
        return Report.from_texts(CANDIDATES, REFERENCES, encoder, idf=["a cat", "the dog"])


def column(page, number):
    return [cell.inner_text() for cell in page.locator(f"#pairs tr.row td:nth-child({number})").all()]


def expect_rows(page, count):
    sync_api.expect(page.locator("#pairs tr.row")).to_have_count(count)


def test_sort_search_and_filter(show, report):
    page = show(report)
    differences = [float(cell.replace("−", "-")) for cell in column(page, 4)]
    assert differences == sorted(differences)
    assert len(differences) == 6
    f1 = report.scores["base"][2]
    for order in (f1.argsort(), f1.argsort(descending=True)):
        page.click("#sort-a")
        assert column(page, 1) == [str(row + 1) for row in order.tolist()]
    assert page.get_attribute("th:has(#sort-a)", "aria-sort") == "descending"
    page.click("#sort-candidate")
    assert column(page, 6) == sorted(CANDIDATES["next"])
    page.fill("#search", "SHE W")
    expect_rows(page, 2)
    assert sorted(column(page, 1)) == ["3", "4"]
    page.fill("#search", "")
    expect_rows(page, 6)
    difference = report.scores["next"][2] - f1
    better = {"empty": [4], "a": [i + 1 for i in range(6) if difference[i] < 0]}
    better["b"] = [i for i in range(1, 7) if i not in better["a"]]
    for name, rows in better.items():
        page.select_option("#filter", name)
        assert sorted(map(int, column(page, 1))) == rows
    # What is said follows the filter.
    shown = report.scores["next"][2][[row - 1 for row in better["b"]]]
    low, high = mean_interval(shown.double(), bounds=(-1, 1))
    filtered = page.locator("#filtered").inner_text()
    assert filtered.startswith(f"Mean F1 of the {len(shown)} pairs shown: base ")
    numbers = filtered.rpartition("next ")[2].replace(")", "").replace("(", "to ").split(" to ")
    assert float(numbers[0]) == pytest.approx(shown.mean().item(), abs=6e-5)
    assert list(map(float, numbers[1:])) == pytest.approx([low.item(), high.item()], abs=0.002)
    page.select_option("#filter", "all")
    low, high = mean_interval(difference)
    expected = f"next minus base: mean difference of F1 {difference.mean():+.4f} (95% interval {low:+.4f} to "
    expected += f"{high:+.4f}), p {compare_paired(f1, report.scores['next'][2]).p_value:.4f}, "
    expected += f"better in {len(better['b'])} pairs, worse in {len(better['a'])}"
    assert page.locator("#difference").inner_text() == expected
    page.select_option("#a", "1")
    assert column(page, 4) == ["0.0000"] * 6
    assert page.locator("#difference").inner_text().startswith("next minus next: mean difference of F1 0.0000")


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


@pytest.mark.parametrize("rescale", [False, True])
def test_a_blank_text_is_scored_0_before_rescaling(show, encoder, rescale):
    table = Baseline(torch.full((7, 3), 0.4, dtype=torch.float64), "mine") if rescale else False
    with pytest.warns(UserWarning, match="1 candidate scored 0"):
        page = show(Report.from_texts(["", "a cat"], ["a dog", "a cat"], encoder, rescale=table))
    page.click("#pair-1")
    assert column(page, 2)[0] == ("-0.6667" if rescale else "0.0000")
    notes = page.locator(".pair small").all_inner_texts()
    assert notes == ["empty: scored 0 before rescaling" if rescale else "empty: scored 0"]


def test_an_alignment_has_the_words_of_a_report(show, report, encoder):
    pair = show(align(CANDIDATES["base"][0], REFERENCES[0][1], encoder, idf=["a cat", "the dog"])).locator(".pair")
    marks = pair.locator("mark")
    assert marks.all_inner_texts() == ["a", "cat", "sleeps", "the", "kitten", "is", "sleeping"]
    marks.nth(2).hover()
    assert pair.locator("mark.match").all_inner_texts() == ["sleeping"]
    assert pair.locator("output").inner_text().startswith("sleeps matches sleeping: similarity 0.")


def test_dark_mode_print_and_narrow_windows(show, report):
    colours = []
    for scheme in ("light", "dark"):
        page = show(report, color_scheme=scheme, viewport={"width": 390, "height": 800})
        page.click("#pair-2")
        page.click("#pair-4")
        assert page.evaluate("document.documentElement.scrollWidth") == 390
        ends = "[...document.querySelectorAll('.pair *')].map(element => element.getBoundingClientRect().right)"
        assert page.evaluate(f"Math.max(...{ends})") <= 390
        style = "(element => [getComputedStyle(element).backgroundColor, getComputedStyle(element).color])"
        colours.append(page.evaluate(f"{style}(document.body)"))
    assert colours[0] != colours[1]
    page.emulate_media(media="print")
    assert not page.is_visible("#controls")
    assert page.locator(".pair").first.is_visible()
    assert page.pdf()[:5] == b"%PDF-"


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


def test_a_history_shows_its_course(show):
    report = scored_report(60, 5, num_systems=4, is_history=True)
    page = show(report)
    assert page.locator("#charts h2").first.inner_text() == "F1 over the training, and the best validation"
    assert "(best)" in page.locator("#a").inner_text()
    assert page.locator("#charts figure").first.locator("circle").count() == 4
    page.select_option("#a", "2")
    difference = (report.scores["system 3"] - report.scores["system 2"])[2]
    assert column(page, 1)[0] == str(difference.argmin().item() + 1)
    assert len(column(page, 1)) == 50
    page.click("#next")
    assert len(column(page, 1)) == 10
    page.click("#pairs tr.row >> nth=0")
    assert page.locator("tr.detail figure circle").count() == 4


def test_validations_that_are_not_tested_have_an_interval(show):
    """Tested are the first, the best and the last two."""
    report = scored_report(40, 5, num_systems=15, is_history=True)
    page = show(report)
    f1 = [scores[2] for scores in report.scores.values()]
    best = max(range(15), key=lambda number: f1[number].mean())
    said = page.locator("#difference").inner_text()
    tested = list(combinations(sorted({0, best, 13, 14}), 2))
    p_values = holm([compare_paired(f1[a], f1[b]).p_value for a, b in tested])
    p = p_values[tested.index((0, 14))]
    assert f", p {p:.4f} adjusted for the {len(tested)} pairs of the first, the best and the last two" in said
    a, b = [number for number in range(1, 13) if number != best][:2]
    page.select_option("#a", str(a))
    page.select_option("#b", str(b))
    low, high = mean_interval(f1[b].double() - f1[a].double())
    said = page.locator("#difference").inner_text()
    assert f"(95% interval {low:+.4f} to {high:+.4f}), better in " in said


def test_many_pairs_and_a_notebook(show, browser):
    page = show(scored_report(50_000, 25))
    page.click("#sort-length")
    page.fill("#search", page.locator("#pairs tr.row td.text").first.inner_text()[:40])
    expect_rows(page, 1)
    notebook = browser.new_page()
    notebook.set_content(f"<p>cell</p>{scored_report(3, 2)._repr_html_()}")
    notebook.frame_locator("iframe").locator("#pair-3").click()
    assert notebook.frame_locator("iframe").locator(".pair").count() == 2


@pytest.fixture(scope="module")
def three(encoder):
    """Three systems on 30 pairs, of which the last says another word for one thing."""
    targets = real_pairs(30)[1]
    systems = {
        "first": [" ".join(text.split()[:12]) for text in targets],
        "middle": [" ".join(text.split()[2:12]) for text in targets],
        "last": [" ".join("zebra" if word == "the" else word for word in text.split()[:12]) for text in targets],
    }
    return Report.from_texts(systems, targets, encoder, num_alignments=90, title="Three systems")


def test_the_first_pair_is_near_for_the_keyboard(show, encoder):
    """Of five systems the matrix, each chart and the words are one stop of Tab each; a link skips all."""
    targets = real_pairs(10)[1]
    systems = {f"{count} words": [" ".join(text.split()[:count]) for text in targets] for count in range(5, 10)}
    page = show(Report.from_texts(systems, targets, encoder))
    first = page.locator("#pairs tr.row button").first.get_attribute("id")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the pairs"
    assert page.locator(".skip").evaluate("link => getComputedStyle(link).clipPath") == "none"
    stops = 1
    while page.evaluate("document.activeElement.id") != first and stops < 100:
        page.keyboard.press("Tab")
        stops += 1
    assert stops - 1 == 19
    page.reload()
    page.wait_for_selector("body[data-ready]")
    page.keyboard.press("Tab")
    address = page.url
    page.keyboard.press("Enter")
    assert (page.evaluate("document.activeElement.id"), page.url) == (first, address)
    # In the matrix arrow keys move over the diagonal, and not beyond an edge.
    page.focus("#matrix-0-1")
    for key, place in {"ArrowLeft": "0-1", "ArrowDown": "2-1", "ArrowRight": "2-3", "ArrowUp": "1-3"}.items():
        page.keyboard.press(key)
        assert page.evaluate("document.activeElement.id") == f"matrix-{place}"
    assert page.locator("#matrix button[tabindex='0']").get_attribute("id") == "matrix-1-3"
    page.keyboard.press("Enter")
    assert page.locator("#difference").inner_text().startswith("6 words minus 8 words: ")
    words = page.locator("#words button")
    words.first.focus()
    page.keyboard.press("ArrowDown")
    assert page.evaluate("document.activeElement.textContent") == words.nth(1).inner_text()
    assert page.locator("#words button[tabindex='0']").count() == 1


def test_a_matrix_of_five_is_seen_whole(show):
    """At 900 pixels; where a narrower page hides columns, a shade that ends with them shows the side."""
    names = [f"outputs/2026-11-27/model_{number}.txt" for number in range(5)]
    drawn, texts = torch.Generator().manual_seed(0), ["word"] * 30
    f1 = [number / 9 + 0.1 * torch.rand(30, generator=drawn) for number in range(5)]
    scores = {name: dict.fromkeys(SCORE_NAMES, values) for name, values in zip(names, f1, strict=True)}
    report = Report(dict.fromkeys(names, texts), texts, scores)
    hidden = "(part => part.scrollWidth - part.clientWidth)(document.querySelector('.scroll'))"
    assert show(report, viewport={"width": 900, "height": 800}).evaluate(hidden) == 0
    page = show(report, viewport={"width": 390, "height": 800})
    page.evaluate("document.getElementById('overview').open = true")
    assert page.evaluate(hidden) > 0
    table = page.locator(".scroll").bounding_box()
    edge = {"x": table["x"] + table["width"] - 3, "y": table["y"] + 1, "width": 2, "height": 8}
    shaded = page.screenshot(clip=edge)
    page.evaluate("document.querySelector('.scroll').scrollLeft = 9999")
    assert page.screenshot(clip=edge) != shaded


@pytest.mark.parametrize("systems", [OTHERS, {"base": OTHERS, "next": OTHERS[::-1]}])
def test_sources_are_shown_and_searched(show, encoder, systems):
    sources = ["Es regnet", EVIL, "", "Sie schrieb\n\neinen Brief", "Der Hund bellte"]
    page = show(Report.from_texts(systems, OTHERS, encoder, sources=sources))
    page.fill("#search", "BRIEF schrieb")
    expect_rows(page, 1)
    assert column(page, 1) == ["4"]
    page.click("#pair-4")
    assert page.locator("tr.detail h2").first.inner_text() == "source"
    assert page.locator("tr.detail .words").first.inner_text() == sources[3]
    page.fill("#search", "onerror")
    expect_rows(page, 1)
    page.click("#pair-2")
    assert page.locator("tr.detail .words").first.inner_text() == EVIL
    assert page.locator("img").count() == 0


@pytest.mark.parametrize("systems", [OTHERS, {"base": OTHERS, "next": [OTHERS[0], "", *OTHERS[2:]]}])
def test_the_page_filters_and_sorts_by_group(show, encoder, systems):
    labels = ["web", "news", "web", EVIL, "__proto__"]
    references = [*OTHERS[:2], *OTHERS[:1:-1]]
    several = systems if isinstance(systems, dict) else {"candidates": systems}
    scores = {name: bert_score(texts, references, encoder) for name, texts in several.items()}
    given = scores if isinstance(systems, dict) else scores["candidates"]
    page = show(Report(systems, references, given, labels=labels, sources=OTHERS))
    for label in dict.fromkeys(labels):
        page.select_option("#filter", f"group {label}")
        rows = [i for i, other in enumerate(labels) if other == label]
        expect_rows(page, len(rows))
        assert sorted(column(page, 1)) == [str(i + 1) for i in rows]
        last = list(scores.values())[-1]["f1"][rows].mean().item()
        assert f" {last:.4f}" in page.locator("#filtered").inner_text()
    page.select_option("#filter", "all")
    page.click("#sort-group")
    assert column(page, 5) == sorted(labels)
    assert page.locator("img").count() == 0


def test_why_does_b_lose(show, three):
    """Without a click: the words that it misses. A click shows their pairs."""
    page = show(three)
    assert page.title() == page.locator("h1").inner_text() == "Three systems"
    assert page.locator(".verdict").inner_text() == "Best: first. Below (p < .05, Holm): last, middle."
    # The pair of the headline, the best two.
    assert page.locator("#difference").inner_text().startswith("last minus first: mean difference of F1 -")
    assert page.locator("td:has-text('best')").all_inner_texts() == ["first best"]
    missed = page.locator("#words table").first.locator("tbody tr")
    assert missed.first.locator("td").first.inner_text() == "the"
    a, b, pairs = (float(cell) for cell in missed.first.locator("td").all_inner_texts()[1:])
    assert a > b + 0.02
    missed.first.locator("button").click()
    expect_rows(page, int(pairs))
    assert page.locator("#chips button").inner_text() == "“the” ✕"
    assert "word=the" in page.url
    page.click("#chips button")
    expect_rows(page, 30)
    # A word that only B says is missed in its candidates.
    assert page.locator("#words table").last.locator("tbody td").first.inner_text() == "zebra"


def test_where_does_b_lose(show, three):
    """A click on a bar shows its pairs; means, intervals and charts follow."""
    page = show(three)
    f1 = three.scores["last"][2]
    bars = page.locator("#charts figure", has_text="Difference of F1").locator("rect.bar")
    bars.first.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("Enter")
    rows = [int(cell) - 1 for cell in column(page, 1)]
    assert 0 < len(rows) < 30
    difference = f1 - three.scores["first"][2]
    width = (difference.max() - difference.min()) / 40
    assert difference[rows].max() < difference.min() + width + 1e-3
    said, shown = page.locator("#filtered").inner_text(), f"F1 of the {len(rows)} pair{'s'[: len(rows) > 1]} shown"
    assert said.startswith(f"Mean {shown}: first ")
    assert f"last {f1[rows].mean():.4f}" in said
    assert page.locator("#charts h2").first.inner_text() == f"Distribution of {shown}"


CLICK_EACH_BAR = """() => {
  const clicked = [];
  for (let number = 0; ; number += 1) {
    const bar = document.querySelectorAll("rect.bar")[number];
    if (!bar) return clicked;
    const label = bar.getAttribute("aria-label");
    bar.dispatchEvent(new MouseEvent("click"));
    const rows = [...document.querySelectorAll("#pairs tr.row button")].map((button) => Number(button.textContent) - 1);
    clicked.push([label, document.querySelector("#chips button").textContent, rows]);
    document.querySelector("#chips button").click();
  }
}"""


@pytest.mark.parametrize("names", [["a"], ["a", "b"]])
def test_a_bar_shows_the_pairs_that_its_label_counts(show, names):
    """Scores of two decimals are on the edges of bins, where a sum and a quotient may round to different bins."""
    drawn = torch.Generator().manual_seed(0)
    texts = [" ".join(["word"] * (1 + row % 7)) for row in range(48)]
    f1 = {name: torch.randint(55, 96, (48,), generator=drawn) / 100 for name in names}
    page = show(
        Report(dict.fromkeys(names, texts), texts, {name: dict.fromkeys(SCORE_NAMES, f1[name]) for name in names})
    )
    values = {"characters of the reference": torch.tensor([len(text) for text in texts])}
    several = {"F1 of A": f1["a"], "F1 of B": f1[names[-1]], "B − A": f1[names[-1]] - f1["a"]}
    values |= {"F1": f1["a"]} if names == ["a"] else several
    counted = dict.fromkeys(values, 0)
    for label, chip, rows in page.evaluate(CLICK_EACH_BAR):
        name, low, high, count = re.fullmatch(r"(.+) (-?[\d.]+) to (-?[\d.]+): (\d+) pairs?", label).groups()
        assert len(rows) == int(count)
        assert chip.startswith(f"{name} {low} ")
        assert values[name][rows].min() >= float(low) - 1e-4
        assert values[name][rows].max() <= float(high) + 1e-4
        counted[name] += len(rows)
    assert counted == dict.fromkeys(values, 48)


def test_a_win_is_counted_where_it_is_selected(show):
    """Differences that four decimals hide are wins, those of rounding are ties; in the sentence and in the filters."""
    steps = {"wins": [2e-5, 0.1, 3e-6], "ties": [0.0, 4e-7, -7e-7], "losses": [-2e-5, -3e-6]}
    drawn = torch.Generator().manual_seed(3)
    a = 0.5 + 0.3 * torch.rand(40, generator=drawn)
    b = a + torch.tensor([step for _ in range(5) for part in steps.values() for step in part])
    texts = ["word"] * 40
    scores = {name: dict.fromkeys(SCORE_NAMES, f1) for name, f1 in {"A": a, "B": b, "C": a}.items()}
    page = show(Report(dict.fromkeys(scores, texts), texts, scores))
    page.click("#matrix-1-0")
    assert page.locator("td:has(#matrix-1-0) small").first.inner_text() == "15 wins"
    assert page.locator("#difference").inner_text().endswith("better in 15 pairs, worse in 10")
    for name, wins, losses in (("b", 15, 0), ("a", 0, 10)):
        page.select_option("#filter", name)
        expect_rows(page, wins + losses)
        assert f"better in {wins} pairs, worse in {losses}," in page.locator("#difference").inner_text()


def test_pairs_of_unknown_tokens_are_found_and_say_so(show, encoder):
    texts = ["a cat sat", "\u16a0\u16a2\u16a6 \u16a8\u16b1", "it rains"]
    with pytest.warns(UserWarning, match="of the characters are unknown to the encoder"):
        page = show(Report.from_texts({"a": texts, "b": texts[::-1]}, ["the cat", "a dog", "rain"], encoder))
    page.select_option("#filter", "unknown")
    assert column(page, 1) == ["2"]
    page.click("#pair-2")
    notes = page.locator(".detail").get_by_text("candidate has 5 unknown of 5 characters")
    sync_api.expect(notes).to_have_count(2)


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


def loss_of_words(candidates, references, encoder, side):
    """Return what each word of a side loses, 1 minus its similarity, in each place."""
    losses = {}
    for candidate, reference in zip(candidates, references, strict=True):
        aligned = getattr(align(candidate, reference, encoder), side)
        assert aligned.tokens == {"candidate": candidate, "reference": reference}[side].split()
        for token, best in zip(aligned.tokens, aligned.best.tolist(), strict=True):
            losses.setdefault(token, []).append(1 - best)
    return losses


def test_missed_words_lose_more_than_the_mean_word(show, encoder):
    """Frequent words lose most in sum; what counts is the excess over the mean loss, of words with a letter."""
    references = ["the cat sat .", "the dog sat .", "the bird sat .", "the zebra sat .", "the horse ate 9 ."] * 2
    candidates = ["a cat was sitting", "dog sat", "this bird sat", "it sat", "one horse ate"] * 2
    losses = loss_of_words(candidates, references, encoder, "reference")
    mean = sum(map(sum, losses.values())) / sum(map(len, losses.values()))
    excess = {word: sum(of) - mean * len(of) for word, of in losses.items()}
    expected = [word for word in sorted(excess, key=excess.get, reverse=True) if word.isalpha() and excess[word] > 0]
    sums = sorted(losses, key=lambda word: -sum(losses[word]))
    assert sums[: len(expected)] != expected
    page = show(Report.from_texts(candidates, references, encoder))
    lines = page.locator("#words table").first.locator("tbody tr")
    cells = [line.locator("td").all_inner_texts() for line in lines.all()]
    similarity = {word: 1 - sum(losses[word]) / len(losses[word]) for word in expected}
    assert cells == [[word, f"{similarity[word]:.3f}", str(len(losses[word]))] for word in expected]


@pytest.mark.parametrize(("side", "place"), [("reference", 0), ("candidate", 1)])
def test_words_that_b_matches_better_are_not_among_its_losses(show, encoder, side, place):
    """A repeats words, and matches most words worse, so that sums over unequal counts speak against B."""
    references = ["the cat sat on the mat", "a dog ran to the house", "the sun was out today", "he sold the old car"]
    systems = {
        "a": ["the cat and the cat sat", "the dog and the dog ran", "the sun and the moon", "he sold a car"],
        "b": ["the cat sat on a rug", "a zebra ran to his home", "sun was out there", "he bought the old car"],
    }
    in_a, in_b = (loss_of_words(texts, references, encoder, side) for texts in systems.values())
    mean_of_a = torch.tensor([*chain.from_iterable(in_a.values())]).mean().item()
    excess = {}
    for word, losses in in_b.items():
        expected = torch.tensor(in_a[word]).mean().item() if word in in_a else mean_of_a
        excess[word] = sum(losses) - len(losses) * expected
    expected = [word for word in sorted(excess, key=excess.get, reverse=True) if excess[word] > 0.005][:8]
    assert "cat" in in_b
    assert "cat" not in expected
    page = show(Report.from_texts(systems, references, encoder))
    page.select_option("#a", "0")
    page.select_option("#b", "1")
    table = page.locator("#words table").nth(place)
    cells = [line.locator("td").all_inner_texts() for line in table.locator("tbody tr").all()]
    assert [word for word, *_ in cells] == expected
    for word, of_a, of_b, _ in cells:
        assert of_a == "–" if word not in in_a else float(of_a) > float(of_b)
    has_new_word = any(word not in in_a for word in expected)
    assert ("a word that A does not have (–)" in table.locator("caption").inner_text()) == has_new_word


def test_a_word_shows_the_pairs_of_its_side_and_systems(show, encoder):
    """The third system says a word that the others do not, and candidates one that references do not."""
    references = ["the cat sat there", "a dog ran home", "the sun was out"]
    systems = {
        "first": references,
        "middle": ["zebra cat sat there", "a dog ran home", "the sun was out"],
        "last": ["the cat sat there", "a zebra ran home", "the zebra was out"],
    }
    page = show(Report.from_texts(systems, [*references[:2], "the zebra was out"], encoder))
    page.click("#matrix-1-0")
    missed = page.locator("#words table").last.locator("tbody tr", has_text="zebra")
    assert missed.locator("td").last.inner_text() == "1"
    missed.locator("button").click()
    assert column(page, 1) == ["1"]
    other = page.url
    page.goto("about:blank")
    page.goto(other)
    page.wait_for_selector("body[data-ready]")
    assert column(page, 1) == ["1"]


def test_which_of_many_and_a_view_can_be_sent(show, browser, three):
    """The matrix shows it; a click sets A and B, another opens a pair."""
    page = show(three)
    assert page.locator("#matrix tbody td button").count() == 6
    page.click("#matrix-0-1")
    assert page.locator("#difference").inner_text().startswith("first minus middle: mean difference of F1 +")
    page.click("#sort-length")
    page.click("#pair-20")
    assert page.locator(".pair").count() == 2
    address = page.url
    assert address.partition("#")[2] == "a=1&b=0&sort=length&pair=20"
    other = browser.new_page()
    other.goto(address)
    other.wait_for_selector("body[data-ready]")
    assert column(other, 1) == column(page, 1)
    assert other.get_attribute("#pair-20", "aria-expanded") == "true"
    assert other.locator("#difference").inner_text() == page.locator("#difference").inner_text()
    # A click that ends a selection of text opens nothing.
    opened = other.locator("tr.detail").count()
    box = other.locator("#pairs tr.row td.text").first.bounding_box()
    other.mouse.move(box["x"] + 4, box["y"] + box["height"] / 2)
    other.mouse.down()
    other.mouse.move(box["x"] + 90, box["y"] + box["height"] / 2, steps=5)
    other.mouse.up()
    assert other.evaluate("String(getSelection())") != ""
    assert other.locator("tr.detail").count() == opened
    # What is not in the page is ignored.
    other.goto(address.partition("#")[0] + "#show=constructor&range=toString,0,1&a=99&pair=1000")
    other.reload()
    other.wait_for_selector("body[data-ready]")
    expect_rows(other, 30)
    other.close()


@pytest.mark.parametrize("width", [390, 900, 1440])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing(show, three, width, scheme):
    axe = pytest.importorskip("axe_core_python.sync_playwright")
    page = show(three, viewport={"width": width, "height": 800}, color_scheme=scheme)
    page.locator("#pairs tr.row button").first.click()
    assert page.evaluate("document.documentElement.scrollWidth") == width
    # Opened, as a narrow page folds it.
    page.evaluate("document.getElementById('overview').open = true")
    # The policy of the page lets no other script run; this one is evaluated.
    found = axe.Axe().run(page)["violations"]
    assert [(one["id"], [node["html"][:80] for node in one["nodes"][:3]]) for one in found] == []


def test_a_text_is_shown_as_it_was_scored(show, encoder):
    texts = ["def f(x):\n    return x + 1\n", "नमस्ते दुनिया", "我喜欢猫", "a 👩‍👩‍👧 family 😀", "السلام عليكم"]
    page = show(Report.from_texts(texts, texts[::-1], encoder))
    for row in range(1, len(texts) + 1):
        page.click(f"#pair-{row}")
    shown = [part.text_content() for part in page.locator(".pair .words").all()]
    assert sorted(shown) == sorted(text for pair in zip(texts, texts[::-1], strict=True) for text in pair)


def test_all_pairs_that_are_shown_are_printed(show):
    page = show(scored_report(120, 5))
    expect_rows(page, 50)
    page.emulate_media(media="print")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    expect_rows(page, 120)
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    expect_rows(page, 50)


def focused(page):
    """Return the id of the element that has the focus, or the name of its tag."""
    return page.evaluate("document.activeElement.id || document.activeElement.tagName")


def test_the_focus_stays_on_a_control_that_is_drawn_again(show, three):
    """A bar and a word lead to the chip that removes them, and a chip to the filter next to it."""
    page = show(three)
    for selector, chip in (("rect.bar", "chip-range"), ("#words button", "chip-word")):
        for key in ("Enter", " "):
            page.locator(selector).first.focus()
            page.keyboard.press(key)
            assert focused(page) == chip
            page.keyboard.press(key)
            assert focused(page) == "filter"
            assert page.locator(".chip").count() == 0
    page.locator("rect.bar").first.focus()
    page.keyboard.press("Enter")
    page.locator("#words button").first.focus()
    page.keyboard.press("Enter")
    assert focused(page) == "chip-word"
    assert page.locator(".chip").count() == 2
    page.focus("#chip-range")
    page.keyboard.press("Enter")
    assert (focused(page), page.locator(".chip").count()) == ("filter", 1)
    for name in ("sort-length", "pair-1", "matrix-0-1", "pair-2"):
        page.focus(f"#{name}")
        page.keyboard.press("Enter")
        assert focused(page) == name
    # The search waits until nothing is typed.
    page.fill("#search", "the")
    sync_api.expect(page.locator(".chip")).to_have_count(1)
    sync_api.expect(page).to_have_url(re.compile("search=the"))
    assert focused(page) == "search"


def test_the_focus_stays_on_the_last_and_first_page(show):
    page = show(scored_report(120, 5))
    for name, numbers in (("next", [2, 3, 3]), ("previous", [2, 1, 1])):
        page.focus(f"#{name}")
        for number in numbers:
            page.keyboard.press("Enter")
            assert focused(page) == name
            assert f"page {number} of 3" in page.locator(".pairs caption").inner_text()
        assert page.get_attribute(f"#{name}", "aria-disabled") == "true"


def test_the_focus_stays_when_the_window_changes_or_is_printed(show):
    page = show(scored_report(60, 5))
    page.focus("#pair-7")
    for event in ("beforeprint", "afterprint"):
        page.evaluate(f"dispatchEvent(new Event('{event}'))")
        assert focused(page) == "pair-7"
    page.focus("#sort-length")
    page.set_viewport_size({"width": 390, "height": 800})
    sync_api.expect(page.locator("#sort-length")).to_have_count(0)
    # A column that a narrow window hides.
    assert focused(page) == "filter"


def test_a_click_on_a_bar_or_a_word_does_not_scroll(show, three):
    page = show(three, viewport={"width": 900, "height": 300})
    for selector, chip in (("rect.bar", "chip-range"), ("#words button", "chip-word")):
        page.locator(selector).first.click()
        assert focused(page) == chip
        assert not page.evaluate(f"document.getElementById('{chip}').getBoundingClientRect().top < innerHeight")
        page.evaluate(f"document.getElementById('{chip}').click()")
    # By keyboard the focus is in the window.
    page.locator("rect.bar").first.focus()
    page.keyboard.press("Enter")
    assert page.evaluate("document.getElementById('chip-range').getBoundingClientRect().bottom <= innerHeight")


CONTRASTS = """() => {
  const rgba = (color) => { const [r, g, b, a = 1] = color.match(/[\\d.]+/g).map(Number); return [[r, g, b], a]; };
  const over = ([top, alpha], below) => top.map((x, i) => alpha * x + (1 - alpha) * below[i]);
  const luminance = (rgb) => {
    const linear = rgb.map((x) => (x <= 10.31 ? x / 3294.6 : ((x / 255 + 0.055) / 1.055) ** 2.4));
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2];
  };
  const page = rgba(getComputedStyle(document.body).backgroundColor)[0];
  const contrasts = {};
  for (const selector of ["mark", "td.more", "td.less"]) {
    const shaded = document.querySelector(selector);
    for (let percent = 0; percent <= 100; percent += 1) {
      shaded.style.setProperty("--share", percent / 100);
      const below = over(rgba(getComputedStyle(shaded).backgroundColor), page);
      for (const text of [shaded, ...shaded.querySelectorAll("button, small")]) {
        const { color, opacity } = getComputedStyle(text);
        const [a, b] = [luminance(over([rgba(color)[0], Number(opacity)], below)), luminance(below)];
        contrasts[`${selector} ${text.tagName} ${percent}`] = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
      }
    }
  }
  return contrasts;
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_each_shade_has_a_contrast_of_more_than_four_and_a_half(show, three, scheme):
    page = show(three, color_scheme=scheme)
    page.click("#pairs tr.row button.tokens >> nth=0")
    contrasts = page.evaluate(CONTRASTS)
    assert len(contrasts) == 101 * 7
    assert {place: contrast for place, contrast in contrasts.items() if contrast < 4.5} == {}


def test_an_address_in_the_open_page_shows_its_view(show, three):
    """As for a new window; Back and Forward return to the views, and what an address lacks is as at the start."""
    page = show(three)
    start = {"rows": column(page, 1), "said": page.locator("#difference").inner_text()}
    first = page.url
    views = [
        "a=1&b=0&sort=length&down=1&pair=20",
        "a=2&b=1&sort=pair&show=a&search=the&word=the&side=reference",
        "sort=pair",
    ]
    views.append("a=0&b=1&sort=a&range=b,0.1,1,20")
    shown = []
    for view in views:
        fresh = show(three)
        fresh.goto("about:blank")
        fresh.goto(f"{page.url.partition('#')[0]}#{view}")
        fresh.wait_for_selector("body[data-ready]")
        page.evaluate("view => { location.hash = view; }", view)
        sync_api.expect(page).to_have_url(fresh.url)
        for part in ("#pairs", "#found", "#controls", "#charts"):
            assert page.inner_html(part) == fresh.inner_html(part)
        values = "[...document.querySelectorAll('select, input')].map((control) => control.value)"
        assert page.evaluate(values) == fresh.evaluate(values)
        shown.append(page.url)
    assert page.evaluate("history.length") == 1 + 1 + len(views)
    for address in shown[-2::-1]:
        page.go_back()
        sync_api.expect(page).to_have_url(address)
    assert page.get_attribute("#pair-20", "aria-expanded") == "true"
    page.go_back()
    sync_api.expect(page).to_have_url(first)
    sync_api.expect(page.locator("tr.detail")).to_have_count(0)
    assert {"rows": column(page, 1), "said": page.locator("#difference").inner_text()} == start
    for address in shown:
        page.go_forward()
        sync_api.expect(page).to_have_url(address)


def test_bars_say_what_they_count_its_range_and_number(show):
    """Lengths are whole numbers, of which the range of a bar has those from its first to before its second."""
    lengths = [3, 3, 4, 11, 12, 12, 12, 90]
    f1 = torch.tensor([0.0, 0.0, 0.5, 1.0, 1.0, 1.0, 1.0, 1.0])
    page = show(Report(["x"] * 8, ["y" * length for length in lengths], dict.fromkeys(SCORE_NAMES, f1)))
    groups = page.locator("#charts svg[role='group']").all()
    names = [[bar.get_attribute("aria-label") for bar in group.get_by_role("button").all()] for group in groups]
    assert names == [
        ["F1 0.0000 to 0.0250: 2 pairs", "F1 0.5000 to 0.5250: 1 pair", "F1 0.9750 to 1.0000: 5 pairs"],
        [
            "characters of the reference 3 to 6: 3 pairs",
            "characters of the reference 10 to 12: 1 pair",
            "characters of the reference 12 to 14: 3 pairs",
            "characters of the reference 88 to 90: 1 pair",
        ],
    ]
    for name, numbers in (("3 to 6", [1, 2, 3]), ("10 to 12", [4]), ("12 to 14", [5, 6, 7]), ("88 to 90", [8])):
        page.get_by_role("button", name=f"reference {name}:").press("Enter")
        assert sorted(map(int, column(page, 1))) == numbers
        chip = name.replace("to 90", "or more")
        assert page.locator(".chip").inner_text() == f"characters of the reference {chip} ✕"
        page.locator(".chip").press("Enter")


LONG = "x" * 3000


@pytest.mark.parametrize("width", [390, 1200])
@pytest.mark.parametrize("kind", ["pair", "report"])
def test_a_token_of_thousands_of_characters_fits_the_window(show, encoder, width, kind):
    candidates, references = [f"a {LONG} cat", "a cat"] * 2, [f"the {LONG}y dog", "cats"] * 2
    systems = {"a" * 300: candidates, "b": candidates[::-1]}
    report = Report.from_texts(systems, references, encoder) if kind == "report" else None
    page = show(report or align(candidates[0], references[0], encoder), viewport={"width": width, "height": 800})
    if report is not None:
        page.click("#pair-1")
        page.locator("#words button", has_text="xxx").first.click()
    page.locator("mark", has_text="xxx").first.hover(position={"x": 5, "y": 5})
    assert page.locator("output").first.inner_text().startswith(f"{'x' * 50}… matches ")
    assert page.evaluate("document.documentElement.scrollWidth") == width
    assert page.locator("mark", has_text="xxx").first.inner_text() == LONG
    cut = [(part.inner_text(), part.get_attribute("title")) for part in page.locator("bdi", has_text="xxx").all()]
    assert cut
    assert {text for text, _ in cut} == {"x" * 50 + "…"}
    assert {title for _, title in cut} <= {LONG, LONG + "y"}


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


@pytest.mark.parametrize("kind", ["pair", "one", "several", "history"])
def test_each_script_is_a_module_that_imports_what_it_uses(browser, encoder, kind):
    """A page joins the modules; here the browser itself loads them, each with names of its own."""
    if kind == "pair":
        shown = align("a cat sleeps", "the kitten is sleeping", encoder)
    else:
        num_systems = {"one": 1, "several": 3, "history": 2}[kind]
        settings = ScoreSettings.create(encoder)
        shown = scored_report(9, 4, num_systems=num_systems, settings=settings, is_history=kind == "history")
    text = re.sub("<meta http-equiv[^>]*>", "", shown.to_html())
    text = re.sub("<script>.*</script>", f'<script type="module" src="/{kind}.js"></script>', text, flags=re.DOTALL)

    def answer(route):
        name = route.request.url.rpartition("/")[2]
        if name == "page.html":
            route.fulfill(body=text, content_type="text/html; charset=utf-8")
        else:
            route.fulfill(path=SCRIPTS / name, content_type="text/javascript")

    page, wrong = browser.new_page(), []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("console", lambda message: wrong.append(message.text))
    page.route("**/*", answer)
    page.goto("http://localhost/page.html")
    page.wait_for_selector("body[data-ready]")
    if kind != "pair":
        page.click("#pair-1")
        page.click("#sort-length")
        page.evaluate("dispatchEvent(new Event('beforeprint'))")
        page.evaluate("dispatchEvent(new Event('afterprint'))")
        page.locator("rect.bar").first.click()
        page.click("#chip-range")
    page.locator("mark").first.hover()
    assert page.locator("mark.on").count() == 1
    page.close()
    assert wrong == []
