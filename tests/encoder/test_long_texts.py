"""Texts that are longer than the encoder: windows against hand-made windows, and their memory."""

import resource
import subprocess

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoConfig, AutoModel, AutoTokenizer

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


def windowed(minilm, limit, stride=None, layer=3):
    return FrozenEncoder(minilm, num_layers=layer, max_length=limit, long_text="window", stride=stride)


@settings(max_examples=150, deadline=None)
@given(length=st.integers(0, 60), room=st.integers(1, 12), data=st.data())
def test_every_token_comes_from_the_window_with_most_context(parts, length, room, data):
    stride = data.draw(st.integers(1, room))
    tokenizer = TextTokenizer(*parts, TokenizerSettings(max_length=room + 2, long_text="window", stride=stride))
    content = list(range(1000, 1000 + length))
    ids = [101, *content, 102]
    windows = cut_into_windows(ids, tokenizer)
    if length <= room:
        assert [window.ids for window in windows] == [ids]
        return
    starts = sorted({*range(0, length - room, stride), length - room})
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


def test_vectors_are_those_of_the_windows_themselves(minilm, parts):
    text = long_text(90)
    encoder = windowed(minilm, 34, stride=16)
    found = encoder.encode([text]).vectors[0]
    tokenizer, _ = parts
    content = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert len(found) == len(content) + 2
    model = AutoModel.from_pretrained(minilm).eval()
    starts = [*range(0, len(content) - 32, 16), len(content) - 32]

    def vectors_of(start):
        ids = torch.tensor([[101, *content[start : start + 32], 102]])
        with torch.no_grad():
            hidden = model(ids, output_hidden_states=True).hidden_states[3][0]
        return hidden / hidden.norm(dim=-1, keepdim=True)

    windows = [vectors_of(start) for start in starts]
    for token in range(len(content)):
        context = [min(token - s, s + 31 - token) for s in starts]
        chosen = context.index(max(context))
        torch.testing.assert_close(found[token + 1], windows[chosen][token - starts[chosen] + 1], atol=1e-5, rtol=0)
    torch.testing.assert_close(found[0], windows[0][0], atol=1e-5, rtol=0)
    torch.testing.assert_close(found[-1], windows[-1][-1], atol=1e-5, rtol=0)


def test_the_start_of_a_long_text_agrees_with_its_own_window(minilm):
    text = long_text(700)
    windows = FrozenEncoder(minilm, num_layers=6, long_text="window")
    cut = FrozenEncoder(minilm, num_layers=6)
    whole, start = windows.encode([text]), cut.encode([text])
    assert start.lengths.tolist() == [512]
    assert whole.lengths.item() > 1 + 255 + 510
    # The next window takes over in the middle of what the two share, which is half a window.
    shared = 1 + 255 + 127
    torch.testing.assert_close(whole.vectors[0, :shared], start.vectors[0, :shared], atol=1e-5, rtol=0)
    assert (whole.vectors[0, shared + 2] - start.vectors[0, shared + 2]).abs().max() > 1e-3


def test_texts_that_fit_score_exactly_as_before(minilm, pairs):
    corpus = pairs[0][:12], pairs[1][:12]
    windows = FrozenEncoder(minilm, num_layers=5, long_text="window")
    expected, found = bert_score(*corpus, FrozenEncoder(minilm, num_layers=5)), bert_score(*corpus, windows)
    for name in ("precision", "recall", "f1"):
        assert torch.equal(expected[name], found[name])


def test_the_end_of_a_long_text_counts(minilm):
    text = long_text(600)
    changed = " ".join([*text.split()[:-3], "entirely other words"])
    assert bert_score([changed], [text], FrozenEncoder(minilm, num_layers=5))["f1"].item() == pytest.approx(1, abs=1e-6)
    found = bert_score([changed], [text], FrozenEncoder(minilm, num_layers=5, long_text="window"))["f1"].item()
    assert 0.9 < found < 0.9999


def test_windows_in_the_metric_with_idf_and_without_warning(minilm, recwarn):
    texts = [long_text(70), "a short one", long_text(65)[5:]]
    target = [[long_text(69), "b"], ["another short one"], [long_text(64)]]
    encoder = windowed(minilm, 40, stride=20)
    assert len(encoder.tokenizer([target[2][0]]).ids[0]) > 2 * 40
    expected = bert_score(texts, target, encoder, idf=True)
    metric = BERTScore(encoder, idf=True, reduction="none")
    for one, several in zip(texts, target, strict=True):
        metric.update([one], [several])
    torch.testing.assert_close(metric.compute()["f1"], expected["f1"], atol=1e-6, rtol=0)
    assert "long:window/20" in metric.signature()
    assert not [w for w in recwarn if issubclass(w.category, UserWarning)]


def test_matching_in_blocks_equals_matching_at_once(minilm, monkeypatch):
    corpus = [long_text(150), long_text(20)], [long_text(155)[9:], long_text(170)[3:]]
    at_once = bert_score(*corpus, FrozenEncoder(minilm, all_layers=True), idf=True)
    monkeypatch.setattr("bertscore_tm.core.matching._NUMBERS_PER_STEP", 7 * 2000)
    blocks = bert_score(*corpus, FrozenEncoder(minilm, all_layers=True), idf=True)
    for name in ("precision", "recall", "f1"):
        torch.testing.assert_close(blocks[name], at_once[name], atol=1e-6, rtol=0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"long_text": "cut"}, "long_text='cut' is not one of 'truncate', 'window', 'error'"),
        ({"stride": 10}, "stride=10 needs long_text='window'"),
        ({"long_text": "window", "stride": 0}, "stride=0 must be from 1 to 510"),
        ({"long_text": "window", "stride": 511}, "stride=511 must be from 1 to 510"),
    ],
)
def test_impossible_settings(minilm, options, message):
    with pytest.raises(ValueError, match=message):
        bert_score(["a"], ["b"], FrozenEncoder(minilm, num_layers=2, **options))


def test_error_mode(minilm):
    encoder = FrozenEncoder(minilm, num_layers=2, long_text="error")
    with pytest.raises(ValueError, match="has 603 tokens, the limit is 512; long_text='truncate' cuts such texts"):
        bert_score(["word"], ["a word " * 300 + "end"], encoder)


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
