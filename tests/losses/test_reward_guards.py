"""Guards of BERTScoreReward against texts that are too short, too long or repeat themselves."""

import math

import pytest

from bertscore_tm import FrozenEncoder
from bertscore_tm.losses.sequence.rewards import BERTScoreReward
from tests.support.reward_texts import LENGTHS, SEVERAL, TOLERANCE

pytestmark = pytest.mark.usefixtures("one_thread")


def slow_guard(encoder, candidate, references, band, size):
    """Both factors, written the long way."""
    count, factor = {}, 1.0
    for text in (candidate, *references):
        count[text] = len(encoder.tokenizer.tokenizer.tokenize(text))
    if band is not None:
        best = 0.0
        for reference in references:
            ratio = count[candidate] / count[reference]
            if ratio < band[0]:
                best = max(best, ratio / band[0])
            elif ratio > band[1]:
                best = max(best, band[1] / ratio)
            else:
                best = 1.0
        factor *= best
    if size is not None:
        tokens, seen, repeated = encoder.tokenizer.tokenizer.tokenize(candidate), [], 0
        for start in range(len(tokens) - size + 1):
            ngram = tokens[start : start + size]
            repeated += ngram in seen
            seen.append(ngram)
        factor *= 1 - repeated / len(seen) if seen else 1
    return factor


@pytest.fixture(scope="module")
def plain(encoder):
    return BERTScoreReward(encoder)(LENGTHS, SEVERAL)


@pytest.mark.parametrize(
    ("band", "size"), [(None, None), ((0.5, 1.5), None), ((1, 1), 1), (None, 2), ((0, 2), 4), ((0.9, math.inf), 2)]
)
def test_guards_are_the_equations(encoder, plain, band, size):
    found = BERTScoreReward(encoder, length_band=band, repeat_ngram_size=size)(LENGTHS, SEVERAL)
    factors = [slow_guard(encoder, text, several, band, size) for text, several in zip(LENGTHS, SEVERAL, strict=True)]
    assert found == pytest.approx([f * s for f, s in zip(factors, plain, strict=True)], abs=TOLERANCE)
    assert (min(factors) < 1) == (band is not None or size is not None)


def test_a_guard_never_raises_a_reward(encoder, tmp_path):
    path = tmp_path / "table.csv"
    path.write_text("LAYER,P,R,F\n" + "".join(f"{layer},.9,.9,.9\n" for layer in range(6)))
    rescaling = {"rescale": path}
    plain = BERTScoreReward(encoder, **rescaling)(LENGTHS, SEVERAL)
    found = BERTScoreReward(encoder, **rescaling, length_band=(0.9, 1.1), repeat_ngram_size=2)(LENGTHS, SEVERAL)
    assert min(plain) < -0.5
    for text, several, before, after in zip(LENGTHS, SEVERAL, plain, found, strict=True):
        factor = slow_guard(encoder, text, several, (0.9, 1.1), 2)
        assert after == pytest.approx(before - (1 - factor) * abs(before), abs=TOLERANCE * 10)
        assert after <= before


def test_guards_of_empty_texts(encoder, table):
    reward = BERTScoreReward(encoder, length_band=(0.5, 2), repeat_ngram_size=2)
    assert reward(["", "", "a cat sat on the mat"], ["", "a cat", ""]) == [0, 0, 0]
    rescaled = BERTScoreReward(encoder, length_band=(0.5, 2), rescale=table, component="precision")
    assert rescaled([""], ["a cat"]) == pytest.approx([-2 * 0.51 / 0.49], abs=TOLERANCE)


def test_an_empty_reference_opens_no_way_around_the_guard_of_length(encoder):
    reward = BERTScoreReward(encoder, length_band=(0.5, 1.5), references_reduce="max")
    assert reward(["cat"], [["", "the cat sat on the mat"]]) == reward(["cat"], ["the cat sat on the mat"])


def test_without_an_upper_end_no_text_is_too_long(encoder, table):
    rescaling = {"rescale": table}
    references = ["", "a cat"]
    plain = BERTScoreReward(encoder, **rescaling)(["a cat sat on the mat"] * 2, references)
    open_end = BERTScoreReward(encoder, length_band=(0.5, math.inf), **rescaling)
    assert plain[0] < 0
    assert open_end(["a cat sat on the mat"] * 2, references) == plain


def test_the_guard_of_length_sees_what_the_encoder_does_not(minilm):
    reward = BERTScoreReward(FrozenEncoder(minilm, num_layers=1, max_length=8), length_band=(0.5, 1.5))
    reference, tail = "one two three four five six", " and so on" * 20
    with pytest.warns(UserWarning, match="were truncated"):
        found = reward([reference, reference + tail], [reference] * 2)
    assert found[0] == pytest.approx(1, abs=TOLERANCE)
    assert found[1] == pytest.approx(1.5 * 6 / 66, abs=TOLERANCE)
