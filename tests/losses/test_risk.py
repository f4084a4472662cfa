"""Minimum risk over a generator's own samples, and losses scaled to the gradient norm of another."""

from typing import ClassVar

import pytest
import torch
from transformers import AutoTokenizer, T5Config, T5ForConditionalGeneration

from bertscore_tm import FrozenEncoder
from bertscore_tm.losses import (
    BERTScoreReward,
    BERTScoreRisk,
    MinimumRiskLoss,
    SelfCriticalLoss,
    match_gradient_norm,
    sequence_log_probs,
)
from bertscore_tm.losses.sequence import risk as risk_module
from tests.losses.test_sampling import batch_of, make_model

pytestmark = pytest.mark.usefixtures("one_thread")

REFERENCES = ["a cat sat", ["hello", "hi there"], ["it rains today"]]
WORDS = 8


@pytest.fixture(scope="module")
def tokenizer(minilm):
    return AutoTokenizer.from_pretrained(minilm)


class Letters:
    """A tokenizer's decoder for a vocabulary of a few letters."""

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer

    def batch_decode(self, ids, skip_special_tokens):
        return ["".join("abcdefgh"[i] for i in row) for row in ids.tolist()]

    def __call__(self, text_target):
        return {"input_ids": ["abcdefgh".index(letter) for letter in text_target]}


class Words:
    """A tokenizer for a tiny generator: the ids of the references, and words for what it samples."""

    ids: ClassVar = {"a cat sat": [5, 6], "hello": [7, 8, 9], "it rains today": [10]}

    def batch_decode(self, ids, skip_special_tokens):
        return [" ".join(f"word{i}" for i in row if i > 4) for row in ids.tolist()]

    def __call__(self, text_target):
        return {"input_ids": self.ids[text_target]}


def letters_risk(tokenizer, reward, **options):
    risk = BERTScoreRisk("unused", tokenizer, reward=reward, max_new_tokens=1, **options)
    risk.tokenizer = Letters(tokenizer)
    return risk


def of_letters(seed=0):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        sizes = {
            "d_model": 16,
            "d_kv": 4,
            "d_ff": 16,
            "num_layers": 1,
            "num_heads": 2,
            "dropout_rate": 0.0,
            "initializer_factor": 0.3,
        }
        config = T5Config(vocab_size=WORDS, decoder_start_token_id=0, eos_token_id=None, pad_token_id=0, **sizes)
        return T5ForConditionalGeneration(config)


def by_letter(completions, references):
    """The reward of a letter: its place in the alphabet."""
    return ["abcdefgh".index(letter) / 7 for letter in completions]


def test_the_gradient_is_that_of_the_exact_expectation_on_a_tiny_vocabulary(tokenizer):
    model, inputs = of_letters(), {"input_ids": torch.tensor([[3, 4]]), "attention_mask": torch.ones(1, 2).long()}
    risk = letters_risk(tokenizer, by_letter, num_samples=200, temperature=0.9, alpha=1.0)
    risk.calls += 1  # not measured: the factor is 1
    torch.manual_seed(0)
    found = risk(model, inputs, ["a"])
    ids = torch.arange(WORDS)[None, :, None]
    log_probs = sequence_log_probs(model, inputs, ids, torch.ones_like(ids).bool(), temperature=0.9)
    exact = (log_probs.exp()[0, :, 0] * (1 - torch.arange(WORDS) / 7)).sum()
    torch.testing.assert_close(found, exact, atol=1e-6, rtol=0)
    for got, wanted in zip(*(torch.autograd.grad(one, model.parameters()) for one in (found, exact)), strict=True):
        torch.testing.assert_close(got, wanted, atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize(("family", "side"), [("t5", "right"), ("gpt2", "left")])
def test_its_gradient_is_as_large_as_that_of_cross_entropy(minilm, tokenizer, family, side):
    model, inputs = make_model(family), batch_of(side)
    risk = BERTScoreRisk(FrozenEncoder(minilm, num_layers=1), tokenizer, max_new_tokens=5, weight=2.0, balance_every=2)
    risk.tokenizer = Words()
    torch.manual_seed(0)
    value = risk(model, inputs, REFERENCES)
    ids = torch.tensor([[[5, 6, 0]], [[7, 8, 9]], [[10, 0, 0]]])
    mask = torch.tensor([[[1, 1, 0]], [[1, 1, 1]], [[1, 0, 0]]]).bool()
    cross_entropy = -sequence_log_probs(model, inputs, ids, mask).sum() / 6
    weight = model.get_output_embeddings().weight
    expected = 2 * match_gradient_norm(value, cross_entropy, weight)
    torch.testing.assert_close(value, expected, rtol=1e-4, atol=0)
    before = risk.norms.clone()
    risk(model, inputs, REFERENCES).backward()
    assert torch.equal(risk.norms, before)
    risk(model, inputs, REFERENCES)
    assert not torch.equal(risk.norms, before)
    restored = BERTScoreRisk(FrozenEncoder(minilm, num_layers=1), tokenizer)
    restored.load_state_dict(risk.state_dict())
    assert torch.equal(restored.norms, risk.norms)
    assert restored.calls == 3


def test_texts_that_end_at_once_or_have_no_reward(minilm, tokenizer):
    model, encoder = make_model("t5"), FrozenEncoder(minilm, num_layers=1)
    likely = torch.zeros(model.config.vocab_size).index_fill(0, torch.tensor(model.generation_config.eos_token_id), 5.0)
    model.lm_head.register_forward_hook(lambda module, inputs, logits: logits + likely)
    risk = BERTScoreRisk(encoder, tokenizer, max_new_tokens=3, num_samples=8)
    risk.tokenizer = Words()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        value = risk(model, batch_of("right"), REFERENCES)
    value.backward()
    assert all(one.grad is None or one.grad.isfinite().all() for one in model.parameters())
    rewarded, scores = [], BERTScoreReward(encoder)

    def without_first(completions, references):
        rewarded.extend(completions)
        return [None] * 8 + scores(completions, references)[8:]

    risk.reward = without_first
    assert risk(model, batch_of("right"), REFERENCES).isfinite()
    assert "" in rewarded


def test_inputs_without_references_and_measurements_that_are_not_finite_are_left_out(minilm, tokenizer, monkeypatch):
    model, inputs = make_model("t5"), batch_of("right")
    risk = BERTScoreRisk(FrozenEncoder(minilm, num_layers=1), tokenizer, max_new_tokens=5, balance_every=1)
    risk.tokenizer = Words()
    assert risk(model, inputs, [[], [], []]) == 0
    with monkeypatch.context() as patch:
        patch.setattr(risk_module, "gradient_norm", lambda *given: torch.tensor(torch.inf))
        assert risk(model, inputs, REFERENCES).isfinite()
    assert risk.norms.tolist() == [0, 0]
    assert risk(model, inputs, [REFERENCES[0], [], REFERENCES[2]]).isfinite()
    assert risk.norms.isfinite().all()
    assert risk.norms.min() > 0


def test_wrong_numbers_are_errors(minilm, tokenizer):
    encoder = FrozenEncoder(minilm, num_layers=1)
    with pytest.raises(ValueError, match="num_samples must be at least 2, got 1"):
        BERTScoreRisk(encoder, tokenizer, num_samples=1)
    assert BERTScoreRisk(encoder, tokenizer, num_samples=2, balance_every=1).num_samples == 2
    with pytest.raises(ValueError, match="references of 2 inputs for 3 inputs"):
        BERTScoreRisk(encoder, tokenizer)(make_model("t5"), batch_of("right"), ["a", "b"])


def losses_of(layer, hidden, scale):
    """Cross-entropy and the expected risk of the same predictions."""
    log_probs = layer(hidden).log_softmax(-1)
    ids = torch.tensor([[[1, 2, 3], [4, 0, 2]], [[3, 3, 1], [2, 4, 4]]])
    cross_entropy = -log_probs[:, 0].gather(-1, ids[:, 0, :, None]).mean()
    rewards = torch.tensor([[0.9, 0.1], [0.2, 0.7]]) * scale
    return cross_entropy, MinimumRiskLoss()(log_probs.gather(-1, ids[..., None])[..., 0], rewards)


@pytest.mark.parametrize("scale", [1.0, 100.0])
@pytest.mark.parametrize("several", [False, True])
def test_the_gradient_has_the_norm_and_keeps_its_direction(scale, several):
    torch.manual_seed(0)
    layer, hidden = torch.nn.Linear(4, 5), torch.randn(2, 2, 3, 4)
    cross_entropy, risk = losses_of(layer, hidden, scale)
    tensors = list(layer.parameters()) if several else layer.weight
    scaled = match_gradient_norm(risk, cross_entropy, tensors)

    def gradient(loss):
        parts = torch.autograd.grad(loss, tensors, retain_graph=True)
        return torch.cat([part.flatten() for part in parts])

    ours, before, wanted = map(gradient, (scaled, risk, cross_entropy))
    assert wanted.norm() > 10 * before.norm() / scale
    torch.testing.assert_close(ours.norm(), wanted.norm())
    torch.testing.assert_close(torch.cosine_similarity(ours, before, dim=0), torch.tensor(1.0))
    assert match_gradient_norm(risk.bfloat16(), cross_entropy, tensors).dtype == torch.bfloat16
    # The graph is kept for the backward pass of the sum.
    (cross_entropy + 0.3 * scaled).backward()
    assert layer.weight.grad.isfinite().all()


def test_norms_of_half_precision_are_computed_in_float32():
    weight = torch.ones(3, dtype=torch.bfloat16, requires_grad=True)
    scaled = match_gradient_norm(weight.float().sum(), weight.float()[0], weight)
    torch.testing.assert_close(scaled, torch.tensor(3.0).sqrt())


def leave_one_out(log_probs, rewards):
    return SelfCriticalLoss()(log_probs, rewards)


@pytest.mark.parametrize("loss", [MinimumRiskLoss(alpha=1.0), leave_one_out])
@pytest.mark.parametrize("reward", [0.1, 123.4])
def test_equal_rewards_give_no_gradient_rather_than_a_scaled_rounding_error(loss, reward):
    for seed in range(10):
        torch.manual_seed(seed)
        layer = torch.nn.Linear(4, 5)
        log_probs = layer(torch.randn(2, 7, 3, 4)).log_softmax(-1)[..., 0]
        cross_entropy = -log_probs[:, 0].mean()
        scaled = match_gradient_norm(loss(log_probs, torch.full((2, 7), reward)), cross_entropy, layer.weight)
        assert scaled.item() == 0
        assert torch.autograd.grad(scaled, layer.weight)[0].abs().max() == 0


def test_errors_name_the_loss():
    weight, other = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
    with pytest.raises(ValueError, match=r"loss must be a scalar, got shape \(2,\)"):
        match_gradient_norm(weight * 2, weight.sum(), weight)
    with pytest.raises(ValueError, match="reference does not depend on the tensors"):
        match_gradient_norm(weight.sum(), other.sum(), weight)
    with pytest.raises(ValueError, match="reference does not depend on the tensors"):
        match_gradient_norm(weight.sum(), torch.tensor(1.0), weight)
