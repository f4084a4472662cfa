"""Headless Chromium, and the reports that several files open in it."""

import pytest
from playwright.sync_api import sync_playwright

from bertscore_tm.report import Report
from tests.support.browser import CANDIDATES, CHROMIUM, REFERENCES, keep_page
from tests.support.texts import real_pairs


@pytest.fixture(scope="session")
def browser(tmp_path_factory):
    """Context of the browser, of which one page stays open.

    Further pages are then in the same process, where opening one takes half as long.
    """
    if CHROMIUM is None:
        pytest.skip("needs Chromium")
    path = tmp_path_factory.mktemp("browser") / "blank.html"
    path.write_text("<!doctype html><title>blank</title>", encoding="utf-8")
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        context = chromium.new_context()
        context.new_page().goto(path.as_uri())
        yield context


@pytest.fixture
def show(browser, tmp_path):
    """Function that opens the page of a report or an alignment; no page may have an error or make a request."""
    wrong, pages = [], []

    def open_page(shown, *, view="", width=1280, height=800, color_scheme="light"):
        path = tmp_path / "report.html"
        path.write_text(shown.to_html(), encoding="utf-8")
        page = browser.new_page()
        pages.append(page)
        page.set_viewport_size({"width": width, "height": height})
        page.emulate_media(color_scheme=color_scheme)
        page.on("console", lambda message: wrong.append(message.text))
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("request", lambda request: wrong.append(request.url) if request.url != path.as_uri() else None)
        page.goto(f"{path.as_uri()}{view}")
        page.wait_for_selector("body[data-ready]")
        return page

    yield open_page
    for page in pages:
        page.close()
    assert wrong == []


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
