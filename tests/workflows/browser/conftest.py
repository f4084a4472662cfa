"""Headless Chromium, and the reports that several files open in it."""

from functools import cache

import pytest
from playwright.sync_api import sync_playwright

from bertscore_tm.report import Report
from tests.support.browser import CANDIDATES, CHROMIUM, REFERENCES
from tests.support.texts import real_pairs


@pytest.fixture(scope="session")
def browser():
    if CHROMIUM is None:
        pytest.skip("needs Chromium")
    with sync_playwright() as playwright:
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


def keep_page(report):
    """Make the page of a report once, because its alignments take most of the time of opening it."""
    report.to_html = cache(report.to_html)
    return report


@pytest.fixture(scope="session")
def report(encoder):
    with pytest.warns(UserWarning, match="1 candidate scored 0"):
        return keep_page(Report.from_texts(CANDIDATES, REFERENCES, encoder, idf=["a cat", "the dog"]))


@pytest.fixture(scope="session")
def three(encoder):
    """Three systems on 30 pairs, of which the last says another word for one thing."""
    references = real_pairs(30)[1]
    systems = {"first": [], "middle": [], "last": []}
    for reference in references:
        words = reference.split()[:12]
        systems["first"].append(" ".join(words))
        systems["middle"].append(" ".join(words[2:]))
        systems["last"].append(" ".join("zebra" if word == "the" else word for word in words))
    return keep_page(Report.from_texts(systems, references, encoder, num_alignments=90, title="Three systems"))
