"""The data of the pictures: readable tokens, matches, weights and shares of the score."""

from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModel, BertJapaneseTokenizer, ByT5Tokenizer

from bertscore_tm import FrozenEncoder, align, bert_score
from bertscore_tm.alignment.alignment import compute_alignment
from bertscore_tm.alignment.display_tokens import split_for_display
from bertscore_tm.alignment.page_data import describe_sides
from bertscore_tm.encoder.tokenizer import TextTokenizer
from bertscore_tm.scoring.settings import ScoreSettings
from tests.support.models import EVERY_FAMILY, KINDS, randomised, tiny_config, tiny_model

# With cls and sep; with a space in front; without special tokens; with one before, one and two after, and two after a
# text that is padded on the left.
WITH_SPECIALS = ("bert", "roberta", "gpt2", "llama", "t5", "mbart", "xlnet")


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


def in_words(readable, unknown=None):
    """Put tokens together again."""
    tokens = [token.removesuffix(f" {unknown}") for token in readable.tokens]
    pieces = zip(tokens, readable.joined, strict=True)
    return "".join(("" if joined else " ") + token for token, joined in pieces if token != "␣")


@pytest.mark.parametrize("kind", KINDS)
def test_plain_texts_can_be_read_back(kind, pairs):
    family = next(family for family, its_kind in EVERY_FAMILY.items() if its_kind == kind)
    tokenizer = TextTokenizer(tiny_model(family)[1], tiny_config(family))
    for text in pairs[1][:40]:
        readable = split_for_display(text, tokenizer)
        ids = tokenizer([text]).rows()[0]
        assert len(readable.is_content) == len(ids)
        assert len(readable.tokens) == sum(readable.is_content)
        unknown = tokenizer.tokenizer.unk_token
        joined = in_words(readable, unknown)
        if len(ids) < 64:
            assert joined.split() == text.split()
        else:
            assert len(joined) > 20
            assert " ".join(text.split()).startswith(joined.strip())


@given(st.text(max_size=12))
@settings(max_examples=75, deadline=None)
@pytest.mark.parametrize("family", ["bert", "roberta", "xlm-roberta", "xlm", "gpt2"])
def test_any_text_can_be_read(family, text):
    tokenizer = TextTokenizer(tiny_model(family)[1], tiny_config(family))
    readable = split_for_display(text, tokenizer)
    assert readable.is_content.count(True) == len(readable.tokens) == len(readable.joined)
    assert len(readable.is_content) == len(tokenizer([text]).rows()[0])
    for token in readable.tokens:
        assert token.strip()
        assert all(c.isprintable() or c in "\u200c\u200d" or not c.isascii() for c in token)
        assert not {"Ġ", "▁", "\n", "\t", "\u202e"} & set(token) - set(text) | {"\n", "\u202e"} & set(token)


@pytest.mark.parametrize(
    ("family", "text", "tokens"),
    [
        ("roberta", "é", ["␣", "é₁", "é₂"]),
        ("bart", "今😀", ["今₁", "今₂", "今₃", "😀₁", "😀₂", "😀₃", "😀₄"]),
        ("bart", "a\n\tb", ["a", "↵", "⇥", "b"]),
        ("bart", "\u202e", ["U+202E₁", "U+202E₂", "U+202E₃"]),
        ("bart", "ि", ["◌ि₁", "◌ि₂", "◌ि₃"]),
        ("bert", "今 É", ["今 [UNK]", "É"]),
        ("xlm-roberta", "今a", ["␣", "今 <unk>", "a"]),
        # One character that is several when normalised.
        ("xlm-roberta", "½", ["½₁", "½₂ <unk>", "½₃"]),
    ],
)
def test_tokens_of_other_scripts(family, text, tokens):
    tokenizer = TextTokenizer(tiny_model(family)[1], tiny_config(family))
    readable = split_for_display(text, tokenizer)
    # It depends on the tokenizer's training whether the space in front is a token.
    assert readable.tokens[-len(tokens) :] == tokens
    assert len(readable.tokens) - len(tokens) <= (text == "½")
    # Parts of a character are joined.
    assert all(joined for token, joined in zip(readable.tokens, readable.joined, strict=True) if token[-1] in "₂₃₄")


def test_the_real_encoder_reads_words_as_they_are_written(encoder):
    readable = split_for_display("  Unbelievably naïve مرحبا  don't ", encoder.tokenizer)
    assert in_words(readable).split() == ["Unbelievably", "naïve", "مرحبا", "don't"]
    assert readable.tokens[:3] == ["Un", "bel", "ie"]


def test_tokenizers_without_offsets(tmp_path):
    tokens = ["[UNK]", "[PAD]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "sle", "##eps", "caf", "##é", "tok", "##ens"]
    (tmp_path / "vocab.txt").write_text("\n".join(tokens))
    tokenizer = BertJapaneseTokenizer(tmp_path / "vocab.txt", word_tokenizer_type="basic", do_lower_case=False)
    model = randomised(AutoModel.from_config(tiny_config("bert", vocab_size=len(tokenizer))))
    encoder = FrozenEncoder(model, tokenizer, num_layers=1)
    assert not tokenizer.is_fast
    alignment = compute_alignment("the cat sleeps", "café tokens", ScoreSettings.create(encoder))
    side = alignment.candidate
    assert describe_sides(alignment)["candidate"]["tokens"] == [" the", " cat", " sle", "eps"]
    assert side.tokens == ["the", "cat", "sle", "eps"]
    assert side.joined == [False, False, False, True]
    unknown = compute_alignment("café tokens xy", "the cat", ScoreSettings.create(encoder)).candidate
    assert unknown.tokens == ["caf", "é", "tok", "ens", "[UNK]"]


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
    with pytest.raises(ValueError, match="needs a single layer: pass num_layers="):
        compute_alignment("a cat", "the cat", ScoreSettings.create(FrozenEncoder(minilm, all_layers=True)))
    with pytest.raises(ValueError, match="idf has no weight for token id"):
        compute_alignment("a cat", "the cat", ScoreSettings.create(encoder, {5: 1.0}))


def test_a_prompt_shows_a_table(encoder):
    assert repr(align("a cat sleeps", "the kitten is sleeping", encoder)).split("\n") == [
        "P 0.8510  R 0.8519  F1 0.8514",
        "",
        "candidate  best match in reference  similarity  part of precision",
        "1 a        special token                0.8416             0.2805",
        "2 cat      2 kitten                     0.8152             0.2717",
        "3 sleeps   4 sleeping                   0.8960             0.2987",
        "",
        "reference   best match in candidate  similarity  part of recall",
        "1 the       1 a                          0.8412          0.2103",
        "2 kitten    2 cat                        0.8152          0.2038",
        "3 is        special token                0.8551          0.2138",
        "4 sleeping  3 sleeps                     0.8960          0.2240",
    ]
