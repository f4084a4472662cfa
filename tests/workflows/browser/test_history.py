"""The course of a training in headless Chromium."""

from itertools import combinations

import pytest

from bertscore_tm.statistics import compare_paired, holm, mean_interval
from tests.support.browser import column, keep_page
from tests.support.report_pages import scored_report


@pytest.fixture(scope="module")
def history():
    """Four validations of 60 pairs."""
    return keep_page(scored_report(60, 5, num_systems=4, is_history=True))


def test_a_history_shows_its_course(show, history):
    page = show(history)

    assert page.locator("#charts h2").first.inner_text() == "F1 over the training, and the best validation"
    assert page.locator("#charts figure").first.locator("circle").count() == 4
    assert "(best)" in page.locator("#a").inner_text()


def test_two_validations_are_compared(show, history):
    difference = (history.scores["system 3"] - history.scores["system 2"])[2]
    page = show(history)

    page.select_option("#a", "2")

    first, *others = column(page, 1)
    assert first == str(difference.argmin().item() + 1)
    assert len(others) == 49


def test_an_opened_pair_shows_its_course(show, history):
    page = show(history)
    page.click("#next")
    assert len(column(page, 1)) == 10

    page.click("#pairs tr.row >> nth=0")

    assert page.locator("tr.detail figure circle").count() == 4


def test_validations_that_are_not_tested_have_an_interval(show):
    """Tested are the first, the best and the last two."""
    report = scored_report(40, 5, num_systems=15, is_history=True)
    f1 = [scores[2].double() for scores in report.scores.values()]
    best = max(range(15), key=lambda number: f1[number].mean())
    tested = list(combinations(sorted({0, best, 13, 14}), 2))
    p_values = holm([compare_paired(f1[a], f1[b]).p_value for a, b in tested])
    p_value = p_values[tested.index((0, 14))]
    a, b = [number for number in range(1, 13) if number != best][:2]
    low, high = mean_interval(f1[b] - f1[a])
    page = show(report)

    said = page.locator("#difference").inner_text()
    page.select_option("#a", str(a))
    page.select_option("#b", str(b))
    said_of_others = page.locator("#difference").inner_text()

    adjusted = f", p {p_value:.4f} adjusted for the {len(tested)} pairs of the first, the best and the last two"
    assert adjusted in said
    assert f"(95% interval {low:+.4f} to {high:+.4f}), better in " in said_of_others
