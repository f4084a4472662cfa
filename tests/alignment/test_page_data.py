"""The page of one alignment."""

import pytest

from bertscore_tm import align
from bertscore_tm.utilities.checks import SCORE_NAMES
from tests.support.report_pages import EVIL, Page, read_data


def test_a_page_shows_tokens_and_shares(encoder, table):
    idf = ["a cat", "the kitten", "it is raining"]
    alignment = align("a cat sleeps", "the kitten is sleeping", encoder, idf=idf, rescale=table)
    page = alignment.to_html()

    data = read_data(page)

    assert data["settings"] == alignment.settings
    assert (data["candidate"], data["reference"]) == ("a cat sleeps", "the kitten is sleeping")
    assert data["scores"] == {name: round(getattr(alignment, name), 4) for name in SCORE_NAMES}
    sides = data["alignment"]["sides"]
    assert_shown(sides["candidate"], alignment.candidate, score=data["scores"]["precision"])
    assert_shown(sides["reference"], alignment.reference, score=data["scores"]["recall"])


def assert_shown(shown, side, *, score):
    """Compare the data of a side on the page with its alignment and the score that its shares add up to."""
    tokens = [token.strip() for token in shown["tokens"]]
    assert tokens == side.tokens
    assert shown["matches"] == side.matches.tolist()
    assert shown["best"] == pytest.approx(side.best.tolist(), abs=6e-4)
    assert shown["weights"] == pytest.approx(side.weights.tolist(), abs=6e-4)
    assert sum(shown["shares"]) + shown["special"] == pytest.approx(score, abs=5e-4)


def test_a_notebook_shows_the_page_in_a_frame(encoder):
    alignment = align("a cat", "the kitten", encoder)

    (_, attributes), *_ = Page(alignment._repr_html_()).tags

    assert attributes["srcdoc"] == alignment.to_html()


def test_a_text_is_not_markup(encoder):
    page = Page(align(EVIL, "a cat", encoder).to_html())

    names = [name for name, _ in page.tags]
    assert names.count("script") == 2
    assert "img" not in names


def test_a_dropped_accent_belongs_to_its_letter(encoder):
    alignment = align("cafe\u0301 now", "a cat", encoder)

    sides = read_data(alignment.to_html())["alignment"]["sides"]

    tokens = [token.strip() for token in sides["candidate"]["tokens"]]
    assert tokens == ["cafe\u0301", "now"]
