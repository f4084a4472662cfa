"""Differences of systems in headless Chromium: matrix, bars and reasons."""

import re

import pytest
import torch

from bertscore_tm.report import Report
from bertscore_tm.utilities.checks import SCORE_NAMES
from tests.support.browser import column, expect_rows, keep_page


def report_of(f1):
    """Return a report of systems with the same texts and these scores."""
    count = len(next(iter(f1.values())))
    texts = ["word"] * count
    scores = {name: dict.fromkeys(SCORE_NAMES, values) for name, values in f1.items()}
    return Report(dict.fromkeys(f1, texts), texts, scores)


@pytest.fixture(scope="module")
def five():
    """Five systems with long names."""
    drawn = torch.Generator().manual_seed(0)
    f1 = {}
    for number in range(5):
        f1[f"outputs/2026-11-27/model_{number}.txt"] = number / 9 + 0.1 * torch.rand(30, generator=drawn)
    return keep_page(report_of(f1))


HIDDEN = "(part => part.scrollWidth - part.clientWidth)(document.querySelector('.scroll'))"


def test_a_matrix_of_five_is_seen_whole(show, five):
    assert show(five, width=900).evaluate(HIDDEN) == 0


def test_a_shade_shows_that_the_matrix_goes_on(show, five):
    """It ends with the columns that a narrow page hides."""
    page = show(five, width=390)
    page.evaluate("document.getElementById('overview').open = true")
    assert page.evaluate(HIDDEN) > 0
    table = page.locator(".scroll").bounding_box()
    edge = {"x": table["x"] + table["width"] - 3, "y": table["y"] + 1, "width": 2, "height": 8}
    shaded = page.screenshot(clip=edge)

    page.evaluate("document.querySelector('.scroll').scrollLeft = 9999")

    assert page.screenshot(clip=edge) != shaded


def test_the_headline_compares_the_best_two(show, three):
    page = show(three)

    assert page.title() == page.locator("h1").inner_text() == "Three systems"
    assert page.locator(".verdict").inner_text() == "Best: first. Below (p < .05, Holm): last, middle."
    assert page.locator("#difference").inner_text().startswith("last minus first: mean difference of F1 -")
    assert page.locator("td:has-text('best')").all_inner_texts() == ["first best"]


def test_the_page_says_which_words_b_misses(show, three):
    """A word that only B says is missed in its candidates."""
    page = show(three)

    missed = page.locator("#words table").first.locator("tbody tr").first.locator("td").all_inner_texts()
    word, of_a, of_b, _ = missed
    assert word == "the"
    assert float(of_a) > float(of_b) + 0.02
    assert page.locator("#words table").last.locator("tbody td").first.inner_text() == "zebra"


def test_a_click_on_a_word_shows_its_pairs(show, three):
    page = show(three)
    missed = page.locator("#words table").first.locator("tbody tr").first
    count = int(missed.locator("td").last.inner_text())

    missed.locator("button").click()

    expect_rows(page, count)
    assert page.locator("#chips button").inner_text() == "“the” ✕"
    assert "word=the" in page.url
    page.click("#chips button")
    expect_rows(page, 20)


def test_a_click_on_a_bar_shows_where_b_loses(show, three):
    """Means, intervals and charts follow."""
    page = show(three)
    f1 = three.scores["last"][2]
    difference = f1 - three.scores["first"][2]
    width = (difference.max() - difference.min()) / 40
    bars = page.locator("#charts figure", has_text="Difference of F1").locator("rect.bar")

    bars.first.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("Enter")

    rows = [int(cell) - 1 for cell in column(page, 1)]
    assert 0 < len(rows) < 20
    assert difference[rows].max() < difference.min() + width + 1e-3
    noun = "pair" if len(rows) == 1 else "pairs"
    shown = f"F1 of the {len(rows)} {noun} shown"
    said = page.locator("#filtered").inner_text()
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


# Edges of the 40 bins as multiples of 5/256, which are exact in float32 and in a page.
# For 11 and 22, a sum and a quotient round to different bins.
EDGES = torch.tensor([0, 3, 7, 11, 11, 15, 17, 22, 25, 31, 38, 40])


@pytest.mark.parametrize("names", [["a"], ["a", "b"]])
def test_a_bar_shows_the_pairs_that_its_label_counts(show, names):
    texts = [" ".join(["word"] * (1 + row % 7)) for row in range(12)]
    f1 = {name: EDGES.roll(number) * 5 / 256 for number, name in enumerate(names)}
    scores = {name: dict.fromkeys(SCORE_NAMES, values) for name, values in f1.items()}
    values = {"characters of the reference": torch.tensor([len(text) for text in texts])}
    if names == ["a"]:
        values["F1"] = f1["a"]
    else:
        values |= {"F1 of A": f1["a"], "F1 of B": f1["b"], "B − A": f1["b"] - f1["a"]}
    page = show(Report(dict.fromkeys(names, texts), texts, scores))

    clicked = page.evaluate(CLICK_EACH_BAR)

    counted = dict.fromkeys(values, 0)
    for label, chip, rows in clicked:
        name, low, high, count = re.fullmatch(r"(.+) (-?[\d.]+) to (-?[\d.]+): (\d+) pairs?", label).groups()
        assert len(rows) == int(count)
        assert chip.startswith(f"{name} {low} ")
        assert values[name][rows].min() >= float(low) - 1e-4
        assert values[name][rows].max() <= float(high) + 1e-4
        counted[name] += len(rows)
    assert counted == dict.fromkeys(values, 12)


# Differences that four decimals hide are wins, and those of rounding are ties.
WINS = [2e-5, 0.1, 3e-6]
TIES = [0.0, 4e-7, -7e-7]
LOSSES = [-2e-5, -3e-6]


def test_a_win_is_counted_where_it_is_selected(show):
    """In the sentence and in the filters."""
    drawn = torch.Generator().manual_seed(3)
    a = 0.5 + 0.3 * torch.rand(40, generator=drawn)
    b = a + torch.tensor([*WINS, *TIES, *LOSSES] * 5)
    page = show(report_of({"A": a, "B": b, "C": a}))

    page.click("#matrix-1-0")

    assert page.locator("td:has(#matrix-1-0) small").first.inner_text() == "15 wins"
    assert page.locator("#difference").inner_text().endswith("better in 15 pairs, worse in 10")
    for name, wins, losses in (("b", 15, 0), ("a", 0, 10)):
        page.select_option("#filter", name)
        expect_rows(page, wins + losses)
        assert f"better in {wins} pairs, worse in {losses}," in page.locator("#difference").inner_text()


@pytest.fixture
def bars(show):
    """Page of a system with scores and lengths in few bins."""
    lengths = [3, 3, 4, 11, 12, 12, 12, 90]
    f1 = torch.tensor([0.0, 0.0, 0.5, 1.0, 1.0, 1.0, 1.0, 1.0])
    references = ["y" * length for length in lengths]
    return show(Report(["x"] * 8, references, dict.fromkeys(SCORE_NAMES, f1)))


def test_bars_say_what_they_count_its_range_and_number(bars):
    """Lengths are whole numbers, of which the range of a bar has those from its first to before its second."""
    groups = bars.locator("#charts svg[role='group']").all()

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


def test_a_chip_has_the_range_of_its_bar(bars):
    chips = {"3 to 6": "3 to 6", "10 to 12": "10 to 12", "12 to 14": "12 to 14", "88 to 90": "88 or more"}
    rows = {"3 to 6": [1, 2, 3], "10 to 12": [4], "12 to 14": [5, 6, 7], "88 to 90": [8]}
    for name, chip in chips.items():
        bars.get_by_role("button", name=f"reference {name}:").press("Enter")

        assert sorted(map(int, column(bars, 1))) == rows[name]
        assert bars.locator(".chip").inner_text() == f"characters of the reference {chip} ✕"
        bars.locator(".chip").press("Enter")
