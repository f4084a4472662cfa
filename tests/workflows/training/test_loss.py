"""The loss in training: compiled, checkpointed, and in mixed precision. On ranks: workflows/ranks/test_losses.py."""

import pytest
import torch
from torch import nn
from torch._inductor import config as inductor_config
from torch.utils.checkpoint import checkpoint

from bertscore_tm import FrozenEncoder
from bertscore_tm.encoder.soft_tokens import embedding_table
from bertscore_tm.losses import SoftBERTScoreLoss
from tests.support.models import tiny_generator, tiny_model
from tests.support.soft_predictions import IGNORE, grad_of, labels_of, near_labels, relax, tiny

TARGET = torch.tensor([[50, 60, 70, 80, 90, 3], [51, IGNORE, 61, 71, 81, 3]])
FULL = TARGET.masked_fill(TARGET == IGNORE, 55)
IDF = {token: 1.0 + token % 3 for token in range(800)}


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch.compiler.reset()
    # No worker processes, because starting them takes longer than compiling. Everything else is as for users.
    with inductor_config.patch({"compile_threads": 1}):
        yield
    torch.compiler.reset()


# The step is traced whole, because a break in the graph would be an error. "inductor" is torch.compile's default and
# compiles to machine code; it gets an encoder without layers, because those would take most of the time. "aot_eager"
# differentiates ahead of time, and "eager" runs the graph, in one family from encoded texts.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "backend", "options", "from_hidden"),
    [
        ("bert", "inductor", {}, False),
        ("bert", "aot_eager", {"matching": "max", "relaxation": relax, "idf": IDF}, False),
        *((family, "eager", {}, False) for family in ("roberta", "distilbert", "mpnet", "bart", "t5")),
        ("bert", "aot_eager", {"idf": IDF}, True),
        ("bert", "eager", {}, True),
    ],
)
def test_one_graph_holds_the_loss(family, backend, options, from_hidden):
    if from_hidden and torch.__version__ < "2.13":
        pytest.skip("this version of torch ends the graph where the scale of the logits is measured")
    encoder = FrozenEncoder(*tiny_model(family), num_layers=0 if backend == "inductor" else 1)
    loss = SoftBERTScoreLoss(encoder, **options)
    target, texts = TARGET.clamp(max=70), ["the cat sat", "it rains"]
    head = nn.Linear(8, loss.encoder.config.vocab_size)
    hidden = torch.randn((*TARGET.shape, 8)).masked_fill((TARGET == IGNORE)[..., None], torch.nan)

    def step(hidden, target):
        if not from_hidden:
            return loss(head(hidden), target, TARGET != IGNORE)
        value, cross_entropy = loss.forward_hidden(hidden, head, TARGET, return_cross_entropy=True)
        return torch.stack([value, cross_entropy])

    if family == "distilbert":
        target = loss.encode_references(texts)
    results = []
    # The compiled one first, before anything is loaded.
    for function in (torch.compile(step, fullgraph=True, backend=backend), step):
        torch.manual_seed(0)
        head.zero_grad()
        results.append([*grad_of(function, hidden, target)])
        if from_hidden:  # else NaN reaches the layer
            results[-1] += [parameter.grad.clone() for parameter in head.parameters()]
    torch.testing.assert_close(results[0], results[1], atol=1e-6, rtol=1e-3 if backend == "inductor" else 1e-4)
    assert results[0][1].any()


def test_recomputed_in_the_backward_pass(encoder):
    labels = labels_of(encoder)
    loss = SoftBERTScoreLoss(encoder)
    z = near_labels(encoder, labels)
    results = []

    for function in (loss, lambda *args: checkpoint(loss, *args, use_reentrant=False)):
        torch.manual_seed(0)
        results.append(grad_of(function, z, labels))

    torch.testing.assert_close(results[0], results[1], atol=0, rtol=0)


def value_of(loss, model, target, hidden):
    """The loss from logits or from hidden states."""
    output = model(target, output_hidden_states=True)
    return (
        loss.forward_hidden(output.hidden_states[-1], model.lm_head, target) if hidden else loss(output.logits, target)
    )


def gradients(model):
    """All gradients in one row."""
    return torch.cat([p.grad.float().flatten() for p in model.parameters() if p.grad is not None])


@pytest.mark.parametrize("hidden", [False, True])
@pytest.mark.parametrize("mixed", [False, True])
def test_bfloat16(mixed, hidden):
    """Mixed, and true: only the generator's own rounding shows."""
    loss = SoftBERTScoreLoss(tiny("bert", "float32"))
    exact, rounded = (tiny_generator("gpt2", vocab_size=800) for _ in range(2))
    if not mixed:
        rounded, loss = rounded.to(torch.bfloat16), loss.to(torch.bfloat16)
    values = []

    for model in (exact, rounded):
        with torch.autocast("cpu", torch.bfloat16, enabled=mixed and model is rounded):
            value = value_of(loss, model, FULL, hidden)
        assert value.dtype == torch.float32
        value.backward()
        values.append(value.item())

    assert values[1] == pytest.approx(values[0], abs=5e-3)
    assert torch.cosine_similarity(gradients(rounded), gradients(exact), dim=0) > 0.98
    assert embedding_table(loss.encoder, "cpu").dtype == torch.float32
