"""Addresses that open a view of the page in headless Chromium."""

from playwright.sync_api import expect

from tests.support.browser import column, expect_rows


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
        expect(page).to_have_url(fresh.url)
        for part in ("#pairs", "#found", "#controls", "#charts"):
            assert page.inner_html(part) == fresh.inner_html(part)
        values = "[...document.querySelectorAll('select, input')].map((control) => control.value)"
        assert page.evaluate(values) == fresh.evaluate(values)
        shown.append(page.url)
    assert page.evaluate("history.length") == 1 + 1 + len(views)
    for address in shown[-2::-1]:
        page.go_back()
        expect(page).to_have_url(address)
    assert page.get_attribute("#pair-20", "aria-expanded") == "true"
    page.go_back()
    expect(page).to_have_url(first)
    expect(page.locator("tr.detail")).to_have_count(0)
    assert {"rows": column(page, 1), "said": page.locator("#difference").inner_text()} == start
    for address in shown:
        page.go_forward()
        expect(page).to_have_url(address)
