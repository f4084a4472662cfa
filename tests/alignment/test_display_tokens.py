"""Tokens for display: readable words of any script, from any tokenizer."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from transformers import AutoModel, BertJapaneseTokenizer

from bertscore_tm import FrozenEncoder
from bertscore_tm.alignment.alignment import compute_alignment
from bertscore_tm.alignment.display_tokens import split_for_display
from bertscore_tm.alignment.page_data import describe_sides
from bertscore_tm.encoder.tokenizer import TextTokenizer
from bertscore_tm.scoring.settings import ScoreSettings
from tests.support.models import EVERY_FAMILY, KINDS, randomised, tiny_config, tiny_tokenizer


def in_words(readable, unknown=None):
    """Put tokens together again."""
    text = ""
    for token, is_joined in zip(readable.tokens, readable.joined, strict=True):
        piece = token.removesuffix(f" {unknown}")
        if piece == "␣":
            continue
        if not is_joined:
            text += " "
        text += piece
    return text


@pytest.mark.parametrize("kind", KINDS)
def test_plain_texts_can_be_read_back(kind, pairs):
    family = next(family for family, its_kind in EVERY_FAMILY.items() if its_kind == kind)
    tokenizer = TextTokenizer(tiny_tokenizer(EVERY_FAMILY[family]), tiny_config(family))
    for text in pairs[1][:20]:
        ids = tokenizer([text]).rows()[0]

        readable = split_for_display(text, tokenizer)

        assert len(readable.is_content) == len(ids)
        assert len(readable.tokens) == sum(readable.is_content)
        joined = in_words(readable, tokenizer.tokenizer.unk_token)
        if len(ids) < 64:
            assert joined.split() == text.split()
        else:
            assert len(joined) > 20
            assert " ".join(text.split()).startswith(joined.strip())


@given(st.text(max_size=12))
@example("")
@settings(max_examples=40, deadline=None)
@pytest.mark.parametrize("family", ["bert", "roberta", "xlm-roberta", "xlm", "gpt2"])
def test_any_text_can_be_read(family, text):
    tokenizer = TextTokenizer(tiny_tokenizer(EVERY_FAMILY[family]), tiny_config(family))
    ids = tokenizer([text]).rows()[0]

    readable = split_for_display(text, tokenizer)

    assert len(readable.is_content) == len(ids)
    assert readable.is_content.count(True) == len(readable.tokens) == len(readable.joined)
    for token in readable.tokens:
        characters = set(token)
        assert token.strip()
        assert not {"\n", "\u202e"} & characters
        # A character of the text may be shown, a mark of the tokenizer may not.
        assert not {"Ġ", "▁", "\t"} & characters - set(text)
        assert all(character.isprintable() or not character.isascii() for character in characters)


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
    tokenizer = TextTokenizer(tiny_tokenizer(EVERY_FAMILY[family]), tiny_config(family))

    readable = split_for_display(text, tokenizer)

    # It depends on the tokenizer's training whether the space in front of ½ is a token.
    num_spaces = len(readable.tokens) - len(tokens)
    assert num_spaces in ({0, 1} if text == "½" else {0})
    assert readable.tokens[num_spaces:] == tokens
    # Parts of a character are joined.
    for token, is_joined in zip(readable.tokens, readable.joined, strict=True):
        assert is_joined or token[-1] not in "₂₃₄"


def test_the_real_encoder_reads_words_as_they_are_written(encoder):
    readable = split_for_display("  Unbelievably naïve مرحبا  don't ", encoder.tokenizer)

    assert in_words(readable).split() == ["Unbelievably", "naïve", "مرحبا", "don't"]
    assert readable.tokens[:3] == ["Un", "bel", "ie"]


@pytest.fixture
def without_offsets(tmp_path):
    """Settings of an encoder whose tokenizer is written in Python and tells no offsets."""
    tokens = ["[UNK]", "[PAD]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "sle", "##eps", "caf", "##é", "tok", "##ens"]
    (tmp_path / "vocab.txt").write_text("\n".join(tokens))
    tokenizer = BertJapaneseTokenizer(tmp_path / "vocab.txt", word_tokenizer_type="basic", do_lower_case=False)
    assert not tokenizer.is_fast
    model = randomised(AutoModel.from_config(tiny_config("bert", vocab_size=len(tokenizer))))
    return ScoreSettings.create(FrozenEncoder(model, tokenizer, num_layers=1))


def test_tokenizers_without_offsets_give_readable_tokens(without_offsets):
    alignment = compute_alignment("the cat sleeps", "café tokens", without_offsets)

    assert alignment.candidate.tokens == ["the", "cat", "sle", "eps"]
    assert alignment.candidate.joined == [False, False, False, True]
    assert describe_sides(alignment)["candidate"]["tokens"] == [" the", " cat", " sle", "eps"]


def test_unknown_words_without_offsets_are_the_unknown_token(without_offsets):
    side = compute_alignment("café tokens xy", "the cat", without_offsets).candidate

    assert side.tokens == ["caf", "é", "tok", "ens", "[UNK]"]
