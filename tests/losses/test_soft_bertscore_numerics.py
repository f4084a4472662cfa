"""SoftBERTScoreLoss is finite for all inputs, in every precision."""

import pytest
import torch
from torch.nn.functional import one_hot

from bertscore_tm import FrozenEncoder
from bertscore_tm.losses import SoftBERTScoreLoss
from tests.support.soft_predictions import CPU, IGNORE, MATCHINGS, TEXTS, grad_of, labels_of, near_labels, noise, tiny

pytestmark = pytest.mark.usefixtures("one_thread")


def extreme_logits(encoder, kind, dtype):
    shape = (2, 3, len(encoder.embedding_table(CPU)))
    largest = torch.finfo(dtype).max
    z = noise(encoder, *shape[:2], scale=1.0)
    if kind == "constant":
        z = torch.zeros(shape)
    elif kind == "one-hot":
        z = 1e4 * one_hot(z.argmax(-1), shape[-1]).float()
    elif kind == "control only":
        z = torch.full(shape, -torch.inf)
        z[..., encoder.tokenizer.end_ids] = 1.0
    elif kind == "lowest":
        z = torch.full(shape, -largest)
    elif isinstance(kind, float):
        z = (z.sign() * kind).clamp(-largest, largest)
    elif kind == "largest":
        z = z.sign() * largest
    return z.to(dtype)


@pytest.mark.parametrize(
    ("dtype", "temperature"),
    [(torch.float32, 1.0), (torch.float32, 0.01), (torch.bfloat16, 0.01), (torch.float16, 1.0)],
)
def test_finite_for_all_logits(dtype, temperature):
    encoder = tiny("bert", "float32")
    loss = SoftBERTScoreLoss(encoder, temperature=temperature, matching_temperature=temperature * 0.1)
    for kind in ("random", "constant", "one-hot", 1e4, 1e30, -1e30, "largest", "lowest", "control only"):
        z = extreme_logits(encoder, kind, dtype)
        assert not z.isnan().any()
        value, gradient = grad_of(loss, z, torch.tensor([[50, 60, 70], [51, 61, IGNORE]]))
        assert value.dtype == torch.float32
        assert 0 <= value <= 2
        assert gradient.dtype == dtype
        assert gradient.isfinite().all()


@pytest.mark.parametrize(("matching", "component"), [("max", "f1"), ("softmax", "precision")])
def test_rows_without_content_leave_the_mean(encoder, matching, component):
    labels = labels_of(encoder)
    z = noise(encoder, *labels.shape)
    options = {"matching": matching, "component": component}
    loss = SoftBERTScoreLoss(encoder, reduction="none", **options)
    expected, expected_gradient = grad_of(loss, z, labels)
    mask = torch.tensor([[True], [False], [True]]).expand(labels.shape)
    ignored = labels.masked_fill(~mask, IGNORE)
    ended = torch.where(mask, labels, torch.tensor(102))
    texts = [TEXTS[0], "  ", TEXTS[2]]
    for args in ((labels, mask), (ignored,), (ended,), (TEXTS, (labels != IGNORE) & mask), (texts, labels != IGNORE)):
        value, gradient = grad_of(loss, z, *args)
        # An empty text is a prediction or a reference, whose score is 0 as in the metric.
        count = 2 if isinstance(args[0], torch.Tensor) else 3
        assert value[1] == count - 2
        assert (gradient[1] == 0).all()
        assert torch.allclose(value[[0, 2]], expected[[0, 2]], rtol=0, atol=1e-6)
        assert torch.allclose(gradient[[0, 2]], expected_gradient[[0, 2]], rtol=0, atol=1e-6)
        mean, gradient = grad_of(SoftBERTScoreLoss(encoder, **options), z, *args)
        assert mean.item() == pytest.approx(value.sum().item() / count, abs=1e-6)
        assert torch.allclose(gradient[[0, 2]], expected_gradient[[0, 2]] / count, rtol=0, atol=1e-6)


@pytest.mark.parametrize("matching", MATCHINGS)
def test_nothing_but_empty_rows(encoder, matching):
    z = noise(encoder, 2, 3)
    nothing = torch.full((2, 3), IGNORE)
    for args in ((nothing,), (["", " "],), (TEXTS[:2], torch.zeros(2, 3, dtype=torch.bool))):
        value, gradient = grad_of(SoftBERTScoreLoss(encoder, matching=matching), z, *args)
        assert value == (args[0] is not nothing)
        assert (gradient == 0).all()
    value, gradient = grad_of(SoftBERTScoreLoss(encoder, matching=matching), z[:, :0], nothing[:, :0])
    assert value == 0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_changes_nothing(encoder, dtype):
    labels = labels_of(encoder)
    z = near_labels(encoder, labels)
    for args in ((labels,), (TEXTS, labels != IGNORE)):
        value, gradient = grad_of(SoftBERTScoreLoss(encoder), z, *args)
        leaf = z.clone().requires_grad_()
        with torch.autocast("cpu", dtype):
            inside = SoftBERTScoreLoss(encoder)(leaf, *args)
        inside.backward()
        assert inside.dtype == torch.float32
        assert inside.item() == pytest.approx(value.item(), abs=1e-6)
        assert torch.allclose(leaf.grad, gradient, rtol=0, atol=1e-7)
        # Logits in half precision lose their own rounding only.
        short = z.to(dtype)
        assert SoftBERTScoreLoss(encoder)(short, *args) == SoftBERTScoreLoss(encoder)(short.float(), *args)


def test_bfloat16_encoder_is_close(minilm, encoder):
    labels = labels_of(encoder)
    z = near_labels(encoder, labels)
    value, gradient = grad_of(SoftBERTScoreLoss(FrozenEncoder(minilm, num_layers=5, dtype="bfloat16")), z, labels)
    exact, exact_gradient = grad_of(SoftBERTScoreLoss(encoder), z, labels)
    assert value.dtype == torch.float32
    assert value.item() == pytest.approx(exact.item(), abs=5e-3)
    assert torch.cosine_similarity(gradient.flatten(), exact_gradient.flatten(), dim=0) > 0.99
