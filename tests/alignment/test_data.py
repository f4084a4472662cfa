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
    options = {"none": {}, "texts": {"idf": pairs[0][:30]}, "mapping": {"idf": mapping}}[idf]
    candidate, reference = "Return the number of items.", "The size of it: how many items there are"
    if rescaled:
        options |= {"rescale": table}
    alignment = compute_alignment(candidate, reference, ScoreSettings.create(encoder, **options))
    expected = bert_score(candidate, reference, encoder, **options)
    for name, side in (("precision", alignment.candidate), ("recall", alignment.reference)):
        assert getattr(alignment, name) == pytest.approx(expected[name].item(), abs=1e-6)
        assert side.shares.sum().item() + side.special_share == pytest.approx(expected[name].item(), abs=1e-6)
    assert alignment.f1 == pytest.approx(expected["f1"].item(), abs=1e-6)


def test_share_of_each_token(encoder):
    ids = encoder.tokenizer(["a cat"]).rows()[0]
    mapping = dict.fromkeys(range(encoder.tokenizer.vocab_size), 0.5) | {ids[1]: 1.0, ids[2]: 3.0}
    alignment = align("a cat", "the kitten", encoder, idf=mapping)
    side, total = alignment.candidate, 0.5 + 1.0 + 3.0 + 0.5
    assert side.weights.tolist() == [1.0, 3.0]
    assert side.shares.tolist() == pytest.approx([1.0 * side.best[0].item() / total, 3.0 * side.best[1].item() / total])
    assert side.special_share > 0
    special = next(line for line in repr(alignment).splitlines() if line.startswith("special tokens"))
    assert special.split()[-1] == f"{side.special_share:.4f}"


def test_small_weights_and_shares_have_six_significant_digits(encoder):
    ids = encoder.tokenizer(["a cat"]).rows()[0]
    mapping = dict.fromkeys(range(encoder.tokenizer.vocab_size), 1.0) | {ids[1]: 1 / 3e7}
    alignment = align("a cat", "the kitten", encoder, idf=mapping)
    side, written = alignment.candidate, alignment.candidate.to_dict()
    assert written["weights"] == [3.33333e-8, 1.0]
    assert 0 < written["shares"][0] < 5e-7
    assert written["shares"] == pytest.approx(side.shares.tolist(), rel=5e-6, abs=0)
    assert written["special_share"] == pytest.approx(side.special_share, rel=5e-6, abs=0)


def test_weights_that_are_all_zero_leave_no_shares(encoder):
    alignment = compute_alignment("a cat", "the dog", ScoreSettings.create(encoder, True, references=["the dog"]))
    assert alignment.recall == 0
    assert alignment.reference.shares.tolist() == [0, 0]
    assert alignment.precision > 0
