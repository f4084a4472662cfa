"""Shares and weights of an alignment: they add up to the scores."""

from itertools import product

import pytest

from bertscore_tm import FrozenEncoder, align, bert_score
from bertscore_tm.alignment.alignment import compute_alignment
from bertscore_tm.scoring.settings import ScoreSettings
from tests.support.alignments import WITH_SPECIALS
from tests.support.models import tiny_model


# Families differ in their special tokens, settings in how weights and baselines enter: each is varied for one of the
# other.
@pytest.mark.parametrize(
    ("family", "rescaled", "idf"),
    [*product(WITH_SPECIALS, [True], ["mapping"]), *product(["bert"], [False, True], ["none", "texts"])],
)
def test_shares_add_up_to_the_scores(family, rescaled, idf, pairs, table):
    model, tokenizer = tiny_model(family)
    encoder = FrozenEncoder(model, tokenizer, num_layers=2)
    mapping = {token: 0.3 + token % 7 for token in range(len(tokenizer))}
    weights = {"none": False, "texts": pairs[0][:30], "mapping": mapping}[idf]
    options = {"idf": weights}
    if rescaled:
        options["rescale"] = table
    candidate, reference = "Return the number of items.", "The size of it: how many items there are"
    scores = bert_score(candidate, reference, encoder, **options)
    expected = {name: values.item() for name, values in scores.items()}

    alignment = compute_alignment(candidate, reference, ScoreSettings.create(encoder, **options))

    assert alignment.precision == pytest.approx(expected["precision"], abs=1e-6)
    assert alignment.recall == pytest.approx(expected["recall"], abs=1e-6)
    assert alignment.f1 == pytest.approx(expected["f1"], abs=1e-6)
    assert sum_of_shares(alignment.candidate) == pytest.approx(expected["precision"], abs=1e-6)
    assert sum_of_shares(alignment.reference) == pytest.approx(expected["recall"], abs=1e-6)


def sum_of_shares(side):
    """Return the shares of all tokens of a side, special ones too."""
    return side.shares.sum().item() + side.special_share


def test_the_share_of_a_token_is_its_weighted_match(encoder):
    _, a, cat, _ = encoder.tokenizer(["a cat"]).rows()[0]
    mapping = dict.fromkeys(range(encoder.tokenizer.vocab_size), 0.5) | {a: 1.0, cat: 3.0}
    total = 0.5 + 1.0 + 3.0 + 0.5

    alignment = align("a cat", "the kitten", encoder, idf=mapping)

    side = alignment.candidate
    best_of_a, best_of_cat = side.best.tolist()
    assert side.weights.tolist() == [1.0, 3.0]
    assert side.shares.tolist() == pytest.approx([1.0 * best_of_a / total, 3.0 * best_of_cat / total])
    assert side.special_share > 0
    line, *_ = [line for line in repr(alignment).splitlines() if line.startswith("special tokens")]
    assert line.split()[-1] == f"{side.special_share:.4f}"


def test_small_weights_and_shares_have_six_significant_digits(encoder):
    _, a, *_ = encoder.tokenizer(["a cat"]).rows()[0]
    mapping = dict.fromkeys(range(encoder.tokenizer.vocab_size), 1.0) | {a: 1 / 3e7}
    side = align("a cat", "the kitten", encoder, idf=mapping).candidate

    written = side.to_dict()

    assert written["weights"] == [3.33333e-8, 1.0]
    assert 0 < written["shares"][0] < 5e-7
    assert written["shares"] == pytest.approx(side.shares.tolist(), rel=5e-6, abs=0)
    assert written["special_share"] == pytest.approx(side.special_share, rel=5e-6, abs=0)


def test_weights_that_are_all_zero_leave_no_shares(encoder):
    settings = ScoreSettings.create(encoder, True, references=["the dog"])

    alignment = compute_alignment("a cat", "the dog", settings)

    assert alignment.recall == 0
    assert alignment.reference.shares.tolist() == [0, 0]
    assert alignment.precision > 0
