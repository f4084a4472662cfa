"""Texts that are longer than the encoder: windows against hand-made windows, and their memory."""

import resource
import subprocess

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoConfig, AutoTokenizer

from bertscore_tm import BERTScore, FrozenEncoder, bert_score
from bertscore_tm.encoder.tokenization import TextTokenizer, TokenizerSettings, cut_into_windows
from examples.benchmarks.processes import run_fresh

pytestmark = pytest.mark.usefixtures("one_thread")


def long_text(words: int) -> str:
    """Real words in shuffled order, without repetition of whole sentences."""
    source = (torch.__doc__ or "").split() + (subprocess.__doc__ or "").split()
    return " ".join(source[(i * 7 + i // len(source)) % len(source)] for i in range(words))


@pytest.fixture(scope="module")
def parts(minilm):
    return AutoTokenizer.from_pretrained(minilm), AutoConfig.from_pretrained(minilm)


@settings(max_examples=150, deadline=None)
@given(length=st.integers(0, 60), room=st.integers(1, 12), data=st.data())
def test_every_token_comes_from_the_window_with_most_context(parts, length, room, data):
    stride = data.draw(st.none() | st.integers(1, room))
    tokenizer = TextTokenizer(*parts, TokenizerSettings(max_length=room + 2, long_text="window", stride=stride))
    content = list(range(1000, 1000 + length))
    ids = [101, *content, 102]
    windows = cut_into_windows(ids, tokenizer)
    if length <= room:
        assert [window.ids for window in windows] == [ids]
        return
    starts = sorted({*range(0, length - room, stride or max(room // 2, 1)), length - room})
    assert [window.ids for window in windows] == [[101, *content[s : s + room], 102] for s in starts]
    owner = {}
    for number, window in enumerate(windows):
        for place in range(window.first, window.last):
            token = window.start + place - window.first
            assert token not in owner
            owner[token] = number
            assert window.ids[place] == ids[token]
    assert sorted(owner) == list(range(len(ids)))
    assert (owner[0], owner[len(ids) - 1]) == (0, len(windows) - 1)
    for token in range(length):
        # Slowly: the distance to the nearer end, in each window that holds the token.
        context = {n: min(token - s, s + room - 1 - token) for n, s in enumerate(starts) if s <= token < s + room}
        best = max(context.values())
        assert owner[token + 1] == min(n for n, c in context.items() if c == best)


def test_the_end_of_a_long_text_counts_and_texts_that_fit_score_as_before(minilm, pairs):
    encoder, windows = (FrozenEncoder(minilm, num_layers=5, long_text=kind) for kind in ("truncate", "window"))
    text = long_text(600)
    changed = " ".join([*text.split()[:-3], "entirely other words"])
    corpus = [*pairs[0][:12], changed], [*pairs[1][:12], text]
    expected, found = bert_score(*corpus, encoder), bert_score(*corpus, windows)
    for name in ("precision", "recall", "f1"):
        assert torch.equal(expected[name][:12], found[name][:12])
    assert expected["f1"][12].item() == pytest.approx(1, abs=1e-6)
    assert 0.9 < found["f1"][12].item() < 0.9999


def test_windows_in_the_metric_with_idf_and_without_warning(minilm, recwarn):
    texts = [long_text(70), "a short one", long_text(65)[5:]]
    target = [[long_text(69), "b"], ["another short one"], [long_text(64)]]
    encoder = FrozenEncoder(minilm, num_layers=3, max_length=40, long_text="window", stride=20)
    assert len(encoder.tokenizer([target[2][0]]).ids[0]) > 2 * 40
    expected = bert_score(texts, target, encoder, idf=True)
    metric = BERTScore(encoder, idf=True, reduction="none")
    for one, several in zip(texts, target, strict=True):
        metric.update([one], [several])
    torch.testing.assert_close(metric.compute()["f1"], expected["f1"], atol=1e-6, rtol=0)
    assert "long:window/20" in metric.signature()
    assert not [w for w in recwarn if issubclass(w.category, UserWarning)]


def test_matching_in_blocks_equals_matching_at_once(minilm, monkeypatch):
    corpus = [long_text(90), long_text(20)], [long_text(95)[9:], long_text(99)[3:]]
    at_once = bert_score(*corpus, FrozenEncoder(minilm, all_layers=True), idf=True)
    monkeypatch.setattr("bertscore_tm.core.memory._NUMBERS_PER_STEP", 7 * 2000)
    blocks = bert_score(*corpus, FrozenEncoder(minilm, all_layers=True), idf=True)
    for name in ("precision", "recall", "f1"):
        torch.testing.assert_close(blocks[name], at_once[name], atol=1e-6, rtol=0)


def memory_of_a_document(minilm, words):
    """Return its tokens, the F1 with itself without its end, and the growth of the process's peak in MB."""
    encoder = FrozenEncoder(minilm, num_layers=1, long_text="window", stride=510)
    bert_score([long_text(400)], [long_text(390)], encoder)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    f1 = bert_score([long_text(words)], [long_text(words - 50)], encoder)["f1"].item()
    tokens = len(encoder.tokenizer([long_text(words)]).ids[0])
    return tokens, f1, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024


@pytest.mark.slow
def test_a_document_of_11000_tokens_scores_in_bounded_memory(minilm):
    tokens, f1, megabytes = run_fresh(memory_of_a_document, minilm, 7_000)
    assert tokens > 11_000
    assert 0.95 < f1 <= 1
    # The matrix of similarities alone would take 480 MB; the vectors of both texts take 34 MB.
    assert 30 < megabytes < 250
