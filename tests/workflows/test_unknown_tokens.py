"""Text that the encoder's vocabulary lacks, which matches all other such text: one warning, and a mark on the page."""

import re
import warnings

import numpy as np
import pytest
from transformers import BertJapaneseTokenizer

from bertscore_tm import BERTScore, FrozenEncoder, Report, bert_score, rank_candidates, score_matrix
from bertscore_tm.losses import BERTScoreReward
from tests.support.models import tiny_model
from tests.support.report_pages import read_data
from tests.support.shell import run_here, write_lines, write_records

# Runes and Javanese, with one word of the vocabulary among eight.
CANDIDATES, REFERENCES = ["ᚠᚢᚦ ᚨᚱᚲ ᚷᚹ", "ᚠ"], ["ꦗꦮ ꦧꦱ cat", "ꦄꦏ"]


def count_unknown(encoder, texts):
    """Characters of unknown words and of all words of distinct texts; the tokenizer tells which words it knows."""
    words = " ".join(dict.fromkeys(texts)).split()
    unknown = [word for word in words if encoder.tokenizer.tokenizer.tokenize(word) == ["[UNK]"]]
    return sum(map(len, unknown)), sum(map(len, words))


def assert_warns_once(call, message):
    """Check that a call gives one warning."""
    with pytest.warns(UserWarning, match=message) as caught:
        call()
    assert len(caught) == 1


@pytest.mark.parametrize("special", [False, True])
@pytest.mark.parametrize("encoded_in", ["one step", "steps"])
def test_each_call_warns_once_with_the_share(minilm, monkeypatch, special, encoded_in):
    if encoded_in == "steps":
        monkeypatch.setattr("bertscore_tm.scoring.corpus._ELEMENTS_PER_STEP", 1)
    encoder = FrozenEncoder(minilm, num_layers=1, exclude_special_tokens=special)
    reward = BERTScoreReward(encoder)
    assert count_unknown(encoder, CANDIDATES + REFERENCES) == (15, 18)
    message = "^83% of the characters are unknown to the encoder, "

    assert_warns_once(lambda: bert_score(CANDIDATES, REFERENCES, encoder), message)
    assert_warns_once(lambda: rank_candidates([CANDIDATES], [REFERENCES], encoder), message)
    assert_warns_once(lambda: score_matrix(CANDIDATES, REFERENCES, encoder), message)
    assert_warns_once(lambda: [reward(CANDIDATES, REFERENCES) for _ in range(2)], message)


def test_a_metric_warns_once_until_it_is_reset(minilm):
    metric = BERTScore(FrozenEncoder(minilm, num_layers=1))

    def validate():
        for candidate, reference in zip(CANDIDATES, REFERENCES, strict=True):
            metric.update([candidate], [reference])
        metric.compute()
        metric.compute()

    assert_warns_once(validate, "^83% ")
    metric.reset()
    assert_warns_once(validate, "^83% ")


@pytest.mark.parametrize("special", [False, True])
def test_the_tokenizer_measures_the_unknown_part_of_each_text(minilm, special):
    encoder = FrozenEncoder(minilm, num_layers=1, max_length=20, exclude_special_tokens=special)
    texts = [*CANDIDATES, "", "a cat", *REFERENCES]
    expected = [count_unknown(encoder, [text]) for text in texts]

    tokenized = encoder.tokenizer(texts)
    selected = encoder.encode(texts).select(np.array([4, 0, 2])).texts

    assert measured_sizes(tokenized) == expected
    assert measured_sizes(selected) == [expected[4], expected[0], (0, 0)]


def measured_sizes(tokenized):
    """Return the characters of unknown words and of all words of each text."""
    return list(zip(tokenized.unknown_sizes.tolist(), tokenized.text_sizes.tolist(), strict=True))


@pytest.mark.parametrize(("side", "expected"), [("right", (4, 8)), ("left", (2, 8))])
def test_what_is_truncated_is_not_measured(minilm, side, expected):
    """Three tokens of five fit, of which one is unknown."""
    encoder = FrozenEncoder(minilm, num_layers=1, max_length=5)
    encoder.tokenizer.tokenizer.truncation_side = side

    tokenized = encoder.tokenizer(["\u16a0\u16a2\u16a6\u16a8 a cat the \u16b1\u16b2"])

    assert measured_sizes(tokenized) == [expected]
    # What fits is estimated from the number of tokens if no text is unknown.
    assert encoder.tokenizer(["the cat the dog the"]).text_sizes.item() == 15 * 3 // 5


def test_words_that_are_truncated_are_not_named(minilm):
    encoder = FrozenEncoder(minilm, num_layers=1, max_length=5)
    long_word = "\u0e01\u0e32" * 64

    with warnings.catch_warnings(action="error"):
        encoder.tokenizer([f"the cat sat \u16a0 {long_word}"])
        encoder.tokenizer([f"\u16a0 cat sat {long_word}"])


def test_an_unknown_word_weighs_as_much_as_its_letters(encoder):
    """Two texts of one unknown word among 25 matched, although most of what was written differs."""
    words = "the cat sat on the mat " * 4
    candidate = words + "\u16a0\u16a2" * 40
    reference = words + "\u16a6\u16a8" * 40

    with pytest.warns(UserWarning, match="^54% of the characters are unknown to the encoder"):
        scores = bert_score([candidate], [reference], encoder)

    assert scores["f1"].item() == pytest.approx(1)


def test_a_tenth_is_no_warning(encoder):
    with warnings.catch_warnings(action="error"):
        bert_score(["a cat sat in \u16a0"], ["a cat sat in \u16a0"], encoder)

    with pytest.warns(UserWarning, match="^11% "):
        bert_score(["a cat sat \u16a0 i"], ["a cat sat \u16a0 i"], encoder)


def test_a_tokenizer_without_offsets_counts_tokens(tmp_path):
    (tmp_path / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "cat"]))
    tokenizer = BertJapaneseTokenizer(tmp_path / "vocab.txt", word_tokenizer_type="basic")
    encoder = FrozenEncoder(tiny_model("bert")[0], tokenizer, num_layers=1)

    with pytest.warns(UserWarning, match="^50% of the tokens are unknown to the encoder"):
        report = Report.from_texts(["a cat \u16a0\u16a2\u16a6 \u16a8"], ["cat a \u16a0\u16a2\u16a6 \u16a8"], encoder)

    assert read_data(report.to_html())["unknown"] == [
        {"0": "candidate has 2 unknown of 4 tokens; reference 1 has 2 unknown of 4 tokens"}
    ]


@pytest.mark.parametrize("family", ["roberta", "gpt2", "opt"])
def test_bytes_are_known(family):
    encoder = FrozenEncoder(*tiny_model(family), num_layers=1)
    with warnings.catch_warnings(action="error"):
        bert_score(CANDIDATES, REFERENCES, encoder)


@pytest.mark.parametrize("words", [["score", "c.txt"], ["rank", "c.jsonl", "-o", "best.jsonl"]], ids=["score", "rank"])
def test_the_shell_warns_once(tmp_path, monkeypatch, capsys, minilm, words):
    monkeypatch.chdir(tmp_path)
    write_lines(tmp_path / "c.txt", CANDIDATES)
    write_lines(tmp_path / "r.txt", REFERENCES)
    write_records(tmp_path / "c.jsonl", [{"candidates": [text]} for text in CANDIDATES])

    printed = run_here(capsys, *words, "--references", "r.txt", "--model", minilm, "--num-layers", 1, "--json")

    assert re.findall(r"(\d+)% of the characters are unknown", printed.err) == ["83"]


def test_the_page_marks_the_pairs(encoder):
    candidates = ["a cat", "ᚠᚢᚦ ᚨᚱᚲ", "a dog", ""]
    references = ["the cat", "a cat", ["a dog", "ꦗꦮ cat"], "x"]
    notes = {"1": "candidate has 6 unknown of 6 characters", "2": "reference 2 has 2 unknown of 5 characters"}

    with pytest.warns(UserWarning, match="unknown|scored 0"):
        report = Report.from_texts(candidates, references, encoder)

    assert read_data(report.to_html())["unknown"] == [notes]
