"""Gradients of the loss: right for each relaxation and matching, and out of the encoder's and memory's way."""

import gc

import pytest
import torch
from torch.nn.functional import linear
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoTokenizer

from bertscore_tm.losses import SoftBERTScoreLoss
from bertscore_tm.losses.relaxation import RELAXATIONS, resolve_relaxation
from tests.support.soft_predictions import CPU, IGNORE, MATCHINGS, certain, grad_of, labels_of, near_labels, noise, tiny

pytestmark = pytest.mark.usefixtures("one_thread")

ALL_MATCHINGS = [*MATCHINGS, "transport"]
TARGET = torch.tensor([[50, 60, 70, 80, 90], [51, IGNORE, 61, 71, 81]])


def along_directions(encoder, loss, target=TARGET, scale=1.0):
    """The loss as a function of four numbers, in float64."""
    base = noise(encoder, 2, 5, dtype=torch.float64, scale=scale) + certain(encoder, target, 4.0)
    directions = noise(encoder, 4, 2, 5, dtype=torch.float64, seed=1, scale=scale)

    def along(x):
        torch.manual_seed(3)
        return loss(base + torch.einsum("k,kbtv->btv", x, directions), target)

    return along


# The relaxation acts before the encoder and the matching after it: each is varied for one of the other.
@pytest.mark.parametrize(
    ("relaxation", "matching"),
    [
        *(("softmax", matching) for matching in ALL_MATCHINGS),
        *((relaxation, "softmax") for relaxation in ("gumbel", "sparsemax", "entmax15")),
    ],
)
def test_gradcheck(relaxation, matching):
    loss = SoftBERTScoreLoss(tiny(), relaxation=relaxation, matching=matching, temperature=0.8, reduction="none")
    along = along_directions(tiny(), loss)
    x = torch.full((4,), 0.01, dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(along(x).sum(), x)
    assert gradient.abs().max() > 1e-3
    assert torch.autograd.gradcheck(along, x, eps=1e-6, atol=1e-7, rtol=1e-5)


@pytest.mark.parametrize("matching", ["softmax", "transport"])
@pytest.mark.parametrize("options", [{"top_k": 6}, {"idf": dict.fromkeys(range(800), 1.0)}], ids=["top_k", "idf"])
def test_gradcheck_of_options(options, matching):
    loss = SoftBERTScoreLoss(tiny(), matching=matching, reduction="none", **options)
    x = torch.full((4,), 0.01, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(along_directions(tiny(), loss), x, eps=1e-6, atol=1e-7, rtol=1e-5)


@pytest.mark.parametrize(
    ("relaxation", "matching"),
    [("straight-through", "max"), ("straight-through", "softmax"), ("straight-through-gumbel", "softmax")],
)
def test_straight_through_has_the_gradient_of_the_soft_probabilities(relaxation, matching):
    """By the chain rule: the gradient at the one-hot value, times the derivative of the soft probabilities."""
    encoder = tiny()
    loss = SoftBERTScoreLoss(encoder, relaxation=relaxation, matching=matching)
    z = noise(encoder, 2, 5, dtype=torch.float64) + certain(encoder, TARGET, 4.0)
    torch.manual_seed(0)
    _, gradient = grad_of(loss, z, TARGET)
    torch.manual_seed(0)
    leaf = z.clone().requires_grad_()
    soft = resolve_relaxation(relaxation).relaxation(leaf, 1.0, encoder.tokenizer.control_ids)
    one_hot = torch.zeros_like(soft).scatter(-1, soft.argmax(-1, keepdim=True), 1.0).detach().requires_grad_()
    plain = SoftBERTScoreLoss(encoder, relaxation=lambda logits, *_: logits, matching=matching)
    plain(one_hot, TARGET).backward()
    soft.backward(one_hot.grad)
    torch.testing.assert_close(gradient, leaf.grad, atol=1e-12, rtol=1e-9)
    assert gradient.abs().max() > 1e-6


# The path without logits


def output_layer(encoder, features=24, bias=True, dtype=torch.float64):
    generator = torch.Generator().manual_seed(5)
    size = len(encoder.embedding_table(CPU))
    head = torch.nn.Linear(features, size, bias=bias, dtype=dtype)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    return head


IDF = {token: 1.0 + token % 3 for token in range(800)}


@pytest.mark.parametrize(
    ("options", "length", "temperature", "bias"),
    [
        ({}, "target", 1.0, True),
        ({}, "target", 0.4, False),
        ({"idf": IDF}, "target", 1.0, False),
        ({}, "eos", 0.4, True),
        ({"idf": IDF}, "eos", 0.4, True),
    ],
    ids=["plain", "temperature", "idf", "eos", "idf-eos"],
)
def test_hidden_states_give_what_logits_give(options, length, temperature, bias):
    encoder = tiny()
    head = output_layer(encoder, bias=bias)
    hidden = torch.randn(2, 5, 24, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    loss = SoftBERTScoreLoss(encoder, temperature=temperature, length=length, **options)
    results = []
    for from_hidden in (False, True):
        leaf = hidden.clone().requires_grad_()
        head.zero_grad()
        if from_hidden:
            value, components = loss.forward_hidden(leaf, head, TARGET, None, True)
        else:
            value, components = loss(head(leaf), TARGET, None, True)
        value.backward()
        results.append([value.detach(), *components.values(), leaf.grad, *(p.grad.clone() for p in head.parameters())])
        assert leaf.grad.abs().max() > 1e-6
    torch.testing.assert_close(results[0], results[1], atol=1e-10, rtol=1e-8)


@pytest.mark.parametrize("padded", [0, 5])
@pytest.mark.parametrize("components", [False, True])
def test_cross_entropy_of_the_same_pass(components, padded, encoder):
    """That of torch, also with output layers that are padded beyond the tokenizer's vocabulary."""
    tokenizer = AutoTokenizer.from_pretrained(encoder.name)
    bridge = {"generator_tokenizer": tokenizer} if padded else {}
    loss = SoftBERTScoreLoss(encoder, **bridge)
    head = output_layer(encoder, 16, dtype=torch.float32)
    if padded:
        wider = torch.nn.Linear(16, len(tokenizer) + padded)
        with torch.no_grad():
            wider.weight[: len(tokenizer)], wider.bias[: len(tokenizer)] = head.weight, head.bias
        head = wider
    labels = torch.nn.functional.pad(labels_of(encoder), (0, 1), value=IGNORE)
    hidden = torch.randn(3, 8, 16, generator=torch.Generator().manual_seed(1))
    results = []
    for together in (False, True):
        leaf = hidden.clone().requires_grad_()
        head.zero_grad()
        if together:
            value, cross_entropy, *rest = loss.forward_hidden(leaf, head, labels, None, components, True)
            assert len(rest) == components
        else:
            value = loss.forward_hidden(leaf, head, labels)
            cross_entropy = torch.nn.functional.cross_entropy(head(leaf).flatten(0, 1), labels.flatten())
        (value + 0.5 * cross_entropy).backward()
        gradients = [leaf.grad, *(parameter.grad.clone() for parameter in head.parameters())]
        results.append([value.detach(), cross_entropy.detach(), *gradients])
    torch.testing.assert_close(results[0], results[1], atol=2e-6, rtol=1e-5)
    with pytest.raises(TypeError, match="return_cross_entropy=True needs labels as the target, got a list"):
        loss.forward_hidden(hidden, head, ["a", "b", "c"], return_cross_entropy=True)


def test_hidden_states_with_the_weight_alone(encoder):
    head = output_layer(encoder, 16, bias=False, dtype=torch.float32)
    hidden = torch.randn(3, 7, 16, generator=torch.Generator().manual_seed(1))
    labels = labels_of(encoder)
    loss = SoftBERTScoreLoss(encoder)
    expected = loss(linear(hidden, head.weight), labels)
    assert loss.forward_hidden(hidden, head.weight, labels).item() == pytest.approx(expected.item(), abs=1e-6)
    assert loss.forward_hidden(hidden, head, labels).item() == pytest.approx(expected.item(), abs=1e-6)
    assert loss.forward_hidden(hidden.bfloat16(), head.bfloat16(), labels).dtype == torch.float32


def test_components_of_half_precision_hidden_states(encoder):
    head = output_layer(encoder, 16, dtype=torch.bfloat16)
    hidden = torch.randn(3, 7, 16, generator=torch.Generator().manual_seed(1)).bfloat16()
    loss, labels = SoftBERTScoreLoss(encoder), labels_of(encoder)
    _, found = loss.forward_hidden(hidden, head, labels, return_components=True)
    _, expected = loss(linear(hidden.float(), head.weight.float(), head.bias.float()), labels, return_components=True)
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, atol=1e-4, rtol=1e-4)


def test_hidden_states_that_cannot_be(encoder):
    hidden, weight = torch.zeros(2, 3, 4), torch.zeros(30522, 4)
    labels = torch.full((2, 3), 2000)
    for options, said in (({"relaxation": "gumbel"}, "relaxation='gumbel'"), ({"top_k": 3}, "top_k=3")):
        with pytest.raises(ValueError, match=f"relaxation='softmax' over all tokens only.*{said}"):
            SoftBERTScoreLoss(encoder, **options).forward_hidden(hidden, weight, labels)
    loss = SoftBERTScoreLoss(encoder)
    with pytest.raises(ValueError, match=r"hidden must have shape .* got \(2, 4\)"):
        loss.forward_hidden(hidden[:, 0], weight, labels)
    with pytest.raises(TypeError, match=r"output layer with a weight.*got a ReLU"):
        loss.forward_hidden(hidden, torch.nn.ReLU(), labels)
    with pytest.raises(ValueError, match=r"lm_head has a vocabulary of 5 .*30522.*generator_tokenizer="):
        loss.forward_hidden(hidden, weight[:5], labels)


def test_no_logits_exist_on_the_path_without_them(encoder):
    """Not one tensor of positions times vocabulary is made."""

    class Largest(TorchDispatchMode):
        size = 0

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            out = function(*args, **(kwargs or {}))
            for tensor in out if isinstance(out, (tuple, list)) else [out]:
                if isinstance(tensor, torch.Tensor):
                    Largest.size = max(Largest.size, tensor.numel())
            return out

    positions, features = 640, 8
    head = output_layer(encoder, features, dtype=torch.float32)
    hidden = torch.randn(positions // 8, 8, features).requires_grad_()
    labels = torch.randint(2000, 20000, (positions // 8, 8))
    # The cache of the labels reserves its memory in slabs.
    loss = SoftBERTScoreLoss(encoder.__class__(encoder.name, num_layers=1), cache_bytes=0)
    with Largest():
        loss.forward_hidden(hidden, head, labels).backward()
    assert Largest.size < positions * 30522 / 1.5  # the encoder's table alone has 30522 x 384


# What must not happen


def test_no_gradient_and_no_memory_stay_with_the_encoder(encoder):
    labels = labels_of(encoder)
    loss = SoftBERTScoreLoss(encoder)
    z = near_labels(encoder, labels)

    def living():
        gc.collect()
        return sum(1 for thing in gc.get_objects() if isinstance(thing, torch.Tensor))

    for _ in range(2):
        grad_of(loss, z, labels)
    before = living()
    for _ in range(3):
        value, gradient = grad_of(loss, z, labels)
        del value, gradient
    assert living() == before
    backbone = encoder.backbone(CPU)
    assert not any(p.requires_grad or p.grad is not None for p in backbone.parameters())


def test_transport_prices_what_is_said_twice(encoder):
    text = "the committee met in the morning and adjourned after lunch"
    texts = [text, f"{text} {text}", "lunch lunch lunch lunch lunch lunch"]
    labels = labels_of(encoder, texts)
    scores = {}
    for matching in ("max", "transport"):
        loss = SoftBERTScoreLoss(encoder, matching=matching, reduction="none")
        scores[matching] = (1 - loss(certain(encoder, labels), [text] * 3, labels != IGNORE)).tolist()
    assert scores["max"][0] == pytest.approx(1, abs=1e-5)
    assert scores["transport"][0] == pytest.approx(1, abs=1e-3)
    assert scores["max"][1] > 0.9  # greedy matching hardly minds
    assert 0.55 < scores["transport"][1] < 0.7  # half of the candidate finds its matches taken
    assert scores["transport"][2] < 0.75 * scores["max"][2]


@pytest.mark.parametrize(
    ("relaxation", "matching"),
    [
        *(("softmax", matching) for matching in ALL_MATCHINGS),
        *((relaxation, "softmax") for relaxation in RELAXATIONS if relaxation != "softmax"),
        ("straight-through-gumbel", "transport"),
    ],
)
def test_finite_for_all_logits_and_targets(relaxation, matching):
    encoder = tiny("bert", "float32")
    random = noise(encoder, *TARGET.shape)
    largest = torch.finfo(torch.float32).max
    one_hot = torch.nn.functional.one_hot(random.argmax(-1), random.shape[-1])
    nothing, half = torch.full_like(TARGET, IGNORE), TARGET.masked_fill(torch.tensor([[True], [False]]), IGNORE)
    for length in ("target", "eos"):
        loss = SoftBERTScoreLoss(
            encoder, relaxation=relaxation, matching=matching, length=length, matching_temperature=0.01
        )
        for z in (random, torch.zeros_like(random), 1e4 * one_hot, random.sign() * largest, random * 1e30):
            for args in ((TARGET,), (nothing,), (half,), (["", "a cat"],), (TARGET, torch.zeros_like(TARGET))):
                value, gradient = grad_of(loss, z.float(), *args)
                assert value.isfinite()
                assert -0.5 <= value <= 2
                assert gradient.isfinite().all()
                if args[0] is nothing or len(args) == 2:
                    assert value == 0
                    assert (gradient == 0).all()
                if args[0] is half:
                    assert (gradient[0] == 0).all()


@pytest.mark.parametrize(
    ("options", "matching"),
    [
        *(({}, matching) for matching in ALL_MATCHINGS),
        *(({"length": "eos"}, matching) for matching in ALL_MATCHINGS),
        *((options, "softmax") for options in ({"relaxation": "sparsemax"}, {"top_k": 4}, {"idf": ["a b", "c"]})),
    ],
    ids=str,
)
def test_padding_and_neighbours_change_nothing(options, matching):
    encoder = tiny("bert", "float32")
    loss = SoftBERTScoreLoss(encoder, matching=matching, reduction="none", **options)
    z = noise(encoder, *TARGET.shape)
    together, gradient = grad_of(loss, z, TARGET)
    wide_target = torch.full((3, 12), IGNORE)
    wide = noise(encoder, 3, 12, seed=4)
    wide_target[0, ::2][:5], wide_target[2, 6:11] = TARGET[1], TARGET[0]
    wide_target[1, :2] = 99
    wide[0, ::2][:5], wide[2, 6:11] = z[1], z[0]
    value, wide_gradient = grad_of(loss, wide, wide_target)
    torch.testing.assert_close(value[[2, 0]], together, atol=1e-6, rtol=0)
    torch.testing.assert_close(wide_gradient[2, 6:11], gradient[0], atol=1e-6, rtol=0)
    torch.testing.assert_close(wide_gradient[0, ::2][:5], gradient[1], atol=1e-6, rtol=0)
