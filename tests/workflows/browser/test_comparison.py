"""Differences of systems in headless Chromium: matrix, bars and reasons."""

import re

import pytest
import torch

from bertscore_tm.report import Report
from bertscore_tm.utilities.checks import SCORE_NAMES
from tests.support.browser import column, expect_rows


def test_a_matrix_of_five_is_seen_whole(show):
    """At 900 pixels; where a narrower page hides columns, a shade that ends with them shows the side."""
    names = [f"outputs/2026-11-27/model_{number}.txt" for number in range(5)]
    drawn, texts = torch.Generator().manual_seed(0), ["word"] * 30
    f1 = [number / 9 + 0.1 * torch.rand(30, generator=drawn) for number in range(5)]
    scores = {name: dict.fromkeys(SCORE_NAMES, values) for name, values in zip(names, f1, strict=True)}
    report = Report(dict.fromkeys(names, texts), texts, scores)
    hidden = "(part => part.scrollWidth - part.clientWidth)(document.querySelector('.scroll'))"
    assert show(report, width=900).evaluate(hidden) == 0
    page = show(report, width=390)
    page.evaluate("document.getElementById('overview').open = true")
    assert page.evaluate(hidden) > 0
    table = page.locator(".scroll").bounding_box()
    edge = {"x": table["x"] + table["width"] - 3, "y": table["y"] + 1, "width": 2, "height": 8}
    shaded = page.screenshot(clip=edge)
    page.evaluate("document.querySelector('.scroll').scrollLeft = 9999")
    assert page.screenshot(clip=edge) != shaded


def test_why_does_b_lose(show, three):
    """Without a click: the words that it misses. A click shows their pairs."""
    page = show(three)
    assert page.title() == page.locator("h1").inner_text() == "Three systems"
    assert page.locator(".verdict").inner_text() == "Best: first. Below (p < .05, Holm): last, middle."
    # The pair of the headline, the best two.
    assert page.locator("#difference").inner_text().startswith("last minus first: mean difference of F1 -")
    assert page.locator("td:has-text('best')").all_inner_texts() == ["first best"]
    missed = page.locator("#words table").first.locator("tbody tr")
    assert missed.first.locator("td").first.inner_text() == "the"
    a, b, pairs = (float(cell) for cell in missed.first.locator("td").all_inner_texts()[1:])
    assert a > b + 0.02
    missed.first.locator("button").click()
    expect_rows(page, int(pairs))
    assert page.locator("#chips button").inner_text() == "“the” ✕"
    assert "word=the" in page.url
    page.click("#chips button")
    expect_rows(page, 30)
    # A word that only B says is missed in its candidates.
    assert page.locator("#words table").last.locator("tbody td").first.inner_text() == "zebra"


def test_where_does_b_lose(show, three):
    """A click on a bar shows its pairs; means, intervals and charts follow."""
    page = show(three)
    f1 = three.scores["last"][2]
    bars = page.locator("#charts figure", has_text="Difference of F1").locator("rect.bar")
    bars.first.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("Enter")
    rows = [int(cell) - 1 for cell in column(page, 1)]
    assert 0 < len(rows) < 30
    difference = f1 - three.scores["first"][2]
    width = (difference.max() - difference.min()) / 40
    assert difference[rows].max() < difference.min() + width + 1e-3
    said, shown = page.locator("#filtered").inner_text(), f"F1 of the {len(rows)} pair{'s'[: len(rows) > 1]} shown"
    assert said.startswith(f"Mean {shown}: first ")
    assert f"last {f1[rows].mean():.4f}" in said
    assert page.locator("#charts h2").first.inner_text() == f"Distribution of {shown}"


CLICK_EACH_BAR = """() => {
  const clicked = [];
  for (let number = 0; ; number += 1) {
    const bar = document.querySelectorAll("rect.bar")[number];
    if (!bar) return clicked;
    const label = bar.getAttribute("aria-label");
    bar.dispatchEvent(new MouseEvent("click"));
    const rows = [...document.querySelectorAll("#pairs tr.row button")].map((button) => Number(button.textContent) - 1);
    clicked.push([label, document.querySelector("#chips button").textContent, rows]);
    document.querySelector("#chips button").click();
  }
}"""


@pytest.mark.parametrize("names", [["a"], ["a", "b"]])
def test_a_bar_shows_the_pairs_that_its_label_counts(show, names):
    """Scores of two decimals are on the edges of bins, where a sum and a quotient may round to different bins."""
    drawn = torch.Generator().manual_seed(0)
    texts = [" ".join(["word"] * (1 + row % 7)) for row in range(48)]
    f1 = {name: torch.randint(55, 96, (48,), generator=drawn) / 100 for name in names}
    page = show(
        Report(dict.fromkeys(names, texts), texts, {name: dict.fromkeys(SCORE_NAMES, f1[name]) for name in names})
    )
    values = {"characters of the reference": torch.tensor([len(text) for text in texts])}
    several = {"F1 of A": f1["a"], "F1 of B": f1[names[-1]], "B − A": f1[names[-1]] - f1["a"]}
    values |= {"F1": f1["a"]} if names == ["a"] else several
    counted = dict.fromkeys(values, 0)
    for label, chip, rows in page.evaluate(CLICK_EACH_BAR):
        name, low, high, count = re.fullmatch(r"(.+) (-?[\d.]+) to (-?[\d.]+): (\d+) pairs?", label).groups()
        assert len(rows) == int(count)
        assert chip.startswith(f"{name} {low} ")
        assert values[name][rows].min() >= float(low) - 1e-4
        assert values[name][rows].max() <= float(high) + 1e-4
        counted[name] += len(rows)
    assert counted == dict.fromkeys(values, 48)


def test_a_win_is_counted_where_it_is_selected(show):
    """Differences that four decimals hide are wins, those of rounding are ties; in the sentence and in the filters."""
    steps = {"wins": [2e-5, 0.1, 3e-6], "ties": [0.0, 4e-7, -7e-7], "losses": [-2e-5, -3e-6]}
    drawn = torch.Generator().manual_seed(3)
    a = 0.5 + 0.3 * torch.rand(40, generator=drawn)
    b = a + torch.tensor([step for _ in range(5) for part in steps.values() for step in part])
    texts = ["word"] * 40
    scores = {name: dict.fromkeys(SCORE_NAMES, f1) for name, f1 in {"A": a, "B": b, "C": a}.items()}
    page = show(Report(dict.fromkeys(scores, texts), texts, scores))
    page.click("#matrix-1-0")
    assert page.locator("td:has(#matrix-1-0) small").first.inner_text() == "15 wins"
    assert page.locator("#difference").inner_text().endswith("better in 15 pairs, worse in 10")
    for name, wins, losses in (("b", 15, 0), ("a", 0, 10)):
        page.select_option("#filter", name)
        expect_rows(page, wins + losses)
        assert f"better in {wins} pairs, worse in {losses}," in page.locator("#difference").inner_text()


def test_bars_say_what_they_count_its_range_and_number(show):
    """Lengths are whole numbers, of which the range of a bar has those from its first to before its second."""
    lengths = [3, 3, 4, 11, 12, 12, 12, 90]
    f1 = torch.tensor([0.0, 0.0, 0.5, 1.0, 1.0, 1.0, 1.0, 1.0])
    page = show(Report(["x"] * 8, ["y" * length for length in lengths], dict.fromkeys(SCORE_NAMES, f1)))
    groups = page.locator("#charts svg[role='group']").all()
    names = [[bar.get_attribute("aria-label") for bar in group.get_by_role("button").all()] for group in groups]
    assert names == [
        ["F1 0.0000 to 0.0250: 2 pairs", "F1 0.5000 to 0.5250: 1 pair", "F1 0.9750 to 1.0000: 5 pairs"],
        [
            "characters of the reference 3 to 6: 3 pairs",
            "characters of the reference 10 to 12: 1 pair",
            "characters of the reference 12 to 14: 3 pairs",
            "characters of the reference 88 to 90: 1 pair",
        ],
    ]
    for name, numbers in (("3 to 6", [1, 2, 3]), ("10 to 12", [4]), ("12 to 14", [5, 6, 7]), ("88 to 90", [8])):
        page.get_by_role("button", name=f"reference {name}:").press("Enter")
        assert sorted(map(int, column(page, 1))) == numbers
        chip = name.replace("to 90", "or more")
        assert page.locator(".chip").inner_text() == f"characters of the reference {chip} ✕"
        page.locator(".chip").press("Enter")
