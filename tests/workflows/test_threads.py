"""Several threads at once: shared encoders, tokenizers and switches, with the results of one thread."""

import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from transformers import AutoConfig, AutoModel

from bertscore_tm import BERTScore, FrozenEncoder, bert_score, rank_candidates
from bertscore_tm.losses import BERTScoreReward, SoftBERTScoreLoss
from tests.support.models import randomised, tiny_model, tiny_tokenizer
from tests.support.soft_predictions import labels_of, noise
from tests.support.texts import real_pairs

THREADS, CALLS = 4, 24


@pytest.fixture(autouse=True)
def small_switch_interval():
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


def assert_equal_in_threads(calls, rounds=CALLS):
    """Run each call again and again in threads, and compare with its result in this one."""
    expected = [call() for call in calls]
    with ThreadPoolExecutor(THREADS) as pool:
        numbers = [number % len(calls) for number in range(rounds * len(calls))]
        results = list(pool.map(lambda number: calls[number](), numbers))
    for number, result in zip(numbers, results, strict=True):
        torch.testing.assert_close(result, expected[number], atol=1e-6, rtol=0)


@pytest.mark.filterwarnings("ignore:.*longer than 16 tokens")
def test_entries_on_encoders_of_one_tokenizer():
    """Texts above the limit of one of two encoders, and within that of the other."""
    model, tokenizer = tiny_model("bert")
    short, long = (FrozenEncoder(model, tokenizer, num_layers=2, max_length=limit) for limit in (16, 64))
    candidates, references = real_pairs(6, words=12)

    def update(encoder):
        metric = BERTScore(encoder, reduction="none")
        metric.update(candidates, references)
        return metric.compute()["f1"]

    calls = []
    for encoder in (short, long):
        loss, reward, shorter = SoftBERTScoreLoss(encoder), BERTScoreReward(encoder), ["the cat sat", "it rains"]
        labels = labels_of(encoder, shorter)
        logits = noise(encoder, *labels.shape)
        calls += [
            lambda encoder=encoder: bert_score(candidates, references, encoder)["f1"],
            lambda encoder=encoder: update(encoder),
            lambda encoder=encoder: torch.cat(rank_candidates([candidates], [references[0]], encoder).scores),
            lambda loss=loss, logits=logits, texts=shorter: loss(logits, texts),
            lambda reward=reward: torch.tensor(reward(candidates, references)),
        ]
    assert_equal_in_threads(calls)


def test_a_tokenizer_is_neither_changed_nor_followed():
    """Its user's truncation and padding stay as they are, and later changes have no effect."""
    model, tokenizer = tiny_model("bert")
    used = tiny_tokenizer.__wrapped__("wordpiece")
    used(["a cat"], truncation=True, max_length=3, padding="max_length")
    state = used.backend_tokenizer.truncation, used.backend_tokenizer.padding
    encoder = FrozenEncoder(model, used, num_layers=2)
    text = ["a cat sat on the mat in the rain"]
    expected = encoder.encode(text).vectors
    assert (used.backend_tokenizer.truncation, used.backend_tokenizer.padding) == state
    assert torch.equal(FrozenEncoder(model, tokenizer, num_layers=2).encode(text).vectors, expected)
    used.truncation_side = "left"
    used.add_tokens(["the mat"])  # not in the vocabulary, unlike words
    assert torch.equal(encoder.encode(text).vectors, expected)
    # One that is made now has tokens of its own, and shares no vectors with the first.
    with pytest.raises(ValueError, match=r"token 800 \('the mat'\) has no embedding"):
        FrozenEncoder(model, used, num_layers=2).encode(text)


def mamba():
    config = AutoConfig.for_model("mamba", hidden_size=32, state_size=4, num_hidden_layers=3, vocab_size=800)
    with torch.random.fork_rng():
        return randomised(AutoModel.from_config(config)), tiny_tokenizer("wordpiece")


@pytest.mark.parametrize("kind", ["big_bird", "mamba"])
def test_models_that_a_call_changes(kind):
    """BigBird's attention depends on the length of a text; hooks take the states of a type that is not listed."""
    model, tokenizer = mamba() if kind == "mamba" else tiny_model(kind)
    encoder = FrozenEncoder(model, tokenizer, all_layers=True)
    texts = [" ".join(text.split()[:words]) for text in real_pairs(2)[0] for words in (3, 60)]
    assert_equal_in_threads([lambda text=text: encoder.encode([text]).vectors for text in texts], rounds=8)
