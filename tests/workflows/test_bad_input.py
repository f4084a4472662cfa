"""Whatever comes in as text: never NaN, never outside [-1, 1], identical texts score 1, or a clear error."""

import re
import warnings

import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from transformers import AutoModel, AutoTokenizer

from bertscore_tm import BERTScore, FrozenEncoder, bert_score, rank_candidates, score_matrix, strip_thoughts
from bertscore_tm.functional import SCORE_NAMES
from bertscore_tm.losses import BERTScoreReward
from tests.support.models import tiny_model

pytestmark = pytest.mark.filterwarnings("ignore:.*(candidates? scored 0|longer than|special tokens|unknown to)")

any_character = st.characters(exclude_categories=())  # lone surrogates and unassigned code points too
controls = st.text(st.sampled_from("\x00\x01\x07\x1b\x7f\x85\u200b\u200d\u202e\u2028\ufeff\ufffe\n\r\t"), max_size=6)
right_to_left = st.text(st.characters(min_codepoint=0x590, max_codepoint=0x6FF), max_size=12)
emoji = st.lists(
    st.sampled_from(["👩‍👩‍👧‍👦", "🏳️‍🌈", "👍🏽", "🇩🇪", "e\u0301", "1️⃣", "\U0001f9d1\u200d\U0001f4bb"]), max_size=4
).map("".join)
markup = st.sampled_from(["[CLS]", "[SEP] [PAD] [MASK]", "</s><s>", "<unk>", "<script>", "##a", "Ġ", "▁x", "{0}%s"])
words = st.sampled_from(["the cat sat", "a dog", "it rains today", "x", " ", ""])
anything = st.one_of(st.text(any_character, max_size=20), controls, right_to_left, emoji, markup, words)
texts = st.lists(anything, min_size=1, max_size=3).map("".join)


@pytest.fixture(scope="module", params=["minilm", "roberta", "t5", "gpt2"])
def any_encoder(request, minilm):
    """Encoders whose tokenizers split texts in different ways."""
    if request.param == "minilm":
        return FrozenEncoder(minilm, num_layers=1)
    return FrozenEncoder(*tiny_model(request.param), num_layers=1)


def check(scores, size):
    """Check that scores are numbers between -1 and 1."""
    for name in SCORE_NAMES:
        assert scores[name].shape[-1] == size
        assert torch.isfinite(scores[name]).all()
        assert (scores[name].abs() <= 1).all()


@pytest.fixture(scope="module")
def with_added_tokens(minilm):
    """An encoder with a special token and a word of the user's."""
    model, tokenizer = AutoModel.from_pretrained(minilm), AutoTokenizer.from_pretrained(minilm)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<turn>"]})
    tokenizer.add_tokens(["dexamethasone"])
    # Without the mean of all embeddings, whose covariance takes a second.
    model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    return FrozenEncoder(model, tokenizer, num_layers=1)


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(
    ("text", "token"),
    [
        ("a cat</s><pad>", "<pad>"),
        ("<s> a cat", "<s>"),
        ("a cat [SEP] ", "[SEP]"),
        ("a <extra_id_0> cat", "<extra_id_0>"),
        ("a cat<|im_end|>\n<|im_start|>", "<|im_end|>"),
        ("aĠcatĠsat", "Ġ"),
        ("Ġa cat", "Ġ"),
        ("▁a▁cat", "▁"),
        ("a cat <turn>", "<turn>"),
        ("<think>A cat.</think> a cat", "<think>"),
        ("A cat.</think> a cat", "</think>"),
        ("<thinking>cut", "<thinking>"),
        ("<start_of_turn>model a cat<end_of_turn>", "<start_of_turn>"),
        ("[INST] say [/INST] a cat", "[INST]"),
        ("a ca@@ t", "@@"),
        ("a cat.<n>a dog", "<n>"),
        ("a cat<q>a dog", "<q>"),
    ],
)
def test_leftovers_of_generators_are_counted_once(with_added_tokens, text, token):
    encoder = with_added_tokens
    metric, reward = BERTScore(encoder), BERTScoreReward(encoder)
    preds, target = [text, "a cat", text], ["a cat"] * 3
    counted = f"^2 candidates contain special tokens such as {re.escape(token)}, which are scored as text"
    calls = [
        lambda: bert_score(preds, target, encoder),
        lambda: rank_candidates([preds], target[:1], encoder),
        lambda: metric.update(preds, target),
        lambda: score_matrix(preds, target, encoder),
        lambda: reward(preds, target),
    ]

    for call in calls:
        with pytest.warns(UserWarning, match=counted) as caught:
            call()

        messages = [str(warning.message) for warning in caught]
        others = [message for message in messages if not re.match(counted, message)]
        assert len(messages) - len(others) == 1
        # MiniLM does not know "▁" either.
        assert all("unknown to the encoder" in message for message in others)

    # Metrics and rewards warn once.
    with warnings.catch_warnings(action="error"):
        metric.update(preds[:1], target[:1])
        reward(preds[:1], target[:1])


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "text",
    [
        "dexamethasone",  # the user's word
        "Ġwanni mar il-Ġimgħa",  # Maltese
        "IL-ĠENB",
        "<q>no</q>, he said",
        "@@ -1,3 +1,4 @@ a cat",
        "array[INSTANCE]",
        "struck <s>out</s> words",
    ],
)
def test_words_and_markup_are_no_leftovers(with_added_tokens, text):
    bert_score([text], ["a cat"], with_added_tokens)


@pytest.mark.filterwarnings("error")
def test_special_tokens_of_references_are_no_leftovers(with_added_tokens):
    BERTScore(with_added_tokens).update(["words"], ["</s>"])


THOUGHT = "<think>\nWhere is it?\n\nOn the mat.</think>\n\n"


@pytest.mark.parametrize("start", [THOUGHT, f" {THOUGHT}", "<thinking>so</thinking>", "<think></think>", "so</think> "])
def test_thoughts_are_removed_from_texts_and_chats(start):
    question = {"role": "user", "content": f"{start}is it?"}
    answer = {"role": "assistant", "content": f"{start}it rains"}
    parts = [{"type": "text", "text": start}, {"type": "text", "text": "it rains"}]

    assert strip_thoughts(f"{start}it rains") == "it rains"
    assert strip_thoughts([question, answer]) == "it rains"
    assert strip_thoughts([{"role": "assistant", "content": parts}]) == "it rains"


@pytest.mark.parametrize(
    ("completion", "expected"),
    [
        ("it rains", "it rains"),
        ("<think>it rains", ""),
        ([{"role": "assistant", "content": None}], ""),
        # An answer about a thought is kept.
        ("it rains <think></think>", "it rains <think></think>"),
    ],
)
def test_texts_without_a_complete_thought_are_answers_or_empty(completion, expected):
    assert strip_thoughts(completion) == expected


@pytest.mark.filterwarnings("error")
def test_rewards_of_stripped_texts_give_no_warning(encoder):
    stripped = [strip_thoughts(text) for text in (f"{THOUGHT}it rains", "<think>it rains", "it rains")]

    BERTScoreReward(encoder)(stripped, ["it rains"] * len(stripped))


@pytest.mark.parametrize("value", [["<think></think>a", "b"], [], None, 3])
def test_thoughts_are_not_removed_from_other_objects(value):
    with pytest.raises(TypeError, match=r"text must be a string or a chat.*Call strip_thoughts for each text$"):
        strip_thoughts(value)


def test_a_chat_without_an_answer_is_refused():
    with pytest.raises(ValueError, match="a chat without a message of the assistant"):
        strip_thoughts([{"role": "user", "content": "hi"}])


@pytest.mark.filterwarnings("default")
def test_warnings_of_thoughts_name_function_and_flag(encoder):
    message = r"such as <think>, .* and remove thoughts with bertscore_tm.strip_thoughts \(--strip-thoughts\)$"

    for call in (lambda: BERTScoreReward(encoder)([THOUGHT], ["a cat"]), lambda: bert_score(THOUGHT, "a", encoder)):
        with pytest.warns(UserWarning, match=message):
            call()


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data(), idf=st.booleans())
def test_any_texts_have_a_score(any_encoder, data, idf):
    size = data.draw(st.integers(0, 6))
    references = st.lists(texts, min_size=1, max_size=3)
    preds = data.draw(st.lists(texts, min_size=size, max_size=size))
    target = data.draw(st.lists(references, min_size=size, max_size=size))

    scores = bert_score(preds, target, any_encoder, idf=idf)

    check(scores, size)


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(corpus=st.lists(texts, min_size=1, max_size=6))
@example(corpus=["\ud800", "a\udfffb", "\x00", "\u202eabc"])
def test_identical_texts_score_one_or_have_no_text(any_encoder, corpus):
    has_content = any_encoder.tokenizer(corpus).has_content
    expected = has_content.astype(float).tolist()

    scores = bert_score(corpus, corpus, any_encoder)

    for name in SCORE_NAMES:
        assert scores[name].tolist() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(
    ("character", "long_text"), [("a", "window"), ("漢", "truncate"), ("漢", "window"), ("\u0301", "truncate")]
)
def test_a_word_of_a_megabyte_has_a_score(minilm, character, long_text):
    size = 1_000_000
    if character == "漢":  # every character is a token, and every window is encoded
        size //= 60 if long_text == "window" else 5
    word = character * (size // len(character.encode()))
    encoder = FrozenEncoder(minilm, num_layers=1, long_text=long_text, max_length=64)

    scores = bert_score([word, "a cat"], ["a cat", word], encoder)

    check(scores, 2)
