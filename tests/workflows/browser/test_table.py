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


def test_dark_mode_print_and_narrow_windows(show, report):
    colours = []
    for scheme in ("light", "dark"):
        page = show(report, color_scheme=scheme, width=390)
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


def test_many_pairs_and_a_notebook(show, browser):
    page = show(scored_report(50_000, 25))
    page.click("#sort-length")
    page.fill("#search", page.locator("#pairs tr.row td.text").first.inner_text()[:40])
    expect_rows(page, 1)
    notebook = browser.new_page()
    notebook.set_content(f"<p>cell</p>{scored_report(3, 2)._repr_html_()}")
    notebook.frame_locator("iframe").locator("#pair-3").click()
    assert notebook.frame_locator("iframe").locator(".pair").count() == 2


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
