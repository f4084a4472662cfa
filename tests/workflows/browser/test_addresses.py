"""Addresses that open a view of the page in headless Chromium."""

from playwright.sync_api import expect

from tests.support.browser import column, expect_rows


def test_the_address_of_a_view_opens_it_again(show, three):
    """A click in the matrix sets A and B, another opens a pair."""
    page = show(three)
    assert page.locator("#matrix tbody td button").count() == 6
    page.click("#matrix-0-1")
    assert page.locator("#difference").inner_text().startswith("first minus middle: mean difference of F1 +")
    page.click("#sort-length")
    page.click("#pair-20")
    assert page.locator(".pair").count() == 2
    address, numbers = page.url, column(page, 1)
    difference = page.locator("#difference").inner_text()
    view = address.partition("#")[2]
    assert view == "a=1&b=0&sort=length&pair=20"

    page = show(three, view=f"#{view}")

    assert page.url == address
    assert column(page, 1) == numbers
    assert page.get_attribute("#pair-20", "aria-expanded") == "true"
    assert page.locator("#difference").inner_text() == difference


def test_a_click_that_ends_a_selection_opens_nothing(show, three):
    page = show(three)
    box = page.locator("#pairs tr.row td.text").first.bounding_box()
    middle = box["y"] + box["height"] / 2

    page.mouse.move(box["x"] + 4, middle)
    page.mouse.down()
    page.mouse.move(box["x"] + 90, middle, steps=5)
    page.mouse.up()

    assert page.evaluate("String(getSelection())") != ""
    assert page.locator("tr.detail").count() == 0


def test_what_is_not_in_the_page_is_ignored(show, three):
    page = show(three, view="#show=constructor&range=toString,0,1&a=99&pair=1000")

    expect_rows(page, 20)


VIEWS = [
    "a=1&b=0&sort=length&down=1&pair=20",
    "a=2&b=1&sort=pair&show=a&search=the&word=the&side=reference",
    "sort=pair",
    "a=0&b=1&sort=a&range=b,0.1,1,20",
]
# What a view changes.
LOOK = """() => {
  const parts = ["pairs", "found", "controls", "charts"].map((id) => document.getElementById(id).innerHTML);
  const values = [...document.querySelectorAll("select, input")].map((control) => control.value);
  return [...parts, ...values];
}"""


def test_an_address_in_the_open_page_shows_its_view(show, three):
    """Like in a new window: what an address lacks is as at the start."""
    expected = []
    for view in VIEWS:
        page = show(three, view=f"#{view}")
        expected.append((page.url, page.evaluate(LOOK)))
    page = show(three)
    for view, (address, look) in zip(VIEWS, expected, strict=True):
        page.evaluate("view => { location.hash = view; }", view)

        expect(page).to_have_url(address)
        assert page.evaluate(LOOK) == look


def test_back_and_forward_return_to_the_views(show, three):
    # In a new page, which has no history.
    page = show(three, in_new_page=True)
    start = page.evaluate(LOOK)
    addresses = [page.url]
    for view in VIEWS:
        page.evaluate("view => { location.hash = view; }", view)
        page.wait_for_function("address => location.href != address", arg=addresses[-1])
        addresses.append(page.url)
    assert page.evaluate("history.length") == 1 + len(addresses)

    for address in addresses[-2:0:-1]:
        page.go_back()
        expect(page).to_have_url(address)
    assert page.get_attribute("#pair-20", "aria-expanded") == "true"
    page.go_back()
    expect(page).to_have_url(addresses[0])
    expect(page.locator("tr.detail")).to_have_count(0)
    assert page.evaluate(LOOK) == start

    for address in addresses[1:]:
        page.go_forward()
        expect(page).to_have_url(address)
