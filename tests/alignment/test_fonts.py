"""Fonts of the pictures: one that has the characters, or one warning."""

import warnings

import pytest
from matplotlib import rc_context
from matplotlib.font_manager import findfont, get_font

from bertscore_tm import align
from bertscore_tm.alignment import fonts
from tests.support.pictures import encoder_of_words, words

pytestmark = pytest.mark.usefixtures("no_open_figures")


@pytest.mark.parametrize("is_installed", [True, False])
def test_labels_are_drawn_by_a_font_that_has_their_characters(monkeypatch, is_installed):
    paths = [findfont(name) for name in ("DejaVu Sans", "STIXGeneral")]
    default, other = ({chr(code) for code in get_font(path).get_charmap()} for path in paths)
    rare = max(character for character in other - default if character.isprintable())
    monkeypatch.setattr(fonts, "_FAMILIES", ("Unknown Sans", "STIXGeneral") if is_installed else ("Unknown Sans",))
    alignment = align(f"a {rare}", "b c", encoder_of_words(f"a {rare} b c"))
    fonts._warn_of_missing.cache_clear()
    with warnings.catch_warnings(record=True, action="always") as caught:
        figure = alignment.plot()
        figure.canvas.draw()
    assert [word.rstrip("†") for word in words(figure.axes[0].yaxis)] == ["a", rare if is_installed else "□"]
    # Not one for each drawing and character.
    assert [str(warning.message)[:11] for warning in caught] == ["no font has"] * (not is_installed)


def test_a_missing_script_is_named_once(monkeypatch):
    monkeypatch.setattr(fonts, "_FAMILIES", ())
    fonts._warn_of_missing.cache_clear()
    with pytest.warns(UserWarning, match="characters of Devanagari, which pictures show as squares"):
        fonts.choose_fonts(["न"])
    with warnings.catch_warnings(action="error"):
        # A virama has no shape of its own.
        assert fonts.choose_fonts(["न\u094d"])[1] == ["□"]


def test_every_font_of_the_user_counts(monkeypatch):
    rare = "\N{REFERENCE MARK}"
    monkeypatch.setattr(fonts, "_FAMILIES", ())
    with rc_context({"font.family": ["DejaVu Serif", "STIXGeneral"]}), warnings.catch_warnings(action="error"):
        assert fonts.choose_fonts([f"a {rare}"]) == (["DejaVu Serif", "STIXGeneral"], [f"a {rare}"])
