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
    inner = model.get_encoder() if model.config.is_encoder_decoder else model
    with torch.no_grad():
        vectors = inner(encoded.input_ids, attention_mask=encoded.attention_mask).last_hidden_state[0]
    return vectors, [place for place, special in enumerate(encoded.special_tokens_mask[0]) if not special]


@pytest.mark.parametrize("family", WITH_SPECIALS)
def test_matches_and_similarities_equal_those_of_the_model(family, pairs):
    model, tokenizer = tiny_model(family)
    encoder = FrozenEncoder(model, tokenizer, num_layers=3)
    space = " " if family in ("roberta", "gpt2") else ""
    special_matches = 0
    for candidate, reference in zip(pairs[0][:4], pairs[1][:4], strict=True):
        reference = " ".join(reference.split()[:8])
        alignment = compute_alignment(candidate, reference, ScoreSettings.create(encoder))
        vectors, places = by_hand(model, tokenizer, space + candidate)
        others, other_places = by_hand(model, tokenizer, space + reference)
        matrix = torch.cosine_similarity(vectors[:, None], others[None], dim=-1)  # (tokens, other tokens)
        torch.testing.assert_close(alignment.similarity, matrix[places][:, other_places], atol=2e-6, rtol=0)
        for side, rows, partner_places in (
            (alignment.candidate, matrix[places], other_places),
            (alignment.reference, matrix.T[other_places], places),
        ):
            partners = [partner_places.index(j) if j in partner_places else -1 for j in rows.argmax(1).tolist()]
            assert side.best.tolist() == pytest.approx(rows.amax(1).tolist(), abs=2e-6)
            assert side.matches.tolist() == partners
            assert len(side.tokens) == len(side.joined) == len(side.weights) == len(side.shares) == len(partners)
            special_matches += partners.count(-1)
    # Where there are special tokens some token matches one, or this would show nothing of them.
    assert (special_matches > 0) == (family != "gpt2")


def test_a_text_with_the_end_token_of_a_tokenizer_in_python():
    """ByT5's tokenizer adds no second end token, but its mask has one."""
    model = randomised(AutoModel.from_config(tiny_config("t5", vocab_size=384)))
    encoder = FrozenEncoder(model, ByT5Tokenizer(), num_layers=2)
    alignment = align("a cat</s>", "a dog", encoder)
    assert alignment.candidate.tokens == ["a", "␣", "c", "a", "t", "</s>"]
    assert alignment.candidate.special_share == 0
    scores = bert_score(["a cat</s>"], ["a dog"], encoder)
    assert alignment.candidate.shares.sum().item() == pytest.approx(scores["precision"].item(), abs=1e-6)
    assert alignment.f1 == pytest.approx(scores["f1"].item(), abs=1e-6)


def test_long_texts_are_shown_as_far_as_they_are_scored(pairs):
    model, tokenizer = tiny_model("roberta")
    text, other = " ".join(pairs[1][:3]), "a list"
    options = {"num_layers": 2, "max_length": 20}
    encoders = [FrozenEncoder(model, tokenizer, long_text=value, **options) for value in ("truncate", "window")]
    cut, whole = (compute_alignment(text, other, ScoreSettings.create(encoder)) for encoder in encoders)
    assert (cut.num_truncated, whole.num_truncated) == (1, 0)
    assert len(cut.candidate.tokens) == len(cut.similarity) == 18
    assert whole.candidate.tokens[:18] == cut.candidate.tokens
    assert len(whole.candidate.tokens) == len(whole.similarity) == len(tokenizer(" " + text).input_ids) - 2


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
def test_bad_texts(encoder, candidate, reference, error, said):
    with pytest.raises(error, match=said):
        compute_alignment(candidate, reference, ScoreSettings.create(encoder))


def test_bad_options(minilm, encoder):
    with pytest.raises(ValueError, match=r"needs a single layer\. Pass num_layers="):
        compute_alignment("a cat", "the cat", ScoreSettings.create(FrozenEncoder(minilm, all_layers=True)))
    with pytest.raises(ValueError, match="idf has no weight for token id"):
        compute_alignment("a cat", "the cat", ScoreSettings.create(encoder, {5: 1.0}))
