"""Fonts of the pictures: one that has the characters, or one warning."""

import warnings

import pytest
from matplotlib import rc_context
from matplotlib.font_manager import findfont, get_font

from bertscore_tm import align
from bertscore_tm.alignment import fonts
from tests.support.pictures import encoder_of_words, words

pytestmark = pytest.mark.usefixtures("no_open_figures")


def characters_of(name):
    """Return the characters that a font has."""
    codes = get_font(findfont(name)).get_charmap()
    return set(map(chr, codes))


@pytest.mark.parametrize("is_installed", [True, False])
def test_labels_are_drawn_by_a_font_that_has_their_characters(monkeypatch, is_installed):
    families = ("Unknown Sans", "STIXGeneral") if is_installed else ("Unknown Sans",)
    monkeypatch.setattr(fonts, "_FAMILIES", families)
    fonts._warn_of_missing.cache_clear()
    characters = characters_of("STIXGeneral") - characters_of("DejaVu Sans")
    rare = max(filter(str.isprintable, characters))
    alignment = align(f"a {rare}", "b c", encoder_of_words(f"a {rare} b c"))

    with warnings.catch_warnings(record=True, action="always") as caught:
        figure = alignment.plot()
        figure.canvas.draw()

    labels = [word.rstrip("†") for word in words(figure.axes[0].yaxis)]
    messages = [str(warning.message)[:11] for warning in caught]
    if is_installed:
        assert labels == ["a", rare]
        assert messages == []
    else:
        assert labels == ["a", "□"]
        # There is none for each drawing and character.
        assert messages == ["no font has"]


def test_a_missing_script_is_named_once(monkeypatch):
    monkeypatch.setattr(fonts, "_FAMILIES", ())
    fonts._warn_of_missing.cache_clear()

    with pytest.warns(UserWarning, match="characters of Devanagari, which pictures show as squares"):
        fonts.choose_fonts(["न"])

    with warnings.catch_warnings(action="error"):
        # A virama has no shape of its own.
        assert fonts.choose_fonts(["न\u094d"])[1] == ["□"]


def test_every_font_of_the_user_counts(monkeypatch):
    text = "a \N{REFERENCE MARK}"
    families = ["DejaVu Serif", "STIXGeneral"]
    monkeypatch.setattr(fonts, "_FAMILIES", ())

    with rc_context({"font.family": families}), warnings.catch_warnings(action="error"):
        chosen = fonts.choose_fonts([text])

    assert chosen == (families, [text])
