"""Minimum risk over a generator's own samples, scaled to the gradient norm of cross-entropy."""

import math
from types import SimpleNamespace

import pytest
import torch
from transformers import T5Config, T5ForConditionalGeneration

from bertscore_tm.losses import sequence_log_probs
from bertscore_tm.losses.sequence import risk as risk_module
from tests.losses.sequence.test_sampling import ROWS, batch_of, make_model
from tests.support.models import padded
from tests.support.risk import REFERENCES, make_risk


def test_the_gradient_is_that_of_the_exact_expectation():
    sizes = {"d_model": 16, "d_kv": 4, "d_ff": 16, "num_layers": 1, "num_heads": 2, "initializer_factor": 0.3}
    options = {"vocab_size": 8, "decoder_start_token_id": 0, "eos_token_id": None, "pad_token_id": 0}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = T5ForConditionalGeneration(T5Config(dropout_rate=0.0, **sizes, **options))
    inputs = {"input_ids": torch.tensor([[3, 4]]), "attention_mask": torch.ones(1, 2).long()}
    options = {"num_samples": 200, "temperature": 0.9, "alpha": 1.0, "max_new_tokens": 1}
    risk = make_risk(reward=lambda completions, references: [int(text) / 7 for text in completions], **options)
    risk.tokenizer = SimpleNamespace(batch_decode=lambda ids, skip_special_tokens: [str(i) for [i] in ids])
    risk.calls, risk.balance.norms = 1, torch.ones(2)  # not measured: the factor is 1
    torch.manual_seed(0)
    value = risk(model, inputs, ["a"])
    ids = torch.arange(8)[None, :, None]
    log_probs = sequence_log_probs(model, inputs, ids, torch.ones_like(ids).bool(), temperature=0.9)
    exact = (log_probs.exp()[0, :, 0] * (1 - torch.arange(8) / 7)).sum()

    torch.testing.assert_close(value, exact, atol=1e-6, rtol=0)
    ours, theirs = (torch.autograd.grad(loss, model.parameters()) for loss in (value, exact))
    torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=1e-4)


def cross_entropy_of(model, rows):
    """The model's own cross-entropy of labels for the inputs of ``ROWS``."""
    if model.config.is_encoder_decoder:
        start = [[3, *row[:-1]] for row in rows]
        return model(**batch_of("right"), decoder_input_ids=padded(start, 0), labels=padded(rows)).loss
    ids = padded([prompt + row for prompt, row in zip(ROWS, rows, strict=True)], 0)
    labels = padded([[-100] * len(prompt) + row for prompt, row in zip(ROWS, rows, strict=True)])
    return model(input_ids=ids, labels=labels).loss


# What the tokenizer makes of targets, up to the limit; for a decoder without its special tokens, and with an end.
LABELS = {"t5": [[3, 5, 6], [3, 7, 8], [3, 10, 4]], "gpt2": [[5, 6, 4], [7, 8, 9], [10, 4]]}


@pytest.mark.parametrize("given", [None, [[11, 4], [5, 9, 12, 6, 4], [8]]], ids=["references", "labels"])
@pytest.mark.parametrize(("family", "side"), [("t5", "right"), ("gpt2", "left")])
def test_its_gradient_is_as_large_as_that_of_cross_entropy(family, side, given):
    model = make_model(family)
    inputs = batch_of(side)
    risk = make_risk(weight=2.0, balance_every=2, max_new_tokens=3)
    torch.manual_seed(0)
    value = risk(model, inputs, REFERENCES, None if given is None else padded(given))
    cross_entropy = cross_entropy_of(model, given or LABELS[family])
    weight = model.get_output_embeddings().weight
    norms = [torch.autograd.grad(loss, weight, retain_graph=True)[0].norm() for loss in (value, cross_entropy)]

    torch.testing.assert_close(norms[0], 2 * norms[1], rtol=1e-4, atol=0)
    torch.testing.assert_close(risk.balance.norms[0], norms[1])
    before = risk.balance.norms.clone()
    risk(model, inputs, REFERENCES).backward()
    assert torch.equal(risk.balance.norms, before)
    risk(model, inputs, REFERENCES)
    assert not torch.equal(risk.balance.norms, before)


def test_texts_that_end_at_once_or_have_no_reward():
    model = make_model("t5")
    likely = torch.zeros(model.config.vocab_size).index_fill(0, torch.tensor(model.generation_config.eos_token_id), 5.0)
    model.lm_head.register_forward_hook(lambda module, inputs, logits: logits + likely)
    risk = make_risk(max_new_tokens=3, num_samples=8)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        value = risk(model, batch_of("right"), REFERENCES)
    value.backward()

    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())
    rewarded = []
    scores = risk.reward

    def without_first(completions, references):
        rewarded.extend(completions)
        return [None] * 8 + scores(completions, references)[8:]

    risk.reward = without_first
    assert risk(model, batch_of("right"), REFERENCES).isfinite()
    assert "" in rewarded


def test_inputs_without_references_are_left_out(monkeypatch):
    model = make_model("t5")
    inputs = batch_of("right")
    risk = make_risk(balance_every=1)

    assert risk(model, inputs, [[], [], []]) == 0
    with monkeypatch.context() as patch:
        patch.setattr(risk_module, "_gradient_norm", lambda loss, parameters: torch.tensor(torch.inf))
        assert risk(model, inputs, REFERENCES).isfinite()
    assert risk.balance.norms.tolist() == [0, 0]
    risk.balance_every = 20  # a measurement that failed is repeated by the next sampling
    scores = risk.reward
    risk.reward = lambda completions, references: [0.5] * len(completions)
    assert risk(model, inputs, REFERENCES).isfinite()
    assert risk.balance.norms.tolist() == [0, 0]
    risk.reward = scores
    assert risk(model, inputs, [REFERENCES[0], [], REFERENCES[2]]).isfinite()
    assert risk.balance.norms.isfinite().all()
    assert risk.balance.norms.min() > 0


@pytest.mark.parametrize("without_gradients", [torch.no_grad, torch.inference_mode])
def test_a_validation_measures_and_counts_nothing(without_gradients):
    model = make_model("t5")
    inputs = batch_of("right")
    risk = make_risk()
    values = []
    for context in (without_gradients, torch.enable_grad, without_gradients):
        torch.manual_seed(0)
        with context():
            values.append(risk(model, inputs, REFERENCES).detach())

    assert risk.calls == 1
    factor = risk.balance.norms[0] / risk.balance.norms[1]
    torch.testing.assert_close(values[0] * factor, values[1])
    torch.testing.assert_close(values[2], values[1])


def test_calls_between_two_samplings_are_a_constant_zero():
    """Validations in between do not count, and a checkpoint keeps the rhythm."""
    model = make_model("t5")
    inputs = batch_of("right")
    options = {"every": 2, "balance_every": 2}
    risk = make_risk(**options)
    sampled = []
    norms = []

    for call in range(8):
        with torch.no_grad():
            assert risk(model, inputs, REFERENCES) > 0
        if call == 5:
            state = risk.state_dict()
            risk = make_risk(**options)
            risk.load_state_dict(state)
        before = torch.get_rng_state()
        value = risk(model, inputs, REFERENCES)
        is_sampled = not torch.equal(torch.get_rng_state(), before)
        assert value.requires_grad == is_sampled == (value != 0)
        sampled += [call] * is_sampled
        norms.append(tuple(risk.balance.norms.tolist()))

    assert sampled == [0, 2, 4, 6]
    assert len({*norms[:4]}) == len({*norms[4:]}) == 1  # measured by calls 0 and 4
    assert norms[4] != norms[3]


@pytest.mark.parametrize(
    ("references", "equal"),
    [
        ([["", "a cat sat"], ["hello", " ", "hi there"], ["it rains today"]], REFERENCES),
        ([REFERENCES[0], None, REFERENCES[2]], [REFERENCES[0], [], REFERENCES[2]]),
    ],
    ids=["blank references are left out", "None is no reference"],
)
def test_references_that_are_not_there(references, equal):
    risk = make_risk()
    values = []
    for texts in (references, equal):
        torch.manual_seed(0)
        risk.calls = 0
        values.append(risk(make_model("t5"), batch_of("right"), texts))

    torch.testing.assert_close(values[0], values[1])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_samples": 1}, "num_samples must be a whole number of at least 2, got 1"),
        ({"num_samples": 2.5}, "num_samples must be a whole number of at least 2, got 2.5"),
        ({"max_new_tokens": 0}, "max_new_tokens must be a whole number of at least 1, got 0"),
        ({"balance_every": 0.5}, "balance_every must be a whole number of at least 1, got 0.5"),
        ({"every": 0}, "every must be a whole number of at least 1, got 0"),
        ({"temperature": 0.0}, "temperature must be above 0, got 0.0"),
        ({"weight": -1.0}, "weight must be above 0, got -1.0"),
        ({"alpha": 0.0}, "alpha must be above 0 and finite, got 0.0"),
    ],
)
def test_wrong_settings_are_errors(options, message):
    with pytest.raises(ValueError, match=message):
        make_risk(**options)


@pytest.mark.parametrize(
    ("references", "error", "message"),
    [
        (["a", "b"], ValueError, "got references of 2 inputs for 3 inputs"),
        ("abc", TypeError, "references is a single string: pass a list"),
        (["a", b"b", "c"], TypeError, r"references\[1\] must be .* decode bytes"),
        (["a", ["b", None], "c"], TypeError, r"references\[1\]\[1\] must be a text or a chat"),
    ],
)
def test_wrong_references_are_errors(references, error, message):
    with pytest.raises(error, match=message):
        make_risk()(make_model("t5"), batch_of("right"), references)


def test_labels_are_those_of_the_inputs():
    with pytest.raises(ValueError, match="got labels of 2 inputs for 3 inputs"):
        make_risk()(make_model("t5"), batch_of("right"), REFERENCES, torch.ones(2, 4, dtype=torch.long))


@pytest.mark.parametrize(
    ("rewards", "message"),
    [
        ([0.5] * 5, "reward must return a number or None for each of 12 texts, got 5"),
        ([None, 0.5, math.nan] + [0.5] * 9, "reward must be finite, or None to leave a text out, got nan for 'word"),
        ([-math.inf] * 12, "reward must be finite"),
    ],
)
def test_a_reward_has_a_finite_number_for_each_text(rewards, message):
    risk = make_risk(reward=lambda completions, references: rewards)
    with pytest.raises(ValueError, match=message):
        risk(make_model("t5"), batch_of("right"), REFERENCES)


def test_rewards_that_hardly_differ_do_not_set_the_factor():
    """Its gradient would be a million times that of cross-entropy for the next samplings."""
    model = make_model("t5")
    inputs = batch_of("right")
    usual = make_risk(num_samples=3)
    usual(model, inputs, REFERENCES)

    assert usual.balance.norms.min() > 0
    risk = make_risk(num_samples=3)
    scores = risk.reward
    risk.reward = lambda completions, references: [0.5, 0.5 + 6e-8, 0.5] * 3
    assert risk(model, inputs, REFERENCES).isfinite()
    assert risk.balance.norms.tolist() == [0, 0]
    risk.reward = scores
    risk(model, inputs, REFERENCES)
    assert risk.balance.norms[0] / risk.balance.norms[1] < 1000


def test_the_factor_is_bounded():
    risk = make_risk()
    model = make_model("t5")
    inputs = batch_of("right")
    values = []
    for norm in (1e-3, 1e-9):
        risk.balance.norms = torch.tensor([1.0, norm])
        risk.calls = 1
        torch.manual_seed(0)
        values.append(risk(model, inputs, REFERENCES).item())

    assert values[0] == values[1] > 0
