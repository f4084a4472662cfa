"""Whatever comes in as text: never NaN, never outside [-1, 1], identical texts score 1, or a clear error."""

import re
import warnings

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from transformers import AutoModel, AutoTokenizer

from bertscore_tm import BERTScore, FrozenEncoder, bert_score, rank_candidates, score_matrix, strip_thoughts
from bertscore_tm.compat import bert_score as bert_score_drop_in
from bertscore_tm.compat import evaluate, torchmetrics
from bertscore_tm.functional import SCORE_NAMES
from bertscore_tm.losses import BERTScoreReward
from bertscore_tm.report import Report
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
    if request.param == "minilm":
        return FrozenEncoder(minilm, num_layers=3)
    return FrozenEncoder(*tiny_model(request.param), num_layers=2)


def check(scores, size):
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
    model.resize_token_embeddings(len(tokenizer))
    return FrozenEncoder(model, tokenizer, num_layers=3)


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
    encoder, metric, reward = with_added_tokens, BERTScore(with_added_tokens), BERTScoreReward(with_added_tokens)
    message = f"^2 candidates contain special tokens such as {re.escape(token)}, which are scored as text"
    preds, target = [text, "a cat", text], ["a cat"] * 3
    for call in (
        lambda: bert_score(preds, target, encoder),
        lambda: rank_candidates([preds], target[:1], encoder),
        lambda: metric.update(preds, target),
        lambda: score_matrix(preds, target, encoder),
        lambda: reward(preds, target),
    ):
        with pytest.warns(UserWarning, match=message) as caught:
            call()
        # MiniLM does not know "▁" either.
        others = [text for text in map(str, (warning.message for warning in caught)) if not re.match(message, text)]
        assert len(caught) - len(others) == 1
        assert all("unknown to the encoder" in text for text in others)
    with warnings.catch_warnings(action="error"):
        metric.update(preds[:1], target[:1])
        reward(preds[:1], target[:1])
        # Words that the user added, Maltese, markup, and a patch.
        bert_score(["dexamethasone", "Ġwanni mar il-Ġimgħa", "IL-ĠENB"], target, encoder)
        bert_score(["<q>no</q>, he said", "@@ -1,3 +1,4 @@ a cat", "array[INSTANCE]"], target, encoder)
        BERTScore(encoder).update(["struck <s>out</s> words"], ["</s>"])


THOUGHT = "<think>\nWhere is it?\n\nOn the mat.</think>\n\n"


@pytest.mark.parametrize("start", [THOUGHT, f" {THOUGHT}", "<thinking>so</thinking>", "<think></think>", "so</think> "])
def test_thoughts_are_removed_from_texts_and_chats(encoder, start):
    answer, other = "a cat sat on the mat", "it rains"
    chat = [{"role": "user", "content": f"{start}{answer}"}, {"role": "assistant", "content": start + other}]
    parts = [{"role": "assistant", "content": [{"type": "text", "text": start}, {"type": "text", "text": other}]}]
    completions = [start + answer, other, "<think>" + answer, chat, parts, [{"role": "assistant", "content": None}]]
    stripped = [strip_thoughts(completion) for completion in completions]
    assert stripped == [answer, other, "", other, other, ""]
    with warnings.catch_warnings(action="error"):
        BERTScoreReward(encoder)(stripped, [answer] * len(stripped))
    # An answer about a thought is kept.
    assert strip_thoughts(f"{answer} <think></think>") == f"{answer} <think></think>"


@pytest.mark.parametrize("value", [["<think></think>a", "b"], [], None, 3])
def test_thoughts_are_not_removed_from_other_objects(value):
    with pytest.raises(TypeError, match=r"text must be a string or a chat.*Call strip_thoughts for each text$"):
        strip_thoughts(value)
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
    preds = data.draw(st.lists(texts, min_size=size, max_size=size))
    target = data.draw(st.lists(st.lists(texts, min_size=1, max_size=3), min_size=size, max_size=size))
    check(bert_score(preds, target, any_encoder, idf=idf), size)


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(corpus=st.lists(texts, min_size=1, max_size=6))
@example(corpus=["\ud800", "a\udfffb", "\x00", "\u202eabc"])
def test_identical_texts_score_one_or_have_no_text(any_encoder, corpus):
    scores = bert_score(corpus, corpus, any_encoder)
    has_content = any_encoder.tokenizer(corpus).has_content
    for name in SCORE_NAMES:
        assert scores[name].tolist() == pytest.approx([float(content) for content in has_content], abs=1e-6)


@pytest.mark.parametrize(
    ("character", "long_text"), [("a", "window"), ("漢", "truncate"), ("漢", "window"), ("\u0301", "truncate")]
)
def test_a_word_of_a_megabyte(minilm, character, long_text):
    size = 1_000_000
    if character == "漢":  # every character is a token, and every window is encoded
        size //= 60 if long_text == "window" else 5
    word = character * (size // len(character.encode()))
    encoder = FrozenEncoder(minilm, num_layers=2, long_text=long_text, max_length=64)
    check(bert_score([word, "a cat"], ["a cat", word], encoder), 2)


PREDS, TARGET = ["a cat", "the dog ran", "rain"], ["the cat", "a dog", "sun"]


def test_several_references_in_rows(encoder):
    references = [["the cat", "cats"], ["a dog", "dogs"], ["sun", "rains"]]
    expected = bert_score(PREDS, references, encoder)["f1"]
    frame = pd.DataFrame(references, columns=["first", "second"])
    arrays = [np.array(references), pa.array(references), [pa.array(row) for row in references]]
    for target in (*arrays, frame, frame.to_numpy(), (tuple(row) for row in references), map(iter, references)):
        assert torch.equal(bert_score(PREDS, target, encoder)["f1"], expected)


@pytest.mark.parametrize(
    ("preds", "target", "error", "message"),
    [
        (None, ["a"], TypeError, "preds must be a string or a sequence of strings, got None (NoneType)"),
        (b"a", ["a"], TypeError, "a sequence of strings, got b'a' (bytes): decode bytes to a string first"),
        (["a"], [bytearray(b"a")], TypeError, "got bytearray(b'a') (bytearray): decode bytes to a string first"),
        ([[101, 7]], ["a"], TypeError, "preds[0] must be a string, got [101, 7] (list): decode token ids"),
        (["a"], [[101, 7]], TypeError, "target[0][0] must be a string, got 101 (int): decode token ids"),
        (np.array("a"), ["a"], TypeError, "preds must have one text per row, got ndarray of shape ()"),
        (pa.array(["a", None]), ["a", "b"], TypeError, "preds[1] must be a string, got None (NoneType)"),
        (pa.table({"x": ["a"]}), ["a"], TypeError, "preds must be a string or a sequence of strings, got pyarrow"),
        (["a"], [["a", float("nan")]], TypeError, "target[0][1] must be a string, got nan (float)"),
        (pd.Series(["a", pd.NA], dtype="string"), ["a", "b"], TypeError, "preds[1] must be a string, got"),
        (pd.DataFrame({"x": ["a"]}), ["a"], TypeError, "preds must have one text per row, got ndarray of shape (1, 1)"),
        (["a", "b"], torch.ones(2, 5).long(), TypeError, "target must be texts, got a tensor of shape (2, 5)"),
        (np.ones((2, 5), int), ["a", "b"], TypeError, "preds must be texts, got ndarray of shape (2, 5): decode token"),
        ([torch.tensor([7])], ["a"], TypeError, "preds[0] must be a string, got tensor([7]) (Tensor): decode"),
        (["x" * 10, [1] * 500], ["a", "b"], TypeError, "... (list)"),
        ({"input_ids": [[1]]}, ["a"], TypeError, "got {'input_ids': [[1]]} (dict): decode token ids"),
        (["a"], [None], TypeError, "target[0] must be a string or a sequence of strings, got None (NoneType)"),
        (["a"], [[None]], TypeError, "target[0][0] must be a string, got None (NoneType)"),
        (["a", "b"], ["a"], ValueError, "equal lengths, got 2 and 1"),
        ("a", ["a"], TypeError, "preds is a single string: pass a list of texts"),
    ],
)
def test_what_is_no_text_gets_a_clear_error_and_loses_nothing(encoder, preds, target, error, message):
    with pytest.raises(error, match=re.escape(message)) as caught:
        bert_score(preds, target, encoder)
    assert len(str(caught.value)) < 300
    metric = BERTScore(encoder)
    metric.update(["a cat"], ["the cat"])
    before = metric.compute()
    with pytest.raises(error, match=re.escape(message)):
        metric.update(preds, target)
    assert metric.compute() == before


def rank_rows(encoder, preds, target):
    return [scores.tolist() for scores in rank_candidates(([str(text)] for text in preds), target, encoder).scores]


def evaluate_rows(encoder, preds, target):
    options = {"model_type": encoder.name, "num_layers": 3}
    return evaluate.load("bertscore").compute(predictions=preds, references=target, **options)["f1"]


READERS = {
    "function": lambda encoder, *texts: bert_score(*texts, encoder)["f1"].tolist(),
    "metric": lambda encoder, *texts: BERTScore(encoder, reduction="none")(*texts)["f1"].tolist(),
    "reward": lambda encoder, *texts: BERTScoreReward(encoder)(*texts),
    "ranking": rank_rows,
    "matrix": lambda encoder, *texts: score_matrix(*texts, encoder)["f1"].tolist(),
    "report": lambda encoder, preds, target: Report.from_texts(preds, target, encoder).scores["candidates"].tolist(),
    "idf": lambda encoder, preds, target: bert_score(preds, TARGET, encoder, idf=target)["f1"].tolist(),
    "bert_score": lambda encoder, *texts: bert_score_drop_in.score(*texts, encoder.name, 3)[2].tolist(),
    "torchmetrics": lambda encoder, *texts: torchmetrics.bert_score(*texts, encoder.name, 3)["f1"].tolist(),
    "evaluate": evaluate_rows,
}


CONTAINERS = {
    "tuple": tuple,
    "iterator": iter,
    "array": np.array,
    "strings": lambda texts: pd.Series(texts, dtype="string", index=[7, 5, 3]),
    "chunks": lambda texts: pa.chunked_array([texts[:1], texts[1:]]),
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("container", CONTAINERS)
def test_entry_points_read_any_container(minilm, reader, container):
    encoder, read, make = FrozenEncoder(minilm, num_layers=3), READERS[reader], CONTAINERS[container]
    assert read(encoder, make(PREDS), make(TARGET)) == read(encoder, PREDS, TARGET)


@pytest.mark.parametrize("reader", ["reward", "matrix", "bert_score", "torchmetrics", "evaluate"])
def test_a_batch_of_ids_is_an_error(minilm, reader):
    encoded = AutoTokenizer.from_pretrained(minilm)(PREDS)
    with pytest.raises(TypeError, match="decode token ids with their tokenizer first"):
        READERS[reader](FrozenEncoder(minilm, num_layers=3), encoded, TARGET)


@pytest.mark.parametrize("missing", [None, float("nan"), np.float32("nan"), pd.NA, pd.NaT], ids=repr)
@pytest.mark.parametrize("reader", [name for name in READERS if name not in ("ranking", "idf")])
def test_missing_values_say_where_and_what_to_do(minilm, reader, missing):
    encoder = FrozenEncoder(minilm, num_layers=3)
    with pytest.raises(TypeError, match=r"\w+\[2\] must be .*, a missing value: drop or fill it, as with dropna\(\)"):
        READERS[reader](encoder, ["a", "b", missing], ["a", "b", "c"])
    nested = [["b"], ["b", missing]] if reader != "matrix" else ["b", missing]
    with pytest.raises(TypeError, match=r"\[1\] must be .*, a missing value: drop or fill it"):
        READERS[reader](encoder, ["a", "b"], nested)


def test_numbers_are_no_missing_values(encoder):
    with pytest.raises(TypeError, match=r"preds\[0\] must be a string, got 0\.5 \(float\)$"):
        bert_score([0.5], ["a"], encoder)
