"""Texts of rewards: chats, references in every form, and wrong input."""

import statistics

import pytest

from bertscore_tm.functional import bert_score, rank_candidates
from bertscore_tm.losses.sequence.rewards import BERTScoreReward
from tests.support.rewards import TOLERANCE, say


@pytest.mark.parametrize(
    "chat",
    [
        [{"content": "a cat sat"}],
        [say("let me see"), {"role": "tool", "name": "look", "content": "a mat"}, say("a cat sat")],
        [say("a cat sat"), say("and now?", role="user")],
        ({"role": "assistant", "content": "a cat sat", "reasoning_content": "hm"},),
        [say(["a cat ", {"type": "text", "text": None}, "sat"])],
        [
            say(
                [
                    {"type": "reasoning", "text": "hm"},
                    {"type": "text", "text": "a cat "},
                    {"type": "text", "text": "sat"},
                ]
            )
        ],
    ],
)
def test_the_last_message_of_the_assistant_counts(encoder, chat):
    reward = BERTScoreReward(encoder)

    assert reward([chat], [[say("the cat sat")]]) == reward(["a cat sat"], ["the cat sat"])
    for silent in ({"role": "assistant", "tool_calls": []}, say(None), say([])):
        assert reward([[silent]], ["the cat sat"]) == [0]


def test_examples_without_references_are_skipped(encoder):
    reward = BERTScoreReward(encoder, length_band=(0.5, 2))
    result = reward(["a cat", "two", "a dog", "three"], ["the cat", None, ["dogs", "the dog"], []])
    first, third = reward(["a cat", "a dog"], ["the cat", ["dogs", "the dog"]])

    assert result == [first, None, third, None]
    assert reward(["a", "b"], [None, []]) == [None, None]
    assert reward([], []) == []


@pytest.mark.parametrize("reduce", ["mean", "max"])
@pytest.mark.parametrize("blank", ["", " \n", [say("")]])
def test_blank_references_next_to_others_are_left_out(encoder, reduce, blank):
    reward = BERTScoreReward(encoder, references_reduce=reduce, length_band=(0.5, 1.5))
    candidates = ["a cat sat on the mat", "it rains", "no"]
    references = ["the cat sat on a mat", "rain", ""]
    with_blanks = [[references[0], blank], [blank, references[1], blank], [blank, blank]]

    assert reward(candidates, with_blanks) == reward(candidates, references)


def test_several_references_in_every_form_as_in_a_ranking(encoder):
    candidates = ["a cat", "it rains", "no"]
    references = [["the cat", "a dog", "cats"], None, ["no"]]
    each = bert_score(["a cat"] * 3, references[0], encoder)["f1"].tolist()

    for reduce, function in (("max", max), ("mean", statistics.mean)):
        reward = BERTScoreReward(encoder, references_reduce=reduce)
        result = reward(candidates, references)
        ranked = rank_candidates([["a cat"], ["no"]], [references[0], ["no"]], encoder, references_reduce=reduce)
        assert [result[0], result[2]] == pytest.approx([scores.item() for scores in ranked.scores], abs=TOLERANCE)
        assert result == [pytest.approx(function(each), abs=TOLERANCE), None, pytest.approx(1, abs=TOLERANCE)]
    first, second, third = references[0]
    default = BERTScoreReward(encoder)

    assert default(candidates, references) == result
    for form in ((first, second, third), [[say(text)] for text in references[0]], [first, [say(second)], third]):
        assert default(["a cat"], [form]) == pytest.approx(result[:1], abs=TOLERANCE)


@pytest.mark.parametrize(
    ("completions", "references", "error", "message"),
    [
        ("a", ["b"], TypeError, "completions is a single string"),
        (["a"], "b", TypeError, "references is a single string"),
        (["a", "b"], ["c"], ValueError, "equal lengths, got 2 and 1"),
        ([say("a")], ["c"], TypeError, r"completions\[0\] must be a text or a chat, a list of messages"),
        ([[say("a", role="user")]], ["c"], TypeError, r"completions\[0\] is a chat without a message of the assistant"),
        ([b"a"], ["c"], TypeError, r"completions\[0\] must be a text or a chat.* got b'a' \(bytes\): decode bytes"),
        (["a"], [say("c")], TypeError, r"references\[0\] must be a string or a sequence"),
        (["a", "b"], ["c", ["d", None]], TypeError, r"references\[1\]\[1\] must be a text or a chat"),
    ],
)
def test_wrong_texts(encoder, completions, references, error, message):
    with pytest.raises(error, match=message):
        BERTScoreReward(encoder)(completions, references, summary=["x"])
