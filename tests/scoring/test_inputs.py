"""Texts that were read in a form that the caller did not mean: lists as text, and columns in another order."""

import pandas as pd
import pytest

from bertscore_tm import BERTScore, PairScorer, bert_score, rank_candidates
from bertscore_tm.losses import BERTScoreReward
from tests.support.shell import run_here, write_records

WRITTEN = ["['a cat', 'cats']", '["a cat", "cats"]', "['a cat' 'cats']", ' ["it\'s a cat"] ', "['a cat'\n 'cats']"]
PLAIN = ["[CLS] a cat", "[1, 2]", "a ['cat']", "['a cat'] sat", "[]", "'a cat'"]
MESSAGE = "are among the texts, and each is scored as a single text"

CALLS = {
    "bert_score": lambda encoder, text: bert_score(["a cat"], [text], encoder),
    "candidates": lambda encoder, text: bert_score([text], ["a cat"], encoder),
    "metric": lambda encoder, text: BERTScore(encoder).update(["a cat"], [[text, "cats"]]),
    "ranking": lambda encoder, text: rank_candidates([["a cat", "cats"]], [text], encoder),
    "reward": lambda encoder, text: BERTScoreReward(encoder)(completions=["a cat"], references=[text]),
    "PairScorer": lambda encoder, text: PairScorer(encoder.name, num_layers=1)(
        {"candidate": ["a cat"], "reference": [text]}
    ),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize("text", WRITTEN)
def test_lists_written_as_text_are_named(encoder, call, text):
    with pytest.warns(UserWarning, match=MESSAGE) as warned:
        call(encoder, text)

    # Python shows a message once for each line.
    assert len({(str(warning.message), warning.lineno) for warning in warned}) == 1


@pytest.mark.parametrize("text", PLAIN)
def test_other_texts_with_brackets_are_plain(encoder, text, recwarn):
    bert_score(["a cat"], [text], encoder)

    assert not [warning for warning in recwarn if MESSAGE in str(warning.message)]


@pytest.mark.parametrize("command", ["score", "rank"])
def test_the_shell_names_lists_written_as_text(minilm, tmp_path, monkeypatch, capsys, command):
    monkeypatch.chdir(tmp_path)
    texts = {"candidate": "a cat", "candidates": ["a cat", "cats"]}
    write_records(tmp_path / "pairs.jsonl", [{**texts, "reference": text} for text in WRITTEN])
    words = [command, "pairs.jsonl", "--reference-column", "reference", "-m", minilm, "-l", 1, "--device", "cpu"]
    if command == "rank":
        words += ["-o", "best.jsonl"]

    printed = run_here(capsys, *words)

    assert printed.err.count(MESSAGE) == 1


@pytest.mark.filterwarnings("error")
def test_columns_with_another_index_are_named(encoder):
    preds = pd.Series(["a cat", "it rains", "go"], index=["x", "y", "z"])
    target = pd.Series(["went", "a cat", "rain"], index=["z", "x", "y"])

    for call in (lambda *texts: bert_score(*texts, encoder), BERTScore(encoder).update):
        with pytest.raises(UserWarning, match="the same index in another order, and are paired by position"):
            call(preds, target)
        call(preds, target.loc[preds.index])
        call(preds, target.reset_index(drop=True))
        call(preds.tolist(), target)
