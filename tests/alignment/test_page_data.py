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
    for name, score in (("candidate", "precision"), ("reference", "recall")):
        shown = data["alignment"]["sides"][name]
        side = getattr(alignment, name)
        assert sum(shown["shares"]) + shown["special"] == pytest.approx(data["scores"][score], abs=5e-4)
        assert [token.strip() for token in shown["tokens"]] == side.tokens
        assert shown["matches"] == side.matches.tolist()
        assert shown["best"] == pytest.approx(side.best.tolist(), abs=6e-4)
        assert shown["weights"] == pytest.approx(side.weights.tolist(), abs=6e-4)
    assert Page(alignment._repr_html_()).tags[0][1]["srcdoc"] == page


def test_a_text_is_not_markup(encoder):
    tags = Page(align(EVIL, "a cat", encoder).to_html()).tags
    assert [tag for tag, _ in tags].count("script") == 2
    assert "img" not in dict(tags)


def test_a_dropped_accent_belongs_to_its_letter(encoder):
    sides = read_data(align("cafe\u0301 now", "a cat", encoder).to_html())["alignment"]["sides"]
    assert [token.strip() for token in sides["candidate"]["tokens"]] == ["cafe\u0301", "now"]
