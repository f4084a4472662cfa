"""The HTML page shows the data, is readable on any background and is harmless."""

import re

import numpy as np
import pytest

from bertscore_tm import align
from bertscore_tm.plotting.shading import NEGATIVE, POSITIVE, STRONGEST
from bertscore_tm.scoring.alignment import compute_alignment
from tests.support.pictures import CANDIDATE, REFERENCE, Page, encoder_of_words, weights_of

pytestmark = pytest.mark.usefixtures("one_thread", "no_open_figures")


def test_html_shows_tokens_and_shares(encoder, page, settings):
    assert page.open == []
    assert page.texts["p"] == [CANDIDATE, REFERENCE]
    raw = compute_alignment(CANDIDATE, REFERENCE, encoder, weights_of(encoder, settings))
    marked = page.attributes("mark")
    ratios = []
    for side, other, b in ((raw.candidate, raw.reference, 0.35), (raw.reference, raw.candidate, 0.45)):
        best = (side.best - b) / (1 - b) if "rescale" in settings else side.best
        ratios += (side.weights * best / side.weights.max()).tolist()
        for attrs, match, similarity in zip(marked[: len(side.tokens)], side.matches, side.best, strict=True):
            partner = "a special token" if match < 0 else f"“{other.tokens[match]}”"
            assert f"similarity {similarity:.3f} with {partner}" in attrs["title"]
        marked = marked[len(side.tokens) :]
    for attrs, ratio in zip(page.attributes("mark"), ratios, strict=True):
        share = float(attrs["style"].removeprefix("--share: "))
        assert (-share if attrs.get("class") == "negative" else share) == pytest.approx(ratio, abs=6e-4)


def test_a_notebook_shows_the_page_without_its_frame(alignment, page):
    fragment = alignment._repr_html_()
    shown = Page(fragment)
    assert shown.open == []
    assert not {"html", "head", "body", "meta"} & set(shown.texts)
    assert shown.attributes("mark") == page.attributes("mark")
    assert shown.texts["p"] == page.texts["p"]


def contrast(one, other):
    """Contrast ratio of two RGB colours, as WCAG 2 defines it."""
    linear = [[c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in colour] for colour in (one, other)]
    darker, lighter = sorted(np.dot(rgb, (0.2126, 0.7152, 0.0722)) for rgb in linear)
    return (lighter + 0.05) / (darker + 0.05)


def test_html_is_readable_on_light_and_dark_backgrounds(alignment, page):
    fragment = alignment._repr_html_()
    style = fragment[: fragment.index("</style>")]
    # Nothing but the tokens and the scale has a background, so that a notebook's theme decides.
    assert re.findall(r"background: .*", style) == [
        f"background: rgba(var(--rgb), calc(var(--share) * {STRONGEST})); "
        "box-shadow: inset 0 0 0 1px rgba(128, 128, 128, .4);"
    ]
    assert re.findall(r"[{; ]color: ([^;]*)", style) == ["inherit"]
    assert {"name": "color-scheme", "content": "light dark"} in page.attributes("meta")
    # In a frame of the other mode, a page without background would show the frame's.
    source = alignment.to_html()
    assert ":root { color-scheme: light dark; background: Canvas; color: CanvasText; }" in source
    for background, text in (((1, 1, 1), (0, 0, 0)), ((0.07, 0.07, 0.07), (1, 1, 1))):
        for colour in (POSITIVE, NEGATIVE):
            shade = [c / 255 * STRONGEST + b * (1 - STRONGEST) for c, b in zip(colour, background, strict=True)]
            assert contrast(shade, text) > 4.5


def test_html_is_harmless(encoder):
    evil = """<script>alert("x")</script> &lt; ' onclick=alert() <img src=x> --> ]]> <b title='"> </mark>"""
    evil += " \u202e\u202d\x00"
    named = encoder_of_words(evil)
    named.name = "<b onclick='x'>model</b>"
    for model in (encoder, named):
        alignment = align(evil, evil[::-1], model)
        source = alignment.to_html()
        page = Page(source)
        # A notebook shows the same content.
        assert f"<body>{alignment._repr_html_().partition('</style>')[2].strip()}" in source
        assert {tag for tag, _ in page.tags} == {
            *("html", "head", "meta", "title", "style", "body", "div", "h1", "h2", "b", "small", "span", "p", "mark")
        }
        used = {name for _, attrs in page.tags for name in attrs}
        assert used == {"lang", "charset", "name", "content", "class", "style", "dir", "title"}
        assert not {"http", "\u202e", "\x00"} & {source[i : i + n] for n in (1, 4) for i in range(len(source))}
        assert [attrs["dir"] for attrs in page.attributes("p")] == ["auto", "auto"]
        assert page.open == []
    assert '<script>alert("x")</script>' in page.texts["mark"]
    assert page.texts["small"][0] == "<b onclick='x'>model</b>, layer 1"


def test_html_shows_every_script(encoder):
    text = "今天 مرحبا 😀 हिन्दी"
    page = align(text, text, encoder).to_html()
    for word in ("今", "天", "م", "😀", "ह"):
        assert f">{word}" in page
