"""Text that the encoder's vocabulary lacks, which matches all other such text: one warning, and a mark on the page."""

import json
import re
import warnings

import numpy as np
import pytest
from transformers import BertJapaneseTokenizer

from bertscore_tm import BERTScore, FrozenEncoder, Report, bert_score, rank_candidates, score_matrix
from bertscore_tm.losses import BERTScoreReward
from tests.support.models import tiny_model
from tests.support.report_pages import read_data
from tests.support.shell import run_here

# Runes and Javanese, with one word of the vocabulary among eight.
CANDIDATES, REFERENCES = ["ᚠᚢᚦ ᚨᚱᚲ ᚷᚹ", "ᚠ"], ["ꦗꦮ ꦧꦱ cat", "ꦄꦏ"]


def count_unknown(encoder, texts):
    """Characters of unknown words and of all words of distinct texts; the tokenizer tells which words it knows."""
    words = [word for text in dict.fromkeys(texts) for word in text.split()]
    unknown = [word for word in words if encoder.tokenizer.tokenizer.tokenize(word) == ["[UNK]"]]
    return sum(map(len, unknown)), sum(map(len, words))


@pytest.mark.parametrize("special", [False, True])
@pytest.mark.parametrize("encoded_in", ["one step", "steps"])
def test_each_call_warns_once_with_the_share(minilm, monkeypatch, special, encoded_in):
    if encoded_in == "steps":
        monkeypatch.setattr("bertscore_tm.scoring.corpus._ELEMENTS_PER_STEP", 1)
    encoder = FrozenEncoder(minilm, num_layers=1, exclude_special_tokens=special)
    unknown, total = count_unknown(encoder, CANDIDATES + REFERENCES)
    assert (unknown, total) == (15, 18)
    metric, reward = BERTScore(encoder), BERTScoreReward(encoder)

    def validate():
        for pair in zip(CANDIDATES, REFERENCES, strict=True):
            metric.update(*([text] for text in pair))
        for _ in range(2):
            metric.compute()

    for call in (
        lambda: bert_score(CANDIDATES, REFERENCES, encoder),
        lambda: rank_candidates([CANDIDATES], [REFERENCES], encoder),
        lambda: score_matrix(CANDIDATES, REFERENCES, encoder),
        validate,
        lambda: [reward(CANDIDATES, REFERENCES) for _ in range(2)],
    ):
        with pytest.warns(UserWarning, match="^83% of the characters are unknown to the encoder, ") as caught:
            call()
        assert len(caught) == 1
    metric.reset()
    with pytest.warns(UserWarning, match="^83% "):
        validate()


@pytest.mark.parametrize("special", [False, True])
def test_the_tokenizer_measures_the_unknown_part_of_each_text(minilm, special):
    encoder = FrozenEncoder(minilm, num_layers=1, max_length=20, exclude_special_tokens=special)
    texts = [*CANDIDATES, "", "a cat", *REFERENCES]
    unknown, sizes = zip(*(count_unknown(encoder, [text]) for text in texts), strict=True)
    tokenized = encoder.tokenizer(texts)
    assert tokenized.unknown_sizes.tolist() == list(unknown)
    assert tokenized.text_sizes.tolist() == list(sizes)
    selected = encoder.encode(texts).select(np.array([4, 0, 2])).texts
    assert selected.unknown_sizes.tolist() == [unknown[4], unknown[0], 0]
    assert selected.text_sizes.tolist() == [sizes[4], sizes[0], 0]


@pytest.mark.parametrize(("side", "expected"), [("right", (4, 8)), ("left", (2, 8))])
def test_what_is_truncated_is_not_measured(minilm, side, expected):
    """Three tokens of five fit, of which one is unknown."""
    encoder = FrozenEncoder(minilm, num_layers=1, max_length=5)
    encoder.tokenizer.tokenizer.truncation_side = side
    tokenized = encoder.tokenizer(["\u16a0\u16a2\u16a6\u16a8 a cat the \u16b1\u16b2"])
    assert (tokenized.unknown_sizes.item(), tokenized.text_sizes.item()) == expected
    # Without unknown text, what fits is estimated from the number of tokens.
    assert encoder.tokenizer(["the cat the dog the"]).text_sizes.item() == 15 * 3 // 5


def test_words_that_are_truncated_are_not_named(minilm):
    encoder = FrozenEncoder(minilm, num_layers=1, max_length=5)
    with warnings.catch_warnings(action="error"):
        encoder.tokenizer(["the cat sat \u16a0 " + "\u0e01\u0e32" * 64])
        encoder.tokenizer(["\u16a0 cat sat " + "\u0e01\u0e32" * 64])


def test_an_unknown_word_weighs_as_much_as_its_letters(encoder):
    """Two texts of one unknown word among 25 matched, although most of what was written differs."""
    words = " ".join(["the cat sat on the mat"] * 4)
    texts = [f"{words} {letters}" for letters in ("\u16a0\u16a2" * 40, "\u16a6\u16a8" * 40)]
    with pytest.warns(UserWarning, match="^54% of the characters are unknown to the encoder"):
        assert bert_score(texts[:1], texts[1:], encoder)["f1"].item() == pytest.approx(1)


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


def test_the_shell_warns_once(tmp_path, capsys, minilm):
    for name, texts in (("c.txt", CANDIDATES), ("r.txt", REFERENCES)):
        (tmp_path / name).write_text("\n".join(texts))
    (tmp_path / "c.jsonl").write_text("".join(json.dumps({"candidates": [text]}) + "\n" for text in CANDIDATES))
    options = ("--references", tmp_path / "r.txt", "--model", minilm, "--num-layers", 1, "--json")
    for command, file, *more in (("score", "c.txt"), ("rank", "c.jsonl", "-o", tmp_path / "best.jsonl")):
        printed = run_here(capsys, command, tmp_path / file, *options, *more)
        assert re.findall(r"(\d+)% of the characters are unknown", printed.err) == ["83"]


def test_the_page_marks_the_pairs(encoder):
    candidates, references = ["a cat", "ᚠᚢᚦ ᚨᚱᚲ", "a dog", ""], ["the cat", "a cat", ["a dog", "ꦗꦮ cat"], "x"]
    with pytest.warns(UserWarning, match="unknown|scored 0"):
        report = Report.from_texts(candidates, references, encoder)
    notes = {"1": "candidate has 6 unknown of 6 characters", "2": "reference 2 has 2 unknown of 5 characters"}
    assert read_data(report.to_html())["unknown"] == [notes]
