"""Headless Chromium, and the reports that several files open in it."""

import pytest
from playwright.sync_api import sync_playwright

from bertscore_tm import FrozenEncoder
from bertscore_tm.report import Report
from tests.support.browser import CANDIDATES, CHROMIUM, REFERENCES, keep_page
from tests.support.texts import real_pairs


@pytest.fixture(scope="session")
def browser():
    """Context of the browser."""
    if CHROMIUM is None:
        pytest.skip("needs Chromium")
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield chromium.new_context()


@pytest.fixture(scope="session")
def window(browser):
    """Page that tests share, because opening one takes longer than loading a report in it."""
    return browser.new_page()


@pytest.fixture
def show(browser, window, tmp_path):
    """Function that opens the page of a report or an alignment; no page may have an error or make a request.

    Each call shows it in the same page, unless it asks for a new one.
    """
    wrong, new_pages = [], []
    path = tmp_path / "report.html"
    address = path.as_uri()
    listeners = {
        "console": lambda message: wrong.append(message.text),
        "weberror": lambda error: wrong.append(str(error.error)),
        "request": lambda request: wrong.append(request.url) if request.url != address else None,
    }
    for event, listener in listeners.items():
        browser.on(event, listener)

    def open_page(shown, *, view="", width=1280, height=800, color_scheme="light", in_new_page=False):
        path.write_text(shown.to_html(), encoding="utf-8")
        page = window
        if in_new_page:
            page = browser.new_page()
            new_pages.append(page)
        elif page.url.startswith(address):
            # The browser would not load an address again of which only the view differs.
            page.goto("about:blank")
        page.set_viewport_size({"width": width, "height": height})
        page.emulate_media(color_scheme=color_scheme, media="null")
        page.mouse.move(0, 0)
        page.goto(f"{address}{view}")
        page.wait_for_selector("body[data-ready]")
        return page

    yield open_page
    for event, listener in listeners.items():
        browser.remove_listener(event, listener)
    for page in new_pages:
        page.close()
    assert wrong == []


@pytest.fixture(scope="session")
def encoder(minilm):
    """The real encoder at layer 1, because a page may need the vectors of hundreds of texts."""
    return FrozenEncoder(minilm, num_layers=1)


@pytest.fixture(scope="session")
def report(encoder):
    with pytest.warns(UserWarning, match="1 candidate scored 0"):
        return keep_page(Report.from_texts(CANDIDATES, REFERENCES, encoder, idf=["a cat", "the dog"]))


@pytest.fixture(scope="session")
def three(encoder):
    """Three systems on 20 pairs, of which the last says another word for one thing."""
    references = real_pairs(20)[1]
    systems = {"first": [], "middle": [], "last": []}
    for reference in references:
        words = reference.split()[:12]
        systems["first"].append(" ".join(words))
        systems["middle"].append(" ".join(words[2:]))
        systems["last"].append(" ".join("zebra" if word == "the" else word for word in words))
    return keep_page(Report.from_texts(systems, references, encoder, num_alignments=60, title="Three systems"))
