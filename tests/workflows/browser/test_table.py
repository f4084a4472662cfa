"""The table of pairs in headless Chromium: sort, search, filter, print."""

import re
from pathlib import Path

import pytest

from bertscore_tm import align, bert_score
from bertscore_tm.pages import render
from bertscore_tm.report import Report
from bertscore_tm.scoring.settings import ScoreSettings
from bertscore_tm.statistics import compare_paired, mean_interval
from tests.support.browser import CANDIDATES, OTHERS, column, expect_rows
from tests.support.report_pages import EVIL, scored_report

SCRIPTS = Path(render.__file__).parent


def test_columns_sort_the_pairs(show, report):
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


def test_the_search_ignores_case(show, report):
    page = show(report)

    page.fill("#search", "SHE W")
    expect_rows(page, 2)
    assert sorted(column(page, 1)) == ["3", "4"]

    page.fill("#search", "")
    expect_rows(page, 6)


def test_filters_show_where_a_system_is_better(show, report):
    """The means that are said follow the filter."""
    page = show(report)
    difference = report.scores["next"][2] - report.scores["base"][2]
    wins = (difference > 0).nonzero().flatten().tolist()
    losses = (difference < 0).nonzero().flatten().tolist()
    for name, rows in {"empty": [3], "a": losses, "b": wins}.items():
        page.select_option("#filter", name)
        assert sorted(map(int, column(page, 1))) == [row + 1 for row in rows]

    shown = report.scores["next"][2][wins].double()
    low, high = mean_interval(shown, bounds=(-1, 1))
    filtered = page.locator("#filtered").inner_text()
    assert filtered.startswith(f"Mean F1 of the {len(wins)} pairs shown: base ")
    numbers = [float(number) for number in re.findall(r"-?\d\.\d+", filtered.rpartition("next ")[2])]
    assert numbers[0] == pytest.approx(shown.mean().item(), abs=6e-5)
    assert numbers[1:] == pytest.approx([low.item(), high.item()], abs=0.002)


def test_the_difference_of_two_systems_is_a_sentence(show, report):
    page = show(report)
    base, other = report.scores["base"][2], report.scores["next"][2]
    difference = other - base
    low, high = mean_interval(difference)
    p_value = compare_paired(base, other).p_value

    said = page.locator("#difference").inner_text()

    assert said == (
        f"next minus base: mean difference of F1 {difference.mean():+.4f} (95% interval {low:+.4f} to {high:+.4f}), "
        f"p {p_value:.4f}, better in {(difference > 0).sum()} pairs, worse in {(difference < 0).sum()}"
    )
    page.select_option("#a", "1")
    assert column(page, 4) == ["0.0000"] * 6
    assert page.locator("#difference").inner_text().startswith("next minus next: mean difference of F1 0.0000")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_an_opened_pair_fits_a_narrow_window(show, report, scheme):
    page = show(report, color_scheme=scheme, width=390)
    page.click("#pair-2")
    page.click("#pair-4")

    assert page.evaluate("document.documentElement.scrollWidth") == 390
    ends = "[...document.querySelectorAll('.pair *')].map(element => element.getBoundingClientRect().right)"
    assert page.evaluate(f"Math.max(...{ends})") <= 390


def test_the_dark_mode_has_other_colours(show, report):
    page = show(report)
    style = "(({ backgroundColor, color }) => [backgroundColor, color])(getComputedStyle(document.body))"
    background, text = page.evaluate(style)

    page.emulate_media(color_scheme="dark")

    dark_background, dark_text = page.evaluate(style)
    assert dark_background != background
    assert dark_text != text


def test_an_opened_pair_is_printed_without_controls(show, report):
    page = show(report)
    page.click("#pair-2")

    page.emulate_media(media="print")

    assert not page.is_visible("#controls")
    assert page.locator(".pair").first.is_visible()
    assert page.pdf()[:5] == b"%PDF-"


def test_a_page_of_50_000_pairs_is_sorted_and_searched(show):
    # The texts are short, because compressing them takes time. The first two pairs are one document, because the t test
    # of documents with unequal sizes is much faster than drawn permutations of 50,000 pairs.
    page = show(scored_report(50_000, 5, groups=[0, *range(49_999)]))
    page.click("#sort-length")
    text = page.locator("#pairs tr.row td.text").first.inner_text()

    page.fill("#search", text)

    expect_rows(page, 1)


def test_a_notebook_shows_the_page_in_a_frame(browser):
    notebook = browser.new_page()
    notebook.set_content(f"<p>cell</p>{scored_report(3, 2)._repr_html_()}")
    frame = notebook.frame_locator("iframe")

    frame.locator("#pair-3").click()

    assert frame.locator(".pair").count() == 2
    notebook.close()


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


# One of the texts is empty.
@pytest.mark.filterwarnings("ignore:1 candidate scored 0")
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


def test_all_pairs_that_are_shown_are_printed(show):
    page = show(scored_report(120, 5))

    expect_rows(page, 50)

    page.emulate_media(media="print")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")

    expect_rows(page, 120)

    page.evaluate("dispatchEvent(new Event('afterprint'))")
    expect_rows(page, 50)


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
