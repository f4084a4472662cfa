"""The data of the pictures: readable tokens, matches, weights and shares of the score."""

import pytest
import torch
from transformers import AutoModel, ByT5Tokenizer

from bertscore_tm import FrozenEncoder, align, bert_score
from bertscore_tm.alignment.alignment import compute_alignment
from bertscore_tm.scoring.settings import ScoreSettings
from tests.support.alignments import WITH_SPECIALS
from tests.support.models import randomised, tiny_config, tiny_model


def by_hand(model, tokenizer, text):
    """Vectors of all tokens from the Hugging Face model itself, and the places of those that are not special."""
    encoded = tokenizer(text, return_tensors="pt", return_special_tokens_mask=True)
    inner = model
    if model.config.is_encoder_decoder:
        inner = model.get_encoder()
    with torch.no_grad():
        vectors = inner(encoded.input_ids, attention_mask=encoded.attention_mask).last_hidden_state[0]
    places = [place for place, special in enumerate(encoded.special_tokens_mask[0]) if not special]
    return vectors, places


def assert_matches(side, similarities, partner_places):
    """Compare the best matches of a side with the similarities of its tokens to all of the other text."""
    partners = []
    for place in similarities.argmax(1).tolist():
        # A special token is no partner.
        partner = partner_places.index(place) if place in partner_places else -1
        partners.append(partner)
    assert side.best.tolist() == pytest.approx(similarities.amax(1).tolist(), abs=2e-6)
    assert side.matches.tolist() == partners
    for values in (side.tokens, side.joined, side.weights, side.shares):
        assert len(values) == len(partners)


@pytest.mark.parametrize("family", WITH_SPECIALS)
def test_matches_and_similarities_equal_those_of_the_model(family, pairs):
    model, tokenizer = tiny_model(family)
    settings = ScoreSettings.create(FrozenEncoder(model, tokenizer, num_layers=3))
    space = " " if family in ("roberta", "gpt2") else ""
    special_matches = 0
    for candidate, document in zip(pairs[0][:4], pairs[1][:4], strict=True):
        reference = " ".join(document.split()[:8])
        vectors, places = by_hand(model, tokenizer, space + candidate)
        others, other_places = by_hand(model, tokenizer, space + reference)
        matrix = torch.cosine_similarity(vectors[:, None], others[None], dim=-1)  # (tokens, other tokens)

        alignment = compute_alignment(candidate, reference, settings)

        torch.testing.assert_close(alignment.similarity, matrix[places][:, other_places], atol=2e-6, rtol=0)
        assert_matches(alignment.candidate, matrix[places], other_places)
        assert_matches(alignment.reference, matrix.T[other_places], places)
        for side in (alignment.candidate, alignment.reference):
            special_matches += side.matches.tolist().count(-1)

    # Where there are special tokens some token matches one, or this would show nothing of them.
    assert (special_matches > 0) == (family != "gpt2")


# transformers and this package name the token, which is meant here.
@pytest.mark.filterwarnings("ignore:This sequence already has </s>:UserWarning")
@pytest.mark.filterwarnings("ignore:1 candidate contains special tokens such as </s>:UserWarning")
def test_a_text_with_the_end_token_of_a_tokenizer_in_python():
    """ByT5's tokenizer adds no second end token, but its mask has one."""
    model = randomised(AutoModel.from_config(tiny_config("t5", vocab_size=384)))
    encoder = FrozenEncoder(model, ByT5Tokenizer(), num_layers=2)
    scores = bert_score(["a cat</s>"], ["a dog"], encoder)

    alignment = align("a cat</s>", "a dog", encoder)

    assert alignment.candidate.tokens == ["a", "␣", "c", "a", "t", "</s>"]
    assert alignment.candidate.special_share == 0
    assert alignment.candidate.shares.sum().item() == pytest.approx(scores["precision"].item(), abs=1e-6)
    assert alignment.f1 == pytest.approx(scores["f1"].item(), abs=1e-6)


def test_long_texts_are_shown_as_far_as_they_are_scored(pairs):
    model, tokenizer = tiny_model("roberta")
    text = " ".join(pairs[1][:3])
    num_tokens = len(tokenizer(" " + text).input_ids) - 2

    def align_with(long_text):
        encoder = FrozenEncoder(model, tokenizer, num_layers=2, max_length=20, long_text=long_text)
        return compute_alignment(text, "a list", ScoreSettings.create(encoder))

    cut, whole = align_with("truncate"), align_with("window")

    assert (cut.num_truncated, whole.num_truncated) == (1, 0)
    assert len(cut.candidate.tokens) == len(cut.similarity) == 18
    assert whole.candidate.tokens[:18] == cut.candidate.tokens
    assert len(whole.candidate.tokens) == len(whole.similarity) == num_tokens


def test_a_special_token_that_is_written_in_the_text_is_text(encoder):
    side = compute_alignment("a [SEP] cat", "a cat", ScoreSettings.create(encoder)).candidate

    assert side.tokens == ["a", "[SEP]", "cat"]
    assert side.weights.tolist() == [1, 0, 1]


NO_TOKENS = "=.* has no tokens except special ones"


@pytest.mark.parametrize(
    ("candidate", "reference", "error", "said"),
    [
        *((text, "a cat", ValueError, "candidate" + NO_TOKENS) for text in ("", "  ", "\x00")),
        ("a cat", "", ValueError, "reference" + NO_TOKENS),
        (["a cat"], "the cat", TypeError, r"candidate must be a single string, got \['a cat'\]"),
        ("a cat", None, TypeError, "reference must be a single string, got None"),
    ],
)
def test_texts_that_cannot_be_aligned_are_refused(encoder, candidate, reference, error, said):
    settings = ScoreSettings.create(encoder)

    with pytest.raises(error, match=said):
        compute_alignment(candidate, reference, settings)


def test_an_encoder_of_all_layers_is_refused(minilm):
    settings = ScoreSettings.create(FrozenEncoder(minilm, all_layers=True))

    with pytest.raises(ValueError, match=r"needs a single layer\. Pass num_layers="):
        compute_alignment("a cat", "the cat", settings)


def test_a_token_without_a_weight_is_refused(encoder):
    settings = ScoreSettings.create(encoder, {5: 1.0})

    with pytest.raises(ValueError, match="idf has no weight for token id"):
        compute_alignment("a cat", "the cat", settings)
