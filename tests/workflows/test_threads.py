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

THREADS = 4
# How often each call runs.
CALLS = 16


@pytest.fixture(autouse=True)
def small_switch_interval():
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


def assert_equal_in_threads(calls, rounds=CALLS):
    """Run each call again and again in threads, and compare with its result in this one."""
    expected = [call() for call in calls]
    numbers = list(range(len(calls))) * rounds

    with ThreadPoolExecutor(THREADS) as pool:
        results = list(pool.map(lambda number: calls[number](), numbers))

    for number, result in zip(numbers, results, strict=True):
        torch.testing.assert_close(result, expected[number], atol=1e-6, rtol=0)


@pytest.mark.filterwarnings("ignore:.*longer than 16 tokens")
def test_encoders_of_one_tokenizer_score_in_threads():
    """Texts above the limit of one of two encoders, and within that of the other."""
    model, tokenizer = tiny_model("bert")
    short, long = (FrozenEncoder(model, tokenizer, num_layers=2, max_length=limit) for limit in (16, 64))

    assert_equal_in_threads(calls_of(short) + calls_of(long))


def calls_of(encoder):
    """Calls of all entries that share an encoder."""
    candidates, references = real_pairs(6, words=12)
    shorter = ["the cat sat", "it rains"]
    loss = SoftBERTScoreLoss(encoder)
    reward = BERTScoreReward(encoder)
    logits = noise(encoder, *labels_of(encoder, shorter).shape)

    def update():
        metric = BERTScore(encoder, reduction="none")
        metric.update(candidates, references)
        return metric.compute()["f1"]

    return [
        lambda: bert_score(candidates, references, encoder)["f1"],
        update,
        lambda: torch.cat(rank_candidates([candidates], [references[0]], encoder).scores),
        lambda: loss(logits, shorter),
        lambda: torch.tensor(reward(candidates, references)),
    ]


@pytest.fixture
def used():
    """A tokenizer with truncation and padding of its user."""
    used = tiny_tokenizer.__wrapped__("wordpiece")
    used(["a cat"], truncation=True, max_length=3, padding="max_length")
    return used


TEXT = ["a cat sat on the mat in the rain"]


def test_a_tokenizer_keeps_its_users_truncation_and_padding(used):
    model, tokenizer = tiny_model("bert")
    expected = FrozenEncoder(model, tokenizer, num_layers=2).encode(TEXT).vectors
    truncation, padding = used.backend_tokenizer.truncation, used.backend_tokenizer.padding

    vectors = FrozenEncoder(model, used, num_layers=2).encode(TEXT).vectors

    assert torch.equal(vectors, expected)
    assert used.backend_tokenizer.truncation == truncation
    assert used.backend_tokenizer.padding == padding


def test_an_encoder_does_not_follow_changes_of_a_tokenizer(used):
    model, _ = tiny_model("bert")
    encoder = FrozenEncoder(model, used, num_layers=2)
    expected = encoder.encode(TEXT).vectors

    used.truncation_side = "left"
    used.add_tokens(["the mat"])  # not in the vocabulary, unlike words

    assert torch.equal(encoder.encode(TEXT).vectors, expected)
    # An encoder that is made now has tokens of its own, and shares no vectors with the first.
    with pytest.raises(ValueError, match=r"token 800 \('the mat'\) has no embedding"):
        FrozenEncoder(model, used, num_layers=2).encode(TEXT)


def mamba():
    """Return a tiny Mamba and a tokenizer."""
    config = AutoConfig.for_model("mamba", hidden_size=32, state_size=4, num_hidden_layers=3, vocab_size=800)
    with torch.random.fork_rng():
        return randomised(AutoModel.from_config(config)), tiny_tokenizer("wordpiece")


@pytest.mark.parametrize("kind", ["big_bird", "mamba"])
def test_models_that_a_call_changes_encode_in_threads(kind):
    """BigBird's attention depends on the length of a text; hooks take the states of a type that is not listed."""
    parts = mamba() if kind == "mamba" else tiny_model(kind)
    encoder = FrozenEncoder(*parts, all_layers=True)
    texts = real_pairs(2, words=3)[0] + real_pairs(2)[0]

    calls = [lambda text=text: encoder.encode([text]).vectors for text in texts]

    assert_equal_in_threads(calls, rounds=8)
