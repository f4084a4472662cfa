"""What tests in a browser share: the texts of a report, and the rows of its table."""

import shutil
from functools import cache

from playwright.sync_api import expect

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
CANDIDATES = {
    "base": ["a cat sleeps", "it is raining now", "he works late", "", "the market is closed", "the dog barked"],
    "next": ["a kitten sleeps", "it rains", "she works late", "a letter", "the market opens at ten", "a dog barks"],
}
OTHERS = ["it is raining", "she works late today", "she wrote a letter", "the market opens at 9", "the dog was barking"]
REFERENCES = [["no cat at all", "the kitten is sleeping"], *OTHERS]


def keep_page(report):
    """Make the page of a report once, because its alignments take most of the time of opening it."""
    report.to_html = cache(report.to_html)
    return report


def column(page, number):
    """Return the texts of a column of the table."""
    return [cell.inner_text() for cell in page.locator(f"#pairs tr.row td:nth-child({number})").all()]


def expect_rows(page, count):
    """Wait until the table has so many rows."""
    expect(page.locator("#pairs tr.row")).to_have_count(count)
