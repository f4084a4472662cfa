"""Pictures of texts that need other fonts or run from right to left."""

import warnings

import pytest
from matplotlib import font_manager

from bertscore_tm import contributions_html, plot_alignment, plot_contributions
from tests.support.pictures import encoder_of_words, text_labels, with_gid, words

pytestmark = pytest.mark.usefixtures("one_thread", "no_open_figures")

# A script for which no font is looked for.
UNDRAWABLE = "𖩀"


def test_characters_without_a_font_give_one_warning(encoder):
    text = f"{UNDRAWABLE} a {UNDRAWABLE}\u200d{UNDRAWABLE}"
    for draw in (plot_alignment, plot_contributions):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            figure = draw(text, "a cat", encoder)
            figure.canvas.draw()
        (warning,) = caught
        assert warning.filename == __file__
        assert f"no installed font has 1 of the characters ({UNDRAWABLE})" in str(warning.message)
        assert "contributions_html" in str(warning.message)
        ax = figure.axes[0]
        drawn = words(ax.yaxis) if draw is plot_alignment else [text.get_text() for text in ax.texts]
        assert any(word.startswith("□") for word in drawn)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert UNDRAWABLE in contributions_html(text, "a cat", encoder)


def test_an_installed_font_is_found(encoder, tmp_path):
    from fontTools.fontBuilder import FontBuilder
    from fontTools.pens.ttGlyphPen import TTGlyphPen

    pen = TTGlyphPen(None)
    for place, point in enumerate([(0, 0), (0, 700), (700, 700), (700, 0)]):
        (pen.lineTo if place else pen.moveTo)(point)
    pen.closePath()
    builder = FontBuilder(1000, isTTF=True)
    builder.setupGlyphOrder([".notdef", "own"])
    builder.setupCharacterMap({ord(UNDRAWABLE): "own"})
    builder.setupGlyf({".notdef": pen.glyph(), "own": pen.glyph()})
    builder.setupHorizontalMetrics({".notdef": (800, 0), "own": (800, 0)})
    builder.setupHorizontalHeader(ascent=800, descent=-200)
    builder.setupNameTable({"familyName": "Noto Sans", "styleName": "Regular"})
    builder.setupOS2()
    builder.setupPost()
    builder.save(tmp_path / "own.ttf")
    before = list(font_manager.fontManager.ttflist)
    font_manager.fontManager.addfont(tmp_path / "own.ttf")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            figure = plot_alignment(f"{UNDRAWABLE} cat", "a cat", encoder)
            figure.canvas.draw()
        assert words(figure.axes[0].yaxis)[0].startswith(UNDRAWABLE)
        assert text_labels(figure.axes[0].yaxis)[0].get_fontfamily()[-1] == "Noto Sans"
    finally:
        font_manager.fontManager.ttflist[:] = before


def test_right_to_left_texts_begin_at_the_right(encoder):
    ax = plot_contributions("مرحبا بالعالم", "hello world", encoder).axes[0]
    boxes = with_gid(ax, "token")
    count = len(encoder.tokenizer(["مرحبا بالعالم"]).ids[0]) - 2
    places = [box.get_x() for box in boxes]
    assert places[:count] == sorted(places[:count], reverse=True)
    assert places[count:] == sorted(places[count:])
    assert boxes[0].get_x() + boxes[0].get_width() == pytest.approx(ax.get_xlim()[1])


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("the שלום , עולם is 12", "the עולם , שלום is 12"),
        ("שלום big , cat ב 12 .", ". 12 ב big , cat שלום"),
        (", שלום 12", "12 שלום ,"),
        ("שלום the , עולם", "עולם , the שלום"),
    ],
)
def test_words_of_the_other_direction_are_in_reading_order(text, shown):
    """The expected lines are those that browsers show, from left to right."""
    ax = plot_contributions(text, text, encoder_of_words(text)).axes[0]
    count = len(text.split())
    tokens = [(one.get_position()[0], one.get_text()) for one in ax.texts[1 : 1 + count]]
    assert [token for _, token in sorted(tokens)] == shown.split()
