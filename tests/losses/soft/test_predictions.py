"""Predictions of a generator as soft tokens: which positions and tokens count."""

import pytest
import torch
from torch.nn.functional import one_hot

from bertscore_tm.losses import SoftBERTScoreLoss, VocabularyBridge
from bertscore_tm.losses.soft.predictions import SoftTokens, _find_kinds, encode_soft_tokens
from tests.support.models import tiny_tokenizer
from tests.support.soft_predictions import (
    IGNORE,
    grad_of,
    labels_of,
    near_labels,
    noise,
    relax,
    tiny,
)


def test_logits_of_control_tokens_do_not_matter(encoder):
    labels = labels_of(encoder)
    z = near_labels(encoder, labels)
    value, gradient = grad_of(SoftBERTScoreLoss(encoder), z, labels)
    controls = [0, 101, 102]

    assert (gradient[..., controls] == 0).all()
    z[..., controls] = torch.tensor([1e4, -1e4, torch.inf])
    other_value, other_gradient = grad_of(SoftBERTScoreLoss(encoder), z, labels)
    assert torch.equal(value, other_value)
    assert torch.equal(gradient, other_gradient)


def test_ids_outside_the_vocabulary_count_as_text():
    """The last row stands for them, also if the tokenizer's special tokens have such ids."""
    kinds = _find_kinds(4, control_ids=[0, 2, 4, 9], end_ids=[2, 4, 9])

    is_text, is_end = kinds.unbind(1)
    assert is_text.tolist() == [False, True, False, True, True]
    assert is_end.tolist() == [False, False, True, False, False]


def extreme_logits(encoder, kind, dtype):
    largest = torch.finfo(dtype).max
    z = noise(encoder, 2, 3, scale=1.0)
    if kind == "one-hot":
        z = 1e4 * one_hot(z.argmax(-1), z.shape[-1]).float()
    elif kind == "control only":
        z = z.fill_(-torch.inf).index_fill(2, torch.tensor(encoder.tokenizer.end_ids), 1.0)
    elif kind == "lowest":
        z.fill_(-largest)
    elif kind != "random":
        z = (z.sign() * kind).clamp(-largest, largest)
    return z.to(dtype)


@pytest.mark.parametrize(
    ("dtype", "temperature"),
    [(torch.float32, 1.0), (torch.float32, 0.01), (torch.bfloat16, 0.01), (torch.float16, 1.0)],
)
@pytest.mark.parametrize("kind", ["random", "one-hot", 0.0, 1e4, 1e30, torch.inf, "lowest", "control only"])
@pytest.mark.parametrize("relaxation", ["softmax", relax])
def test_finite_for_all_logits(dtype, temperature, kind, relaxation):
    encoder = tiny("bert", "float32")
    options = {"temperature": temperature, "matching_temperature": temperature * 0.1, "relaxation": relaxation}
    loss = SoftBERTScoreLoss(encoder, **options)
    z = extreme_logits(encoder, kind, dtype)

    assert not z.isnan().any()
    value, gradient = grad_of(loss, z, torch.tensor([[50, 60, 70], [51, 61, IGNORE]]))
    assert value.dtype == torch.float32
    assert 0 <= value <= 2
    assert gradient.dtype == dtype
    assert gradient.isfinite().all()


@pytest.mark.parametrize("mode", ["mean", "expand"])
def test_no_position_through_a_bridge(mode):
    encoder = tiny("bert", "float32")
    loss = SoftBERTScoreLoss(encoder, VocabularyBridge(tiny_tokenizer("bytes"), encoder, mode, min_fidelity=0))

    assert loss(torch.zeros(2, 0, loss.bridge.vocab_size), torch.zeros(2, 0, dtype=torch.long)) == 0


def test_weights_are_not_rounded_to_the_precision_of_the_encoder():
    """As labels on an accelerator are encoded."""
    encoder = tiny("bert", "bfloat16")
    idf = {token: 1.0 + token % 97 / 97 for token in range(encoder.config.vocab_size)}
    vocabulary = SoftBERTScoreLoss(encoder, idf=idf)._load_vocabulary(torch.device("cpu"))
    labels = labels_of(encoder)
    ids = labels.clamp(min=0)
    content = labels != IGNORE
    soft = SoftTokens(vocabulary.table[ids], content, vocabulary.weights[ids])
    weights = encode_soft_tokens(soft, vocabulary).mass.weights
    expected = torch.tensor([idf[token] for token in labels[0][content[0]].tolist()])

    torch.testing.assert_close(weights[0, 1 : len(expected) + 1], expected, rtol=1e-6, atol=0)
