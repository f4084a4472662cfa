"""Keyboard, focus, contrast and rules of accessibility in headless Chromium."""

import re

import pytest
from playwright.sync_api import expect

from bertscore_tm.report import Report
from tests.support.browser import keep_page
from tests.support.report_pages import scored_report
from tests.support.texts import real_pairs


def focused(page):
    """Return the id of the element that has the focus, or the name of its tag."""
    return page.evaluate("document.activeElement.id || document.activeElement.tagName")


@pytest.fixture(scope="module")
def five(encoder):
    """Five systems: openings of the references."""
    references = real_pairs(10)[1]
    systems = {}
    for count in range(5, 10):
        systems[f"{count} words"] = [" ".join(text.split()[:count]) for text in references]
    return keep_page(Report.from_texts(systems, references, encoder, num_alignments=3))


def test_the_first_pair_is_near_for_the_keyboard(show, five):
    """Of five systems the matrix, each chart and the words are one stop of Tab each."""
    page = show(five)
    first = page.locator("#pairs tr.row button").first.get_attribute("id")

    stops = 0
    while focused(page) != first and stops < 100:
        page.keyboard.press("Tab")
        stops += 1

    assert stops == 20


def test_a_link_skips_to_the_pairs(show, five):
    page = show(five)
    first = page.locator("#pairs tr.row button").first.get_attribute("id")
    address = page.url

    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the pairs"
    assert page.locator(".skip").evaluate("link => getComputedStyle(link).clipPath") == "none"
    page.keyboard.press("Enter")

    assert (focused(page), page.url) == (first, address)


def test_arrow_keys_move_in_the_matrix_and_the_words(show, five):
    """Over the diagonal of the matrix, and not beyond an edge."""
    page = show(five)
    page.focus("#matrix-0-1")

    for key, place in {"ArrowLeft": "0-1", "ArrowDown": "2-1", "ArrowRight": "2-3", "ArrowUp": "1-3"}.items():
        page.keyboard.press(key)
        assert focused(page) == f"matrix-{place}"
    assert page.locator("#matrix button[tabindex='0']").get_attribute("id") == "matrix-1-3"
    page.keyboard.press("Enter")
    assert page.locator("#difference").inner_text().startswith("6 words minus 8 words: ")

    words = page.locator("#words button")
    words.first.focus()
    page.keyboard.press("ArrowDown")
    assert page.evaluate("document.activeElement.textContent") == words.nth(1).inner_text()
    assert page.locator("#words button[tabindex='0']").count() == 1


@pytest.mark.parametrize("width", [390, 900, 1440])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing(show, three, width, scheme):
    axe = pytest.importorskip("axe_core_python.sync_playwright")
    page = show(three, width=width, color_scheme=scheme)
    # With few rows, because each one takes time and has the same markup.
    page.evaluate("document.querySelector('rect.bar').dispatchEvent(new MouseEvent('click'))")
    page.locator("#pairs tr.row button").first.click()
    assert page.evaluate("document.documentElement.scrollWidth") == width
    # Opened, as a narrow page folds it.
    page.evaluate("document.getElementById('overview').open = true")

    options = {"resultTypes": ["violations"]}
    if scheme == "dark":
        # The markup is the same in both schemes, so only the rules of colours can find more.
        options["runOnly"] = ["color-contrast", "link-in-text-block"]
    # The policy of the page lets no other script run; this one is evaluated.
    found = axe.Axe().run(page, options=options)["violations"]

    places = []
    for violation in found:
        elements = [node["html"][:80] for node in violation["nodes"][:3]]
        places.append((violation["id"], elements))
    assert places == []


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
    expect(page.locator(".chip")).to_have_count(1)
    expect(page).to_have_url(re.compile("search=the"))

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

    expect(page.locator("#sort-length")).to_have_count(0)

    # A column that a narrow window hides.
    assert focused(page) == "filter"


def test_a_click_on_a_bar_or_a_word_does_not_scroll(show, three):
    page = show(three, width=900, height=300)
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
