import pytest
from transformers import AutoConfig, AutoTokenizer

from bertscore_tm.encoder.tokenization import TextTokenizer, TokenizerSettings
from tests.support.models import tiny_model


@pytest.fixture(scope="module")
def parts(minilm):
    return AutoTokenizer.from_pretrained(minilm), AutoConfig.from_pretrained(minilm)


def test_ids_equal_those_of_the_tokenizer(parts, pairs):
    tokenizer, config = parts
    texts = [f"  {text}\n" for text in pairs[1]]
    tokenized = TextTokenizer(tokenizer, config)(texts)
    assert tokenized.ids == [tokenizer.encode(text) for text in pairs[1]]
    assert all(tokenized.has_content)
    assert tokenized.num_truncated == 0
    nothing = TextTokenizer(tokenizer, config)([])
    assert (nothing.ids, nothing.has_content, nothing.num_truncated) == ([], [], 0)


@pytest.mark.parametrize("text", ["", "  ", "\n\t", "\x00\x01", "\u200b", "\u00a0"])
def test_texts_without_content(parts, text):
    tokenized = TextTokenizer(*parts)([text, "a"])
    assert tokenized.ids[0] == [101, 102]
    assert tokenized.has_content == [False, True]


def test_a_space_goes_before_texts_for_the_tokenizers_of_roberta_and_gpt2_only():
    with_space = {"roberta", "gpt2", "opt"}
    for family in ("bart", "deberta", "longformer", *with_space):
        model, tokenizer = tiny_model(family)
        given = TextTokenizer(tokenizer, model.config)(["hello", " hello", ""])
        spaced, plain = tokenizer.encode(" hello"), tokenizer.encode("hello")
        assert spaced != plain
        assert given.ids == [spaced if family in with_space else plain] * 2 + [tokenizer.encode("")]
        assert given.has_content == [True, True, False]
        for prefix_space in (True, False):
            chosen = TextTokenizer(tokenizer, model.config, TokenizerSettings(prefix_space=prefix_space))(["hello"])
            assert chosen.ids == [spaced if prefix_space else plain]


def test_truncation_keeps_special_tokens_and_is_counted(parts):
    tokenized = TextTokenizer(*parts, TokenizerSettings(max_length=4))(["a b c d e", "a b", "", "x y z"])
    assert [len(ids) for ids in tokenized.ids] == [4, 4, 2, 4]
    assert all(ids[0] == 101 and ids[-1] == 102 for ids in tokenized.ids)
    assert tokenized.num_truncated == 2


def test_truncation_off_is_an_error_that_shows_the_text(parts):
    tokenizer = TextTokenizer(*parts, TokenizerSettings(max_length=4, long_text="error"))
    assert tokenizer(["a b"]).num_truncated == 0
    with pytest.raises(ValueError, match=r"'a b c d'.* has 6 tokens, the limit is 4.*long_text='truncate'"):
        tokenizer(["a b", "a b c d"])


def test_the_limit_is_the_smaller_of_tokenizer_and_positions(parts, minilm):
    tokenizer, config = AutoTokenizer.from_pretrained(minilm), parts[1]
    for declared, limit in ((100, 100), (10**30, 512), (2000, 512)):
        tokenizer.model_max_length = declared
        assert TextTokenizer(tokenizer, config).max_length == limit
    model, tokenizer = tiny_model("deberta")
    assert TextTokenizer(tokenizer, model.config).max_length == 64
    tokenizer = type(tokenizer)(tokenizer_object=tokenizer.backend_tokenizer, cls_token="<s>", sep_token="</s>")
    unlimited = TextTokenizer(tokenizer, model.config)
    assert unlimited.max_length is None
    assert len(unlimited(["a " * 900]).ids[0]) > 800


def test_special_ids(parts):
    tokenizer = TextTokenizer(*parts)
    assert tokenizer.special_affixes == ([101], [102])
    assert tokenizer.unweighted_ids == [101, 102]
    assert tokenizer.control_ids == [0, 101, 102]
    assert tokenizer.end_ids == [102]
    assert tokenizer.vocab_size == 30522
    assert tokenizer.tokens([101, 1037, 102]) == ["[CLS]", "a", "[SEP]"]


def test_written_special_tokens_are_no_control_of_the_score(parts):
    tokenized = TextTokenizer(*parts)(["[SEP]", "a [SEP] b"])
    assert tokenized.ids == [[101, 102, 102], [101, 1037, 102, 1038, 102]]
    assert tokenized.has_content == [False, True]
