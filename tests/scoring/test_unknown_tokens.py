"""Texts of tokens that the encoder's vocabulary lacks, which match each other: one warning, and a mark on the page."""

import json
import re
import warnings

import numpy as np
import pytest

from bertscore_tm import BERTScore, FrozenEncoder, Report, bert_score, rank_candidates, score_matrix
from bertscore_tm.losses import BERTScoreReward
from tests.support.models import tiny_model
from tests.support.report_pages import read_data
from tests.support.shell import run_here

# Runes and Javanese, with one token of the vocabulary in seven.
CANDIDATES, REFERENCES = ["ᚠᚢᚦ ᚨᚱᚲ ᚷᚹ", "ᚠ"], ["ꦗꦮ ꦧꦱ cat", "ꦄꦏ"]


def count_unknown(encoder, texts):
    """Unknown and all tokens of distinct texts, by the tokenizer itself."""
    tokens = [token for text in dict.fromkeys(texts) for token in encoder.tokenizer.tokenizer.tokenize(text)]
    return tokens.count("[UNK]"), len(tokens)


@pytest.mark.parametrize("special", [False, True])
@pytest.mark.parametrize("encoded_in", ["one step", "steps"])
def test_each_call_warns_once_with_the_share(minilm, monkeypatch, special, encoded_in):
    if encoded_in == "steps":
        monkeypatch.setattr("bertscore_tm.scoring.corpus._ELEMENTS_PER_STEP", 1)
    encoder = FrozenEncoder(minilm, num_layers=1, exclude_special_tokens=special)
    unknown, total = count_unknown(encoder, CANDIDATES + REFERENCES)
    assert (unknown, total) == (7, 8)
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
        with pytest.warns(UserWarning, match="^88% of the tokens are unknown to the encoder, ") as caught:
            call()
        assert len(caught) == 1
    metric.reset()
    with pytest.warns(UserWarning, match="^88% "):
        validate()


@pytest.mark.parametrize("special", [False, True])
def test_the_tokenizer_counts_the_unknown_tokens_of_each_text(minilm, special):
    encoder = FrozenEncoder(minilm, num_layers=1, max_length=5, exclude_special_tokens=special)
    texts = [*CANDIDATES, "", "a cat", *REFERENCES, "ᚠ " * 9]
    expected = [min(count_unknown(encoder, [text])[0], 3) for text in texts]
    assert encoder.tokenizer(texts).num_unknown.tolist() == expected
    assert encoder.encode(texts).select(np.array([6, 0, 2])).num_unknown.tolist() == [3, expected[0], 0]


def test_a_tenth_is_no_warning(encoder):
    nine = "a cat sat on the mat and it was"
    with warnings.catch_warnings(action="error"):
        bert_score([f"{nine} ᚠ"], [nine], encoder)
    with pytest.warns(UserWarning, match="^11% "):
        bert_score(["a cat sat on the mat and it ᚠ"], ["a cat sat on the mat and it ᚠ"], encoder)


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
        assert re.findall(r"(\d+)% of the tokens are unknown", printed.err) == ["88"]


def test_the_page_marks_the_pairs(encoder):
    candidates, references = ["a cat", "ᚠᚢᚦ ᚨᚱᚲ", "a dog", ""], ["the cat", "a cat", ["a dog", "ꦗꦮ cat"], "x"]
    with pytest.warns(UserWarning, match="unknown|scored 0"):
        report = Report.from_texts(candidates, references, encoder)
    notes = {"1": "candidate has 2 unknown of 2 tokens", "2": "reference 2 has 1 unknown of 2 tokens"}
    assert read_data(report.to_html())["unknown"] == [notes]
