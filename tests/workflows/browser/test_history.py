"""The course of a training in headless Chromium."""

from itertools import combinations

from bertscore_tm.statistics import compare_paired, holm, mean_interval
from tests.support.browser import column
from tests.support.report_pages import scored_report


def test_a_history_shows_its_course(show):
    report = scored_report(60, 5, num_systems=4, is_history=True)
    page = show(report)
    assert page.locator("#charts h2").first.inner_text() == "F1 over the training, and the best validation"
    assert "(best)" in page.locator("#a").inner_text()
    assert page.locator("#charts figure").first.locator("circle").count() == 4
    page.select_option("#a", "2")
    difference = (report.scores["system 3"] - report.scores["system 2"])[2]
    assert column(page, 1)[0] == str(difference.argmin().item() + 1)
    assert len(column(page, 1)) == 50
    page.click("#next")
    assert len(column(page, 1)) == 10
    page.click("#pairs tr.row >> nth=0")
    assert page.locator("tr.detail figure circle").count() == 4


def test_validations_that_are_not_tested_have_an_interval(show):
    """Tested are the first, the best and the last two."""
    report = scored_report(40, 5, num_systems=15, is_history=True)
    page = show(report)
    f1 = [scores[2] for scores in report.scores.values()]
    best = max(range(15), key=lambda number: f1[number].mean())
    said = page.locator("#difference").inner_text()
    tested = list(combinations(sorted({0, best, 13, 14}), 2))
    p_values = holm([compare_paired(f1[a], f1[b]).p_value for a, b in tested])
    p = p_values[tested.index((0, 14))]
    assert f", p {p:.4f} adjusted for the {len(tested)} pairs of the first, the best and the last two" in said
    a, b = [number for number in range(1, 13) if number != best][:2]
    page.select_option("#a", str(a))
    page.select_option("#b", str(b))
    low, high = mean_interval(f1[b].double() - f1[a].double())
    said = page.locator("#difference").inner_text()
    assert f"(95% interval {low:+.4f} to {high:+.4f}), better in " in said
